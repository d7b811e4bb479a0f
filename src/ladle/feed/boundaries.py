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

    def __reduce__(self) -> tuple[Any, ...]:
        return Boundaries, (self.pieces, self.rows, self.block_size)  # what was computed is computed anew where it is wanted

    @cached_property
    def _padding(self) -> I64:
        """Slots without a token at the end of each row. int64 [rows]."""
        return self.block_size - np.bincount(self.pieces.row, self.pieces.length, self.rows).astype(np.int64)

    def _spread(self, values: NDArray[Any], padding: int) -> NDArray[Any]:
        """In every slot the value of its piece, (rows, T): pieces follow each other from column 0, and padding the last."""
        place = np.arange(self.pieces.size) + self.pieces.row  # each row before has a run of padding too, perhaps of 0 slots
        run = np.full(self.pieces.size + self.rows, padding, dtype=values.dtype)
        length = np.empty(run.size, dtype=np.int64)
        gaps = np.ones(run.size, dtype=bool)
        run[place], length[place], gaps[place] = values, self.pieces.length, False
        length[gaps] = self._padding
        return np.repeat(run, length).reshape(self.rows, self.block_size)

    @cached_property
    def positions(self) -> NDArray[np.int64]:
        """Each token's place in its document, int64 (rows, T); 0 for padding."""
        positions = self._spread(self.pieces.offset - self.pieces.column, 0)
        positions += np.arange(self.block_size)
        for row in np.flatnonzero(self._padding).tolist():
            positions[row, self.block_size - int(self._padding[row]) :] = 0
        return positions

    @cached_property
    def segments(self) -> NDArray[np.int32]:
        """Which document of its row each token belongs to, from 0, int32 (rows, T); -1 for padding."""
        row = self.pieces.row
        number = np.arange(row.size) - np.searchsorted(row, np.arange(self.rows))[row]
        return self._spread(number.astype(np.int32), PADDING)

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
