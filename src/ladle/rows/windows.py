"""Windows: from a window's number to its first token and the targets it owns. Arithmetic on counts, no files.

A split of N tokens has M = N - 1 targets: target t has input token t and label token t + 1. A window reads W
consecutive targets; those outside its own interval are masked, so that under tail="cover" every target is handed
out unmasked exactly once an epoch at a fixed shape.
"""

from __future__ import annotations

from dataclasses import dataclass
from operator import index
from typing import Literal

import numpy as np

from ladle.errors import ConfigError
from ladle.order.permutation import I64, hash_key

Tail = Literal["cover", "drop", "pad"]
TAILS: tuple[Tail, ...] = ("cover", "drop", "pad")


@dataclass(frozen=True, slots=True, kw_only=True)
class Windows:
    """The cut of one split into windows.

    num_tokens: N. window: W, in targets. stride: targets from one start to the next (None: W).
    tail: "cover" moves the last window back to end at the last target and masks what it repeats; "drop" leaves the
    remainder out; "pad" fills the last window up. epoch_offset: shift the cuts each epoch, by a hash of (seed, epoch).
    score, for overlapping windows: "all" counts every target of every window, "new" only those not counted before.
    where: a name for messages.
    """

    num_tokens: int
    window: int
    stride: int | None = None
    tail: Tail = "cover"
    epoch_offset: bool = False
    seed: int = 0
    score: Literal["all", "new"] = "all"
    where: str = "the split"

    def __post_init__(self) -> None:
        for name in ("num_tokens", "window", "stride", "seed"):
            value = getattr(self, name)
            if value is None and name == "stride":
                continue
            if isinstance(value, bool) or not hasattr(value, "__index__"):
                raise ConfigError(f"{name}: expected an integer, found {value!r}")
            object.__setattr__(self, name, index(value))  # Python's own integers: no arithmetic below can wrap
        if self.window < 1:
            raise ConfigError(f"window: expected >= 1, found {self.window}")
        if not isinstance(self.epoch_offset, bool):
            raise ConfigError(f"epoch_offset: expected True or False, found {self.epoch_offset!r}")
        if self.tail not in TAILS:
            raise ConfigError(f"tail: expected one of {', '.join(TAILS)}, found {self.tail!r}")
        if self.score not in ("all", "new"):
            raise ConfigError(f"score: expected 'all' or 'new', found {self.score!r}")
        if self.num_tokens < 2:
            raise ConfigError(f"{self.where}: expected at least 2 tokens (an input and its target), found {self.num_tokens}")
        if self.targets < self.window and self.tail != "pad":
            raise ConfigError(
                f"{self.where}: expected at least {self.window + 1} tokens for windows of {self.window} (each needs "
                f"one token more), found {self.num_tokens}; use a smaller block_size, or tail='pad'"
            )
        if self.stride is not None and not 1 <= self.stride <= self.window:
            more = "" if self.stride < 1 else f"; {self.stride - self.window} targets between windows would never be seen"
            raise ConfigError(f"stride: expected 1 to the window's {self.window}, found {self.stride}{more}")
        if self.overlaps and (self.tail == "pad" or self.epoch_offset):
            raise ConfigError(f"stride={self.stride} below the window needs tail 'cover' or 'drop' and no epoch_offset")
        if self.epoch_offset and self.tail == "pad":
            raise ConfigError("epoch_offset: expected tail 'cover' or 'drop', found 'pad'")
        if self.count < 1:
            raise ConfigError(
                f"{self.where}: expected at least {2 * self.window} tokens for one window of {self.window} at every "
                f"epoch_offset with tail='drop', found {self.num_tokens}"
            )

    @property
    def targets(self) -> int:
        """M, the targets of the split."""
        return self.num_tokens - 1

    @property
    def overlaps(self) -> bool:
        """Whether neighbouring windows share targets."""
        return self.stride is not None and self.stride < self.window

    @property
    def count(self) -> int:
        """n: windows an epoch, the same in every epoch."""
        M, W = self.targets, self.window
        if self.overlaps:
            S = self.stride or W
            return 1 + ((M - W) // S if self.tail == "drop" else -(-(M - W) // S))
        if self.tail == "drop":
            return (M - W + 1) // W if self.epoch_offset else M // W
        return 1 + -(-(M - 1) // W) if self.epoch_offset else -(-M // W)

    def offset(self, epoch: int) -> int:
        """Where the first cut of this epoch falls: targets before it form a window of their own under "cover"."""
        W = self.window
        if not self.epoch_offset:
            return 0 if self.tail == "drop" else W
        shift = hash_key("offset", self.seed, epoch) % W
        return shift if self.tail == "drop" else 1 + shift

    def offsets(self, epochs: I64) -> int | I64:
        """offset() of each epoch, or the one that they share."""
        if not self.epoch_offset:
            return self.offset(0)
        different, which = np.unique(epochs, return_inverse=True)
        return np.array([self.offset(epoch) for epoch in different.tolist()], dtype=np.int64)[which]

    def spans(self, epochs: I64, windows: I64) -> tuple[I64, I64, I64]:
        """(start, low, high) of each window: its first input token, and the columns [low, high) it owns.

        epochs, windows: int64 [k]. Returns int64 [k] each; 0 <= low <= high <= W, columns count from start.
        Under "pad" the columns from high on lie past the split and are padding.
        """
        M, W = self.targets, self.window
        if self.overlaps:
            S = self.stride or W
            start = np.minimum(windows * S, M - W)
            low = np.zeros_like(start)
            if self.score == "new":
                low = np.where(windows > 0, np.minimum((windows - 1) * S, M - W) + W - start, 0)
            return start, low, np.full_like(start, W)
        return owned(self.offsets(epochs), windows, M, W, self.tail)

    def holding(self, epoch: int, first: int, last: int) -> I64:
        """The windows that read any of the targets [first, last) in this epoch. int64, ascending."""
        M, W = self.targets, self.window
        first, last = max(first, 0), min(last, M)
        if first >= last:
            return np.empty(0, dtype=np.int64)
        S = self.stride if self.overlaps and self.stride else W
        shift = 0 if self.overlaps or self.tail != "drop" else self.offset(epoch)
        if self.epoch_offset and self.tail != "drop":
            shift = self.offset(epoch) - W
        low = max((first - shift - W) // S, 0)
        near = np.arange(low, min((last - shift) // S + 2, self.count), dtype=np.int64)
        near = np.union1d(near, [0, self.count - 1])  # the clipped ones reach further than their number says
        start, _, _ = self.spans(np.full(near.size, epoch, dtype=np.int64), near)
        return near[(start < last) & (start + W > first)]


def owned(offset: int | I64, windows: I64, targets: int | I64, window: int, tail: Tail) -> tuple[I64, I64, I64]:
    """(start, low, high) of windows that do not overlap: see Windows.spans. All elementwise.

    offset: where the epoch's first cut falls (Windows.offset). targets: M, of the split that each window is cut from.
    """
    W = window
    if tail == "drop":
        start = offset + windows * W
        return start, np.zeros_like(start), np.full_like(start, W)
    first = offset + (windows - 1) * W
    last = np.minimum(first + W, targets)
    own = np.maximum(first, 0)
    start = first if tail == "pad" else np.clip(first, 0, targets - W)
    return start, np.minimum(own, last) - start, last - start
