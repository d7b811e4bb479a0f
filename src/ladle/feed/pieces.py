"""Rows made of documents' pieces: of packs, of windows cut at the documents' ends, and of corpora with a loss mask."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ladle.corpus.split import Split
from ladle.feed.advise import Advisor, Reads
from ladle.feed.batch import Arrival, Batch
from ladle.feed.boundaries import Boundaries
from ladle.feed.gather import gather, gather_pieces
from ladle.feed.plan import AHEAD, Ahead, Plan, Rows
from ladle.feed.producer import Shape, Ticket
from ladle.feed.state import FeedState
from ladle.order.permutation import I64
from ladle.rows.pieces import Pieces
from ladle.rows.stream import PackedStream


@dataclass(frozen=True, slots=True)
class PieceRows:
    """Neighbouring rows and what lies in them.

    start: the token of each row's first input, int64 [rows]. [low, high): the columns of its row, for each piece, whose targets
    count, int64 [pieces].
    """

    start: I64
    pieces: Pieces
    low: I64
    high: I64

    @property
    def size(self) -> int:
        return self.start.size

    def part(self, low: int, high: int) -> PieceRows:
        """Rows [low, high) of these."""
        if (low, high) == (0, self.size):
            return self
        first, last = np.searchsorted(self.pieces.row, [low, high]).tolist()
        return PieceRows(self.start[low:high], self.pieces.part(low, high), self.low[first:last], self.high[first:last])


class PackedRows(Ahead[PieceRows]):
    """The rows of packs."""

    def __init__(self, stream: PackedStream, ahead: int = AHEAD) -> None:
        """ahead: see Ahead."""
        super().__init__(ahead)
        self.stream = stream

    def _compute(self, first: int, count: int) -> PieceRows:
        pieces = self.stream.pieces(first, count)
        begins = np.searchsorted(pieces.row, np.arange(count))  # no row is empty
        return PieceRows(pieces.start[begins], pieces, pieces.column, pieces.column + pieces.labelled)


class CutRows(Ahead[PieceRows]):
    """The rows of windows, cut where documents end."""

    def __init__(self, plan: Plan, ends: I64 | None, ahead: int = AHEAD) -> None:
        """ends: where documents end, int64 ascending, in the stream's numbering; None: rows stay whole."""
        super().__init__(ahead)
        self._plan, self._ends = plan, ends

    def _compute(self, first: int, count: int) -> PieceRows:
        rows, T = self._plan.rows(first, count), self._plan.block_size
        pieces = whole(rows, T, self._plan.stream.num_tokens) if self._ends is None else cut_at(self._ends, rows.start, T)
        low = np.maximum(pieces.column, rows.low[pieces.row])
        high = np.minimum(pieces.column + pieces.labelled, rows.high[pieces.row])
        return PieceRows(rows.start, pieces, np.minimum(low, high), high)


def whole(rows: Rows, block_size: int, num_tokens: int) -> Pieces:
    """One piece a row, as far as there are tokens."""
    number = np.arange(rows.size, dtype=np.int64)
    length = np.minimum(num_tokens - rows.start, block_size)
    nothing = np.zeros_like(number)
    return Pieces(number, nothing, rows.start, length, length, nothing)


def cut_at(ends: I64, start: I64, block_size: int) -> Pieces:
    """The pieces of the rows of T tokens that begin at these tokens. ends: where documents end, ascending; the last is N."""
    low = np.searchsorted(ends, start, side="right")
    high = np.searchsorted(ends, np.minimum(start + block_size, int(ends[-1])), side="left")
    many = high - low + 1
    row = np.repeat(np.arange(start.size, dtype=np.int64), many)
    place = np.arange(row.size, dtype=np.int64) - np.repeat(np.cumsum(many) - many, many)
    document = np.minimum(low[row] + place, ends.size - 1)
    end = ends[document]
    document_start = np.where(document > 0, ends[document - 1], 0)
    begin = np.maximum(document_start, start[row])
    stop = np.minimum(end, start[row] + block_size)
    real = np.flatnonzero(stop > begin)  # an empty document is no piece
    row, begin, stop, end = row[real], begin[real], stop[real], end[real]
    return Pieces(row, begin - start[row], begin, stop - begin, stop - begin - (stop == end), begin - document_start[real])


