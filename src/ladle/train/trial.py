"""One batch size tried: full steps at that size, their peak memory and their time."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from ladle.train.memory import MIB, Meter, meter, out_of_memory

LONGEST_TIMING_S = 0.2
MOST_TIMED = 5


@dataclass(frozen=True, slots=True, kw_only=True)
class Trial:
    """What came of one size. fits: at least two full steps ran within the bound. peak, predicted: bytes; seconds: of a step
    (the median of those timed, the first never); each None where unknown. why: what went wrong, else empty."""

    batch_size: int
    fits: bool
    peak: int | None = None
    predicted: int | None = None
    seconds: float | None = None
    why: str = ""

    @property
    def samples_per_s(self) -> float:
        """Of one process; 0 where no step was timed."""
        return self.batch_size / self.seconds if self.seconds else 0.0


@dataclass(frozen=True, slots=True)
class Attempt:
    """A call that tries one size. step(batch): a full step; batch_of(size): the batch; most: bytes that may be held; mapped: of
    files, of the process that this one was forked from."""

    step: Callable[[Any], object]
    batch_of: Callable[[int], Any]
    device: torch.device
    batch_size: int
    most: int
    mapped: int = 0

    def __call__(self) -> Trial:
        """Raises what the step raises, if it is not about memory."""
        gauge = meter(self.device, self.mapped)
        why, seconds = "", None
        with gauge.bounded(self.most):
            try:
                seconds = self._steps(gauge)
            except BaseException as error:
                if not out_of_memory(error):
                    raise
                why = f"out of memory: {' '.join(str(error).split())[:100]}"
        # Here, outside the except, nothing holds the traceback any more, nor with it every tensor of the step that failed.
        peak = gauge.peak()
        if not why and peak > self.most:
            why = f"ran, but held {peak // MIB:,} MiB"
        return Trial(batch_size=self.batch_size, fits=not why, peak=peak, seconds=seconds, why=why)

    def _steps(self, gauge: Meter) -> float:
        """The first step makes gradients and the optimizer's state; only the second has all of them at its peak."""
        batch = self.batch_of(self.batch_size)
        self.step(batch)
        gauge.settle()
        times: list[float] = []
        while not times or (len(times) < MOST_TIMED and sum(times) < LONGEST_TIMING_S):
            start = time.perf_counter()
            self.step(batch)
            gauge.settle()
            times.append(time.perf_counter() - start)
        return sorted(times)[len(times) // 2]
