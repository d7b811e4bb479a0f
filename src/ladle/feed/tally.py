"""What became of a source's slots, counted by following its plan: trained, masked and why, padded."""

from __future__ import annotations

from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from ladle.corpus.split import Split
from ladle.feed.budget import BudgetStream
from ladle.feed.exclusions import Exclusions
from ladle.feed.mixture import Mixture
from ladle.feed.pieces import PieceRows, cut_at, label_mask, whole
from ladle.feed.plan import Rows
from ladle.feed.streams import is_packed, packs_in, uses_loss_mask
from ladle.order.permutation import I64
from ladle.rows.stream import PackedStream, Stream

if TYPE_CHECKING:
    from ladle.feed.feed import Feed

AT_ONCE = 2**14  # units looked at together


@dataclass(frozen=True, slots=True, kw_only=True)
class Tally:
    """Counts of slots; slots is the sum of the others.

    trained: targets that count. excluded: those of excluded documents. unlearned: those that the corpus's own mask leaves out.
    boundary: a document's last token, whose label would be another document's. repeated: what a window masks since another
    owns it. padded: no token.
    """

    slots: int = 0
    trained: int = 0
    excluded: int = 0
    unlearned: int = 0
    boundary: int = 0
    repeated: int = 0
    padded: int = 0

    def plus(self, other: Tally, times: int = 1) -> Tally:
        """The sum of this one and of `times` others."""
        mine, more = asdict(self), asdict(other)
        return Tally(**{name: mine[name] + times * more[name] for name in mine})


