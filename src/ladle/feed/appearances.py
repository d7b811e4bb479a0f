"""When a document is seen: the order inverted, with nothing scanned."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from ladle.corpus.split import Split
from ladle.errors import ConfigError
from ladle.feed.arguments import integer
from ladle.feed.budget import BudgetStream
from ladle.feed.mixture import Mixture
from ladle.feed.plan import Plan
from ladle.feed.streams import is_packed, uses_loss_mask
from ladle.order.permutation import I64, LARGEST
from ladle.rows.stream import PackedStream

if TYPE_CHECKING:
    from ladle.feed.feed import Feed


@dataclass(frozen=True, slots=True, kw_only=True)
class Appearance:
    """A row that holds some of a document.

    epoch: of the split, or of the document's source in a mixture. step: the batch, counted from position 0 at the feed's
    batch and block size. row: in that global batch. position: the row's first slot; with batch_tokens= the row's number.
    columns: [first, last) of the row's T + 1 tokens. targets: how many of the document's tokens are targets that count there.
    """

    epoch: int
    step: int
    row: int
    position: int
    columns: tuple[int, int]
    targets: int


def appearances(feed: Feed, document: object, epochs: Iterable[int]) -> list[Appearance]:
    """Every row of these epochs that holds a token of the document, in the order in which they are handed out.

    document: its number; of a mixture (source's name, number). Raises ConfigError: see Feed.steps_of.
    Cost: a few NumPy calls an epoch, and a few for each window that the document touches.
    """
    number, split, base, own = place_of(feed.source, document)
    first, last = (int(edge[0]) for edge in split.document_tokens([own]))
    stream, limit = feed.stream, feed.end
    B, T, found = feed.shape.batch_size, feed.shape.block_size, list[Appearance]()
    if is_packed(stream):
        for epoch in _checked(epochs, LARGEST // max(int(stream.epoch_slots.max()), 1)):
            units = stream.holding(number, first, last, epoch).tolist()
            if limit is not None:
                units = [unit for unit in units if feed.shape.place(unit)[0] < feed.shape.batches(limit)]
            found += [_packed(feed, stream, (base, first, last), unit, epoch) for unit in units]
        return found
    plan, per_unit = Plan(stream, T, ahead=1), stream.window // T
    per_epoch = stream.units_per_epoch or split.num_tokens // stream.window + 2
    for epoch in _checked(epochs, LARGEST // (per_epoch * stream.window)):
        # Of the targets that a window reads, its tokens are their inputs and the last one's label.
        for unit in stream.holding(number, first - 1, last, epoch).tolist():
            row = np.arange(unit * per_unit, (unit + 1) * per_unit, dtype=np.int64)
            rows = plan.rows(unit * per_unit, per_unit)
            start = rows.start - base
            high = rows.high if limit is None else np.minimum(rows.high, np.maximum(limit - row * T, 0))
            low = np.maximum(rows.low, first - 1 + feed.recipe.mask_documents - start)  # a first token's input is another's last
            high = np.maximum(np.minimum(high, last - 1 - start), low)
            targets = _learned(feed, rows.start, low, high, row * T)
            holds = (start < last) & (start + T >= first)
            if limit is not None:
                holds &= row < -(-limit // (B * T)) * B
            found += [
                Appearance(
                    epoch=epoch,
                    step=int(row[i]) // B,
                    row=int(row[i]) % B,
                    position=int(row[i]) * T,
                    columns=(max(first - int(start[i]), 0), min(last - int(start[i]), T + 1)),
                    targets=int(targets[i]),
                )
                for i in np.flatnonzero(holds).tolist()
            ]
    return found


def _packed(feed: Feed, stream: PackedStream, document: tuple[int, int, int], row: int, epoch: int) -> Appearance:
    """The document's part of a packed row.

    document: (its source's first token, its own first and last + 1 in the source's numbering). row: a unit of the stream.
    """
    base, first, last = document
    T, limit, pieces = feed.shape.block_size, feed.end, stream.pieces(row, 1)
    step, place, position = feed.shape.place(row)
    inside = np.flatnonzero((pieces.start - base < last) & (pieces.start - base + pieces.length > first))
    column, start, length, labelled = (int(a[inside[0]]) for a in (pieces.column, pieces.start, pieces.length, pieces.labelled))
    # A budget's position counts rows, and its batches end where it does.
    end = T if limit is None or isinstance(stream, BudgetStream) else min(max(limit - position, 0), T)
    low, high = np.array([column]), np.array([max(min(column + labelled, end), column)])
    virtual, slot = np.array([start - column]), np.array([position])
    targets = int(_learned(feed, virtual, low, high, slot)[0])
    return Appearance(
        epoch=epoch,
        step=step,
        row=place,
        position=position,
        columns=(column, column + length + (labelled == length)),
        targets=targets,
    )


def _learned(feed: Feed, start: I64, low: I64, high: I64, slot: I64) -> I64:
    """How many of the targets in columns [low, high) of each row count: neither excluded nor left out by the corpus's mask."""
    exclusions, tokens = feed.history.exclusions, feed.source.joined if isinstance(feed.source, Mixture) else feed.source
    if not uses_loss_mask(feed.recipe, tokens):
        return high - low - exclusions.count(start, low, high, slot)
    at = np.cumsum(high - low) - (high - low)
    learned = tokens.loss_mask(start + low + 1, high - low)
    for row, first, last in exclusions.columns(start, low, high, slot):
        learned[at[row] + first - low[row] : at[row] + last - low[row]] = 0
    total: I64 = np.concatenate([[0], np.cumsum(learned, dtype=np.int64)])
    count: I64 = total[at + high - low] - total[at]
    return count


def place_of(source: Split | Mixture, document: object) -> tuple[int, Split, int, int]:
    """(the source's number, its split, its first token among all sources', the document's number). Raises ConfigError."""
    if isinstance(source, Split):
        return 0, source, 0, integer("document", document, 0)
    if not (isinstance(document, tuple) and len(document) == 2):
        raise ConfigError(f"document: expected (source, number) in a mixture, found {document!r}")
    name, own = document
    if name not in source.names:
        raise ConfigError(f"document: expected a source among {', '.join(source.names)}, found {name!r}")
    number = source.names.index(name)
    return number, source.splits[number], int(source.bases[number]), integer(f"document: {name}", own, 0)


def _checked(epochs: Iterable[int], end: int) -> list[int]:
    if not isinstance(epochs, Iterable) or isinstance(epochs, str | bytes):
        raise ConfigError(f"epochs: expected a range of epochs, found {epochs!r}; range(1) is the first")
    return [integer("epochs", epoch, 0, end) for epoch in epochs]
