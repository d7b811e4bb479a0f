"""When a document is seen: the order inverted, with nothing scanned."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from ladle.corpus.split import Split
from ladle.errors import ConfigError
from ladle.feed.arguments import integer
from ladle.feed.mixture import Mixture
from ladle.feed.plan import Plan
from ladle.order.permutation import LARGEST

if TYPE_CHECKING:
    from ladle.feed.feed import Feed


@dataclass(frozen=True, slots=True, kw_only=True)
class Appearance:
    """A row that holds some of a document.

    epoch: of the split, or of the document's source in a mixture. step: the batch, counted from position 0 at the feed's
    batch and block size. row: in that global batch. position: the row's first slot. columns: [first, last) of the row's
    T + 1 tokens. targets: how many of the document's tokens are targets that count there.
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
    stream, limit, exclusions = feed.stream, feed.end, feed.history.exclusions
    B, T, found = feed.shape.batch_size, feed.shape.block_size, []
    plan, per_unit = Plan(stream, T, ahead=1), stream.window // T
    per_epoch = stream.units_per_epoch or split.num_tokens // stream.window + 2
    for epoch in _checked(epochs, LARGEST // (per_epoch * stream.window)):
        # Of the targets that a window reads, its tokens are their inputs and the last one's label.
        for unit in stream.holding(number, first - 1, last, epoch).tolist():
            row = np.arange(unit * per_unit, (unit + 1) * per_unit, dtype=np.int64)
            rows = plan.rows(unit * per_unit, per_unit)
            start = rows.start - base
            high = rows.high if limit is None else np.minimum(rows.high, np.maximum(limit - row * T, 0))
            low = np.maximum(rows.low, first - 1 - start)
            high = np.maximum(np.minimum(high, last - 1 - start), low)
            targets = high - low - exclusions.count(rows.start, low, high, row * T)
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
