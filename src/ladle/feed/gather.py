"""Spans of a split -> x and y. The one place where tokens move.

Source of the method: measured, see docs/benchmarks.md. A row is one opaque item of (T + 1) tokens in an overlapping
array, so that NumPy's fancy index copies each row by one memcpy; two passes then widen it to x and y.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ladle.corpus.split import Split
from ladle.order.permutation import I64
from ladle.rows.pieces import Pieces

Tokens = NDArray[Any]  # uint16 or uint32
ROWS_A_SHARD = 48  # with more, asking NumPy once a shard is quicker than Python once a row (measured: bench/mixture.py)


def gather(split: Split, starts: I64, block_size: int) -> NDArray[np.int64]:
    """x and y of the rows that start at these tokens.

    starts: int64 [rows], at least one, none negative. Returns int64 (2, rows, T), freshly owned: block[0] is x, block[1]
    is y, one token later; each contiguous, sharing no element. Tokens past the split's end are 0.
    Raises FormatError where a block's checksum is wrong, TokenError where an id is outside a known vocabulary.
    Cost: the file's bytes once, and 16 bytes written a target.
    """
    rows = read_rows(split, starts, block_size + 1)
    split.check_ids(rows, starts)
    block = np.empty((2, starts.size, block_size), dtype=np.int64)
    block[0] = rows[:, :-1]
    block[1] = rows[:, 1:]
    return block


def gather_pieces(split: Split, pieces: Pieces, rows: int, block_size: int) -> NDArray[np.int64]:
    """x and y of rows that are made of pieces, the rest of each row 0. As gather, of which y is right where a target counts.

    pieces: of these rows. A piece with a label for its last slot is read one token further.
    """
    tokens = read_pieces(split, pieces, rows, block_size + 1)
    known = split.vocab_size is None or (split.max_id is not None and split.max_id < split.vocab_size)
    if not known and int(tokens.max()) >= (split.vocab_size or 0):
        for row, column, start, size in zip(*_lists(pieces, _read(pieces)), strict=True):  # one of them says which
            split.check_ids(tokens[row, column : column + size], start)
    block = np.empty((2, rows, block_size), dtype=np.int64)
    block[0] = tokens[:, :-1]
    block[1] = tokens[:, 1:]
    return block


def read_pieces(split: Split, pieces: Pieces, rows: int, length: int) -> Tokens:
    """Rows of `length` tokens in the split's dtype, [rows, length], in which each piece stands at its column.

    A piece that goes on is as long as the row but for the last token, which is the one that follows it.
    """
    count = _read(pieces)
    if not split.alike:
        found = np.zeros((rows, length), dtype=split.dtype)
        for row, column, start, size in zip(*_lists(pieces, count), strict=True):
            found[row, column : column + size] = split.read(start, size)
        return found
    parts = split.pieces(np.searchsorted(split.bases[1:-1], pieces.start, side="right"), pieces.start, count)
    # Where a row ends its padding follows: from the last row to the first, so that places do not move.
    ends = pieces.row.searchsorted(np.arange(rows), side="right")
    padding = (length - (pieces.column + count)[ends - 1]) * split.dtype.itemsize
    for end, size in zip(ends[::-1].tolist(), padding[::-1].tolist(), strict=True):
        if size:
            parts.insert(end, bytes(size))
    return np.frombuffer(b"".join(parts), split.dtype).reshape(rows, length)


def _read(pieces: Pieces) -> I64:
    """The tokens that each piece reads: those of its slots, and the label of the last where its document goes on."""
    count: I64 = pieces.length + (pieces.labelled == pieces.length)
    return count


def _lists(pieces: Pieces, count: I64) -> list[list[int]]:
    return [array.tolist() for array in (pieces.row, pieces.column, pieces.start, count)]


def read_rows(split: Split, starts: I64, length: int) -> Tokens:
    """Rows of `length` tokens in the split's dtype, [rows, length]; stitched where shards meet. Perhaps not writeable."""
    if len(split.shards) == 1 and int(starts.max()) + length <= split.num_tokens:
        return _from_shard(split, 0, starts, length)
    shard_of = np.searchsorted(split.bases[1:-1], starts, side="right")
    inside = starts + length <= split.bases[shard_of + 1]
    if not inside.all():
        rows = np.empty((starts.size, length), dtype=split.dtype)
        if inside.any():
            rows[inside] = read_rows(split, starts[inside], length)
        for row in np.flatnonzero(~inside).tolist():  # over a border, or past the end
            start = min(int(starts[row]), split.num_tokens)
            known = min(split.num_tokens - start, length)
            rows[row, :known] = split.read(start, known)
            rows[row, known:] = 0
        return rows
    few = starts.size < 2 * ROWS_A_SHARD or starts.size < ROWS_A_SHARD * np.count_nonzero(np.bincount(shard_of))
    if few and split.alike:
        return np.frombuffer(b"".join(split.pieces(shard_of, starts, length)), split.dtype).reshape(starts.size, length)
    rows = np.empty((starts.size, length), dtype=split.dtype)
    for shard, chosen, first in by_shard(split, starts):
        rows[chosen] = _from_shard(split, shard, first, length)
    return rows


def by_shard(split: Split, starts: I64) -> Iterator[tuple[int, I64, I64]]:
    """(shard, which of the starts lie in it, and where within it), shard after shard. Starts past the end: the last."""
    shard_of = np.searchsorted(split.bases[1:-1], starts, side="right")
    order = np.argsort(shard_of, kind="stable")
    for chosen in np.split(order, np.flatnonzero(np.diff(shard_of[order])) + 1):
        if chosen.size:
            shard = int(shard_of[chosen[0]])
            yield shard, chosen, starts[chosen] - split.bases[shard]


def _from_shard(split: Split, shard: int, starts: I64, length: int) -> Tokens:
    """starts: tokens within the shard; every row lies inside it."""
    source = split.shards[shard]
    source.check_many(starts, length)
    tokens = source.tokens()
    row = np.dtype((np.void, length * tokens.itemsize))
    rows = np.ndarray((tokens.size - length + 1,), row, buffer=tokens, strides=(tokens.itemsize,))
    return rows[starts].view(tokens.dtype).reshape(starts.size, length)
