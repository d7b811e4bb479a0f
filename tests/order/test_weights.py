"""Weighted draws: right shares in float64 at any size, a zero weight never, any place at once."""

import hashlib
import math
import pickle
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from ladle.errors import ConfigError
from ladle.order.weights import Weighted, class_weights

GOLDEN = [[0, 0, 2, 3, 3], [3, 3, 3, 2, 3], [3, 2, 0, 4]]  # weights 1, 0, 2, 5, 0.5 with seed 7: epochs 0 and 1; an order
LARGEST_U = 1 - 2**-53
weight_lists = st.lists(
    st.one_of(st.just(0.0), st.floats(1e-300, 1e300), st.floats(5e-324, 1e-300), st.floats(1e300, 1.7e308)),
    min_size=1,
    max_size=40,
).filter(any)


def whole(weighted, epoch=0):
    return weighted.draws(epoch, 0, weighted.num_draws)


def plain_draw(weights, seed, epoch, place):
    """The same in whole numbers and fractions, from the words of docs/order.md."""
    mask = 2**64 - 1
    key = int.from_bytes(hashlib.blake2b(f"weighted-v1:{seed}:{epoch}".encode(), digest_size=8).digest(), "little")
    word = (key + (place + 1) * 0x9E3779B97F4A7C15) & mask
    word = (word ^ word >> 30) * 0xBF58476D1CE4E5B9 & mask
    word = (word ^ word >> 27) * 0x94D049BB133111EB & mask
    wanted = Fraction((word ^ word >> 31) >> 11, 2**53) * sum(map(Fraction, weights))
    for sample, weight in enumerate(weights):
        wanted -= Fraction(weight)
        if wanted < 0:
            return sample
    return None


def chi_square(counts, shares):
    """How far counts lie from shares, in standard deviations of chi-square's own."""
    expected = shares * counts.sum()
    degrees = counts.size - 1
    return (((counts - expected) ** 2 / expected).sum() - degrees) / math.sqrt(2 * degrees)


def test_golden():
    """Computed once; if it breaks, the draws of every weighted run have changed: that is a new order version."""
    weighted = Weighted([1, 0, 2, 5, 0.5], seed=7)
    assert weighted.draws(0, 0, 5).tolist() == GOLDEN[0] == [plain_draw([1, 0, 2, 5, 0.5], 7, 0, place) for place in range(5)]
    assert weighted.draws(1, 0, 5).tolist() == GOLDEN[1]
    assert whole(Weighted([1, 0, 2, 5, 0.5], seed=7, replacement=False)).tolist() == GOLDEN[2]


def test_a_draw_by_hand():
    weighted = Weighted([1, 0, 2, 1], seed=0)
    u = np.array([0, 0.2499, 0.25, 0.7499, 0.75, LARGEST_U])
    assert weighted.at(u).tolist() == [0, 0, 2, 2, 3, 3]
    assert weighted.draws(0, 0, 4).dtype == np.int64


@settings(max_examples=300)
@given(weights=weight_lists)
@example([0.0, 1.0, 0.0])
@example([5e-324, 0.0])
@example([1.7e308] * 3 + [0.0])
@example([1.0, 1e-300, 0.0])
def test_a_weight_of_zero_is_never_drawn_not_even_at_the_edges_of_u(weights):
    weighted = Weighted(weights, seed=0)
    borders = weighted._sums / weighted._sums[-1]
    u = np.concatenate([[0, 5e-324, LARGEST_U], borders, np.nextafter(borders, 0), np.nextafter(borders, 2)])
    drawn = weighted.at(np.clip(u, 0, LARGEST_U))
    assert (np.array(weights)[drawn] > 0).all()


@given(weights=weight_lists, epoch=st.integers(0, 5))
def test_without_replacement_each_weight_above_zero_comes_once(weights, epoch):
    order = whole(Weighted(weights, seed=3, replacement=False), epoch)
    assert sorted(order.tolist()) == np.flatnonzero(weights).tolist()


