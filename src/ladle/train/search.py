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
    predict(size): bytes, from fake tensors, shifted to what the first trials measured. Memory need not grow evenly, so where
    the prediction lies far beyond the first failure one leap is made to there. Returns the trials in the order they were
    made; none fits where 1 does not.
    """
    trials: list[Trial] = []

    def fits(size: int) -> bool:
        trials.append(run(size))
        return trials[-1].fits

    def step(low: int) -> int:
        return max(1, int(precision * low))

    def narrow(low: int, high: int) -> None:
        gap, aimed = 0, False
        while high - low > step(low):
            aim = _aim(trials, budget, most, predict)
            if low == 0:
                size = max(1, min(aim, high // 2))
            elif high > most:  # nothing failed yet: double, or creep up on the aim in growing steps
                double = min(2 * low, most)
                size = double if aim >= double else min(max(aim, low + max(step(low), gap)), double)
                gap = 0 if aim >= double else 2 * gap or step(low)
            else:  # aim once, halve once: at most twice as many trials as halving alone
                aimed = not aimed
                size = min(max(aim, low + step(low)), high - step(low)) if aimed else (low + high) // 2
                size = min(max(size, low + 1), high - 1)
            low, high = (size, high) if fits(size) else (low, size)

    first = min(start, most)
    if fits(first):
        narrow(first, most + 1)
    else:
        narrow(0, first)
    failed = sorted(trial.batch_size for trial in trials if not trial.fits)
    if failed and predict is not None:
        leap = _leap(trials, budget, most, predict)
        if leap > failed[0] + step(failed[0]) and leap not in failed and fits(leap):
            narrow(leap, min((size for size in failed if size > leap), default=most + 1))
    return trials


def _leap(trials: list[Trial], budget: int, most: int, predict: Callable[[int], int]) -> int:
    """A tenth below where the prediction meets the budget, if what it leaves out is the least that was measured. 0: nowhere."""
    over = [trial.peak - predict(trial.batch_size) for trial in trials if trial.fits and trial.peak is not None]
    return min(most, _largest(lambda size: predict(size) + min(over), budget, most) * 9 // 10) if over else 0


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
