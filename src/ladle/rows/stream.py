"""A stream of units: all that a feed knows of the order. Unit j -> what lies in it.

A unit is a window, or a packed row; of one split, or of several in a mixture. Integers only; tokens are numbered through
all sources, laid end to end.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import numpy as np

from ladle.errors import ConfigError
from ladle.order.mixture import Stages
from ladle.order.orders import Orders
from ladle.order.permutation import I64
from ladle.order.stream import Kind, Order
from ladle.rows.packs import Packs
from ladle.rows.pieces import Pieces, joined
from ladle.rows.windows import Windows, owned

Spans = tuple[I64, I64, I64]


class Units(Protocol):
    """What all streams have in common.

    window: W, in slots. num_tokens: of all sources. scattered: whether neighbouring units lie apart in the files.
    whole_rows: whether a row must be a whole unit. epoch_slots: of each source, int64 [S].
    """

    window: int
    num_tokens: int
    scattered: bool
    whole_rows: bool
    epoch_slots: I64

    @property
    def units_per_epoch(self) -> int | None:
        """Units from one epoch's border to the next, or None where there are no epochs."""

    def holding(self, source: int, first: int, last: int, epoch: int) -> I64:
        """The units that read any of the inputs [first, last) of a source (its own numbering) in that source's epoch."""

    def handed_out(self, position: int) -> I64:
        """Slots of each source among the first `position`, int64 [S]; they add up to it."""


class Stream(Units, Protocol):
    """Unit -> window."""

    def spans(self, first_unit: int, count: int) -> Spans:
        """(start, low, high) of units [first_unit, first_unit + count), int64 [count] each.

        start: the token of the window's first input. [low, high): the columns, from start, whose targets it owns.
        """

    def own_spans(self, source: int, first: int, count: int) -> Spans:
        """spans() of a source's own units [first, first + count), as if it were alone; in its own numbering of tokens."""


class PackedStream(Units, Protocol):
    """Unit -> a row of documents."""

    def pieces(self, first_unit: int, count: int) -> Pieces:
        """What lies in units [first_unit, first_unit + count), each one a row."""

    def own_pieces(self, source: int, first: int, count: int) -> Pieces:
        """What lies in a source's own units [first, first + count), as if it were alone; in its own numbering of tokens."""


class WindowStream:
    """The windows of one split in an order."""

    def __init__(self, order: Order, windows: Windows) -> None:
        self.order, self.windows = order, windows
        self.window, self.num_tokens = windows.window, windows.num_tokens
        self.scattered = order.kind != "sequential"
        self.whole_rows = windows.overlaps
        self.epoch_slots = np.array([windows.count * windows.window], dtype=np.int64)

    @property
    def units_per_epoch(self) -> int | None:
        return None if self.order.kind == "random" else self.order.n

    def spans(self, first_unit: int, count: int) -> Spans:
        epochs, chosen = self.order.windows(first_unit, count)
        if self.order.kind == "random":  # the order drew the start itself, and every target counts
            return chosen, np.zeros_like(chosen), np.full_like(chosen, self.window)
        return self.windows.spans(epochs, chosen)

    def own_spans(self, source: int, first: int, count: int) -> Spans:
        del source  # there is one
        return self.spans(first, count)

    def holding(self, source: int, first: int, last: int, epoch: int) -> I64:
        del source  # there is one
        return np.sort(self.order.units(epoch, self.windows.holding(epoch, first, last)))

    def handed_out(self, position: int) -> I64:
        return np.array([position], dtype=np.int64)


