"""Where the tokens of a row came from."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from ladle.corpus.split import Provenance, Split
from ladle.feed.mixture import Mixture
from ladle.rows.pieces import Pieces


@dataclass(frozen=True, slots=True, kw_only=True)
class Span:
    """One document's part of a row.

    columns: [first, last) of the row's T + 1 tokens (inputs and the last label). tokens: [first, last) in the split.
    origin: where its first token came from. corpus: the source's name in a mixture, else None.
    """

    columns: tuple[int, int]
    tokens: tuple[int, int]
    origin: Provenance
    corpus: str | None = None


def spans(source: Split | Mixture, start: int, length: int) -> list[Span]:
    """The documents in tokens [start, start + length), in order; a mixture's tokens are numbered through its sources.

    Raises ConfigError if the documents' ends are not known.
    """
    if isinstance(source, Split):
        return _within(source, start, length, None)
    number = source.source_of(start)
    return _within(source.splits[number], start - int(source.bases[number]), length, source.names[number])


def packed_spans(source: Split | Mixture, pieces: Pieces) -> list[Span]:
    """The documents in one packed row, in order: its pieces, and the label behind the last slot where its document goes on."""
    found = []
    length = pieces.length + (pieces.labelled == pieces.length)
    for column, start, count in zip(pieces.column.tolist(), pieces.start.tolist(), length.tolist(), strict=True):
        (span,) = spans(source, start, count)
        found.append(replace(span, columns=(column, column + count)))
    return found


def _within(split: Split, start: int, length: int, corpus: str | None) -> list[Span]:
    last = min(start + length, split.num_tokens)
    ends = split.document_ends()
    low = int(np.searchsorted(ends, start, side="right"))
    high = int(np.searchsorted(ends, last, side="left"))
    borders = [start, *(int(end) for end in ends[low:high] if start < int(end) < last), last]
    origins = split.locate(borders[:-1])
    return [
        Span(columns=(first - start, after - start), tokens=(first, after), origin=origin, corpus=corpus)
        for first, after, origin in zip(borders[:-1], borders[1:], origins, strict=True)
    ]
