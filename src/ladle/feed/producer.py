"""Position -> batch. A pure function with its scratch memory; whoever calls it owns what comes out."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from ladle.corpus.split import Split
from ladle.feed.advise import Advisor, Reads
from ladle.feed.batch import Arrival, Batch
from ladle.feed.gather import gather
from ladle.feed.plan import AHEAD, Plan, Rows
from ladle.feed.recipe import History
from ladle.feed.state import FeedState
from ladle.order.permutation import I64
from ladle.rows.stream import Stream


@dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    """batch_size: rows of a global batch (B); block_size: targets a row (T); rank's slice of the B rows."""

    batch_size: int
    block_size: int
    rank: int
    world_size: int

    @property
    def slots(self) -> int:
        """Slots of a global batch."""
        return self.batch_size * self.block_size

    @property
    def slice(self) -> slice:
        """This rank's rows of the global batch: contiguous, sizes differing by one at most."""
        B, R = self.batch_size, self.world_size
        return slice(self.rank * B // R, (self.rank + 1) * B // R)

    def after(self, position: int, batches: int = 1) -> int:
        """Where the batch begins that many batches after the one at `position`: on a row's border."""
        return (position // self.block_size + batches * self.batch_size) * self.block_size

    def batches(self, position: int) -> int:
        """How many batches begin before this position."""
        return -(-position // self.slots)

    def rows(self, position: int) -> range:
        """The rows, numbered from position 0, of the batch that begins here."""
        first = position // self.block_size
        return range(first, first + self.batch_size)

    def place(self, row: int) -> tuple[int, int, int]:
        """(batch, row in it, position) of a row, counted from position 0."""
        return *divmod(row, self.batch_size), row * self.block_size


class Ticket(NamedTuple):
    """A batch to make: it begins at `position`, and slots at or after `limit` are masked. In slots.

    history: what acts on it; a ticket of another history is another ticket.
    """

    position: int
    limit: int | None
    history: History

    def next_position(self, shape: Shape, batches: int = 1) -> int:
        """Where the batch after this one begins, or the one that many batches on: on a row's border, or at the limit."""
        after = shape.after(self.position, batches) if batches else self.position
        return after if self.limit is None else min(after, self.limit)

    def following(self, shape: Shape) -> Ticket | None:
        """The ticket of the next batch, or None where this one ends at the limit."""
        after = self.next_position(shape)
        return None if after == self.limit else self._replace(position=after)


class Producer:
    """Makes batches from tickets. Not shared between threads; holds no position."""

    def __init__(
        self,
        split: Split,
        stream: Stream,
        shape: Shape,
        *,
        ignore_index: int,
        send: Callable[[NDArray[np.int64]], Arrival],
        max_mapped: int | None = None,
        advise: bool = False,
        every: int = 1,
    ) -> None:
        """send: begins to take an int64 block (2, rows, T) to the device.
        advise: batches will follow each other, so plan ahead and tell the kernel what comes next.
        every: batches from one of them to the next."""
        self._split, self._shape, self._ignore, self._send = split, shape, ignore_index, send
        self._mine = shape.slice
        self._plan = Plan(stream, shape.block_size, ahead=AHEAD if advise else 1)
        self._advisor: Advisor | None = None
        if advise:
            self._advisor = Advisor(
                split,
                row_tokens=shape.block_size + 1,
                stride=shape.batch_size * every,
                max_mapped=max_mapped,
                scattered=stream.scattered,
            )

    def __call__(self, ticket: Ticket) -> Batch:
        """The batch of this ticket, on its way to the device."""
        shape, mine = self._shape, self._mine
        first_row = ticket.position // shape.block_size
        rows = self._plan.rows(first_row, shape.batch_size)
        low, high = _within(ticket, shape, rows)
        partial = np.flatnonzero((low > 0) | (high < shape.block_size))
        excluded, slots = ticket.history.exclusions, np.empty(0, dtype=np.int64)
        num_targets, local = shape.slots, (mine.stop - mine.start) * shape.block_size
        if excluded or partial.size:
            count = high - low
            if excluded:
                slots = np.arange(first_row, first_row + shape.batch_size, dtype=np.int64) * shape.block_size
                count -= excluded.count(rows.start, low, high, slots)
            num_targets, local = int(count.sum()), int(count[mine].sum())
        if self._advisor is not None:
            self._advisor.before(first_row, mine.stop - mine.start, self._reads)
        starts = rows.start[mine]
        block = gather(self._split, starts, shape.block_size)
        if partial.size:
            _mask(block[1], partial - mine.start, low[partial], high[partial], self._ignore)
        if excluded:
            excluded.mask(block[1], starts, slots[mine], self._ignore)
        return Batch(
            self._send(block),
            position=ticket.position,
            next_position=ticket.next_position(shape),
            num_targets=num_targets,
            num_local_targets=local,
            rows=range(first_row + mine.start, first_row + mine.stop),
            starts=starts,
            stream=FeedState(ticket.history, ticket.position),
        )

    def rows(self, first: int, count: int) -> Rows:
        """Where rows [first, first + count) of the stream start, and which of their columns count."""
        return self._plan.rows(first, count)

    def _reads(self, first_row: int) -> Reads:
        return self._plan.rows(first_row, self._shape.batch_size).start[self._mine], self._shape.block_size + 1


def _within(ticket: Ticket, shape: Shape, rows: Rows) -> tuple[I64, I64]:
    """The columns [low, high) that count in each row, those before the position and from the limit on left out."""
    B, T = shape.batch_size, shape.block_size
    first_row, before = divmod(ticket.position, T)
    limit = ticket.limit
    if not before and (limit is None or limit >= (first_row + B) * T):
        return rows.low, rows.high
    low, high = rows.low.copy(), rows.high
    low[0] = max(low[0], before)
    if limit is not None:
        high = np.minimum(high, np.maximum(limit - np.arange(first_row, first_row + B, dtype=np.int64) * T, 0))
    return np.minimum(low, high), high


def _mask(y: NDArray[np.int64], rows: I64, low: I64, high: I64, ignore_index: int) -> None:
    """Write ignore_index outside columns [low, high) of these rows of y; rows outside y belong to other ranks."""
    mine = (rows >= 0) & (rows < len(y))
    rows, column = rows[mine], np.arange(y.shape[1])
    outside = (column < low[mine, None]) | (column >= high[mine, None])
    y[rows] = np.where(outside, ignore_index, y[rows])