class Tallies:
    """The tallies of one source of a feed, in its own slots: those that it has given, from 0."""

    def __init__(self, feed: Feed, number: int) -> None:
        """number: of the source, in name order; 0 for a split."""
        source = feed.source
        self._split: Split = source.splits[number] if isinstance(source, Mixture) else source
        self._stream, self._number, self._recipe = feed.stream, number, feed.recipe
        self._masked = uses_loss_mask(feed.recipe, self._split)
        self._ends: I64 | None = None
        if feed.recipe.mask_documents:
            self._ends = self._split.document_ends().astype(np.int64)
        base = int(source.bases[number]) if isinstance(source, Mixture) else 0
        layers = []
        for layer in feed.history.exclusions.layers:
            begins = int(feed.stream.handed_out(layer.from_position)[number])
            layers.append(replace(layer, from_position=begins, first=layer.first - base, last=layer.last - base))
        self._exclusions = Exclusions(tuple(layers))

    def until(self, slots: int) -> Tally:
        """Of the first `slots`. Epochs that are alike are counted once."""
        if isinstance(self._stream, BudgetStream):
            return self._of_budget(self._stream, slots)
        per_epoch, total, recipe = int(self._stream.epoch_slots[self._number]), Tally(), self._recipe
        if recipe.order == "random" or (recipe.epoch_offset and recipe.tail == "drop"):  # no epoch is like another
            return self.between(0, slots)
        changes = {layer.from_position for layer in self._exclusions.layers if 0 < layer.from_position < slots}
        epochs, rest = divmod(slots, per_epoch)
        apart = sorted({change // per_epoch for change in changes if change % per_epoch and change // per_epoch < epochs})
        starts = sorted({0, *(-(-change // per_epoch) for change in changes)} & set(range(epochs + 1)))
        for first, after in zip(starts, [*starts[1:], epochs], strict=True):  # no exclusion begins between them
            alike = after - first - sum(first <= epoch < after for epoch in apart)
            if alike > 0:
                total = total.plus(self._epoch(first), alike)
        for epoch in apart:
            total = total.plus(self.between(epoch * per_epoch, (epoch + 1) * per_epoch))
        return total.plus(self.between(epochs * per_epoch, slots)) if rest else total

    def _of_budget(self, stream: BudgetStream, position: int) -> Tally:
        """Of the batches before this position, which counts rows: what is padded differs from epoch to epoch."""
        counts, total = stream.packs.counts, Tally()
        epochs, rest = divmod(position, stream.units_per_epoch)
        unlearned = self._unlearned(stream, 0, stream.units_per_epoch) if self._masked and epochs else 0
        for epoch in range(epochs):
            total = total.plus(_padded(stream.slots(epoch), counts.labelled, counts.boundary, unlearned))
        if not rest:
            return total
        first = position - rest
        pieces = stream.pieces(first, rest)
        labelled = int(pieces.labelled.sum())
        unlearned = self._unlearned(stream, first, rest) if self._masked else 0
        slots = stream.slots(epochs, stream.buckets.batch_at(epochs, rest))
        return total.plus(_padded(slots, labelled, int(pieces.length.sum()) - labelled, unlearned))

    def _unlearned(self, stream: BudgetStream, first: int, count: int) -> int:
        """Targets among these rows that the corpus's own mask leaves out."""
        found = 0
        for low in range(first, first + count, AT_ONCE):
            pieces = stream.pieces(low, min(AT_ONCE, first + count - low))
            rows = PieceRows(pieces.start, pieces, pieces.column, pieces.column + pieces.labelled)
            found += int(np.count_nonzero(label_mask(self._split, rows) == 0))
        return found

    def _epoch(self, epoch: int) -> Tally:
        """A whole epoch in which no exclusion begins."""
        per_epoch = int(self._stream.epoch_slots[self._number])
        plans = packs_in(self._stream)
        if plans and not self._masked and not self._exclusions:
            counts = plans[self._number].counts
            return Tally(slots=counts.slots, trained=counts.labelled, boundary=counts.boundary, padded=counts.padded)
        return self.between(epoch * per_epoch, (epoch + 1) * per_epoch)

    def between(self, first: int, last: int) -> Tally:
        """Of the source's own slots [first, last), counted one by one. Cost: linear in them."""
        W, total = self._recipe.window, Tally()
        for unit in range(first // W, -(-last // W), AT_ONCE):
            count = min(AT_ONCE, -(-last // W) - unit)
            slot = np.arange(unit, unit + count, dtype=np.int64) * W
            total = total.plus(self._units(unit, slot, np.maximum(first - slot, 0), np.minimum(last - slot, W)))
        return total

    def _units(self, unit: int, slot: I64, begin: I64, end: I64) -> Tally:
        """Of the columns [begin, end) of some units; slot: the first of each."""
        rows, owned, tokens = self._rows(unit, slot.size, begin, end)
        pieces = rows.pieces
        start = pieces.start - pieces.column
        targets = int((rows.high - rows.low).sum())
        excluded = self._exclusions.count(start, rows.low, rows.high, slot[pieces.row])
        unlearned = 0
        if self._masked:
            learned, at = label_mask(self._split, rows), np.cumsum(rows.high - rows.low) - (rows.high - rows.low)
            for piece, low, high in self._exclusions.columns(start, rows.low, rows.high, slot[pieces.row]):
                learned[at[piece] + low - rows.low[piece] : at[piece] + high - rows.low[piece]] = 1
            unlearned = int(np.count_nonzero(learned == 0))
        slots, boundary = int((end - begin).sum()), owned - targets
        return Tally(
            slots=slots,
            trained=targets - int(excluded.sum()) - unlearned,
            excluded=int(excluded.sum()),
            unlearned=unlearned,
            boundary=boundary,
            repeated=tokens - owned,
            padded=slots - tokens,
        )

    def _rows(self, unit: int, count: int, begin: I64, end: I64) -> tuple[PieceRows, int, int]:
        """(the units' pieces, with the targets in [begin, end), how many slots there are a document's, and how many hold one)."""
        stream: Stream | PackedStream = self._stream
        if is_packed(stream):
            pieces = stream.own_pieces(self._number, unit, count)
            inside = _clipped(pieces.column, pieces.column + pieces.length, begin[pieces.row], end[pieces.row])
            low, high = _edges(pieces.column, pieces.column + pieces.labelled, begin[pieces.row], end[pieces.row])
            return PieceRows(begin, pieces, low, high), inside, inside
        start, low, high = stream.own_spans(self._number, unit, count)
        W, N = self._recipe.window, self._split.num_tokens
        low, high = _edges(low, high, begin, end)
        rows = Rows(start, low, high)
        pieces = whole(rows, W, N) if self._ends is None else cut_at(self._ends, start, W)
        first = np.maximum(pieces.column, low[pieces.row])
        after = np.minimum(pieces.column + pieces.labelled, high[pieces.row])
        padding = _clipped(np.clip(N - 1 - start, 0, W), np.full_like(start, W), begin, end) if self._recipe.tail == "pad" else 0
        tokens = int((end - begin).sum()) - padding
        return PieceRows(start, pieces, np.minimum(first, after), after), int((high - low).sum()), tokens


def _padded(slots: int, labelled: int, boundary: int, unlearned: int) -> Tally:
    """What is no token is padding."""
    return Tally(
        slots=slots, trained=labelled - unlearned, unlearned=unlearned, boundary=boundary, padded=slots - labelled - boundary
    )


def _edges(low: I64, high: I64, begin: I64, end: I64) -> tuple[I64, I64]:
    """[low, high) where it lies in [begin, end)."""
    low = np.maximum(low, begin)
    high = np.minimum(high, end)
    return np.minimum(low, high), high


def _clipped(low: I64, high: I64, begin: I64, end: I64) -> int:
    """How much of [low, high) lies in [begin, end), in all."""
    low, high = _edges(low, high, begin, end)
    return int((high - low).sum())
