"""How often targets are handed out by windows that overlap or are drawn: {times: number of targets}, in bounded memory."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator

import numpy as np

from ladle.order.permutation import I64
from ladle.rows.windows import Windows

AT_ONCE = 2**21  # windows looked at together


def overlapping(windows: Windows) -> dict[int, int]:
    """Of one epoch of overlapping windows that all count (score="all")."""
    M, W, S, last = windows.targets, windows.window, windows.stride or windows.window, windows.count - 1
    times: Counter[int] = Counter()
    for low in range(0, M, AT_ONCE * S):
        high = min(low + AT_ONCE * S, M)
        near = np.arange(max((low - W) // S, 0), min(high // S + 1, last) + 1, dtype=np.int64)
        times.update(held(np.minimum(near * S, M - W), W, low, high))
    return {often: times[often] for often in sorted(times)}


def drawn(draws: Callable[[], Iterator[I64]], count: int, window: int, targets: int) -> dict[int, int]:
    """Of `count` windows at drawn starts. draws: gives all the starts, in blocks, each time it is called.

    They are drawn anew for each part of the targets, so that few are held at once.
    """
    part = -(-targets // -(-count // AT_ONCE)) if count else targets
    times: Counter[int] = Counter()
    for low in range(0, targets, part):
        high = min(low + part, targets)
        near = [starts[(starts < high) & (starts + window > low)] for starts in draws()]
        times.update(held(np.concatenate(near), window, low, high))
    return {often: times[often] for often in sorted(times)}


def held(starts: I64, window: int, low: int, high: int) -> dict[int, int]:
    """How many of the targets [low, high) lie in how many of the windows at these starts."""
    edges = np.clip(np.concatenate([starts, starts + window]), low, high)
    steps = np.repeat(np.array([1, -1]), starts.size)
    order = np.argsort(edges, kind="stable")  # at a tie a window begins before another ends, so no depth is negative
    depth = np.concatenate([[0], np.cumsum(steps[order])])
    lengths = np.diff(edges[order], prepend=low, append=high)
    counts = np.bincount(depth, weights=lengths)
    return {often: int(count) for often, count in enumerate(counts.tolist()) if count}
