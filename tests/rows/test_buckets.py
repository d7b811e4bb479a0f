"""Length buckets: each sample once an epoch, little padding, no cycles, and any batch of any epoch at once."""

import pickle
import time

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ladle.errors import ConfigError
from ladle.rows import buckets
from ladle.rows.buckets import Buckets

GOLDEN = [[9, 6], [0, 3], [5, 4], [8, 1], [7, 2]]

lengths_lists = st.one_of(
    st.lists(st.integers(0, 30), min_size=1, max_size=300),
    st.lists(st.sampled_from([1, 100]), min_size=1, max_size=300),
    st.builds(lambda n: [7] * n, st.integers(1, 200)),
)
some_buckets = st.fixed_dictionaries(
    {
        "batch_size": st.one_of(st.none(), st.integers(1, 40)),
        "batch_tokens": st.one_of(st.none(), st.integers(104, 400)),
        "multiple_of": st.sampled_from([1, 4, 8]),
        "shuffle": st.booleans(),
        "longest_first": st.booleans(),
        "tail": st.sampled_from(["short", "even", "drop"]),
        "seed": st.integers(0, 3),
    }
).filter(lambda how: how["batch_size"] or how["batch_tokens"])


def epoch_of(made, epoch=0):
    return [made.batch(epoch, number) for number in range(made.num_batches)]


def lognormal(n, seed=0):
    return np.clip(np.random.default_rng(seed).lognormal(5.5, 1.0, n), 1, 4096).astype(np.int64)


def test_golden():
    """Computed once; if it breaks, the batches of every length-aware run have changed: that is a new order version."""
    made = Buckets([5, 3, 9, 9, 1, 7, 5, 5, 2, 8], batch_size=2, seed=7)
    assert [batch.tolist() for batch in epoch_of(made, 1)] == GOLDEN
    by_hand = Buckets([5, 3, 9, 9, 1, 7, 5, 5, 2, 8], batch_size=3, shuffle=False, seed=0)
    assert [batch.tolist() for batch in epoch_of(by_hand)] == [[2, 3, 9], [5, 0, 6], [7, 1, 8], [4]]


