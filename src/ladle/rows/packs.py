"""Packs: whole documents in rows of T slots, as a plan that says for any row which pieces lie in it. Arrays only, no files.

Three policies. "best_fit": the classical best-fit-decreasing, counted per length (best_fit.py); a row's pattern says which
lengths it holds, and which document of that length it is follows by arithmetic. "sequential": documents in order, a new row
where the next one does not fit (next-fit). "single": one piece a row, in order.

A document longer than T is cut into pieces of T and a remainder ("split"), left out ("drop"), or refused ("error"). An empty
document is in no row.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import asdict, dataclass
from typing import Literal, Protocol

import numpy as np
from numpy.typing import NDArray

from ladle.errors import ConfigError
from ladle.order.permutation import I64, U64, counter_hash, hash_key, permute
from ladle.rows.best_fit import Patterns, best_fit
from ladle.rows.pieces import Pieces

Policy = Literal["best_fit", "sequential", "single"]
Overlong = Literal["split", "drop", "error"]
Deal = Literal["fixed", "fresh"]
POLICIES: tuple[Policy, ...] = ("best_fit", "sequential", "single")
OVERLONG: tuple[Overlong, ...] = ("split", "drop", "error")
DEALS: tuple[Deal, ...] = ("fixed", "fresh")

LONGEST_ROW = 2**24  # slots
PIECE = np.dtype([("start", "<u8"), ("length", "<u4"), ("part", "<u4")])  # part: 2 * its number in its document + (it goes on)
MOST_PARTS = 2**31
AT_ONCE = 2**21  # documents looked at together

Records = NDArray[np.void]  # of PIECE
Shards = Callable[[], Iterable[tuple[int, NDArray[np.uint64]]]]  # (first token, document ends from there) of each shard
DocumentsIn = Callable[[int, int], tuple[I64, I64]]  # documents that hold any of the tokens [first, last): (first, last) of each


@dataclass(frozen=True, slots=True, kw_only=True)
class Packing:
    """How documents are put into rows.

    row_length: T, in slots. policy, overlong: see above. deal: "fresh" gives each epoch a new deal of the documents of a length
    among the places of that length ("best_fit" only); "fixed" keeps one. seed: of the fresh deals.
    """

    row_length: int
    policy: Policy = "best_fit"
    overlong: Overlong = "split"
    deal: Deal = "fixed"
    seed: int = 0

    def __post_init__(self) -> None:
        for name, known in (("policy", POLICIES), ("overlong", OVERLONG), ("deal", DEALS)):
            if getattr(self, name) not in known:
                shown = "pack" if name == "policy" else name
                raise ConfigError(f"{shown}: expected one of {', '.join(known)}, found {getattr(self, name)!r}")
        if not 2 <= self.row_length <= LONGEST_ROW:
            raise ConfigError(
                f"block_size: expected 2 to {LONGEST_ROW} with pack={self.policy!r} (a row of 1 has no label in it), "
                f"found {self.row_length}"
            )
        if self.deal == "fresh" and self.policy != "best_fit":
            raise ConfigError(
                f"deal: expected 'fixed' with pack={self.policy!r}, found 'fresh': its rows keep the documents' order"
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class PackCounts:
    """What became of the documents of a split; all are counts of one epoch.

    tokens = labelled + boundary + dropped_tokens: labelled have a next token in their document, boundary are documents' last
    tokens. slots = labelled + boundary + padded. split: documents cut at a row's end. empty, dropped: documents in no row.
    """

    documents: int
    empty: int
    dropped: int
    split: int
    pieces: int
    rows: int
    tokens: int
    labelled: int
    boundary: int
    dropped_tokens: int
    slots: int
    padded: int

    @property
    def fill(self) -> float:
        """The share of the slots that hold a token."""
        return 1 - self.padded / self.slots

    def to_dict(self) -> dict[str, int]:
        """Plain JSON values."""
        return asdict(self)

    def __str__(self) -> str:
        lost = f", {self.dropped:,} longer ones dropped ({self.dropped_tokens:,} tokens)" if self.dropped else ""
        return (
            f"{self.documents:,} documents of {self.tokens:,} tokens in {self.rows:,} rows{lost}; "
            f"{self.split:,} cut at a row's end; {self.slots:,} slots = {self.labelled:,} targets + "
            f"{self.boundary:,} documents' last tokens + {self.padded:,} padded ({100 * self.fill:.3f} % full)"
        )


class Packs(Protocol):
    """A plan: row -> pieces, and back."""

    packing: Packing
    num_rows: int
    num_tokens: int
    counts: PackCounts

    def pieces(self, rows: I64, epochs: I64) -> Pieces:
        """The pieces of these rows in these epochs. int64 [k] each, in any order; rows in [0, num_rows)."""

    def holding(self, first: int, last: int, epoch: int) -> I64:
        """The rows that hold any of the tokens [first, last) in an epoch. int64, ascending."""


# --- counting: which pieces there are ---


def lengths_of(shards: Shards) -> Iterator[tuple[I64, I64]]:
    """(start, length) of the documents, some at a time, in order. int64 each."""
    for base, ends in shards():
        before = 0
        for low in range(0, len(ends), AT_ONCE):
            here = ends[low : low + AT_ONCE].astype(np.int64)
            starts = np.concatenate([[before], here[:-1]])
            before = int(here[-1])
            yield base + starts, here - starts


def survey(shards: Shards, num_tokens: int, packing: Packing, where: str) -> tuple[I64, PackCounts]:
    """(how many pieces of each length there are, int64 [T + 1], and the counts without rows and slots).

    Raises ConfigError where no document has a token, and for an overlong document with overlong="error".
    """
    T = packing.row_length
    classes = np.zeros(T + 1, dtype=np.int64)
    documents = empty = dropped = split = dropped_tokens = total = 0
    for starts, lengths in lengths_of(shards):
        if lengths.size and int(lengths.min()) < 0:
            raise ConfigError(f"{where}: expected documents that end after they begin, found one that does not")
        long = lengths > T
        if packing.overlong == "error" and long.any():
            at = int(long.argmax())
            raise ConfigError(
                f"{where}: document {documents + at}: expected at most {T} tokens with overlong='error', found "
                f"{int(lengths[at])} (from token {int(starts[at])}); use a larger block_size, or overlong='split' or 'drop'"
            )
        documents, total = documents + lengths.size, total + int(lengths.sum())
        empty += int(np.count_nonzero(lengths == 0))
        if packing.overlong == "drop":
            dropped, dropped_tokens = dropped + int(np.count_nonzero(long)), dropped_tokens + int(lengths[long].sum())
            lengths = lengths[~long]
        elif long.any():
            split += int(np.count_nonzero(long))
            whole, rest = np.divmod(lengths[long], T)
            if int(whole.max()) >= MOST_PARTS:
                raise ConfigError(f"{where}: expected documents of less than {MOST_PARTS * T} tokens, found a longer one")
            classes[T] += int(whole.sum())
            classes += np.bincount(rest, minlength=T + 1)
            lengths = lengths[~long]
        classes += np.bincount(lengths, minlength=T + 1)
    classes[0] = 0
    if total != num_tokens:
        raise ConfigError(f"{where}: expected documents of {num_tokens} tokens in all, found {total}")
    pieces = int(classes.sum())
    if not pieces:
        told = (
            "empty documents alone" if not dropped else f"{dropped} longer than the row of {T}, which overlong='drop' leaves out"
        )
        raise ConfigError(f"{where}: expected a document to put into a row, found {told if documents else 'no document'}")
    kept = documents - empty - dropped
    return classes, PackCounts(
        documents=documents,
        empty=empty,
        dropped=dropped,
        split=split,
        pieces=pieces,
        rows=0,
        tokens=num_tokens,
        labelled=num_tokens - dropped_tokens - kept,
        boundary=kept,
        dropped_tokens=dropped_tokens,
        slots=0,
        padded=0,
    )


def cut(starts: I64, lengths: I64, packing: Packing) -> tuple[I64, I64, I64]:
    """The pieces of some documents, in order: (start, length, part as in PIECE). int64 each."""
    T = packing.row_length
    kept = (lengths > 0) if packing.overlong == "split" else (lengths > 0) & (lengths <= T)
    if not kept.all():
        starts, lengths = starts[kept], lengths[kept]
    if not lengths.size or int(lengths.max()) <= T:
        return starts, lengths, np.zeros_like(starts)
    long = np.flatnonzero(lengths > T)
    parts = np.ones_like(lengths)
    parts[long] = many = -(-lengths[long] // T)
    start, length, part = np.repeat(starts, parts), np.repeat(lengths, parts), np.zeros(int(parts.sum()), dtype=np.int64)
    # Most documents are one piece: only what came of the long ones is touched again.
    number = np.arange(int(many.sum()), dtype=np.int64) - np.repeat(np.cumsum(many) - many, many)
    place = np.repeat(np.cumsum(parts)[long] - many, many) + number
    rest = length[place] - number * T
    start[place] += number * T
    length[place], part[place] = np.minimum(rest, T), 2 * number + (rest > T)
    return start, length, part


def pieces_by_length(shards: Shards, packing: Packing, classes: I64, out: Records) -> None:
    """Fill `out` with all pieces, by (length, document, part): a counting sort in one pass over the documents."""
    place = np.cumsum(classes) - classes
    small = packing.row_length < 2**16
    for starts, lengths in lengths_of(shards):
        start, length, part = cut(starts, lengths, packing)
        order = np.argsort(length.astype(np.uint16) if small else length, kind="stable")  # NumPy sorts 16 bits by radix
        here = np.bincount(length, minlength=classes.size)
        ordered = np.empty(start.size, dtype=PIECE)
        ordered["start"], ordered["length"], ordered["part"] = start, length, part
        ordered = ordered.view(np.complex128)[order].view(PIECE)  # 16 bytes that move as one
        first = np.cumsum(here) - here
        if here.sum() == classes.sum():
            out[:] = ordered
            return
        present = np.flatnonzero(here)
        for low, many, to in zip(first[present].tolist(), here[present].tolist(), place[present].tolist(), strict=True):
            out[to : to + many] = ordered[low : low + many]
        place += here


def pieces_in_order(shards: Shards, packing: Packing, out: Records) -> None:
    """Fill `out` with all pieces as they lie."""
    done = 0
    for starts, lengths in lengths_of(shards):
        start, length, part = cut(starts, lengths, packing)
        here = slice(done, done + start.size)
        out["start"][here], out["length"][here], out["part"][here] = start, length, part
        done += start.size


def next_fit(lengths: NDArray[np.uint32], row_length: int) -> I64:
    """The first piece of each row, and one past the last piece. int64 [rows + 1].

    lengths: of the pieces in order, each at most row_length.
    """
    at, found = 0, [0]
    at_once = max(AT_ONCE, row_length + 1)  # more pieces than a row can hold
    while at < lengths.size:
        ends = np.cumsum(lengths[at : at + at_once], dtype=np.int64)
        after = np.searchsorted(ends, np.concatenate([[0], ends[:-1]]) + row_length, side="right").tolist()
        first, last = 0, at + ends.size == lengths.size
        while first < ends.size and (after[first] < ends.size or last):
            first = after[first]
            found.append(at + first)
        at += first
    return np.array(found, dtype=np.int64)


# --- plans ---


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
        self._records, self._documents = records, documents
        self._classes, self._base = table.classes, np.cumsum(table.classes) - table.classes
        self._keys: dict[int, U64] = {}
        self._row_base = np.concatenate([[0], np.cumsum(patterns.rows)])
        # An entry is (pattern, length): the slots of its class that its rows take follow each other.
        entry_pattern = np.repeat(np.arange(patterns.rows.size), np.diff(patterns.first))
        taken = patterns.times * patterns.rows[entry_pattern]
        by_class = np.argsort(patterns.length, kind="stable")
        slots = np.empty(taken.size, dtype=np.int64)
        running = np.cumsum(taken[by_class]) - taken[by_class]
        lengths = patterns.length[by_class]
        new = np.concatenate([[True], lengths[1:] != lengths[:-1]])
        slots[by_class] = running - np.maximum.accumulate(np.where(new, running, 0))
        self._entries = by_class, lengths, slots[by_class], entry_pattern[by_class], patterns.times[by_class]
        # A place is one piece of a pattern's row: its class, its first slot there, and the step from row to row.
        times = patterns.times
        self._length = np.repeat(patterns.length, times)
        self._step = np.repeat(times, times)
        within = np.arange(self._length.size) - np.repeat(np.cumsum(times) - times, times)
        self._slot = np.repeat(slots, times) + within
        place_first = np.concatenate([[0], np.cumsum(times)])[patterns.first]
        self._first, self._many = place_first[:-1], np.diff(place_first)
        before = np.concatenate([[0], np.cumsum(self._length)])
        self._column = before[:-1] - np.repeat(before[self._first], self._many)

    def pieces(self, rows: I64, epochs: I64) -> Pieces:
        pattern = np.searchsorted(self._row_base, rows, side="right") - 1
        number, many = rows - self._row_base[pattern], self._many[pattern]
        row = np.repeat(np.arange(rows.size, dtype=np.int64), many)
        place = np.arange(row.size, dtype=np.int64) + np.repeat(self._first[pattern] - (np.cumsum(many) - many), many)
        length = self._length[place]
        slot = self._slot[place] + number[row] * self._step[place]
        if self.packing.deal == "fresh":
            slot = permute(slot, self._classes[length], self._key(epochs)[row] ^ _spread(length))
        return _pieces(row, self._column[place], self._records[self._base[length] + slot], self.packing.row_length)

    def holding(self, first: int, last: int, epoch: int) -> I64:
        start, length, _ = cut(*_extents(self._documents(first, last)), self.packing)
        meet = (start < last) & (start + length > first)
        start, length = start[meet], length[meet]
        slot = np.empty_like(start)
        for size in np.unique(length).tolist():
            of = slice(int(self._base[size]), int(self._base[size] + self._classes[size]))
            slot[length == size] = np.searchsorted(self._records["start"][of], start[length == size].astype(np.uint64))
        if self.packing.deal == "fresh":
            key = self._key(np.full(1, epoch, dtype=np.int64)) ^ _spread(length)
            slot = permute(slot, self._classes[length], key, inverse=True)
        _, lengths, slots, pattern, times = self._entries
        # Entries lie by (length, first slot): the last one that begins at or before ours holds it.
        entry = np.empty_like(slot)
        for size in np.unique(length).tolist():
            low, high = np.searchsorted(lengths, [size, size + 1]).tolist()
            entry[length == size] = low + np.searchsorted(slots[low:high], slot[length == size], side="right") - 1
        return np.unique(self._row_base[pattern[entry]] + (slot - slots[entry]) // times[entry])

    def _key(self, epochs: I64) -> U64:
        """A key for each epoch of a fresh deal; _spread makes one for each length of it."""
        different, which = np.unique(epochs, return_inverse=True)
        keys = [hash_key("deal", self.packing.seed, epoch) for epoch in different.tolist()]
        return np.array(keys, dtype=np.uint64)[which]


class OrderedPacks:
    """Rows of neighbouring pieces: "sequential", and "single" with one in each. Source of every method: Packs."""

    def __init__(
        self, packing: Packing, num_tokens: int, counts: PackCounts, table: Table, *, records: Records, documents: DocumentsIn
    ) -> None:
        """records: PIECE [pieces] as they lie (pieces_in_order)."""
        self.packing, self.num_tokens, self.counts, self.num_rows = packing, num_tokens, counts, counts.rows
        self._records, self._first, self._documents = records, table.first, documents

    def pieces(self, rows: I64, epochs: I64) -> Pieces:
        del epochs  # all are alike
        first, after = (rows, rows + 1) if self._first is None else (self._first[rows], self._first[rows + 1])
        many = after - first
        row = np.repeat(np.arange(rows.size, dtype=np.int64), many)
        begin = np.cumsum(many) - many
        records = self._records[np.arange(row.size, dtype=np.int64) + np.repeat(first - begin, many)]
        before = np.cumsum(records["length"], dtype=np.int64) - records["length"]
        return _pieces(row, before - before[begin][row], records, self.packing.row_length)

    def holding(self, first: int, last: int, epoch: int) -> I64:
        del epoch
        start, length, _ = cut(*_extents(self._documents(first, last)), self.packing)
        piece = np.searchsorted(self._records["start"], start[(start < last) & (start + length > first)].astype(np.uint64))
        return np.unique(piece if self._first is None else np.searchsorted(self._first, piece, side="right") - 1)


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


def _extents(documents: tuple[I64, I64]) -> tuple[I64, I64]:
    first, last = documents
    return first, last - first


def _spread(length: I64) -> U64:
    """Another key for each length."""
    return counter_hash(length, 0)
