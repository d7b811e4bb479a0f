"""What a feed has handed out so far, per source: by arithmetic on the position, whatever the run's length."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from ladle.corpus.split import Split
from ladle.feed.exclusions import Exclusions, Layer
from ladle.feed.mixture import Mixture
from ladle.feed.streams import is_packed, packs_in, uses_loss_mask
from ladle.feed.tally import Tallies, Tally
from ladle.order.mixture import TOTAL
from ladle.order.permutation import I64
from ladle.rows.packs import PackCounts
from ladle.rows.stream import MixedPackStream, MixedStream, Stream
from ladle.rows.windows import Windows

if TYPE_CHECKING:
    from ladle.feed.feed import Feed

AT_ONCE = 2**14  # windows looked at together


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceReport:
    """One source. source: its name in a mixture, else the split's.

    weight: of the stage that holds at the position (1 without a mixture). share: of all slots, as handed out. slots: those of
    this source; slots = trained + masked + excluded + boundary + unlearned + padded: masked is what its tail repeats (and what it
    pads, where documents are not kept apart), boundary a document's last token, unlearned what the corpus's own mask leaves out.
    epochs: how many times that is the whole source. epochs_at_end: where the feed ends, or None. packs: of a packed source, what
    becomes of its documents in one epoch.
    """

    source: str
    tokens: int
    weight: float
    share: float
    slots: int
    trained: int
    masked: int
    excluded: int
    epochs: float
    epochs_at_end: float | None
    boundary: int = 0
    unlearned: int = 0
    padded: int = 0
    packs: PackCounts | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class FeedReport:
    """All sources at a position; str() is a table."""

    position: int
    sources: tuple[SourceReport, ...]

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON values."""
        return {"position": self.position, "sources": [asdict(source) for source in self.sources]}

    def __str__(self) -> str:
        more = [name for name in ("boundary", "unlearned", "padded") if any(getattr(one, name) for one in self.sources)]
        table: list[tuple[str, ...]] = [
            ("", "tokens", "weight", "share", "trained", "masked", "excluded", *more, "epochs", "at the end")
        ]
        for one in self.sources:
            end = "" if one.epochs_at_end is None else f"{one.epochs_at_end:.2f}"
            counts = (f"{getattr(one, name):,}" for name in ("trained", "masked", "excluded", *more))
            table.append(
                (one.source, f"{one.tokens:,}", f"{one.weight:.4f}", f"{one.share:.4f}", *counts, f"{one.epochs:.2f}", end)
            )
        widths = [max(map(len, column)) for column in zip(*table, strict=True)]
        lines = [
            "  ".join(
                [row[0].ljust(widths[0]), *(cell.rjust(width) for cell, width in zip(row[1:], widths[1:], strict=True))]
            ).rstrip()
            for row in table
        ]
        packs = [f"{one.source}: {one.packs}" for one in self.sources if one.packs is not None]
        return "\n".join([*packs, f"{sum(one.slots for one in self.sources):,} slots handed out", *lines])