class PieceProducer:
    """Makes batches of such rows from tickets. As Producer: not shared between threads, and holds no position."""

    def __init__(
        self,
        split: Split,
        rows: Callable[[int], Ahead[PieceRows]],
        shape: Shape,
        *,
        packed: bool,
        documents: bool,
        loss_mask: bool,
        scattered: bool,
        ignore_index: int,
        send: Callable[[NDArray[np.int64]], Arrival],
        max_mapped: int | None = None,
        advise: bool = False,
        every: int = 1,
    ) -> None:
        """rows(ahead): the plan. packed: a row's tokens lie in pieces. documents: batches know their boundaries.
        loss_mask: the split's own mask counts. The rest: see Producer."""
        self._split, self._shape, self._ignore, self._send = split, shape, ignore_index, send
        self._packed, self._documents, self._loss_mask = packed, documents, loss_mask
        self._mine = shape.slice
        self._plan = rows(AHEAD if advise else 1)
        self._advisor: Advisor | None = None
        if advise:
            self._advisor = Advisor(
                split,
                row_tokens=shape.block_size + 1,
                stride=shape.batch_size * every,
                max_mapped=max_mapped,
                scattered=scattered,
            )

    def __call__(self, ticket: Ticket) -> Batch:
        """The batch of this ticket, on its way to the device."""
        first_row = ticket.position // self._shape.block_size
        rows = within(ticket, self._shape, self._plan.rows(first_row, self._shape.batch_size))
        return self._batch(ticket, self._shape, first_row, rows)

    def _batch(self, ticket: Ticket, shape: Shape, first_row: int, rows: PieceRows) -> Batch:
        """The batch of these rows, which is of this shape."""
        mine, T = shape.slice, shape.block_size
        own = rows.part(mine.start, mine.stop)
        if self._advisor is not None:
            self._advisor.before(self._advised(first_row), own.pieces.size, self._reads)
        block = gather_pieces(self._split, own.pieces, own.size, T) if self._packed else gather(self._split, own.start, T)
        uncounted = gaps(own, T)
        block[1].reshape(-1)[uncounted] = self._ignore
        slots = np.arange(first_row, first_row + shape.batch_size, dtype=np.int64) * T
        num_targets, local = self._count(ticket, shape, rows, slots, block[1])
        return Batch(
            self._send(block),
            position=ticket.position,
            next_position=ticket.next_position(self._shape),
            num_targets=num_targets,
            num_local_targets=local,
            rows=range(first_row + mine.start, first_row + mine.stop),
            starts=own.start,
            stream=FeedState(ticket.history, ticket.position),
            boundaries=Boundaries(own.pieces, own.size, T) if self._documents else None,
        )

    def rows(self, first: int, count: int) -> PieceRows:
        """Rows [first, first + count) of the stream."""
        return self._plan.rows(first, count)

    def _count(self, ticket: Ticket, shape: Shape, rows: PieceRows, slots: I64, y: NDArray[np.int64]) -> tuple[int, int]:
        """(targets of the global batch, of this rank's rows), with exclusions and the loss mask written into y."""
        T, mine, excluded = shape.block_size, shape.slice, ticket.history.exclusions
        row, flat = rows.pieces.row, y.reshape(-1)
        first, last = np.searchsorted(row, [mine.start, mine.stop]).tolist()
        count, start = rows.high - rows.low, rows.pieces.start - rows.pieces.column  # start: where column 0 would be
        whole, local = int(count.sum()), int(count[first:last].sum())
        if self._loss_mask:
            at = np.cumsum(count) - count
            learned = label_mask(self._split, rows)
            for piece, low, high in excluded.columns(start, rows.low, rows.high, slots[row]):
                learned[at[piece] + low - rows.low[piece] : at[piece] + high - rows.low[piece]] = 0
            masked = np.flatnonzero(learned == 0)
            num_targets = whole - masked.size
            of = np.searchsorted(at + count, masked, side="right")
            here = (of >= first) & (of < last)
            masked, of = masked[here], of[here]
            flat[(row[of] - mine.start) * T + rows.low[of] + masked - at[of]] = self._ignore
            return num_targets, local - masked.size
        if excluded:
            lost = excluded.count(start, rows.low, rows.high, slots[row])
            for piece, low, high in excluded.columns(
                start[first:last], rows.low[first:last], rows.high[first:last], slots[row[first:last]]
            ):
                base = (int(row[first + piece]) - mine.start) * T
                flat[base + low : base + high] = self._ignore
            return whole - int(lost.sum()), local - int(lost[first:last].sum())
        return whole, local

    def _advised(self, first_row: int) -> int:
        """The batch's first row as the advisor counts, to whom all batches are alike."""
        return first_row

    def _reads(self, first_row: int) -> Reads:
        return self._read_by(self._plan.rows(first_row, self._shape.batch_size).part(self._mine.start, self._mine.stop))

    def _read_by(self, rows: PieceRows) -> Reads:
        return (rows.pieces.start, rows.pieces.length + 1) if self._packed else (rows.start, self._shape.block_size + 1)


def within(ticket: Ticket, shape: Shape, rows: PieceRows) -> PieceRows:
    """The rows with what lies before the position and from the limit on left out."""
    T, limit = shape.block_size, ticket.limit
    first_row, before = divmod(ticket.position, T)
    if not before and (limit is None or limit >= (first_row + shape.batch_size) * T):
        return rows
    row, low, high = rows.pieces.row, rows.low, rows.high
    low = np.where(row == 0, np.maximum(low, before), low)
    if limit is not None:
        high = np.minimum(high, np.maximum(limit - (first_row + row) * T, 0))
    return PieceRows(rows.start, rows.pieces, np.minimum(low, high), high)


def gaps(rows: PieceRows, block_size: int) -> I64:
    """The slots of rows laid end to end whose targets do not count. int64, ascending."""
    base = rows.pieces.row * block_size
    first = np.concatenate([[0], base + rows.high])
    length = np.concatenate([base + rows.low, [rows.size * block_size]]) - first
    return np.repeat(first - (np.cumsum(length) - length), length) + np.arange(int(length.sum()), dtype=np.int64)


def label_mask(split: Split, rows: PieceRows) -> NDArray[np.uint8]:
    """The loss mask of the labels of all targets that count, piece after piece: 1 where the label is to be learned."""
    label = rows.pieces.start - rows.pieces.column + rows.low + 1
    mask: Any = split.loss_mask(label, rows.high - rows.low)
    return np.asarray(mask, dtype=np.uint8)