@pytest.mark.parametrize("replacement", [True, False])
@given(data=st.data(), epoch=st.integers(0, 3))
def test_any_part_of_an_epoch_is_the_same_as_all_of_it(replacement, data, epoch):
    weighted = Weighted(np.arange(100) % 7, seed=11, replacement=replacement, num_draws=60)
    first = data.draw(st.integers(0, 60))
    count = data.draw(st.integers(0, 60 - first))
    np.testing.assert_array_equal(weighted.draws(epoch, first, count), whole(weighted, epoch)[first : first + count])


@pytest.mark.parametrize("replacement", [True, False])
def test_epochs_and_seeds_differ_and_nothing_else_matters(replacement):
    weights = np.linspace(1, 2, 50)
    first, again = (Weighted(weights, 1, replacement=replacement) for _ in range(2))
    assert whole(first, 0).tolist() != whole(first, 1).tolist()
    assert whole(first, 1).tolist() != whole(Weighted(weights, 2, replacement=replacement), 0).tolist()  # no seed + epoch
    np.testing.assert_array_equal(whole(first, 1), whole(again, 1))
    scaled = Weighted(weights * 1024, 1, replacement=replacement)
    np.testing.assert_array_equal(whole(scaled), whole(first))
    assert scaled.fingerprint == first.fingerprint != Weighted(weights[::-1], 1).fingerprint
    copied = pickle.loads(pickle.dumps(first))
    np.testing.assert_array_equal(whole(copied), whole(first))


def test_shares_are_right():
    weights = np.random.default_rng(0).random(200) ** 3
    counts = np.bincount(whole(Weighted(weights, 5, num_draws=400_000)), minlength=200)
    assert abs(chi_square(counts, weights / weights.sum())) < 4
    wrong = np.bincount(whole(Weighted(weights**1.05, 5, num_draws=400_000)), minlength=200)
    assert chi_square(wrong, weights / weights.sum()) > 4  # the test sees five hundredths in the exponent


def test_without_replacement_the_first_draws_follow_the_weights_too():
    """The first draw of 20 000 epochs by the weights; the second by what is then left."""
    weights = np.array([1, 2, 3, 4, 0, 10.0])
    weighted = Weighted(weights, seed=2, replacement=False)
    first, second = np.array([weighted.draws(epoch, 0, 2) for epoch in range(20_000)]).T
    shares = weights / weights.sum()
    present = weights > 0
    assert abs(chi_square(np.bincount(first, minlength=6)[present], shares[present])) < 4
    then = np.array([sum(shares[a] * shares[b] / (1 - shares[a]) for a in range(6) if a != b) for b in range(6)])
    assert abs(chi_square(np.bincount(second, minlength=6)[present], then[present])) < 4


