"""A piece: one document's part of a row. Rows of windows and rows of packs are both made of them. Arrays only, no files."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from ladle.order.permutation import I64


@dataclass(frozen=True, slots=True)
class Pieces:
    """The pieces of some rows, row after row, from left to right. int64 [k] each.

    row: which of the rows asked for, from 0, ascending. column: where in the row the piece begins. start: the token of its
    first input. length: slots, at least 1. labelled: how many of its columns have a label of the same document: length, or
    length - 1 where the document ends in it. offset: tokens of its document before it.
    """

    row: I64
    column: I64
    start: I64
    length: I64
    labelled: I64
    offset: I64

    @property
    def size(self) -> int:
        """How many there are."""
        return self.row.size

    def part(self, first_row: int, last_row: int) -> Pieces:
        """Those of the rows [first_row, last_row), which are then counted from 0."""
        low, high = np.searchsorted(self.row, [first_row, last_row]).tolist()
        kept = (array[low:high] for array in (self.column, self.start, self.length, self.labelled, self.offset))
        return Pieces(self.row[low:high] - first_row, *kept)

    def moved(self, by: int) -> Pieces:
        """The same in another numbering of tokens."""
        return replace(self, start=self.start + by) if by else self


def joined(parts: list[tuple[I64, Pieces]]) -> Pieces:
    """Pieces of rows that were asked for in several goes. parts: (which row each of a go's rows is, the go's pieces)."""
    if len(parts) == 1:
        rows, pieces = parts[0]
        return replace(pieces, row=rows[pieces.row])
    row = np.concatenate([rows[pieces.row] for rows, pieces in parts])
    order = np.argsort(row, kind="stable")
    rest = (
        np.concatenate([getattr(pieces, name) for _, pieces in parts])[order]
        for name in ("column", "start", "length", "labelled", "offset")
    )
    return Pieces(row[order], *rest)
