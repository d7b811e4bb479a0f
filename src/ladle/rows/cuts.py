"""Documents into pieces of at most a row: how many of each length there are, and all of them in a plan's order.

Some documents at a time, in one pass each: memory grows neither with their number nor with their length. Arrays only, no files.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator

import numpy as np
from numpy.typing import NDArray

from ladle.errors import ConfigError
from ladle.order.permutation import I64
from ladle.rows.packs import PackCounts, Packing

PIECE = np.dtype([("start", "<u8"), ("length", "<u4"), ("part", "<u4")])  # part: 2 * its number in its document + (it goes on)
MOST_PARTS = 2**31
AT_ONCE = 2**15  # documents looked at together: their arrays stay in the second-level cache

Records = NDArray[np.void]  # of PIECE
Shards = Callable[[], Iterable[tuple[int, NDArray[np.uint64]]]]  # (first token, document ends from there) of each shard
Cut = tuple[I64, I64, I64]  # pieces: (start, length, part as in PIECE), one array each


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
        backward = starts + lengths < starts  # or beyond int64
        if backward.any():
            at = int(backward.argmax())
            raise ConfigError(
                f"{where}: document {documents + at}: expected an end from token {int(starts[at])} on, where it begins, found "
                f"{(int(starts[at]) + int(lengths[at])) % 2**64}"
            )
        long = np.flatnonzero(lengths > T)
        if packing.overlong == "error" and long.size:
            at = int(long[0])
            raise ConfigError(
                f"{where}: document {documents + at}: expected at most {T} tokens with overlong='error', found "
                f"{int(lengths[at])} (from token {int(starts[at])}); use a larger block_size, or overlong='split' or 'drop'"
            )
        documents, total = documents + lengths.size, total + int(lengths.sum())
        counted = np.bincount(np.minimum(lengths, T + 1), minlength=T + 2)
        classes += counted[: T + 1]
        if packing.overlong == "drop":
            dropped, dropped_tokens = dropped + long.size, dropped_tokens + int(lengths[long].sum())
        elif long.size:
            split += long.size
            whole, rest = np.divmod(lengths[long], T)
            if int(whole.max()) >= MOST_PARTS:
                raise ConfigError(
                    f"{where}: document {documents - lengths.size + int(long[whole.argmax()])}: expected less than {MOST_PARTS} "
                    f"rows of {T} tokens, found {int(lengths.max())} tokens; use a larger block_size"
                )
            classes[T] += int(whole.sum())
            classes += np.bincount(rest, minlength=T + 1)
            classes[0] -= np.count_nonzero(rest == 0)
    empty, classes[0] = int(classes[0]), 0
    if total != num_tokens:
        raise ConfigError(f"{where}: expected documents of {num_tokens} tokens in all, found {total}")
    pieces = int(classes.sum())
    if not pieces:
        lost = f"{dropped} longer than the row of {T}, which overlong='drop' leaves out" if dropped else "empty documents alone"
        raise ConfigError(f"{where}: expected a document to put into a row, found {lost if documents else 'no document'}")
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


def kept(starts: I64, lengths: I64, packing: Packing) -> tuple[I64, I64]:
    """(start, length) of the documents that come into rows."""
    here = lengths > 0
    if packing.overlong == "drop":
        here &= lengths <= packing.row_length
    return (starts, lengths) if here.all() else (starts[here], lengths[here])


def cut(starts: I64, lengths: I64, row_length: int, at_once: int = 2 * AT_ONCE) -> Iterator[Cut]:
    """The pieces of some documents that have tokens, in order: at most at_once of them at a time."""
    long = np.flatnonzero(lengths > row_length)
    parts = np.ones_like(lengths)
    parts[long] = -(-lengths[long] // row_length)
    after = np.cumsum(parts)
    for low in range(0, int(after[-1]) if after.size else 0, at_once):
        high = min(low + at_once, int(after[-1]))
        first, last = np.searchsorted(after, [low, high - 1], side="right").tolist()
        times = parts[first : last + 1].copy()  # how many pieces of each document are asked for
        times[0] -= low - (after[first] - parts[first])
        times[-1] -= after[last] - high
        start, length = np.repeat(starts[first : last + 1], times), np.repeat(lengths[first : last + 1], times)
        part = np.zeros_like(start)
        # Most documents are one piece: only what comes of the long ones is touched again.
        which = long[slice(*np.searchsorted(long, [first, last + 1]))]
        many = times[which - first]
        begin = np.minimum(after[which], high) - many
        counter = np.arange(int(many.sum()), dtype=np.int64) - np.repeat(np.cumsum(many) - many, many)
        place = np.repeat(begin - low, many) + counter
        number = np.repeat(begin - (after[which] - parts[which]), many) + counter
        rest = length[place] - number * row_length
        start[place] += number * row_length
        length[place], part[place] = np.minimum(rest, row_length), 2 * number + (rest > row_length)
        yield start, length, part


def pieces_of(shards: Shards, packing: Packing) -> Iterator[Cut]:
    """All pieces in order, some at a time."""
    for starts, lengths in lengths_of(shards):
        yield from cut(*kept(starts, lengths, packing), packing.row_length)


def pieces_by_length(shards: Shards, packing: Packing, classes: I64, out: Records) -> None:
    """Fill `out` (PIECE [pieces]) with all pieces, by (length, document, part): a counting sort in one pass."""
    small = packing.row_length < 2**16
    place, moved = np.cumsum(classes) - classes, _as_one(out)
    for start, length, part in pieces_of(shards, packing):
        order = np.argsort(length.astype(np.uint16) if small else length, kind="stable")  # NumPy sorts 16 bits by radix
        length_there = length[order]
        first = np.flatnonzero(np.diff(length_there, prepend=-1))
        here, many = length_there[first], np.diff(first, append=length.size)
        to = np.arange(length.size, dtype=np.int64) + np.repeat(place[here] - first, many)
        moved[to] = _as_one(_records(start, length, part))[order]
        place[here] += many


def pieces_in_order(shards: Shards, packing: Packing, out: Records) -> None:
    """Fill `out` (PIECE [pieces]) with all pieces as they lie."""
    done = 0
    for pieces in pieces_of(shards, packing):
        made = _records(*pieces)
        out[done : done + made.size] = made
        done += made.size


def _records(start: I64, length: I64, part: I64) -> Records:
    words = np.empty((start.size, 2), dtype="<u8")
    words[:, 0] = start
    words[:, 1] = length | part << 32
    return words.view(PIECE).reshape(-1)


def _as_one(records: Records) -> NDArray[np.complex128]:
    """The same memory, of a dtype whose 16 bytes NumPy moves at once; nothing is computed with it."""
    return records.view(np.complex128)
