"""The learning rate as a function of the step alone."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ladle.errors import ConfigError
from ladle.train import learning_rate, scale_lr


def rates(steps: int, *, warmup: int, decay: int, peak: float = 1.0, floor: float = 0.0) -> list[float]:
    return [learning_rate(s, peak=peak, floor=floor, warmup_steps=warmup, decay_steps=decay, steps=steps) for s in range(steps)]


def test_warmup_of_four_starts_at_a_quarter_and_reaches_the_peak_at_the_fourth() -> None:
    assert rates(100, warmup=4, decay=100)[:4] == [0.25, 0.5, 0.75, 1.0]


def test_half_a_cosine_by_hand() -> None:
    got = rates(7, warmup=1, decay=5, peak=3.0, floor=1.0)
    assert got == pytest.approx([3.0, 2 + math.sqrt(0.5), 2.0, 2 - math.sqrt(0.5), 1.0, 1.0, 1.0])


def test_without_warmup_the_first_is_the_peak() -> None:
    assert rates(10, warmup=0, decay=10)[0] == 1.0


def test_the_floor_is_reached_at_the_last_step_exactly() -> None:
    assert rates(5000, warmup=100, decay=5000, peak=5.0, floor=4.0)[-1] == 4.0


def test_no_decay_stays_at_the_peak() -> None:
    assert rates(6, warmup=2, decay=0) == [0.5, 1.0, 1.0, 1.0, 1.0, 1.0]


def test_warmup_longer_than_the_run_is_shortened_to_it() -> None:
    assert rates(4, warmup=100, decay=4) == [0.25, 0.5, 0.75, 1.0]
    assert rates(4, warmup=100, decay=0) == [0.25, 0.5, 0.75, 1.0]


def test_warmup_as_long_as_the_decay_leaves_no_jump() -> None:
    assert rates(6, warmup=9, decay=3) == pytest.approx([1 / 3, 2 / 3, 1.0, 1.0, 1.0, 1.0])


@given(
    steps=st.integers(1, 300),
    warmup=st.integers(0, 400),
    decay=st.integers(0, 400),
    floor=st.floats(0, 1, allow_subnormal=False),
)
def test_defined_everywhere_reaches_the_peak_and_never_jumps(steps: int, warmup: int, decay: int, floor: float) -> None:
    length = max(steps, decay, min(warmup, steps)) + 3
    got = [learning_rate(s, peak=1.0, floor=floor, warmup_steps=warmup, decay_steps=decay, steps=steps) for s in range(length)]
    assert max(got) == 1.0
    assert all(0 < rate <= 1 or floor == 0 for rate in got)
    top = got.index(1.0)
    assert got[: top + 1] == sorted(got[: top + 1])
    assert got[top:] == sorted(got[top:], reverse=True)
    room = max(decay - 1 - top, 1)
    assert all(a - b <= 2.0 / room + 1e-9 for a, b in zip(got[top:], got[top + 1 :], strict=False))


@pytest.mark.parametrize(("rule", "factor"), [("linear", 2.0), ("sqrt", math.sqrt(2))])
def test_scaling_counts_every_row_of_an_update(rule: str, factor: float) -> None:
    """4 rows a pass, 8 passes, 2 ranks are 64 rows; the rate was found at 32."""
    assert scale_lr(0.5, 32, 4 * 8 * 2, rule) == pytest.approx(0.5 * factor)


def test_unknown_rule() -> None:
    with pytest.raises(ConfigError, match="rule: expected 'linear' or 'sqrt', found 'cubic'"):
        scale_lr(1.0, 2, 1, "cubic")
