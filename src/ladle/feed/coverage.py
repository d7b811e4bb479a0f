"""What overlapping or spaced windows do to a text: which targets they cover, how often, and what is left out.

Windows as `create_dataloader` and `GPTDataset` cut them: L tokens, one every S, none past the last target.
Counts only: no text, no arrays of tokens. (The feed's own windows, which leave nothing out, are in rows/.)
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

import numpy as np

from ladle.corpus.summary import plural
from ladle.errors import ConfigError
from ladle.feed.arguments import integer


@dataclass(frozen=True, slots=True, kw_only=True)
class Coverage:
    """N tokens cut into windows of L, one every S, and dealt out in batches.

    num_tokens: N. max_length: L, targets in a window. stride: S, tokens from one window's start to the next one's.
    batch_size: windows in a batch. drop_last: whether an epoch's last, smaller batch is left out.

    A target is a token that some window asks a model to predict. The first token of a text never is one: there are
    N - 1, and `covered + skipped + tail` is always N - 1.
    Raises ConfigError for a size below 1, a text that gives no window, or too few windows for one batch.
    """

    num_tokens: int
    max_length: int
    stride: int
    batch_size: int = 1
    drop_last: bool = False

    def __post_init__(self) -> None:
        for name in ("max_length", "stride", "batch_size"):
            object.__setattr__(self, name, integer(name, getattr(self, name), 1))
        if self.num_windows == 0:
            raise ConfigError(
                f"text: expected more than max_length = {self.max_length} tokens, found {self.num_tokens}: "
                f"no window has a target for each of its tokens; give more text or a smaller max_length"
            )
        if self.num_batches == 0:
            raise ConfigError(
                f"text: expected at least batch_size = {self.batch_size} windows with drop_last=True, found "
                f"{self.num_windows} in {self.num_tokens} tokens (max_length = {self.max_length}, stride = {self.stride}); "
                f"give more text, a smaller batch_size or stride, or drop_last=False"
            )

    @property
    def num_windows(self) -> int:
        """Windows in the text: starts 0, S, 2S, ... below N - L."""
        return len(range(0, self.num_tokens - self.max_length, self.stride))

    @property
    def num_batches(self) -> int:
        """Batches in an epoch."""
        whole, rest = divmod(self.num_windows, self.batch_size)
        return whole if self.drop_last or not rest else whole + 1

    @property
    def dropped_windows(self) -> int:
        """Windows that each epoch leaves out with its last batch (others each time, where they are shuffled)."""
        return self.num_windows % self.batch_size if self.drop_last else 0

    @property
    def covered(self) -> int:
        """Targets that stand in at least one window."""
        between = (self.num_windows - 1) * min(self.stride, self.max_length)
        return between + self.max_length

    @property
    def skipped(self) -> int:
        """Targets between two windows, in neither (only where stride > max_length)."""
        return (self.num_windows - 1) * max(self.stride - self.max_length, 0)

    @property
    def tail(self) -> int:
        """Targets after the last window."""
        return self.num_tokens - 1 - self.covered - self.skipped

    @property
    def times(self) -> dict[int, int]:
        """How often tokens are targets in one pass over all windows: {times: number of targets}, 0 included."""
        # Past the first windows every further one adds S targets of the middle's kind, so a short text tells all.
        ceiling = -(-self.max_length // self.stride)
        short = min(self.num_windows, 2 * ceiling + 1)
        starts = np.arange(short, dtype=np.int64) * self.stride
        steps = np.zeros(int(starts[-1]) + self.max_length + 1, dtype=np.int64)
        steps[starts] += 1
        np.subtract.at(steps, starts + self.max_length, 1)
        counts = Counter(dict(enumerate(np.bincount(np.cumsum(steps)[:-1]).tolist())))
        further = self.num_windows - short
        more = self.max_length % self.stride or self.stride  # of S neighbours, so many stand in one window more
        counts[ceiling] += further * more
        counts[ceiling - 1] += further * (self.stride - more)
        counts[0] += self.tail
        return {times: counts[times] for times in sorted(counts) if counts[times]}

    def __str__(self) -> str:
        repeats = ", ".join(f"{targets:,} {often(times)}" for times, targets in self.times.items())
        windows = f"{plural(self.num_windows, 'window')} of {self.max_length}, one every {self.stride}"
        parts = [
            f"{plural(self.num_tokens, 'token')}, {windows}",
            f"of {plural(self.num_tokens - 1, 'target')}: {repeats}",
        ]
        if self.skipped:
            parts.append(f"{self.skipped:,} between windows")
        if self.tail:
            parts.append(f"{self.tail:,} after the last window")
        if self.batch_size > 1:
            parts.append(f"{plural(self.num_batches, 'batch', 'batches')} of {self.batch_size} an epoch")
        if self.dropped_windows:
            parts[-1] += f", {plural(self.dropped_windows, 'window')} dropped with the last"
        return "; ".join(parts)


def often(times: int) -> str:
    """never, once, twice, each 3 times, ..."""
    return {0: "never", 1: "once", 2: "twice"}.get(times, f"each {times} times")
