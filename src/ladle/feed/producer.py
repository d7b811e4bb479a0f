"""Position -> batch. A pure function with its scratch memory; whoever calls it owns what comes out."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ladle.corpus.split import Split
from ladle.feed.advise import Advisor
from ladle.feed.batch import Batch
from ladle.feed.gather import gather
from ladle.feed.plan import AHEAD, Plan, Rows
from ladle.feed.state import FeedState
from ladle.order.permutation import I64
from ladle.order.stream import Order
from ladle.rows.windows import Windows


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
    def slice(self) -> tuple[int, int]:
        """This rank's rows [low, high) of the global batch: contiguous, sizes differing by one at most."""
        B, R = self.batch_size, self.world_size
        return self.rank * B // R, (self.rank + 1) * B // R


@dataclass(frozen=True, slots=True)
class Ticket:
    """A batch to make: it begins at `position`, and slots at or after `limit` are masked. In slots."""

    position: int
    limit: int | None

    def next_position(self, shape: Shape) -> int:
        """Where the batch after this one begins: on a row's border, or at the limit."""
        first_row = self.position // shape.block_size
        after = (first_row + shape.batch_size) * shape.block_size
        return after if self.limit is None else min(after, self.limit)


class Producer:
    """Makes batches from tickets. Not shared between threads; holds no position."""

    def __init__(
        self,
        split: Split,
        order: Order,
        windows: Windows,
        shape: Shape,
        *,
        ignore_index: int,
        state: FeedState,
        send: Callable[[NDArray[np.int64]], Any],
        max_mapped: int | None = None,
        advise: bool = False,
    ) -> None:
        """send: takes the int64 block (2, rows, T) to the device. advise: batches will follow each other, so plan ahead
        and tell the kernel what comes next."""
        self._split, self._shape, self._ignore, self._state, self._send = split, shape, ignore_index, state, send
        self._plan = Plan(order, windows, shape.block_size, ahead=AHEAD if advise else 1)
        self._advisor = Advisor(split, shape.block_size + 1, max_mapped, shuffled=order.kind != "sequential") if advise else None
        self._next_row: int | None = None

    def __call__(self, ticket: Ticket) -> Batch:
        """The batch of this ticket, on the device."""
        shape = self._shape
        B, T = shape.batch_size, shape.block_size
        first_row = ticket.position // T
        rows = self._plan.rows(first_row, B)
        low, high = rows.low, rows.high
        if ticket.position % T or (ticket.limit is not None and ticket.limit < (first_row + B) * T):
            row_slot = np.arange(first_row, first_row + B, dtype=np.int64) * T
            low = np.maximum(low, np.minimum(ticket.position - row_slot, T))
            if ticket.limit is not None:
                high = np.minimum(high, np.maximum(ticket.limit - row_slot, 0))
            low = np.minimum(low, high)
        num_targets = int(high.sum() - low.sum())
        mine = slice(*shape.slice)
        starts = rows.start[mine]
        if self._advisor is not None:
            self._advise(first_row)
        block = gather(self._split, starts, T)
        _mask(block[1], low[mine], high[mine], self._ignore)
        x, y = self._send(block)
        next_position = ticket.next_position(shape)
        return Batch(
            x,
            y,
            position=ticket.position,
            next_position=next_position,
            num_targets=num_targets,
            rows=range(first_row + mine.start, first_row + mine.stop),
            starts=starts,
            state=replace(self._state, position=next_position),
        )

    def rows(self, first: int, count: int) -> Rows:
        """Where rows [first, first + count) of the stream start, and which of their columns count."""
        return self._plan.rows(first, count)

    def _advise(self, first_row: int) -> None:
        advisor, B = self._advisor, self._shape.batch_size
        if advisor is None:
            return
        if first_row != self._next_row:
            advisor.jump()
        self._next_row = first_row + B
        low, high = self._shape.slice

        def wanted(batches_ahead: int) -> I64:
            return self._plan.rows(first_row + batches_ahead * B, B).start[low:high]

        advisor.before(wanted)


def _mask(y: NDArray[np.int64], low: I64, high: I64, ignore_index: int) -> None:
    """Write ignore_index outside [low, high) of each row. Few rows need it: the loop is over those."""
    T = y.shape[1]
    for row in np.flatnonzero((low > 0) | (high < T)):
        y[row, : low[row]] = ignore_index
        y[row, high[row] :] = ignore_index
