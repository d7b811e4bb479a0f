"""Pieces into rows: plans of packs, from the counts of lengths and the pieces. Arrays only, no files."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass

import numpy as np
from numpy.typing import NDArray

from ladle.errors import ClosedError, ConfigError
from ladle.order.permutation import I64, U64, counter_hash, hash_key, permute
from ladle.rows.best_fit import Patterns, best_fit
from ladle.rows.cuts import PIECE, Records, Shards, cut, kept, pieces_by_length, pieces_in_order, survey
from ladle.rows.next_fit import next_fit
from ladle.rows.packs import PackCounts, Packing, Packs
from ladle.rows.pieces import Pieces

DocumentsIn = Callable[[int, int], tuple[I64, I64]]  # documents that hold any of the tokens [first, last): (first, last) of each


@dataclass(frozen=True, slots=True)
class Table:
    """What is kept of a plan beside the pieces. int64 arrays; which are there depends on the policy.

    patterns: of "best_fit". first: next_fit's, of "sequential". classes: pieces of each length, int64 [T + 1].
    """

    classes: I64
    patterns: Patterns | None = None
    first: I64 | None = None

    def num_rows(self) -> int:
        """How many rows the plan has."""
        if self.patterns is not None:
            return int(self.patterns.rows.sum())
        return int(self.classes.sum()) if self.first is None else self.first.size - 1


def table_of(classes: I64, packing: Packing, lengths: NDArray[np.uint32]) -> Table:
    """The plan's table. lengths: of the pieces in order; looked at by "sequential" alone."""
    if packing.policy == "best_fit":
        present = np.flatnonzero(classes)
        return Table(classes, patterns=best_fit(present, classes[present], packing.row_length))
    return Table(classes, first=next_fit(lengths, packing.row_length) if packing.policy == "sequential" else None)


def counted(counts: PackCounts, table: Table, packing: Packing) -> PackCounts:
    """The counts with the rows and slots that they lack."""
    rows = table.num_rows()
    slots = rows * packing.row_length
    padded = slots - counts.labelled - counts.boundary
    return PackCounts(**{**asdict(counts), "rows": rows, "slots": slots, "padded": padded})