@pytest.mark.slow
def test_weights_whose_float32_sum_stands_still():
    """A8-04: 2**24 weights of 2, then of 1; in float32 the running sum stops, and half are never drawn."""
    half = 2**23
    weights = np.repeat([2.0, 1.0], half)
    weighted = Weighted(weights, 1, num_draws=600_000)
    drawn = whole(weighted)
    heavy, light = drawn < half, drawn >= half
    assert abs(heavy.mean() - 2 / 3) < 4 * math.sqrt(2 / 9 / drawn.size)
    for part, base in ((heavy, 0), (light, half)):  # and evenly within each half
        counts = np.bincount((drawn[part] - base) * 64 // half, minlength=64)
        assert abs(chi_square(counts, np.full(64, 1 / 64))) < 4


@pytest.mark.slow
def test_there_is_no_limit_at_2_to_the_24():
    """A8-02: 20 million weights, of which torch's sampler refuses to draw; and only the last of 2**24 + 10 above 0."""
    weighted = Weighted(np.ones(20_000_000, dtype=np.float32), seed=0)
    drawn = weighted.draws(0, 19_000_000, 100_000)
    assert drawn.max() > 2**24
    assert abs(chi_square(np.bincount(drawn * 50 // 20_000_000, minlength=50), np.full(50, 0.02))) < 4
    last = np.zeros(2**24 + 10)
    last[-1] = 1e-3
    assert set(Weighted(last, seed=0).draws(0, 5, 1000).tolist()) == {2**24 + 9}
    assert whole(Weighted(last, seed=0, replacement=False)).tolist() == [2**24 + 9]


def test_an_epoch_is_n_draws_of_about_k_distinct_samples():
    weights = np.random.default_rng(1).random(3000) ** 4
    weighted = Weighted(weights, 1)
    distinct = [np.unique(whole(weighted, epoch)).size for epoch in range(20)]
    assert abs(np.mean(distinct) - weighted.expected_distinct) < 10
    assert str(weighted) == f"an epoch is 3,000 draws with replacement, about {weighted.expected_distinct:,.0f} distinct samples"
    assert Weighted([0, 3], 1).expected_distinct == 1
    assert Weighted([1, 1], 1, num_draws=2).expected_distinct == 1.5
    assert Weighted([1, 1, 0], 1, replacement=False).expected_distinct == 2


def test_more_draws_than_weights_above_zero_are_refused_early():
    """A8-05."""
    with pytest.raises(
        ConfigError, match=r"num_draws: expected 1 to 1 without replacement \(so many of 3 weights are above 0\), found 2"
    ):
        Weighted([1, 0, 0], seed=0, replacement=False, num_draws=2)
    assert whole(Weighted([1, 0, 0], seed=0, num_draws=2)).tolist() == [0, 0]
    with pytest.raises(ConfigError, match="num_draws: expected 1 to 4611686018427387904, found 0"):
        Weighted([1], seed=0, num_draws=0)


@pytest.mark.parametrize(
    ("weights", "told"),
    [
        ([], r"weights: expected one weight a sample, found an array of shape \(0,\)"),
        ([[1, 2]], r"found an array of shape \(1, 2\)"),
        (3.0, r"found an array of shape \(\)"),
        ([1, -2, -3], "weights: expected finite numbers from 0, found -2.0 for sample 1"),
        ([1, 2, math.nan], "found nan for sample 2"),
        ([math.inf, 2], "found inf for sample 0"),
        ([0, 0, 0], "weights: expected some above 0, found 3 of 0"),
        (["a", "b"], "weights: expected numbers, found list of something else"),
        ([[1], [1, 2]], "weights: expected numbers"),
    ],
)
def test_weights_that_cannot_be_right(weights, told):
    with pytest.raises(ConfigError, match=told):
        Weighted(weights, seed=0)


def test_weights_of_the_wrong_length_and_places_outside():
    with pytest.raises(ConfigError, match="weights: expected one for each of 4 samples, found 3"):
        Weighted([1, 2, 3], seed=0, num_samples=4)
    with pytest.raises(ConfigError, match="first, count: expected places in 0 to 3, found 2 to 4"):
        Weighted([1, 2, 3], seed=0).draws(0, 2, 2)
    with pytest.raises(ConfigError, match="found -1 to 1"):
        Weighted([1, 2, 3], seed=0).draws(0, -1, 2)


@pytest.mark.parametrize(
    "labels",
    [
        np.array([3, 3, 3, 0]),  # 1 and 2 are absent: no division by zero
        np.array([10**12, 10**12, 10**12, -5]),
        np.array(["cat", "cat", "cat", "dog"]),
        np.array([True, True, True, False]),
        np.array([0.5, 0.5, 0.5, 2.0]),
        ["cat", "cat", "cat", "dog"],
        np.array(["cat", "cat", "cat", "dog"], dtype=object),
        np.array([7, 7, 7, 0], dtype=np.uint8),
    ],
)
def test_classes_are_drawn_equally_often(labels):
    weights = class_weights(labels)
    assert weights.dtype == np.float64
    np.testing.assert_allclose(weights, [1 / 3, 1 / 3, 1 / 3, 1])
    drawn = whole(Weighted(weights, 1, num_draws=10_000))
    assert abs((drawn == 3).mean() - 0.5) < 0.02


@pytest.mark.parametrize(
    ("labels", "told"),
    [
        ([], r"labels: expected one label a sample, found an array of shape \(0,\)"),
        (np.eye(3), r"found an array of shape \(3, 3\)"),
        ([1.0, math.nan], "found nan for sample 1"),
        (np.array(["cat", None], dtype=object), "labels: expected labels of one kind, found a mixture"),
    ],
)
def test_labels_that_cannot_be_right(labels, told):
    with pytest.raises(ConfigError, match=told):
        class_weights(labels)