class MixedStream:
    """The windows of several splits, interleaved by their weights; each in an order of its own."""

    def __init__(self, stages: Stages, names: Sequence[str], windows: Sequence[Windows], *, kind: Kind, seed: int) -> None:
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
        starts = [cut.targets - cut.window + 1 if kind == "random" else cut.count for cut in windows]
        self.orders = Orders(kind, starts, names, seed)
        self.epoch_slots = np.array([cut.count * cut.window for cut in windows], dtype=np.int64)
        self._targets = np.array([cut.targets for cut in windows], dtype=np.int64)
        self._bases = np.cumsum([0, *(cut.num_tokens for cut in windows[:-1])], dtype=np.int64)

    @property
    def units_per_epoch(self) -> int | None:
        return None

    def spans(self, first_unit: int, count: int) -> Spans:
        source, own = self.stages.split(first_unit, count)
        start, low, high = self._spans(source, own)
        return start + self._bases[source], low, high

    def own_spans(self, source: int, first: int, count: int) -> Spans:
        own = np.arange(first, first + count, dtype=np.int64)
        return self._spans(np.full_like(own, source), own)

    def _spans(self, source: I64, own: I64) -> Spans:
        """In each source's own numbering of tokens."""
        epoch, chosen = self.orders.windows(source, own)
        if self.orders.kind == "random":
            return chosen, np.zeros_like(chosen), np.full_like(chosen, self.window)
        cut = self.windows[0]  # as far as offsets go they are all alike
        return owned(cut.offsets(epoch), chosen, self._targets[source], cut.window, cut.tail)

    def holding(self, source: int, first: int, last: int, epoch: int) -> I64:
        own = self.orders.units(source, epoch, self.windows[source].holding(epoch, first, last))
        units = self.stages.join(source, own)
        return np.sort(units[units >= 0])

    def handed_out(self, position: int) -> I64:
        unit, rest = divmod(position, self.window)
        slots = self.stages.counts(unit) * self.window
        slots[self.stages.split(unit, 1)[0]] += rest
        return slots


class PackStream:
    """The packed rows of one split in an order."""

    def __init__(self, order: Order, packs: Packs) -> None:
        self.order, self.packs = order, packs
        self.window, self.num_tokens = packs.packing.row_length, packs.num_tokens
        self.scattered = order.kind != "sequential" or packs.packing.policy == "best_fit"
        self.whole_rows = True
        self.epoch_slots = np.array([packs.num_rows * self.window], dtype=np.int64)

    @property
    def units_per_epoch(self) -> int | None:
        return self.order.n

    def pieces(self, first_unit: int, count: int) -> Pieces:
        epochs, rows = self.order.windows(first_unit, count)
        return self.packs.pieces(rows, epochs)

    def own_pieces(self, source: int, first: int, count: int) -> Pieces:
        del source  # there is one
        return self.pieces(first, count)

    def holding(self, source: int, first: int, last: int, epoch: int) -> I64:
        del source  # there is one
        return np.sort(self.order.units(epoch, self.packs.holding(first, last, epoch)))

    def handed_out(self, position: int) -> I64:
        return np.array([position], dtype=np.int64)


class MixedPackStream:
    """The packed rows of several splits, interleaved by their weights; each in an order of its own."""

    def __init__(self, stages: Stages, names: Sequence[str], packs: Sequence[Packs], *, kind: Kind, seed: int) -> None:
        """names: sorted. packs: the plan of each, all of one row length."""
        self.stages, self.names, self.packs = stages, names, packs
        self.window, self.num_tokens = packs[0].packing.row_length, sum(plan.num_tokens for plan in packs)
        self.scattered, self.whole_rows = True, True
        self.orders = Orders(kind, [plan.num_rows for plan in packs], names, seed)
        self.epoch_slots = np.array([plan.num_rows * self.window for plan in packs], dtype=np.int64)
        self._bases = np.cumsum([0, *(plan.num_tokens for plan in packs[:-1])], dtype=np.int64)

    @property
    def units_per_epoch(self) -> int | None:
        return None

    def pieces(self, first_unit: int, count: int) -> Pieces:
        source, own = self.stages.split(first_unit, count)
        epoch, chosen = self.orders.windows(source, own)
        order = np.argsort(source, kind="stable")
        parts = []
        for which in np.split(order, np.flatnonzero(np.diff(source[order])) + 1):
            number = int(source[which[0]])
            parts.append((which, self.packs[number].pieces(chosen[which], epoch[which]).moved(int(self._bases[number]))))
        return joined(parts)

    def own_pieces(self, source: int, first: int, count: int) -> Pieces:
        own = np.arange(first, first + count, dtype=np.int64)
        epochs, rows = self.orders.windows(np.full_like(own, source), own)
        return self.packs[source].pieces(rows, epochs)

    def holding(self, source: int, first: int, last: int, epoch: int) -> I64:
        own = self.orders.units(source, epoch, self.packs[source].holding(first, last, epoch))
        units = self.stages.join(source, own)
        return np.sort(units[units >= 0])

    def handed_out(self, position: int) -> I64:
        unit, rest = divmod(position, self.window)
        slots = self.stages.counts(unit) * self.window
        slots[self.stages.split(unit, 1)[0]] += rest
        return slots