class PatternPacks:
    """Rows of patterns. Source of every method: Packs."""

    def __init__(
        self, packing: Packing, num_tokens: int, counts: PackCounts, table: Table, *, records: Records, documents: DocumentsIn
    ) -> None:
        """records: PIECE [pieces] by length (pieces_by_length)."""
        patterns = table.patterns
        if patterns is None:
            raise ConfigError("a plan of patterns needs patterns")
        self.packing, self.num_tokens, self.counts, self.num_rows = packing, num_tokens, counts, counts.rows
        self._records: Records | None = records
        self._documents = documents
        self._classes, self._base = table.classes, np.cumsum(table.classes) - table.classes
        self._row_base = np.concatenate([[0], np.cumsum(patterns.rows)])
        # An entry is (pattern, length): the records that its rows take follow each other, and so do the entries of a length.
        entry_pattern = np.repeat(np.arange(patterns.rows.size), np.diff(patterns.first))
        taken = patterns.times * patterns.rows[entry_pattern]
        by_length = np.argsort(patterns.length, kind="stable")
        first = np.cumsum(taken[by_length]) - taken[by_length]
        self._entries = first, entry_pattern[by_length], patterns.times[by_length]
        record = np.empty_like(first)
        record[by_length] = first
        # A place is one piece of a pattern's row: its length, its first row's record, and the step from row to row.
        times = patterns.times
        self._length, self._step = np.repeat(patterns.length, times), np.repeat(times, times)
        self._record = np.repeat(record - (np.cumsum(times) - times), times) + np.arange(self._length.size)
        place_first = np.concatenate([[0], np.cumsum(times)])[patterns.first]
        self._first, self._many = place_first[:-1], np.diff(place_first)
        before = np.concatenate([[0], np.cumsum(self._length)])
        self._column = before[:-1] - np.repeat(before[self._first], self._many)

    def pieces(self, rows: I64, epochs: I64) -> Pieces:
        pattern = np.searchsorted(self._row_base, rows, side="right") - 1
        number, many = rows - self._row_base[pattern], self._many[pattern]
        row = np.repeat(np.arange(rows.size, dtype=np.int64), many)
        place = np.arange(row.size, dtype=np.int64) + np.repeat(self._first[pattern] - (np.cumsum(many) - many), many)
        record = self._record[place] + number[row] * self._step[place]
        if self.packing.deal == "fresh":
            record = self._dealt(record, self._length[place], epochs[row])
        return _pieces(row, self._column[place], _open(self._records)[record], self.packing.row_length)

    def holding(self, first: int, last: int, epoch: int) -> I64:
        begins = _open(self._records)["start"]
        start, length = _meeting(self._documents, first, last, self.packing)
        order = np.argsort(length, kind="stable")
        start, length = start[order].astype(np.uint64), length[order]
        record = self._base[length]
        sizes, low = np.unique(length, return_index=True)
        for size, of in zip(sizes.tolist(), np.split(np.arange(length.size), low[1:]), strict=False):
            base, many = int(self._base[size]), int(self._classes[size])
            record[of] += np.searchsorted(begins[base : base + many], start[of])
        if self.packing.deal == "fresh":
            record = self._dealt(record, length, np.full_like(record, epoch), inverse=True)
        first_record, pattern, times = self._entries
        entry = np.searchsorted(first_record, record, side="right") - 1
        return np.unique(self._row_base[pattern[entry]] + (record - first_record[entry]) // times[entry])

    def close(self) -> None:
        self._records = None

    def _dealt(self, record: I64, length: I64, epochs: I64, *, inverse: bool = False) -> I64:
        """Which record of its length stands where this one would, in an epoch's fresh deal. int64 [k] each."""
        different, which = np.unique(epochs, return_inverse=True)
        keys = np.array([hash_key("deal", self.packing.seed, epoch) for epoch in different.tolist()], dtype=np.uint64)
        base = self._base[length]
        key: U64 = keys[which] ^ counter_hash(length, 0)  # another for each length
        return base + permute(record - base, self._classes[length], key, inverse=inverse)


class OrderedPacks:
    """Rows of neighbouring pieces: "sequential", and "single" with one in each. Source of every method: Packs."""

    def __init__(
        self, packing: Packing, num_tokens: int, counts: PackCounts, table: Table, *, records: Records, documents: DocumentsIn
    ) -> None:
        """records: PIECE [pieces] as they lie (pieces_in_order)."""
        self.packing, self.num_tokens, self.counts, self.num_rows = packing, num_tokens, counts, counts.rows
        self._records: Records | None = records
        self._first, self._documents = table.first, documents

    def pieces(self, rows: I64, epochs: I64) -> Pieces:
        del epochs  # all are alike
        first, after = (rows, rows + 1) if self._first is None else (self._first[rows], self._first[rows + 1])
        many = after - first
        row = np.repeat(np.arange(rows.size, dtype=np.int64), many)
        begin = np.cumsum(many) - many
        records = _open(self._records)[np.arange(row.size, dtype=np.int64) + np.repeat(first - begin, many)]
        before = np.cumsum(records["length"], dtype=np.int64) - records["length"]
        return _pieces(row, before - before[begin][row], records, self.packing.row_length)

    def holding(self, first: int, last: int, epoch: int) -> I64:
        del epoch
        start, _ = _meeting(self._documents, first, last, self.packing)
        piece = np.searchsorted(_open(self._records)["start"], start.astype(np.uint64))
        return np.unique(piece if self._first is None else np.searchsorted(self._first, piece, side="right") - 1)

    def close(self) -> None:
        self._records = None


def plan_of(
    packing: Packing, num_tokens: int, counts: PackCounts, table: Table, *, records: Records, documents: DocumentsIn
) -> Packs:
    """The plan, from what is kept of it."""
    kind = PatternPacks if packing.policy == "best_fit" else OrderedPacks
    return kind(packing, num_tokens, counts, table, records=records, documents=documents)


def pack(shards: Shards, num_tokens: int, packing: Packing, documents: DocumentsIn, where: str = "the split") -> Packs:
    """The plan of a split, in memory. Raises ConfigError: see survey."""
    classes, counts = survey(shards, num_tokens, packing, where)
    records = np.empty(counts.pieces, dtype=PIECE)
    table = arrange(shards, packing, classes, records)
    return plan_of(packing, num_tokens, counted(counts, table, packing), table, records=records, documents=documents)


def arrange(shards: Shards, packing: Packing, classes: I64, records: Records) -> Table:
    """Fill the records (PIECE [pieces]) as the policy wants them; returns the table."""
    if packing.policy == "best_fit":
        pieces_by_length(shards, packing, classes, records)
    else:
        pieces_in_order(shards, packing, records)
    return table_of(classes, packing, records["length"])


def _pieces(row: I64, column: I64, records: Records, row_length: int) -> Pieces:
    """Pieces of records, whose fields become int64."""
    length, part = records["length"].astype(np.int64), records["part"].astype(np.int64)
    goes_on = part & 1
    # Parts before the last are as long as the row, so that a part's number tells what lies before it.
    return Pieces(row, column, records["start"].astype(np.int64), length, length - 1 + goes_on, (part >> 1) * row_length)


def _meeting(documents: DocumentsIn, first: int, last: int, packing: Packing) -> tuple[I64, I64]:
    """(start, length) of the pieces that hold any of the tokens [first, last). int64 each."""
    begin, end = documents(first, last)
    begin, length = kept(begin, end - begin, packing)
    # Of a long document only the parts that are near are cut.
    T = packing.row_length
    skipped = np.maximum(first - begin, 0) // T * T
    begin, length = begin + skipped, length - skipped
    found = list(cut(begin, np.minimum(length, -(-(last - begin) // T) * T), T))
    none = np.empty(0, dtype=np.int64)
    start, length = (np.concatenate([none, *(pieces[i] for pieces in found)]) for i in (0, 1))
    meet = (start < last) & (start + length > first)
    return start[meet], length[meet]


def _open(records: Records | None) -> Records:
    if records is None:
        raise ClosedError("this plan of packs is closed; make another from the same split")
    return records