@settings(max_examples=300, deadline=None)
@given(lengths=lengths_lists, how=some_buckets, epoch=st.integers(0, 2))
def test_each_sample_once_within_the_budget(lengths, how, epoch):
    n, lengths = len(lengths), np.array(lengths)
    if how["tail"] == "drop" and how["batch_size"] and not how["batch_tokens"]:
        how["batch_size"] = min(n, how["batch_size"])
    try:
        made = Buckets(lengths, **how)
    except ConfigError:
        if how["tail"] != "drop":  # which leaves nothing of fewer samples than a batch
            raise
        return
    batches = epoch_of(made, epoch)
    everyone = np.concatenate(batches)
    assert everyone.dtype == np.int64
    assert np.unique(everyone).size == everyone.size == made.num_samples <= n
    assert made.num_samples == n or how["tail"] == "drop"
    places = 0
    for batch in batches:
        padded = -(-int(lengths[batch].max()) // how["multiple_of"]) * how["multiple_of"]
        places += padded * batch.size
        assert 1 <= batch.size <= (how["batch_size"] or n)
        assert how["batch_tokens"] is None or padded * batch.size <= how["batch_tokens"]
    share = 1 - lengths[everyone].sum() / places if places else 0
    assert made.padding_share(epoch) == pytest.approx(share)
    asked = np.arange(n)[::3]
    places = {int(sample): place for place, sample in enumerate(everyone)}
    assert made.places(epoch, asked).tolist() == [places[sample] for sample in asked.tolist() if sample in places]
    before = np.cumsum([0] + [batch.size for batch in batches])
    for number, samples in enumerate(before.tolist()):
        assert made.samples_before(epoch, number) == samples
        assert made.batch_at(epoch, samples) == number
        assert number == 0 or made.batch_at(epoch, samples - 1) == number - 1
    if how["longest_first"] and epoch == 0 and how["tail"] != "drop":
        assert lengths[batches[0]].max() == lengths.max()


@given(n=st.integers(1, 400), size=st.integers(1, 40))
def test_at_most_one_batch_is_short_or_none_by_much(n, size):
    lengths = np.random.default_rng(n).integers(1, 50, n)
    sizes = [batch.size for batch in epoch_of(Buckets(lengths, batch_size=size, seed=0), 1)]
    assert sum(one < size for one in sizes) == (n % size > 0)
    sizes = [batch.size for batch in epoch_of(Buckets(lengths, batch_size=size, seed=0, tail="even"), 1)]
    assert len(sizes) == -(-n // size)
    assert min(sizes) >= min(size, n) // 2
    if n >= size:
        sizes = [batch.size for batch in epoch_of(Buckets(lengths, batch_size=size, seed=0, tail="drop"), 1)]
        assert sizes == [size] * (n // size)


def test_what_is_dropped_differs_each_epoch():
    made = Buckets(lognormal(1003), batch_size=100, seed=0, tail="drop")
    left = [set(range(1003)) - set(np.concatenate(epoch_of(made, epoch)).tolist()) for epoch in range(5)]
    assert [len(one) for one in left] == [3] * 5
    assert len(set.union(*left)) > 10


@pytest.mark.parametrize("ranks", [1, 2, 3, 7])
def test_ranks_are_disjoint_and_complete_with_equal_steps(ranks):
    """A8-06: each rank makes the order for itself, and takes its slice of every batch."""
    lengths = lognormal(2000)
    shares = []
    for rank in range(ranks):
        made = Buckets(lengths, batch_tokens=40_000, seed=5, tail="even", at_least=ranks)
        shares.append([np.array_split(batch, ranks)[rank] for batch in epoch_of(made, 3)])
    assert len({len(share) for share in shares}) == 1
    assert all(part.size for share in shares for part in share)
    together = np.concatenate([part for share in shares for part in share])
    np.testing.assert_array_equal(np.sort(together), np.arange(2000))


def autocorrelation(values, lag):
    values = values - values.mean()
    return float((values[lag:] * values[:-lag]).sum() / (values**2).sum())


@pytest.mark.parametrize("how", [{"batch_size": 16}, {"batch_tokens": 8192}])
def test_lengths_do_not_cycle(how):
    """A8-09: the batches' lengths follow each other like random numbers; sorted groups, as others make them, do not."""
    lengths = lognormal(40_000)
    made = Buckets(lengths, seed=1, **how)
    for epoch in range(2):
        longest = np.array([lengths[batch].max() for batch in epoch_of(made, epoch)], dtype=float)
        bound = 4.5 / np.sqrt(longest.size)
        assert max(abs(autocorrelation(longest, lag)) for lag in range(1, 201)) < bound
    groups = np.random.default_rng(0).permutation(40_000).reshape(-1, 800)
    cycling = np.concatenate([np.sort(lengths[group])[::-1].reshape(-1, 16).max(axis=1) for group in groups])
    assert autocorrelation(cycling.astype(float), 50) > 0.5  # the test would see it


def test_the_longest_comes_first_once_and_only_changes_places():
    lengths = lognormal(5000)
    plain, made = (Buckets(lengths, batch_size=8, seed=3, longest_first=first) for first in (False, True))
    assert lengths[made.batch(0, 0)].max() == lengths.max()
    assert lengths[plain.batch(0, 0)].max() < lengths.max()
    before, after = epoch_of(plain), epoch_of(made)
    assert sum(a.tolist() != b.tolist() for a, b in zip(before, after, strict=True)) == 2
    assert {tuple(b) for b in before} == {tuple(b) for b in after}
    assert [b.tolist() for b in epoch_of(plain, 1)] == [b.tolist() for b in epoch_of(made, 1)]


def test_samples_of_a_bucket_meet_at_random():
    """Two samples of equal length share a batch about as often as chance has it, whatever their places in the data."""
    made = Buckets(np.full(64, 10), batch_size=8, seed=0)
    together = sum(len({0, 1} & set(batch.tolist())) == 2 for epoch in range(600) for batch in epoch_of(made, epoch))
    assert abs(together - 600 * 7 / 63) < 4 * np.sqrt(600 * 7 / 63)


def test_a_resume_in_mid_epoch_has_the_same_order():
    """A8-10: another process that knows the seed and the position alone goes on with the very next batch."""
    lengths = lognormal(3000)
    whole = epoch_of(Buckets(lengths, batch_tokens=5000, seed=9), 2)
    samples = sum(batch.size for batch in whole[:123])
    again = pickle.loads(pickle.dumps(Buckets(lengths, batch_tokens=5000, seed=9)))
    number = again.batch_at(2, samples)
    assert number == 123
    assert [again.batch(2, b).tolist() for b in range(number, again.num_batches)] == [b.tolist() for b in whole[123:]]


def test_epochs_that_are_asked_for_in_turn_are_each_their_own():
    made = Buckets(lognormal(500), batch_size=8, seed=0)
    alone = {epoch: [b.tolist() for b in epoch_of(Buckets(lognormal(500), batch_size=8, seed=0), epoch)] for epoch in range(4)}
    for epoch in (0, 1, 0, 2, 1, 3, 0):
        assert [b.tolist() for b in epoch_of(made, epoch)] == alone[epoch]
    assert alone[0] != alone[1]


@pytest.mark.parametrize(("n", "most"), [(1000, 0.5), (10_000, 0.10), (200_000, 0.03)])
def test_padding_is_little(n, most):
    lengths = lognormal(n)
    share = Buckets(lengths, batch_size=32, seed=0).padding_share()
    assert share < most
    assert 1 - lengths.mean() / lengths.max() > 0.85  # what padding all to the longest would cost


def test_a_million_lengths_are_planned_in_under_a_second():
    """A8-08."""
    lengths = lognormal(1_000_000)
    begin = time.process_time()
    Buckets(lengths, batch_tokens=16_384, seed=0).batch(0, 0)
    assert time.process_time() - begin < 1
    assert Buckets(lengths, batch_tokens=16_384, seed=0).num_buckets < 400


def test_buckets_are_as_said():
    lengths = np.sort(lognormal(20_000))[::-1]
    made = Buckets(lengths, batch_size=16, seed=0)
    bounds = made._bounds
    assert (np.diff(bounds)[:-1] % 16 == 0).all()
    assert (np.diff(bounds) >= 16 * buckets.LEAST).all()
    wide = np.diff(bounds)[:-1] > 16 * buckets.LEAST
    longest, shortest = lengths[bounds[:-2]], lengths[bounds[1:-1] - 16]  # the last batch is filled up
    assert wide.any()
    assert (longest - shortest <= longest / buckets.FALL + 1)[wide].all()


@pytest.mark.parametrize(
    ("lengths", "how", "told"),
    [
        ([], {"batch_size": 2}, r"lengths: expected one length a sample, found an array of shape \(0,\)"),
        ([[1]], {"batch_size": 2}, r"found an array of shape \(1, 1\)"),
        ([1.5], {"batch_size": 2}, "lengths: expected integers, found float64"),
        ([3, -1], {"batch_size": 2}, r"lengths: expected 0 to 2\*\*62, found -1 to 3; the shortest is sample 1"),
        ([1, 2], {"batch_size": 2, "num_samples": 3}, "lengths: expected one for each of 3 samples, found 2"),
        ([1], {}, "batch_size, batch_tokens: expected one of them, or both, found neither"),
        ([1], {"batch_size": 0}, r"batch_size: expected 1 to 2\*\*62, found 0"),
        ([1], {"batch_tokens": -4}, r"batch_tokens: expected 1 to 2\*\*62, found -4"),
        ([1], {"batch_size": 1, "tail": "long"}, "tail: expected one of short, even, drop, found 'long'"),
        ([5, 900, 3], {"batch_tokens": 800}, r"batch_tokens: expected at least the longest sample's 900 \(sample 1\), found 800"),
        (
            [5, 99],
            {"batch_tokens": 100, "multiple_of": 64},
            r"longest sample's 99, 128 once padded to a multiple of 64 \(sample 1\), found 100",
        ),
        (
            [5, 900, 3],
            {"batch_tokens": 1000, "at_least": 4},
            r"batch_tokens: expected at least 4 samples a batch \(one for each rank\): 3600 or more for samples of length 900, found 1000",
        ),
        ([1] * 9, {"batch_size": 2, "at_least": 4}, "batch_size: expected at least 4 samples a batch .*, found 2"),
        (
            [1] * 9,
            {"batch_size": 8, "at_least": 2},
            r"found a batch of 1: what is left over \(1\); make the last ones even, or drop it",
        ),
        (
            [1] * 3,
            {"batch_size": 8, "at_least": 4, "tail": "even"},
            "lengths: expected at least 4 samples a batch .*, found a batch of 3$",
        ),
        ([1] * 3, {"batch_size": 8, "tail": "drop"}, "batch_size: expected at most 3 samples where the rest is dropped, found 8"),
    ],
)
def test_what_cannot_be_right(lengths, how, told):
    with pytest.raises(ConfigError, match=told):
        Buckets(lengths, seed=0, **how)


def test_a_batch_that_is_not_there():
    made = Buckets([1, 2, 3], batch_size=2, seed=0)
    with pytest.raises(ConfigError, match="number: expected a batch from 0 to 1, found 2"):
        made.batch(0, 2)
    with pytest.raises(ConfigError, match="found -1"):
        made.batch(0, -1)
