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


def warmup_cosine(
    step: int,
    *,
    steps: int | None = None,
    warmup_steps: int = 0,
    decay_steps: int | None = None,
    epochs: int | None = None,
    warmup_epochs: float = 5,
    steps_per_epoch: int | None = None,
    floor: float = 0.0,
) -> float:
    """The factor, from floor to 1, by which a peak rate is multiplied at update number `step`, counted from 0.

    Either by steps (steps, warmup_steps, decay_steps: by default the last step; 0: no decay) or by epochs (epochs,
    warmup_epochs, steps_per_epoch: updates an epoch, see `steps_per_epoch` for a run that accumulates). The curve is that of
    `learning_rate`: warmup_epochs = 5 of 10 steps each gives 1/50 at the first update and 1 at the fiftieth. `WarmupCosine`
    is the same as a torch scheduler. Raises ConfigError for a negative step, or where neither way or both are given.
    """
    if step < 0:
        raise ConfigError(f"step: expected >= 0, found {step}")
    total, warmup, decay = _in_steps(steps, warmup_steps, decay_steps, epochs, warmup_epochs, steps_per_epoch, floor)
    return learning_rate(step, peak=1.0, floor=floor, warmup_steps=warmup, decay_steps=decay, steps=total)


def _in_steps(  # noqa: PLR0917  they are warmup_cosine's, in this order
    steps: int | None,
    warmup_steps: int,
    decay_steps: int | None,
    epochs: int | None,
    warmup_epochs: float,
    steps_per_epoch: int | None,
    floor: float,
) -> tuple[int, int, int]:
    """(steps, warm-up, decay), in updates."""
    if (steps is None) == (epochs is None) or (epochs is None) != (steps_per_epoch is None):
        raise ConfigError(
            "warmup_cosine: expected steps (and warmup_steps), or epochs and steps_per_epoch (and warmup_epochs), found "
            f"steps={steps}, epochs={epochs}, steps_per_epoch={steps_per_epoch}"
        )
    if epochs is not None and steps_per_epoch is not None:
        _at_least(1, epochs=epochs, steps_per_epoch=steps_per_epoch)
        _at_least(0, warmup_epochs=warmup_epochs)
        steps, warmup_steps = epochs * steps_per_epoch, round(warmup_epochs * steps_per_epoch)
    total = steps or 0
    decay = total if decay_steps is None else decay_steps
    _at_least(1, steps=total)
    _at_least(0, warmup_steps=warmup_steps, decay_steps=decay)
    if not 0.0 <= floor <= 1.0:
        raise ConfigError(f"floor: expected a share of the peak from 0 to 1, found {floor}")
    return total, warmup_steps, decay


def scale_lr(lr: float, from_batch: int, to_batch: int, rule: str = "linear") -> float:
    """The rate for updates of to_batch rows, where lr was found good for updates of from_batch.

    Both count every row of an update: all micro-batches of all ranks together (`effective_batch`).

    rule="linear" is for SGD: a k times larger batch makes one update where k were made before, along nearly the same
    gradient, so that update must be k times as long (Goyal et al. 2017). rule="sqrt" is for Adam and its kin: they divide the
    gradient by its own size, noise included; as k times the rows have 1/sqrt(k) of the noise, sqrt(k) times the rate keeps the
    walk as random as it was (Krizhevsky 2014; Malladi et al. 2022).

    Neither holds without end: beyond some batch size the gradient hardly has noise left to average away, and a longer update
    only overshoots. If the loss rises or jumps in warm-up, the rate climbs faster than the curvature falls: make the
    warm-up longer first (twice), then clip the gradient (norm 1), then halve the rate, or take "sqrt" instead of "linear".

    Raises ConfigError for another rule, or for a batch size below 1.
    """
    if rule not in ("linear", "sqrt"):
        raise ConfigError(f"rule: expected 'linear' or 'sqrt', found {rule!r}")
    _at_least(1, from_batch=from_batch, to_batch=to_batch)
    factor = to_batch / from_batch
    return lr * (factor if rule == "linear" else math.sqrt(factor))


def _at_least(least: int, **values: float) -> None:
    for name, value in values.items():
        if not least <= value < math.inf:
            raise ConfigError(f"{name}: expected >= {least}, found {value}")
