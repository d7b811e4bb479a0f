"""A corpus's own mask of targets: only labels it marks with 1 are learned, in windows and packs alike, and counts follow."""

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import ladle
from ladle.errors import ConfigError

IGNORED = -100


def masked(lengths, mask, first=0):
    """Ids that are addresses from `first` on, and a mask of them."""
    ids = np.arange(first, first + sum(lengths), dtype=np.uint32)
    return ladle.from_ids(ids, document_ends=np.cumsum(lengths), loss_mask=mask)


def feed_of(source, **options):
    return ladle.Feed(source, **{"batch_size": 3, "block_size": 8, "framework": "numpy", "prefetch": 0, "seed": 5} | options)


HOWS = [
    {},
    {"mask_documents": True},
    {"window": 16, "epoch_offset": True},
    {"tail": "pad"},
    {"stride": 5, "score": "new"},
    {"order": "random"},
    {"pack": "best_fit"},
    {"pack": "best_fit", "deal": "fresh", "overlong": "drop"},
    {"pack": "sequential"},
]


@st.composite
def sources(draw):
    lengths = draw(st.lists(st.integers(1, 20), min_size=3, max_size=25).filter(lambda n: sum(n) > 34 and min(n) <= 8))
    return lengths, draw(st.lists(st.integers(0, 1), min_size=sum(lengths), max_size=sum(lengths)))


@settings(deadline=None, max_examples=150)
@given(source=sources(), how=st.sampled_from(HOWS), position=st.integers(0, 300), ranks=st.integers(1, 3), data=st.data())
def test_labels_that_are_not_to_be_learned_are_masked_and_nothing_else(source, how, position, ranks, data):
    lengths, mask = source
    split, mask = masked(lengths, mask), np.array(mask)
    plain, learning = feed_of(split, loss_mask=False, **how), feed_of(split, **how)
    if excluded := data.draw(st.sets(st.integers(0, len(lengths) - 1), max_size=3)):
        since = data.draw(st.integers(0, 200))
        plain.exclude(excluded, since)
        learning.exclude(excluded, since)
    before, after = plain.at(position), learning.at(position)
    learned = (before.y != IGNORED) & (mask[np.maximum(before.y, 0)] == 1)
    np.testing.assert_array_equal(after.x, before.x)
    np.testing.assert_array_equal(after.y, np.where(learned, before.y, IGNORED))
    assert after.num_targets == after.num_local_targets == np.count_nonzero(learned)
    parts = []
    for rank in range(ranks):
        feed = feed_of(split, rank=rank, world_size=ranks, **how)
        if excluded:
            feed.exclude(excluded, since)
        parts.append(feed.at(position))
    assert {part.num_targets for part in parts} == {after.num_targets}
    assert [part.num_local_targets for part in parts] == [np.count_nonzero(part.y != IGNORED) for part in parts]
    np.testing.assert_array_equal(np.concatenate([part.y for part in parts]), after.y)


def test_a_rank_with_nothing_to_learn_says_0():
    split = masked([8] * 4, [1] * 16 + [0] * 16)
    batches = [
        feed_of(split, pack="sequential", order="sequential", batch_size=4, rank=rank, world_size=2).at(0) for rank in (0, 1)
    ]
    assert [(batch.num_targets, batch.num_local_targets) for batch in batches] == [(14, 14), (14, 0)]
    assert (batches[1].y == IGNORED).all()


def test_a_batch_in_which_nothing_is_learned():
    split = masked([8] * 4, [0] * 32)
    for how in HOWS[:7]:
        batch = feed_of(split, **how).at(0)
        assert batch.num_targets == batch.num_local_targets == 0
        assert (batch.y == IGNORED).all()


@pytest.mark.parametrize("how", [{}, {"mask_documents": True}, {"pack": "best_fit"}])
def test_in_a_mixture_a_source_without_a_mask_is_learned_whole(how):
    rng = np.random.default_rng(0)
    a, b, c = [5, 9, 14, 3, 8, 2] * 4, [7, 7, 20, 1] * 3, [30, 4, 6]
    masks = {"a": rng.integers(0, 2, sum(a)), "c": rng.integers(0, 2, sum(c))}
    plain = ladle.from_ids(np.arange(1000, 1000 + sum(b), dtype=np.uint32), document_ends=np.cumsum(b))
    mixture = ladle.Mixture({"c": masked(c, masks["c"], 2000), "b": plain, "a": masked(a, masks["a"])})
    learned = np.ones(3000, dtype=bool)
    learned[: sum(a)], learned[2000 : 2000 + sum(c)] = masks["a"] == 1, masks["c"] == 1
    feed, whole = feed_of(mixture, batch_size=5, **how), feed_of(mixture, batch_size=5, loss_mask=False, **how)
    seen = set()
    for batch, before in itertools.islice(zip(feed, whole, strict=False), 30):
        counts = (before.y != IGNORED) & learned[np.maximum(before.y, 0)]
        np.testing.assert_array_equal(batch.y, np.where(counts, before.y, IGNORED))
        assert batch.num_targets == np.count_nonzero(counts)
        seen |= set((batch.x // 1000).ravel().tolist())
    assert seen == {0, 1, 2}
    with pytest.raises(ConfigError, match="loss_mask: expected a corpus that was prepared with one, found none in memory"):
        feed_of(mixture, loss_mask=True, **how)


def test_a_mask_that_is_required_is_the_same_stream_and_one_that_is_ignored_another():
    split = masked([9, 20, 7], [1, 0] * 18)
    used, required, ignored = (feed_of(split, loss_mask=value).state_dict() for value in (None, True, False))
    assert used == required
    assert used["recipe"] != ignored["recipe"]
    with pytest.raises(ConfigError, match="loss_mask: expected True or False, found 1"):
        feed_of(split, loss_mask=1)
    with pytest.raises(ConfigError, match="found none in memory; prepare it with"):
        feed_of(ladle.from_ids(np.arange(50)), loss_mask=True)


@pytest.mark.parametrize("how", [{}, {"mask_documents": True}, {"pack": "best_fit"}])
def test_steps_of_counts_what_is_learned(how):
    lengths = [7, 9, 3, 1, 12] * 3
    mask = np.random.default_rng(1).integers(0, 2, sum(lengths))
    feed = feed_of(masked(lengths, mask), **how)
    rows = {(batch.position // 24, row): batch.y[row] for batch in feed.epoch() for row in range(3)}
    for document, (length, end) in enumerate(zip(lengths, np.cumsum(lengths).tolist(), strict=True)):
        for one in feed.steps_of(document):
            y = rows[one.step, one.row]
            assert one.targets == np.count_nonzero((y >= end - length) & (y < end))