def report(feed: Feed) -> FeedReport:
    """What the feed has handed out before its position.

    Cost: a few windows are looked up for each source, and for each excluded document; with order="random" and exclusions
    every window since the first of them.
    """
    splits, position = _splits(feed), feed.position
    tallies = _tallies(feed, position)
    weights = [1.0]
    if isinstance(feed.stream, MixedStream | MixedPackStream):
        weights = (feed.stream.stages.weights(position // feed.recipe.window) / TOTAL).tolist()
    now, end = feed.shares(), None if feed.end is None else feed.shares(feed.end)
    plans = packs_in(feed.stream)
    return FeedReport(
        position=position,
        sources=tuple(
            SourceReport(
                source=name,
                tokens=splits[number].num_tokens,
                weight=weights[number],
                share=share.share,
                slots=tallies[number].slots,
                trained=tallies[number].trained,
                masked=tallies[number].repeated,
                excluded=tallies[number].excluded,
                boundary=tallies[number].boundary,
                unlearned=tallies[number].unlearned,
                padded=tallies[number].padded,
                epochs=share.epochs,
                epochs_at_end=None if end is None else end[name].epochs,
                packs=plans[number].counts if plans else None,
            )
            for number, (name, share) in enumerate(now.items())
        ),
    )


def _tallies(feed: Feed, position: int) -> list[Tally]:
    """Of each source. Plain windows by arithmetic; packs and masks by following an epoch, and what has been given of another."""
    splits, stream, slots = _splits(feed), feed.stream, feed.stream.handed_out(position).tolist()
    if is_packed(stream) or feed.recipe.mask_documents or any(uses_loss_mask(feed.recipe, split) for split in splits):
        return [Tallies(feed, number).until(had) for number, had in enumerate(slots)]
    bases = np.cumsum([0, *(split.num_tokens for split in splits[:-1])], dtype=np.int64)
    repeated, excluded = _repeated(feed, stream, position, bases), _excluded(feed, stream, position, bases)
    return [
        Tally(slots=had, trained=had - repeats - left_out, repeated=repeats, excluded=left_out)
        for had, repeats, left_out in zip(slots, repeated.tolist(), excluded.tolist(), strict=True)
    ]


def _repeated(feed: Feed, stream: Stream, position: int, bases: I64) -> I64:
    """Slots of each source that own no target. int64 [sources].

    All windows of an epoch own alike, but for a few at the split's ends: those are found by inverting the order.
    """
    found = np.zeros(bases.size, dtype=np.int64)
    if feed.recipe.order == "random":
        return found
    W = feed.recipe.window
    unit, rest = divmod(position, W)
    start, low, high = (int(part[0]) for part in stream.spans(unit, 1))
    current = int(np.searchsorted(bases, start, side="right")) - 1
    found[current] = rest - max(min(high, rest) - min(low, rest), 0)
    for number, slots in enumerate(stream.handed_out(unit * W).tolist()):
        cut = feed.recipe.cut(_splits(feed)[number])
        epoch, further = divmod(slots // W, cut.count)
        alike = cut.stride or W if cut.score == "new" else W
        special = np.union1d(stream.holding(number, 0, 1, epoch), stream.holding(number, cut.targets - 1, cut.targets, epoch))
        inside = [stream.spans(one, 1) for one in special[special < unit].tolist()]
        owned = alike * (further - len(inside)) + sum(int(high[0] - low[0]) for _, low, high in inside)
        found[number] += slots - owned - epoch * _owned(cut)
    return found


def _owned(cut: Windows) -> int:
    """Slots of a whole epoch that own a target."""
    if cut.overlaps and cut.score == "new":
        return min((cut.count - 1) * (cut.stride or 0), cut.targets - cut.window) + cut.window
    return cut.count * cut.window if cut.overlaps or cut.tail == "drop" else cut.targets


def _excluded(feed: Feed, stream: Stream, position: int, bases: I64) -> I64:
    """Slots of each source whose target was excluded. int64 [sources]."""
    found = np.zeros(bases.size, dtype=np.int64)
    for layer in feed.history.exclusions.layers:
        if layer.from_position >= position:
            continue
        if feed.recipe.order == "random":
            found += _drawn(feed, stream, layer, position, bases)
            continue
        for first, last in zip(layer.first[:-1].tolist(), layer.last[:-1].tolist(), strict=True):
            number = int(np.searchsorted(bases, first, side="right")) - 1
            found[number] += _between(
                feed, stream, number, int(bases[number]), targets=(first, last), slots=(layer.from_position, position)
            )
    return found


def _between(feed: Feed, stream: Stream, number: int, base: int, *, targets: tuple[int, int], slots: tuple[int, int]) -> int:
    """How often the targets [first, last) of a source own one of the slots [first, last)."""
    W = feed.recipe.window

    def within(epoch: int) -> int:
        owned = 0
        for unit in stream.holding(number, targets[0] - base, targets[1] - base, epoch).tolist():
            start, low, high = (int(part[0]) for part in stream.spans(unit, 1))
            first = max(start + low, targets[0], start + slots[0] - unit * W)
            owned += max(min(start + high, targets[1], start + slots[1] - unit * W) - first, 0)
        return owned

    per_epoch = int(stream.epoch_slots[number])
    begin, end = (int(stream.handed_out(slot)[number]) // per_epoch for slot in slots)
    if feed.recipe.epoch_offset and feed.recipe.tail == "drop":  # an epoch is not like another
        return sum(map(within, range(begin, end + 1)))
    middle = end - begin - 1
    return within(begin) + (within(end) if end > begin else 0) + (middle * within(begin + 1) if middle > 0 else 0)


def _drawn(feed: Feed, stream: Stream, layer: Layer, position: int, bases: I64) -> I64:
    """As _excluded, of one layer and order="random", which has no inverse: the windows are looked at."""
    found, W, only = np.zeros(bases.size, dtype=np.int64), feed.recipe.window, Exclusions((layer,))
    for unit in range(layer.from_position // W, -(-position // W), AT_ONCE):
        slot = np.arange(unit, min(unit + AT_ONCE, -(-position // W)), dtype=np.int64) * W
        start, low, high = stream.spans(unit, slot.size)
        counts = only.count(start, low, np.minimum(high, position - slot), slot)
        found += np.bincount(np.searchsorted(bases, start, side="right") - 1, counts, bases.size).astype(np.int64)
    return found


def _splits(feed: Feed) -> list[Split]:
    return feed.source.splits if isinstance(feed.source, Mixture) else [feed.source]
