"""The learning rate, a pure function of the step. Nothing is stored, so nothing can be resumed wrongly."""

from __future__ import annotations

import math

from ladle.errors import ConfigError


def learning_rate(step: int, *, peak: float, floor: float, warmup_steps: int, decay_steps: int, steps: int) -> float:
    """The rate of update number `step`, counted from 0 in optimizer steps (never in micro-batches or epochs).

    It climbs in equal parts to `peak` at update warmup_steps - 1 (the first of 4 has a quarter of it, the fourth all),
    follows half a cosine down to `floor` at update decay_steps - 1, and stays there. A warm-up longer than the decay (or
    than the run's `steps`) is shortened to it, so that the peak is always reached; decay_steps = 0, or no room between
    the warm-up and the decay's end, leaves the rate at its peak. Source: Loshchilov and Hutter 2017, without restarts.
    """
    warmup_steps = min(warmup_steps, decay_steps or steps)
    if step < warmup_steps:
        return peak * (step + 1) / warmup_steps
    top = max(warmup_steps, 1) - 1
    last = decay_steps - 1
    if last <= top:
        return peak
    share = min((step - top) / (last - top), 1.0)
    return floor + (peak - floor) * (0.5 * (1.0 + math.cos(math.pi * share)))


def scaled_rate(rate: float, batch_size: int, base_batch_size: int, rule: str = "linear") -> float:
    """A rate found good at base_batch_size rows an update, for batch_size rows (all micro-batches of all ranks together).

    rule: "linear" (Goyal et al. 2017) or "sqrt". Raises ConfigError for another rule.
    """
    if rule not in ("linear", "sqrt"):
        raise ConfigError(f"rule: expected 'linear' or 'sqrt', found {rule!r}")
    factor = batch_size / base_batch_size
    return rate * (factor if rule == "linear" else math.sqrt(factor))
