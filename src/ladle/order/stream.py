"""Position -> unit -> (epoch, window): which window is handed out when, and when a window is handed out.

Integers only. A unit is the j-th window of the endless stream; epoch e holds units [e * n, (e + 1) * n).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np

from ladle.errors import ConfigError
from ladle.order.permutation import I64, counter_hash, epoch_key, hash_key, multiply_high, permute

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
        if self.n < 1:
            raise ConfigError(f"order: expected at least 1 window an epoch, found {self.n}")
        if self.shuffle_block is not None and (self.kind != "shuffled" or self.shuffle_block < 1):
            raise ConfigError(
                f"shuffle_block: expected a number of windows >= 1 with order='shuffled', "
                f"found {self.shuffle_block} with order={self.kind!r}"
            )

    def windows(self, first_unit: int, count: int) -> tuple[I64, I64]:
        """(epoch, window) of units [first_unit, first_unit + count), int64 [count] each.

        For order="random" the window is a start in [0, n), and every epoch is 0.
        """
        if self.kind == "random":
            units = np.arange(first_unit, first_unit + count, dtype=np.int64)
            starts = multiply_high(counter_hash(units, hash_key("random", self.seed)), self.n)
            return np.zeros(count, dtype=np.int64), starts
        epochs, windows = np.empty(count, dtype=np.int64), np.empty(count, dtype=np.int64)
        done = 0
        while done < count:  # one piece an epoch; rarely more than two
            epoch, place = divmod(first_unit + done, self.n)
            size = min(count - done, self.n - place)
            piece = slice(done, done + size)
            epochs[piece] = epoch
            places = np.arange(place, place + size, dtype=np.int64)
            windows[piece] = places if self.kind == "sequential" else self._shuffle(places, epoch)
            done += size
        return epochs, windows

    def units(self, epoch: int, windows: I64) -> I64:
        """The inverse: the units that hand out these windows in this epoch. windows: int64 [k]; returns int64 [k]."""
        if self.kind == "random":
            raise ConfigError("order='random' draws with replacement: a window has no one place to invert to")
        places = windows if self.kind == "sequential" else self._place(windows, epoch)
        return epoch * self.n + np.asarray(places, dtype=np.int64)

    def _shuffle(self, places: I64, epoch: int) -> I64:
        key = epoch_key(self.seed, epoch)
        size = self.shuffle_block
        if size is None:
            return permute(places, self.n, key)
        blocks, inner, last_place, short = self._blocks(epoch, size)
        # The short last block of the corpus comes at place last_place of the shuffled blocks.
        border = last_place * size
        after = places >= border + short
        shifted = places + np.where(after, size - short, 0)
        block_place, offset = np.divmod(shifted, size)
        block = permute(block_place, blocks, key)
        lengths = np.where(block == blocks - 1, short, size)
        return block * size + permute(offset, lengths, counter_hash(block, inner))

    def _place(self, windows: I64, epoch: int) -> I64:
        key = epoch_key(self.seed, epoch)
        size = self.shuffle_block
        if size is None:
            return permute(windows, self.n, key, inverse=True)
        blocks, inner, last_place, short = self._blocks(epoch, size)
        block, offset = np.divmod(np.asarray(windows, dtype=np.int64), size)
        lengths = np.where(block == blocks - 1, short, size)
        inside = permute(offset, lengths, counter_hash(block, inner), inverse=True)
        block_place = permute(block, blocks, key, inverse=True)
        return block_place * size + inside - np.where(block_place > last_place, size - short, 0)

    def _blocks(self, epoch: int, size: int) -> tuple[int, int, int, int]:
        """(number of blocks, key of the orders inside blocks, where the last block is dealt, its length)."""
        blocks = -(-self.n // size)
        last_place = int(permute(blocks - 1, blocks, epoch_key(self.seed, epoch), inverse=True))
        return blocks, hash_key("inside", self.seed, epoch), last_place, self.n - (blocks - 1) * size
