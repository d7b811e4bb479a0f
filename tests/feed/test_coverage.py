"""The counts of covered, repeated and skipped targets against counting them one by one."""

import pickle

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ladle.errors import ConfigError
from ladle.feed.coverage import Coverage


def counted(num_tokens: int, max_length: int, stride: int) -> tuple[int, dict[int, int]]:
    """The definition itself: (windows, {times: targets}), a target named by the token that is predicted."""
    starts = range(0, num_tokens - max_length, stride)
    seen = dict.fromkeys(range(1, num_tokens), 0)
    for start in starts:
        for target in range(start + 1, start + max_length + 1):
            seen[target] += 1
    times: dict[int, int] = {}
    for count in seen.values():
        times[count] = times.get(count, 0) + 1
    return len(starts), dict(sorted(times.items()))


@given(st.integers(2, 200), st.integers(1, 40), st.integers(1, 60))
def test_counts_are_those_of_the_definition(num_tokens, max_length, stride):
    if num_tokens <= max_length:
        with pytest.raises(ConfigError):
            Coverage(num_tokens=num_tokens, max_length=max_length, stride=stride)
        return
    coverage = Coverage(num_tokens=num_tokens, max_length=max_length, stride=stride)
    windows, times = counted(num_tokens, max_length, stride)
    assert (coverage.num_windows, coverage.times) == (windows, times)
    assert coverage.covered == num_tokens - 1 - times.get(0, 0)
    assert coverage.covered + coverage.skipped + coverage.tail == num_tokens - 1
    assert min(coverage.covered, coverage.skipped, coverage.tail) >= 0


def test_the_default_repeats_and_the_length_as_stride_does_not():
    """10 000 tokens: windows of 256 every 128 ask for nearly every token twice; every 256, once."""
    default = Coverage(num_tokens=10_000, max_length=256, stride=128)
    assert default.times == {0: 15, 1: 256, 2: 9728}
    assert Coverage(num_tokens=10_000, max_length=256, stride=256).times == {0: 15, 1: 9984}


def test_a_stride_one_too_long_skips_one_target_a_window():
    """Tokens 0..15, length 4, stride 5: tokens 5 and 10 are never targets."""
    coverage = Coverage(num_tokens=16, max_length=4, stride=5)
    assert (coverage.num_windows, coverage.skipped, coverage.tail) == (3, 2, 1)
    assert str(coverage) == (
        "16 tokens, 3 windows of 4, one every 5; of 15 targets: 3 never, 12 once; 2 between windows; 1 after the last window"
    )


def test_the_tail_that_a_range_leaves_is_counted():
    """16 tokens, length 4, stride 4: starts 0, 4, 8; targets 13, 14 and 15 are unseen."""
    coverage = Coverage(num_tokens=16, max_length=4, stride=4, batch_size=2, drop_last=True)
    assert (coverage.num_windows, coverage.tail, coverage.num_batches, coverage.dropped_windows) == (3, 3, 1, 1)
    assert str(coverage) == (
        "16 tokens, 3 windows of 4, one every 4; of 15 targets: 3 never, 12 once; 3 after the last window; "
        "1 batch of 2 an epoch, 1 window dropped with the last"
    )


def test_counting_takes_no_longer_for_a_long_text():
    coverage = Coverage(num_tokens=10**12, max_length=1024, stride=1)
    assert coverage.times == {**{times: 2 for times in range(1, 1024)}, 1024: 10**12 - 1 - 2 * 1023}


def test_no_window_and_no_batch_are_one_error_with_both_counts():
    with pytest.raises(ConfigError) as short:
        Coverage(num_tokens=5, max_length=256, stride=128)
    assert str(short.value) == (
        "text: expected more than max_length = 256 tokens, found 5: no window has a target for each of its tokens; "
        "give more text or a smaller max_length"
    )
    with pytest.raises(ConfigError) as few:
        Coverage(num_tokens=600, max_length=256, stride=128, batch_size=4, drop_last=True)
    assert str(few.value) == (
        "text: expected at least batch_size = 4 windows with drop_last=True, found 3 in 600 tokens "
        "(max_length = 256, stride = 128); give more text, a smaller batch_size or stride, or drop_last=False"
    )
    assert str(pickle.loads(pickle.dumps(few.value))) == str(few.value)


@pytest.mark.parametrize("name", ["max_length", "stride", "batch_size"])
@pytest.mark.parametrize("value", [0, -3])
def test_sizes_below_one_are_named(name, value):
    sizes = {"max_length": 4, "stride": 4, "batch_size": 1, name: value}
    with pytest.raises(ConfigError, match=f"^{name}: expected at least 1, found {value}$"):
        Coverage(num_tokens=100, **sizes)
