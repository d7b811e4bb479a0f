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


def read_rows(split: Split, starts: I64, length: int) -> Tokens:
    """Rows of `length` tokens in the split's dtype, [rows, length]; stitched where shards meet. Perhaps not writeable."""
    if len(split.shards) == 1 and int(starts.max()) + length <= split.num_tokens:
        return _from_shard(split, 0, starts, length)
    shard_of = np.searchsorted(split.bases[1:-1], starts, side="right")
    if starts.size < ROWS_A_SHARD * np.count_nonzero(np.bincount(shard_of)):
        return _one_by_one(split, shard_of, starts, length)
    rows = np.empty((starts.size, length), dtype=split.dtype)
    for shard, chosen, inside in by_shard(split, starts):
        fits = inside + length <= split.shards[shard].num_tokens
        if fits.any():
            rows[chosen[fits]] = _from_shard(split, shard, inside[fits], length)
        if not fits.all():
            over = chosen[~fits]
            rows[over] = _one_by_one(split, shard_of[over], starts[over], length)
    return rows


def _one_by_one(split: Split, shard_of: I64, starts: I64, length: int) -> Tokens:
    """Few rows a shard: as many pieces of bytes, joined."""
    inside, dtype = (starts - split.bases[shard_of]).tolist(), split.dtype
    pieces: list[memoryview | bytes] = []
    for row, (shard, first) in enumerate(zip(shard_of.tolist(), inside, strict=True)):
        source, end = split.shards[shard], first + length
        if end <= source.num_tokens and source.dtype is dtype:
            pieces.append(source.piece(first, end))
        else:
            start = min(int(starts[row]), split.num_tokens)
            known = split.read(start, min(split.num_tokens - start, length))
            pieces.append(known.tobytes().ljust(length * dtype.itemsize, b"\0"))
    return np.frombuffer(b"".join(pieces), dtype).reshape(starts.size, length)


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
