"""Where documents begin and end in a batch's rows: positions, segments, lengths. From stored lengths, never from ids."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ladle.order.permutation import I64
from ladle.rows.pieces import Pieces

PADDING = -1  # the segment of a slot that holds no token


@dataclass(frozen=True)
class Boundaries:
    """The documents in some rows of T slots. Everything is computed when it is first asked for, and kept.

    pieces: of these rows, which are counted from 0. rows: how many. block_size: T.
    """

    pieces: Pieces
    rows: int
    block_size: int

    @cached_property
    def _runs(self) -> tuple[I64, I64, I64]:
        """(first, length, piece) of the runs that tile the slots of all rows laid end to end: pieces, and padding (-1)."""
        pieces, slots = self.pieces, self.rows * self.block_size
        first = pieces.row * self.block_size + pieces.column
        after = first + pieces.length
        gap_first = np.concatenate([[0], after])
        gap = np.concatenate([first, [slots]]) - gap_first
        number = np.arange(pieces.size, dtype=np.int64)
        holes = np.flatnonzero(gap)
        if not holes.size:
            return first, pieces.length, number
        firsts = np.concatenate([first, gap_first[holes]])
        order = np.argsort(firsts, kind="stable")
        lengths = np.concatenate([pieces.length, gap[holes]])
        return firsts[order], lengths[order], np.concatenate([number, np.full(holes.size, PADDING)])[order]

    @cached_property
    def positions(self) -> NDArray[np.int64]:
        """Each token's place in its document, int64 (rows, T); 0 for padding."""
        first, length, piece = self._runs
        # One more offset than pieces: the last, which padding (-1) takes, makes its positions begin at 0.
        offset = np.concatenate([self.pieces.offset, [0]])[piece]
        positions = np.arange(self.rows * self.block_size, dtype=np.int64)
        positions += np.repeat(offset - first, length)
        if (padding := piece == PADDING).any():
            positions[np.repeat(padding, length)] = 0
        return positions.reshape(self.rows, self.block_size)

    @cached_property
    def segments(self) -> NDArray[np.int32]:
        """Which document of its row each token belongs to, from 0, int32 (rows, T); -1 for padding."""
        _, length, piece = self._runs
        row = self.pieces.row
        first = np.searchsorted(row, np.arange(self.rows))  # the first piece of each row
        number = np.arange(row.size, dtype=np.int64) - first[row]
        segment = np.concatenate([number, [PADDING]])[piece].astype(np.int32)
        return np.repeat(segment, length).reshape(self.rows, self.block_size)

    @cached_property
    def cu_seqlens(self) -> NDArray[np.int32]:
        """Where the documents of all rows end, laid end to end with padding left out: int32 [segments + 1], from 0, strictly
        increasing; the last is the number of tokens."""
        return np.concatenate([[0], np.cumsum(self.pieces.length)]).astype(np.int32)

    @property
    def max_seqlen(self) -> int:
        """The longest document's part, in tokens."""
        return int(self.pieces.length.max()) if self.pieces.size else 0


def like(array: NDArray[Any], x: Any) -> Any:
    """The array as x is: NumPy's, torch's on x's device, or JAX's with x's sharding."""
    if isinstance(x, np.ndarray):
        return array
    if hasattr(x, "cpu"):
        from torch import from_numpy

        return from_numpy(array).to(x.device)
    from ladle.feed.jax import placed_like

    return placed_like(array, x)
