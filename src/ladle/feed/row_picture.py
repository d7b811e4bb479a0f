"""Rows of a batch drawn for the eye: the documents in them, where those came from, and which tokens count as targets."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import numpy as np

from ladle.corpus.summary import plural
from ladle.errors import ConfigError
from ladle.feed.arguments import integer
from ladle.feed.batch import Batch
from ladle.feed.mixture import Mixture
from ladle.feed.picture import PARTIAL, bands, columns_of, show, whole
from ladle.feed.provenance import Span, packed_spans, spans
from ladle.feed.streams import is_packed

if TYPE_CHECKING:
    from ladle.feed.feed import Feed

LEGEND = "^ a target that counts, . one that does not, - an input only"


class RowPicture:
    """Rows of a global batch.

    batch: one of the feed's, which must be rank 0 of 1. row: the one to draw whole, or None to tell in short of the first
    `limit` rows. width: columns of the page. `str(picture)` is plain text; `to_dict()` the same for machines.
    Raises ConfigError for a row outside the batch.
    """

    def __init__(self, feed: Feed, batch: Batch, *, row: int | None = None, limit: int = 8, width: int = 100) -> None:
        B = feed.shape.batch_size
        self._feed, self._batch, self._width, self._whole = feed, batch, width, row is not None
        self._rows = range(B)[: integer("limit", limit, 1)] if row is None else [integer("row", row, 0, B)]

    def __str__(self) -> str:
        batch, B = self._batch, self._feed.shape.batch_size
        lines = [f"position {batch.position:,}: {plural(B, 'row')}, {plural(batch.num_targets, 'target')} that count"]
        for row in (_Row(self._feed, batch, row) for row in self._rows):
            lines += ["", row.head, *(row.bands(self._width) if self._whole else row.lines(self._width))]
            if self._whole:
                lines += ["", LEGEND, *[PARTIAL] * any(whole(content) is None for content in row.contents)]
        if (further := B - len(self._rows)) and not self._whole:
            lines += ["", f"and {plural(further, 'more row')}"]
        return "\n".join(lines)

    def to_dict(self) -> dict[str, Any]:
        """The same as JSON values. A token is its id, its bytes (hex), its text (null for a part of a character), and whether
        it is a target that counts (null for the first, which is none)."""
        rows = [_Row(self._feed, self._batch, row).to_dict() for row in self._rows]
        return {"position": self._batch.position, "num_targets": self._batch.num_targets, "rows": rows}


class _Row:
    """One row: its tokens, its documents, and which of them count."""

    def __init__(self, feed: Feed, batch: Batch, row: int) -> None:
        source, T = feed.source, batch.x.shape[1]
        tokens = source.joined if isinstance(source, Mixture) else source
        self.row, self.slot = row, batch.rows[row] * (T if feed.recipe.batch_tokens is None else 1)
        self.start = int(batch.starts[row])
        self.spans: list[Span] | None
        if is_packed(feed.stream):
            pieces = batch.boundaries.pieces.part(row, row + 1)
            self.spans, slots = packed_spans(source, pieces), int(pieces.length.sum())
            reads = [(start, span.columns) for start, span in zip(pieces.start.tolist(), self.spans, strict=True)]
            self.ids = np.concatenate([tokens.read(start, last - first) for start, (first, last) in reads])
            self.length, self.place = self.ids.size, f"{plural(len(self.spans), 'document')} in {slots:,} of {plural(T, 'slot')}"
        else:
            self.length = min(T + 1, tokens.num_tokens - self.start)
            self.ids = tokens.read(self.start, self.length)
            self.place = f"tokens {self.start:,} to {self.start + self.length - 1:,}"
            try:
                self.spans = spans(source, self.start, self.length)
            except ConfigError:  # the documents' ends are not known
                self.spans = None
        self.counts = [x == y for x, y in zip(self.ids.tolist()[1:], batch.y[row].tolist(), strict=False)]
        self.tokenizer = tokens.tokenizer
        self.contents = [b""] * self.length if self.tokenizer is None else self.tokenizer.token_bytes(self.ids)

    @property
    def head(self) -> str:
        counted = f"{sum(self.counts):,} of {plural(len(self.counts), 'target')} count"
        return f"row {self.row} (slot {self.slot:,} on): {self.place}, {counted}"

    def lines(self, width: int) -> list[str]:
        """Each document: where it stands, where it comes from, and how it begins."""
        told = []
        for columns, origin in self._parts():
            shown = slice(columns[0], min(columns[1], columns[0] + width))  # no token is narrower than a column, but marks
            words = [show(content) for content in self.contents[shown]]
            if self.tokenizer is None:
                words = [f"{id_} " for id_ in self.ids[shown]]
            begins = _cut("    " + "".join(words), width)
            told += [f"  columns {columns[0]} to {columns[1] - 1}: {origin}", begins.rstrip()]
        return told

    def bands(self, width: int) -> list[str]:
        """All tokens, document by document: the text, the id, and whether it counts as a target."""
        lines = []
        for columns, origin in self._parts():
            marks = ["-" if place == 0 else "^" if self.counts[place - 1] else "." for place in range(*columns)]
            ids = [str(id_) for id_ in self.ids[slice(*columns)]]
            cells: list[tuple[str, ...]] = list(zip(ids, marks, strict=True))
            if self.tokenizer is not None:
                cells = [(show(content), *cell) for content, cell in zip(self.contents[slice(*columns)], cells, strict=True)]
            heads = ("  tokens", *[""] * (len(cells[0]) - 1))
            lines += ["", f"columns {columns[0]} to {columns[1] - 1}: {origin}", *bands(heads, cells, width)]
        return lines

    def _parts(self) -> list[tuple[tuple[int, int], str]]:
        if self.spans is None:
            return [((0, self.length), "the documents are not known")]
        return [(span.columns, _origin(span)) for span in self.spans]

    def to_dict(self) -> dict[str, Any]:
        tokens = []
        for place, (id_, content) in enumerate(zip(self.ids.tolist(), self.contents, strict=True)):
            told: dict[str, Any] = {"id": id_, "counts": self.counts[place - 1] if place else None}
            if self.tokenizer is not None:
                told |= {"text": whole(content), "bytes": content.hex(" ")}
            tokens.append(told)
        documents = None
        if self.spans is not None:
            documents = [{"corpus": span.corpus, "columns": list(span.columns), **asdict(span.origin)} for span in self.spans]
        return {
            "row": self.row,
            "slot": self.slot,
            "start": self.start,
            "num_targets": sum(self.counts),
            "documents": documents,
            "tokens": tokens,
        }


def _origin(span: Span) -> str:
    """Where a document's part comes from, in words."""
    origin = span.origin
    words = f"{span.corpus}: " * (span.corpus is not None) + f"document {origin.document:,}"
    if origin.source is not None:
        words += f" of {origin.source} (line {origin.line:,}, byte {origin.byte:,})"
    if origin.offset:
        byte = "" if origin.token_byte is None else f" (byte {origin.token_byte:,})"
        words += f", from its token {origin.offset:,}{byte} on"
    return words


def _cut(line: str, width: int) -> str:
    while columns_of(line) > width:
        line = line[:-1]
    return line
