"""Next-fit: pieces in order, a new row where the next one does not fit."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from ladle.order.permutation import I64

AT_ONCE = 2**16  # pieces looked at together


def next_fit(lengths: NDArray[np.uint32], row_length: int, at_once: int = AT_ONCE) -> I64:
    """The first piece of each row, and one past the last piece. int64 [rows + 1].

    lengths: of the pieces in order, 1 to row_length. Memory: 8 bytes a row, and a few arrays of at_once pieces.
    """
    at, rows = 0, [np.zeros(1, dtype=np.int64)]
    at_once = max(at_once, row_length + 1)  # more pieces than a row can hold
    while at < lengths.size:
        ends = np.cumsum(lengths[at : at + at_once], dtype=np.int64)
        begins = np.concatenate([[0], ends[:-1]])
        after = np.searchsorted(ends, begins + row_length, side="right").tolist()  # where a row that begins here would end
        first, found = 0, list[int]()
        while (following := after[first]) < ends.size:
            found.append(first := following)
        if at + ends.size == lengths.size:
            found.append(first := ends.size)
        rows.append(np.array(found, dtype=np.int64) + at)
        at += first
    return np.concatenate(rows)
