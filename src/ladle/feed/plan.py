"""Row numbers -> where each row starts and which of its columns count. Integers only; no file is touched."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Generic, Protocol, Self, TypeVar

import numpy as np

from ladle.errors import ConfigError
from ladle.order.permutation import I64
from ladle.rows.stream import Stream

AHEAD = 4096  # rows planned at once, so that NumPy's cost a call disappears


class Block(Protocol):
    """Neighbouring rows of a plan."""

    @property
    def size(self) -> int:
        """How many rows."""

    def part(self, low: int, high: int) -> Self:
        """Rows [low, high) of these."""


Kind = TypeVar("Kind", bound=Block)


@dataclass(frozen=True, slots=True)
class Rows:
    """start: token index of each row's first input. [low, high): the columns whose targets count. int64 [rows] each."""

    start: I64
    low: I64
    high: I64

    @property
    def size(self) -> int:
        return self.start.size

    def part(self, low: int, high: int) -> Rows:
        """Rows [low, high) of these, as views."""
        return Rows(self.start[low:high], self.low[low:high], self.high[low:high])


class Ahead(Generic[Kind]):
    """The endless sequence of rows. A pure function of the row number, with the last blocks that were computed kept.

    Batches ask for neighbours. Not shared between threads.
    """

    def __init__(self, ahead: int = AHEAD) -> None:
        """ahead: rows to compute at least, where batches follow each other; 1 where single ones are looked at."""
        self._ahead = ahead
        self._blocks: list[tuple[int, Kind]] = []

    def rows(self, first: int, count: int) -> Kind:
        """Rows [first, first + count)."""
        for low, block in self._blocks:
            if low <= first and first + count <= low + block.size:
                return block.part(first - low, first - low + count)
        # Ahead only once batches are seen to follow each other: the first batch of a resumed run waits for its own rows alone.
        following = any(low <= first <= low + block.size + self._ahead for low, block in self._blocks)
        block = self._compute(first, max(self._ahead, count) if following else count)
        self._blocks = [(first, block), *self._blocks[:1]]  # two: the rows now, and those the kernel is told of
        return block.part(0, count)

    def _compute(self, first: int, count: int) -> Kind:
        raise NotImplementedError


class Plan(Ahead[Rows]):
    """Rows of T slots cut from windows. Row g covers slots [g * T, (g + 1) * T)."""

    def __init__(self, stream: Stream, block_size: int, ahead: int = AHEAD) -> None:
        """ahead: see Ahead."""
        if block_size < 1 or stream.window % block_size:
            raise ConfigError(f"block_size: expected a divisor of the window {stream.window}, found {block_size}")
        if stream.whole_rows and block_size != stream.window:
            raise ConfigError(f"stride below the window needs block_size equal to it: {stream.window}, found {block_size}")
        super().__init__(ahead)
        self.stream, self.block_size = stream, block_size

    def _compute(self, first: int, count: int) -> Rows:
        per_window = self.stream.window // self.block_size
        first_unit = first // per_window
        last_unit = (first + count - 1) // per_window + 1
        start, low, high = self.stream.spans(first_unit, last_unit - first_unit)
        if per_window == 1:
            return _frozen(start, low, high)
        T = self.block_size
        row = np.arange(first, first + count, dtype=np.int64)
        unit, column = row // per_window - first_unit, row % per_window * T
        # Of a padded window whole rows can lie past the split: they stand at its last token, and own no column.
        start = np.minimum(start[unit] + column, self.stream.num_tokens - 1)
        return _frozen(start, np.clip(low[unit] - column, 0, T), np.clip(high[unit] - column, 0, T))


def _frozen(*arrays: I64) -> Rows:
    """Rows that nobody can write into: batches hold views of what is kept here."""
    for array in arrays:
        array.flags.writeable = False
    return Rows(*arrays)
