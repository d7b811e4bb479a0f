"""A stream of units: all that a feed knows of the order. Unit j -> where its window starts, and which columns it owns.

Two kinds: the windows of one split, and the windows of several in a mixture. Integers only; tokens are numbered through
all sources, laid end to end.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import numpy as np

from ladle.errors import ConfigError
from ladle.order.mixture import Stages
from ladle.order.permutation import I64, hash_key, permute
from ladle.order.stream import Order
from ladle.rows.windows import Windows, owned

Spans = tuple[I64, I64, I64]


class Stream(Protocol):
    """Unit -> window.

    window: W, in targets. num_tokens: of all sources. scattered: whether neighbouring units lie apart in the files.
    whole_rows: whether a row must be a whole window.
    """

    window: int
    num_tokens: int
    scattered: bool
    whole_rows: bool

    @property
    def units_per_epoch(self) -> int | None:
        """Units from one epoch's border to the next, or None where there are no epochs."""

    def spans(self, first_unit: int, count: int) -> Spans:
        """(start, low, high) of units [first_unit, first_unit + count), int64 [count] each.

        start: the token of the window's first input. [low, high): the columns, from start, whose targets it owns.
        """

    def holding(self, source: int, first: int, last: int, epoch: int) -> I64:
        """The units that read any of the targets [first, last) of a source (its own numbering) in that source's epoch."""


class WindowStream:
    """The windows of one split in an order."""

    def __init__(self, order: Order, windows: Windows) -> None:
        self.order, self.windows = order, windows
        self.window, self.num_tokens = windows.window, windows.num_tokens
        self.scattered = order.kind != "sequential"
        self.whole_rows = windows.overlaps

    @property
    def units_per_epoch(self) -> int | None:
        return None if self.order.kind == "random" else self.order.n

    def spans(self, first_unit: int, count: int) -> Spans:
        epochs, chosen = self.order.windows(first_unit, count)
        if self.order.kind == "random":  # the order drew the start itself, and every target counts
            return chosen, np.zeros_like(chosen), np.full_like(chosen, self.window)
        return self.windows.spans(epochs, chosen)

    def holding(self, source: int, first: int, last: int, epoch: int) -> I64:
        del source  # there is one
        return np.sort(self.order.units(epoch, self.windows.holding(epoch, first, last)))


class MixedStream:
    """The windows of several splits, interleaved by their weights.

    A source's order is a function of its name, the seed and its own epoch: adding or removing another moves none of it.
    """

    def __init__(self, stages: Stages, names: Sequence[str], windows: Sequence[Windows], *, shuffled: bool, seed: int) -> None:
        """names: sorted. windows: the cut of each, all of one window and tail. Raises ConfigError for cuts that do not mix."""
        for cut in windows:
            if cut.overlaps:
                raise ConfigError(
                    f"stride: expected none in a mixture (it mixes whole windows), found {cut.stride} for {cut.where}"
                )
            if cut.tail == "pad":
                raise ConfigError(f"tail: expected 'cover' or 'drop' in a mixture, found 'pad' for {cut.where}")
        self.stages, self.names, self.windows = stages, names, windows
        self.window, self.num_tokens = windows[0].window, sum(cut.num_tokens for cut in windows)
        self.scattered, self.whole_rows = True, False
        self._shuffled, self._seed = shuffled, seed
        self._counts = np.array([cut.count for cut in windows], dtype=np.int64)
        self._targets = np.array([cut.targets for cut in windows], dtype=np.int64)
        self._bases = np.cumsum([0, *(cut.num_tokens for cut in windows[:-1])], dtype=np.int64)

    @property
    def units_per_epoch(self) -> int | None:
        return None

    def spans(self, first_unit: int, count: int) -> Spans:
        source, own = self.stages.split(first_unit, count)
        epoch, place = np.divmod(own, self._counts[source])
        turns, turn = np.unique(np.stack((source, epoch)), axis=1, return_inverse=True)
        if self._shuffled:
            keys = [hash_key("order", self._seed, e, self.names[s]) for s, e in turns.T.tolist()]
            place = permute(place, self._counts[source], np.array(keys, dtype=np.uint64)[turn])
        offsets = np.array([self.windows[s].offset(e) for s, e in turns.T.tolist()], dtype=np.int64)
        start, low, high = owned(offsets[turn], place, self._targets[source], self.window, self.windows[0].tail)
        return start + self._bases[source], low, high

    def holding(self, source: int, first: int, last: int, epoch: int) -> I64:
        chosen = self.windows[source].holding(epoch, first, last)
        n = int(self._counts[source])
        if self._shuffled:
            chosen = permute(chosen, n, hash_key("order", self._seed, epoch, self.names[source]), inverse=True)
        units = self.stages.join(source, epoch * n + chosen)
        return np.sort(units[units >= 0])

    def epochs(self, units: int) -> list[float]:
        """How often each source has been handed out whole in the first `units` units."""
        shares: list[float] = (self.stages.counts(units) / self._counts).tolist()
        return shares
