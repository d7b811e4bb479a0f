"""Which batch size to try next. Arithmetic on what the trials before have found; no model, no memory."""

from __future__ import annotations

from collections.abc import Callable

from ladle.train.trial import Trial


def search(
    run: Callable[[int], Trial],
    *,
    start: int,
    most: int,
    budget: int,
    precision: float,
    predict: Callable[[int], int] | None = None,
) -> list[Trial]:
    """Try sizes from 1 to most until the largest that fits is known to within max(1, precision * size).

    It doubles from `start` while that is expected to fit, then aims where the line through what was measured meets the
    budget, and halves the gap between what fits and what does not. run(size) is called once for each size, and every
    conclusion is from sizes that ran: what is only predicted not to fit is tried, a step above what does.
    predict(size): bytes, from fake tensors, shifted to what the first trials measured. Returns the trials in the order they
    were made; none fits where 1 does not.
    """
    trials: list[Trial] = []
    low, high, size, gap, aimed = 0, most + 1, min(start, most), 0, False
    while True:
        trial = run(size)
        trials.append(trial)
        if trial.fits:
            low = size
        else:
            high = size
        step = max(1, int(precision * low))
        if high - low <= step or low >= most or high <= 1:
            return trials
        aim = _aim(trials, budget, most, predict)
        if low == 0:
            size = max(1, min(aim, high // 2))
        elif high > most:  # nothing failed yet: double, or creep up on the aim in growing steps
            double = min(2 * low, most)
            size = double if aim >= double else min(max(aim, low + max(step, gap)), double)
            gap = 0 if aim >= double else 2 * gap or step
        else:  # aim once, halve once: at most twice as many trials as halving alone
            aimed = not aimed
            size = min(max(aim, low + step), high - step) if aimed else (low + high) // 2
            size = min(max(size, low + 1), high - 1)


def _aim(trials: list[Trial], budget: int, most: int, predict: Callable[[int], int] | None) -> int:
    """The largest size whose expected peak is within the budget; most + 1 where nothing says otherwise."""
    fits = sorted((trial for trial in trials if trial.fits and trial.peak is not None), key=lambda trial: trial.batch_size)
    if not fits:
        return most + 1 if predict is None else _largest(predict, budget, most)
    last = fits[-1]
    slopes = [0.0]
    if len(fits) > 1:
        slopes.append((last.peak - fits[-2].peak) / (last.batch_size - fits[-2].batch_size))  # type: ignore[operator]
    if predict is not None:
        over = last.peak - predict(last.batch_size)  # type: ignore[operator]
        return min(_largest(lambda size: predict(size) + over, budget, most), _met(last, max(slopes), budget, most))
    return _met(last, max(slopes), budget, most)


def _met(last: Trial, slope: float, budget: int, most: int) -> int:
    """Where the line from the last trial meets the budget."""
    if slope <= 0.0:
        return most + 1
    return min(most + 1, last.batch_size + int((budget - last.peak) / slope))  # type: ignore[operator]


def _largest(peak: Callable[[int], int], budget: int, most: int) -> int:
    """By halving: peak never falls. 0 where none is within the budget."""
    low, high = 0, most + 1
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if peak(middle) <= budget else (low, middle)
    return high if low == most else low
