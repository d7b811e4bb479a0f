"""The search for the largest size: ends, is exact to its precision, says only what ran."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ladle.train.prediction import Line
from ladle.train.search import search
from ladle.train.trial import Trial


def under(limit: int, peak: Callable[[int], int] | None = None) -> tuple[Callable[[int], Trial], list[int]]:
    """A fake meter: sizes up to `limit` fit. peak(size): bytes, None where nothing can be measured."""
    tried: list[int] = []

    def run(size: int) -> Trial:
        tried.append(size)
        return Trial(batch_size=size, fits=size <= limit, peak=None if peak is None else peak(size))

    return run, tried


def largest(trials: list[Trial]) -> int:
    return max((trial.batch_size for trial in trials if trial.fits), default=0)


def test_a_first_trial_too_large_is_fine() -> None:
    run, tried = under(3)
    assert largest(search(run, start=64, most=4096, budget=10, precision=0.0)) == 3
    assert tried[:6] == [64, 32, 16, 8, 4, 2]


def test_limit_100_from_128() -> None:
    run, tried = under(100)
    assert largest(search(run, start=128, most=4096, budget=10, precision=0.0)) == 100
    assert {100, 101} <= set(tried)


def test_always_failing_ends() -> None:
    run, tried = under(0)
    assert largest(search(run, start=64, most=4096, budget=10, precision=0.02)) == 0
    assert tried[-1] == 1
    assert len(tried) < 10


def test_never_failing_ends_at_the_most() -> None:
    run, tried = under(10**9)
    assert largest(search(run, start=1, most=1000, budget=10, precision=0.02)) == 1000
    assert tried == [1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1000]


def test_the_line_saves_trials() -> None:
    """Measured memory is 100 + 7 a sample, of 5 000: 700 fit, which is tried and confirmed by 714 failing."""
    run, tried = under(700, lambda size: 100 + 7 * size)
    assert largest(search(run, start=1, most=8192, budget=5000, precision=0.02)) == 700
    assert tried == [1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 700, 714]


def test_a_wrong_prediction_costs_trials_and_not_the_answer() -> None:
    for factor in (0.1, 0.5, 2.0, 10.0):
        run, tried = under(700, lambda size: 100 + 7 * size)
        line = Line(0, 0.0, 7 * factor)
        assert largest(search(run, start=1, most=8192, budget=5000, precision=0.0, predict=line)) == 700, factor
        assert len(tried) < 45


def test_one_leap_over_a_hump() -> None:
    """What an allocator does with blocks of some sizes: 17 to 40 do not fit, 41 to 100 do."""
    tried: list[int] = []

    def run(size: int) -> Trial:
        tried.append(size)
        peak = 50 + size * (30 if size <= 40 else 10)
        return Trial(batch_size=size, fits=peak <= 1050 and peak <= 560 + 490 * (size > 40), peak=peak)

    got = search(run, start=1, most=4096, budget=1050, precision=0.0, predict=Line(60, 0.0, 10.0))
    assert largest(got) == 100
    assert 92 in tried
    assert len(tried) == len(set(tried)) < 20


@given(
    limit=st.integers(0, 5000),
    start=st.integers(1, 5000),
    most=st.integers(1, 5000),
    precision=st.sampled_from([0.0, 0.02, 0.1]),
    base=st.integers(0, 1000),
    each=st.integers(0, 9),
    predicted=st.none() | st.floats(0, 30),
)
def test_any_limit(limit: int, start: int, most: int, precision: float, base: int, each: int, predicted: float | None) -> None:
    """The meter may tell nonsense, and so may the prediction: the answer is right all the same, and no size is tried twice."""
    run, tried = under(limit, lambda size: base + each * size)
    line = None if predicted is None else Line(5, float(base), predicted)
    got = largest(search(run, start=min(start, most), most=most, budget=base + each * limit, precision=precision, predict=line))
    right = min(limit, most)
    assert right - max(1, precision * right) <= got <= right or got == right
    if precision == 0.0:
        assert got == right
    assert got == 0 or got in tried
    assert len(tried) == len(set(tried))
    assert all(1 <= size <= most for size in tried)
    assert len(tried) <= 4 * (math.log2(most) + 3)


def test_a_line() -> None:
    line = Line(500, 100.0, 7.0)
    assert [line(size) for size in (1, 57, 58, 100)] == [500, 500, 506, 800]


@pytest.mark.parametrize("seconds", [None, 0.5])
def test_speed(seconds: float | None) -> None:
    assert Trial(batch_size=8, fits=True, seconds=seconds).samples_per_s == (16.0 if seconds else 0.0)
