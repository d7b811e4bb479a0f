"""Spans of a split -> x and y. The one place where tokens move.

Source of the method: measured, see docs/benchmarks.md. A row is one opaque item of (T + 1) tokens in an overlapping
array, so that NumPy's fancy index copies each row by one memcpy; two passes then widen it to x and y.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from ladle.corpus.split import Split
from ladle.order.permutation import I64

Tokens = NDArray[Any]  # uint16 or uint32


def gather(split: Split, starts: I64, block_size: int) -> NDArray[np.int64]:
    """x and y of the rows that start at these tokens.

    starts: int64 [rows], contiguous, each in [0, N - 1). Returns int64 (2, rows, T), freshly owned: block[0] is x,
    block[1] is y, one token later; each contiguous, sharing no element. Tokens past the split's end are 0.
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
    """Rows of `length` tokens in the file's dtype, [rows, length], freshly owned; stitched where shards meet."""
    bases = split.bases
    if len(bases) == 2 and starts.size and int(starts.max()) + length <= int(bases[1]):
        return _from_shard(split, 0, starts, length)
    rows = np.empty((starts.size, length), dtype=split.dtype)
    shard_of = np.searchsorted(bases, starts, side="right") - 1
    whole = starts + length <= bases[shard_of + 1]
    for shard in np.unique(shard_of[whole]).tolist():
        chosen = np.flatnonzero(whole & (shard_of == shard))
        rows[chosen] = _from_shard(split, shard, starts[chosen] - bases[shard], length)
    for row in np.flatnonzero(~whole).tolist():
        start = int(starts[row])
        known = min(length, int(bases[-1]) - start)
        rows[row, :known] = split.read(start, known)
        rows[row, known:] = 0
    return rows


def _from_shard(split: Split, shard: int, starts: I64, length: int) -> Tokens:
    """starts: tokens within the shard; every row lies inside it."""
    source = split.shards[shard]
    source.check_many(starts, length)
    tokens = source.tokens()
    row = np.dtype((np.void, length * tokens.itemsize))
    rows = np.ndarray((tokens.size - length + 1,), row, buffer=tokens, strides=(tokens.itemsize,))
    return rows[starts].view(tokens.dtype).reshape(starts.size, length)


def by_shard(split: Split, starts: I64) -> list[tuple[int, I64]]:
    """The starts of each shard, as tokens within it: [(shard, int64 [k])]."""
    if len(split.shards) == 1:
        return [(0, starts)]
    shard_of = np.searchsorted(split.bases, starts, side="right") - 1
    return [(shard, starts[shard_of == shard] - split.bases[shard]) for shard in np.unique(shard_of).tolist()]
