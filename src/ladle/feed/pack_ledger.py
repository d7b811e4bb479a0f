"""One source's packed rows, ticked off: each piece of each document once an epoch, and nothing else.

It reads the plan against the documents' ends, and not against the code that made the plan.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from ladle.feed.ledger import FAULTS
from ladle.order.permutation import I64
from ladle.rows.packs import Packing
from ladle.rows.pieces import Pieces


class PackLedger:
    """Takes a source's rows in the order in which they are handed out, and notes what its documents do not allow.

    Memory: 16 bytes a document, one bit a piece.
    """

    def __init__(self, ends: I64, packing: Packing, num_rows: int, name: str = "") -> None:
        """ends: where its documents end. num_rows: of an epoch. name: the source's, for messages."""
        T = packing.row_length
        self.name, self.epoch, self.faults, self.num_faults = name, 0, list[str](), 0
        self._ends, self._row_length, self._num_rows = ends, T, num_rows
        lengths = np.diff(ends, prepend=0)
        kept = lengths if packing.overlong == "split" else np.where(lengths <= T, lengths, 0)
        parts = -(-kept // T)
        self._before = np.cumsum(parts) - parts  # pieces of the documents before each
        self._parts = parts
        self._pieces = int(parts.sum())
        self._seen = np.zeros(self._pieces, dtype=np.bool_)
        self.rows = self.in_epoch = 0

    def take(self, pieces: Pieces, rows: int) -> None:
        """The next rows of this source, however many epochs they span."""
        done = 0
        while done < rows:
            end = min(rows, done + self._num_rows - self.in_epoch)
            self._tick(pieces.part(done, end), end - done)
            self.rows, self.in_epoch, done = self.rows + end - done, self.in_epoch + end - done, end
            if self.in_epoch == self._num_rows:
                self._close_epoch()

    def _tick(self, pieces: Pieces, rows: int) -> None:
        T, start = self._row_length, pieces.start
        after = pieces.column + pieces.length
        same_row = pieces.row[1:] == pieces.row[:-1]
        overlaps = np.zeros(pieces.size, dtype=np.bool_)
        overlaps[1:] = same_row & (pieces.column[1:] < after[:-1])
        self._refuse(pieces, overlaps | (pieces.column < 0) | (after > T), "does not lie in its row beside the others")
        if np.count_nonzero(np.bincount(pieces.row, minlength=rows) == 0):
            self.fault("a row is empty")
        document = np.clip(np.searchsorted(self._ends, start, side="right"), 0, self._ends.size - 1)
        begin = np.where(document > 0, self._ends[document - 1], 0)
        part, rest = np.divmod(start - begin, T)
        length = np.minimum(self._ends[document] - start, T)
        labelled = length - (start + length == self._ends[document])
        wrong = (rest != 0) | (part >= self._parts[document]) | (pieces.length != length) | (pieces.labelled != labelled)
        wrong |= pieces.offset != start - begin
        self._refuse(pieces, wrong, "is no piece of a document")
        number = (self._before[document] + part)[~wrong]
        order = np.sort(number)
        again = np.zeros(order.size, dtype=np.bool_)
        again[1:] = order[1:] == order[:-1]
        again |= self._seen[order]
        for one in order[again][:FAULTS].tolist():
            self.fault(f"{self._told(one)} was handed out again")
        self.num_faults += max(int(np.count_nonzero(again)) - FAULTS, 0)
        self._seen[order] = True

    def _close_epoch(self) -> None:
        missing = np.flatnonzero(~self._seen)
        for one in missing[:FAULTS].tolist():
            self.fault(f"{self._told(one)} was not handed out")
        self.num_faults += max(missing.size - FAULTS, 0)
        self._seen[:] = False
        self.in_epoch = 0
        self.epoch += 1

    def _told(self, piece: int) -> str:
        document = int(np.searchsorted(self._before + self._parts, piece, side="right"))
        return f"part {piece - int(self._before[document])} of document {document}"

    def _refuse(self, pieces: Pieces, wrong: NDArray[np.bool_], why: str) -> None:
        places = np.flatnonzero(wrong)
        for place in places[:FAULTS].tolist():
            self.fault(f"the piece of {int(pieces.length[place])} tokens from token {int(pieces.start[place])} {why}")
        self.num_faults += max(places.size - FAULTS, 0)

    def fault(self, what: str) -> None:
        """Note a fault of the epoch that is under way."""
        self.num_faults += 1
        if len(self.faults) < FAULTS:
            self.faults.append(f"{self.name + ', ' if self.name else ''}epoch {self.epoch}: {what}")
