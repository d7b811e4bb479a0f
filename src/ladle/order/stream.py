"""Position -> unit -> (epoch, window): which window is handed out when, and when a window is handed out.

Integers only. A unit is the j-th window of the endless stream; epoch e holds units [e * n, (e + 1) * n).
"""

from __future__ import annotations

from dataclasses import dataclass
from operator import index
from typing import Literal

import numpy as np

from ladle.errors import ConfigError
from ladle.order.permutation import I64, LARGEST, U64, counter_hash, hash_key, multiply_high, permute

Kind = Literal["shuffled", "sequential", "random"]
KINDS: tuple[Kind, ...] = ("shuffled", "sequential", "random")


@dataclass(frozen=True, slots=True, kw_only=True)
class Order:
    """The order of n windows an epoch, for every epoch.

    kind: "shuffled" (every window once an epoch, a fresh order each time), "sequential" (as they lie) or "random"
    (independent draws with replacement: n is then the number of possible starts, and there are no epochs).
    shuffle_block: None, or the number of neighbouring windows that stay together: blocks are shuffled, then the
    windows inside each (for media where locality matters; it mixes less).
    """

    kind: Kind
    n: int
    seed: int
    shuffle_block: int | None = None

    def __post_init__(self) -> None:
        if self.kind not in KINDS:
            raise ConfigError(f"order: expected one of {', '.join(KINDS)}, found {self.kind!r}")
        for name in ("n", "seed", "shuffle_block"):
            value = getattr(self, name)
            if value is None and name == "shuffle_block":
                continue
            if isinstance(value, bool) or not hasattr(value, "__index__"):
                raise ConfigError(f"{name}: expected an integer, found {value!r}")
            object.__setattr__(self, name, index(value))
        if not 1 <= self.n <= LARGEST:
            raise ConfigError(f"order: expected 1 to 2**62 windows an epoch, found {self.n}")
        if self.shuffle_block is not None and (self.kind != "shuffled" or not 1 <= self.shuffle_block <= LARGEST):
            raise ConfigError(
                f"shuffle_block: expected a number of windows from 1 to 2**62 with order='shuffled', "
                f"found {self.shuffle_block} with order={self.kind!r}"
            )

    def windows(self, first_unit: int, count: int) -> tuple[I64, I64]:
        """(epoch, window) of units [first_unit, first_unit + count), int64 [count] each.

        For order="random" the window is a start in [0, n), and every epoch is 0.
        """
        units = np.arange(first_unit, first_unit + count, dtype=np.int64)
        if self.kind == "random":
            starts = multiply_high(counter_hash(units, hash_key("random", self.seed)), self.n)
            return np.zeros(count, dtype=np.int64), starts
        epochs = units // self.n
        places = units - epochs * self.n
        return epochs, places if self.kind == "sequential" else self._shuffle(places, epochs)

    def units(self, epoch: int, windows: I64) -> I64:
        """The inverse: the units that hand out these windows in this epoch. windows: int64 [k]; returns int64 [k]."""
        if self.kind == "random":
            raise ConfigError("order='random' draws with replacement: a window has no one place to invert to")
        windows = np.asarray(windows, dtype=np.int64)
        places = windows if self.kind == "sequential" else self._place(windows, np.full(1, epoch, dtype=np.int64))
        return epoch * self.n + places

    # Both take the epoch of each element, int64 ascending: one epoch is one key, which is faster than a key for each.

    def _shuffle(self, places: I64, epochs: I64) -> I64:
        key = self._keys("order", epochs)
        size = self.shuffle_block
        if size is None:
            return permute(places, self.n, key)
        blocks, short, short_place = self._blocks(size, key)
        # The short block lies at place short_place of the shuffled blocks: those after it begin that much earlier.
        behind = places >= short_place * size + short
        block_place, offset = np.divmod(places + np.where(behind, size - short, 0), size)
        block = permute(block_place, blocks, key)
        lengths = np.where(block == blocks - 1, short, size)
        return block * size + permute(offset, lengths, counter_hash(block, self._keys("inside", epochs)))

    def _place(self, windows: I64, epochs: I64) -> I64:
        key = self._keys("order", epochs)
        size = self.shuffle_block
        if size is None:
            return permute(windows, self.n, key, inverse=True)
        blocks, short, short_place = self._blocks(size, key)
        block, offset = np.divmod(windows, size)
        lengths = np.where(block == blocks - 1, short, size)
        inside = permute(offset, lengths, counter_hash(block, self._keys("inside", epochs)), inverse=True)
        block_place = permute(block, blocks, key, inverse=True)
        return block_place * size + inside - np.where(block_place > short_place, size - short, 0)

    def _keys(self, purpose: str, epochs: I64) -> U64:
        """hash_key(purpose, seed, epoch): one (uint64 [1]) where the epochs are all the same, else one for each."""
        first, last = (int(epochs[0]), int(epochs[-1])) if epochs.size else (0, 0)
        keys = np.array([hash_key(purpose, self.seed, epoch) for epoch in range(first, last + 1)], dtype=np.uint64)
        return keys if first == last else keys[epochs - first]

    def _blocks(self, size: int, key: U64) -> tuple[int, int, I64]:
        """(number of blocks, length of the corpus's last one, the place where it is dealt: one for each key)."""
        blocks = -(-self.n // size)
        return blocks, self.n - (blocks - 1) * size, permute(blocks - 1, blocks, key, inverse=True)
