"""Several corpora in one feed: shares, epochs, stages, states, and what cannot be mixed."""

import itertools
import json
import math
import os
import pickle
import re
import resource
import warnings

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import ladle
from ladle.bench.corpus import make
from ladle.errors import ConfigError, StateError
from ladle.feed.recipe import INDEPENDENT, Recipe

W = 4


def split_of(count, first=0, dtype=np.uint32, vocab_size=None):
    """Ids that say where they lie: first, first + 1, ..."""
    return ladle.from_ids(np.arange(first, first + count, dtype=dtype), vocab_size)


def feed_of(source, **options):
    return ladle.Feed(source, **{"batch_size": 5, "block_size": W, "framework": "numpy", "prefetch": 0, "seed": 3} | options)


def mixture_of(sizes, *args, **options):
    """Sources of these sizes, a, b, c ..., whose ids begin at 0, 100 000, 200 000 ..."""
    return ladle.Mixture({name: split_of(size, i * 100_000) for i, (name, size) in enumerate(sizes.items())}, *args, **options)


def targets(feed, batches):
    """What the next batches teach, in order."""
    return [int(target) for batch in itertools.islice(feed, batches) for target in batch.y[batch.y >= 0]]


def of(name, ids):
    first = 100_000 * "abcdefgh".index(name)
    return [one - first for one in ids if first <= one < first + 100_000]


# --- shares and epochs ---


def test_weights_are_normalised_and_shares_are_as_told():
    """[3, 1], ten tenths and no sum of 1 at all: the shares within one hundredth over 10^5 draws, and far closer."""
    for weights in ({"a": 3, "b": 1}, {"a": 0.1, "b": 0.1}, {"a": 1e-30, "b": 3e-30}, {"a": 10**30, "b": 1}):
        feed = feed_of(mixture_of({"a": 50, "b": 60}, weights))
        shares = feed.shares(100_000 * W)
        for name, weight in weights.items():
            assert abs(shares[name].share - weight / sum(weights.values())) < 1e-4
        assert sum(share.slots for share in shares.values()) == 100_000 * W


def test_without_weights_sources_count_by_their_size():
    """Sizes 10 and 20: each is through after one epoch of both. With weights the size does not matter."""
    shares = feed_of(mixture_of({"a": 1001, "b": 2001})).shares(3000)
    assert (shares["a"].slots, shares["b"].slots) == (1000, 2000)
    assert shares["a"].epochs == shares["b"].epochs == 1
    shares = feed_of(mixture_of({"a": 1001, "b": 2001}, {"a": 1, "b": 1})).shares(3000)
    assert (shares["a"].share, shares["a"].epochs, shares["b"].epochs) == (0.5, 1.5, 0.75)


def test_nothing_ends_when_the_shortest_does():
    """3, 4 and 3 windows by size: all 10 come before any comes again."""
    feed = feed_of(mixture_of({"a": 3 * W + 1, "b": 4 * W + 1, "c": 3 * W + 1}), batch_size=1)
    seen = targets(feed, 10)
    assert sorted(seen) == sorted([*range(1, 3 * W + 1), *range(100_001, 100_001 + 4 * W), *range(200_001, 200_001 + 3 * W)])


def test_a_tiny_source_wraps_into_a_new_order_and_is_counted():
    """10 windows beside 1000 at weights 1 and 2: every epoch of the small one is whole, and in another order."""
    feed = feed_of(mixture_of({"a": 10 * W + 1, "b": 1000 * W + 1}, {"a": 1, "b": 2}), batch_size=3)
    seen = of("a", targets(feed, 300))
    epochs = [tuple(seen[i : i + 10 * W]) for i in range(0, len(seen), 10 * W)]
    assert len(epochs) == 30
    assert all(sorted(epoch) == list(range(1, 10 * W + 1)) for epoch in epochs)
    assert len(set(epochs)) == 30
    shares = feed.shares()
    assert (shares["a"].epochs, shares["b"].epochs, shares["a"].share) == (30, 0.6, 1 / 3)
    assert "30.00" in str(feed.report())


@pytest.mark.parametrize("weights", [{"a": 0.001, "b": 0.999}, {"a": 1e-9, "b": 1}, {"a": 1, "b": 1e9}])
def test_extreme_weights_wrap_and_never_run_past_a_source(weights):
    feed = feed_of(mixture_of({"a": 41, "b": 41}, weights), batch_size=50)
    heavy = max(weights, key=weights.get)
    seen = of(heavy, targets(feed, 60))
    assert np.bincount(seen).max() - np.bincount(seen, minlength=41)[1:].min() <= 1
    for position in (2**30, 2**50, 2**61):
        batch = feed.at(position)
        assert ((batch.x % 100_000) < 41).all()


def test_a_source_too_light_to_appear_is_said_before():
    mixture = mixture_of({"a": 50, "b": 50}, {"a": 1e-9, "b": 1})
    with pytest.warns(UserWarning, match="^mixture: a will not appear in 4000 tokens: its weight is too small$"):
        feed_of(mixture, total_tokens=1000 * W)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        feed_of(mixture, total_tokens=2**32 * W)  # its turn comes once in 2^30 windows
        feed_of(mixture)


def test_max_epochs_refuses_beforehand():
    mixture = mixture_of({"a": 10 * W + 1, "b": 1000 * W + 1}, {"a": 1, "b": 2}, max_epochs=4)
    message = "max_epochs: a: expected at most 4, found 4.10 in 492 tokens; lower its weight or total_tokens, or raise max_epochs"
    with pytest.raises(ConfigError, match=f"^{re.escape(message)}$"):
        feed_of(mixture, total_tokens=123 * W)
    assert len(feed_of(mixture, total_tokens=120 * W)) == 24
    with pytest.raises(ConfigError, match=r"^max_epochs=4: expected total_tokens= beside it, found an endless feed$"):
        feed_of(mixture)


def test_300_sources(tmp_path):
    """Each on disk, under few file descriptors, all of them read, and none mistaken for another."""
    sizes = np.random.default_rng(2).integers(30, 90, 300)
    splits = {f"s{i:03}": split_of(int(size), i * 1000) for i, size in enumerate(sizes)}
    feed = feed_of(ladle.Mixture(splits, dict.fromkeys(splits, 1.0)), batch_size=100)
    seen = targets(feed, 60)
    owners = {one // 1000 for one in seen}
    assert owners == set(range(300))
    shares = feed.shares()
    assert {round(share.slots / W) for share in shares.values()} == {20}
    for number, size in enumerate(sizes.tolist()):
        own = np.bincount([one - number * 1000 for one in seen if one // 1000 == number], minlength=size)[1:]
        assert own.max() - own.min() <= 1


def test_more_corpora_on_disk_than_files_may_be_open(tmp_path):
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    limit = max(70, 3 * len(os.listdir("/proc/self/fd")) + 12)  # what earlier tests left open counts too
    corpora = [ladle.open(make(tmp_path / f"{i:03}", 500, seed=i).parent) for i in range(limit - 10)]  # two files each
    resource.setrlimit(resource.RLIMIT_NOFILE, (limit, hard))
    try:
        splits = {corpus.path.name: corpus["train"] for corpus in corpora}
        feed = feed_of(ladle.Mixture(splits, dict.fromkeys(splits, 1.0)), batch_size=30)
        for batch in itertools.islice(feed, 20):
            for row, start in zip(batch.x, batch.starts.tolist(), strict=True):
                number, inside = divmod(start, 500)
                np.testing.assert_array_equal(row, corpora[number]["train"].read(inside, W))
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
        for corpus in corpora:
            corpus.close()


@pytest.mark.parametrize("rank", [0, 1])
def test_a_source_of_three_windows_under_many_ranks(rank):
    """Eight workers on each of two ranks have no shards of their own to run dry: a batch is sliced."""
    mixture = mixture_of({"a": 3 * W + 1, "b": 5000}, {"a": 1, "b": 1})
    whole = feed_of(mixture, batch_size=16)
    mine = feed_of(mixture, batch_size=16, rank=rank, world_size=2)
    for batch, part in itertools.islice(zip(whole, mine, strict=True), 30):
        np.testing.assert_array_equal(part.x, batch.x[rank * 8 : rank * 8 + 8])


# --- what may be mixed ---


def test_ids_of_two_and_of_four_bytes():
    wide = ladle.from_ids(np.arange(100_000, 100_101, dtype=np.uint32))
    narrow = ladle.from_ids(np.arange(1001, dtype=np.uint16))
    feed = feed_of(ladle.Mixture({"wide": wide, "narrow": narrow}, {"wide": 1, "narrow": 1}), batch_size=20)
    seen = targets(feed, 10)
    assert sorted(one for one in seen if one > 1000) == sorted([*range(100_001, 100_101)] * 4)
    assert len({one for one in seen if one <= 1000}) == 400
    assert feed[3].x.dtype == np.int64


def test_one_source_in_a_mixture_hands_out_every_target():
    feed = feed_of(mixture_of({"a": 41}), batch_size=1)
    assert sorted(targets(feed, 10)) == list(range(1, 41))


@pytest.mark.parametrize("order", ["sequential", "random", "shuffled"])
def test_every_order(order):
    feed = feed_of(mixture_of({"a": 21, "b": 41}, {"a": 1, "b": 1}, max_epochs=9), order=order, total_tokens=160)
    rows = np.concatenate([batch.x for batch in feed])
    assert (rows[:, 1:] == rows[:, :-1] + 1).all()
    firsts = of("b", rows[:, 0].tolist())
    if order == "sequential":
        assert firsts == [0, 4, 8, 12, 16, 20, 24, 28, 32, 36] * 2
    elif order == "shuffled":
        assert sorted(firsts) == sorted([0, 4, 8, 12, 16, 20, 24, 28, 32, 36] * 2) != firsts
    else:
        assert any(one % 4 for one in firsts)
        assert max(firsts) <= 40 - W


def test_rows_shorter_than_windows():
    mixture = mixture_of({"a": 101, "b": 57}, stages=[(100, {"a": 1}), (None, {"a": 1, "b": 2})])
    long, short = feed_of(mixture, window=12, block_size=12), feed_of(mixture, window=12, block_size=3)
    assert targets(long, 24) == targets(short, 96)


def test_a_mixture_has_no_epoch():
    feed = feed_of(mixture_of({"a": 50, "b": 60}))
    with pytest.raises(ConfigError, match="a mixture has no epochs: each of its sources has its own; use total_tokens="):
        feed_of(mixture_of({"a": 50, "b": 60}), epochs=1)
    with pytest.raises(ConfigError, match="a mixture has no epochs"):
        feed.epoch()
    with pytest.raises(TypeError, match="this feed is endless: pass total_tokens= to end it"):
        len(feed)


# --- refused, in one early error ---


@pytest.mark.parametrize("how", ["weights", "stages"])
@pytest.mark.parametrize(
    ("weights", "message"),
    [
        ({}, "weights: expected at least one source, found none"),
        ({"a": 0, "b": 0}, "weights: a: expected a finite number above 0, found 0; leave a source out to stop it"),
        ({"a": 2, "b": -1}, "weights: b: expected a finite number above 0, found -1; leave a source out to stop it"),
        ({"a": math.nan, "b": 1}, "weights: a: expected a finite number above 0, found nan; leave a source out to stop it"),
        ({"a": math.inf, "b": 1}, "weights: a: expected a finite number above 0, found inf; leave a source out to stop it"),
        ({"a": "1", "b": 1}, "weights: a: expected a finite number above 0, found '1'; leave a source out to stop it"),
        ({"a": 1, "b": 1, "d": 1, "e": 2}, "weights: expected names among a, b, found d, e"),
        ({"a": 1, 7: 1}, "weights: expected names among a, b, found 7"),
        ({"a": 1}, "weights: expected one for every source, found none for b"),
        ([0.5, 0.5], "weights: expected {name: weight}, found [0.5, 0.5]"),
        ([], "weights: expected {name: weight}, found []"),
    ],
)
def test_weights_that_cannot_be_right(weights, message, how):
    """The same words everywhere, before a feed is made."""
    splits = {"a": split_of(50), "b": split_of(60)}
    with pytest.raises(ConfigError, match=f"^{re.escape(message)}$"):
        ladle.Mixture(splits, **{how: weights if how == "weights" else [(None, weights)]})


@pytest.mark.parametrize(
    ("stages", "message"),
    [
        ([], "stages: expected at least one (until_tokens, weights), found []"),
        ({"a": 1}, "stages: expected at least one (until_tokens, weights), found {'a': 1}"),
        ([{"a": 1}], "stages: expected (until_tokens, weights), found {'a': 1} (stage 0)"),
        ([(8, {"a": 1, "b": 1})], "stages: expected until_tokens for every stage but the last, found 8 for the last (stage 0)"),
        (
            [(None, {"a": 1}), (None, {"b": 1})],
            "stages: expected until_tokens for every stage but the last, found none (stage 0)",
        ),
        ([(0, {"a": 1}), (None, {"b": 1})], "stages: until_tokens of stage 0: expected at least 1, found 0"),
        ([(9, {"a": 1}), (9, {"a": 2}), (None, {"b": 1})], "stages: until_tokens of stage 1: expected at least 10, found 9"),
        ([(9.5, {"a": 1}), (None, {"b": 1})], "stages: until_tokens of stage 0: expected an integer, found 9.5"),
        ([(-4, {"a": 1}), (None, {"b": 1})], "stages: until_tokens of stage 0: expected at least 1, found -4"),
        (
            [(8, {"a": 1}), (None, {"b": 0})],
            "weights: b: expected a finite number above 0, found 0; leave a source out to stop it",
        ),
        ([(8, {"a": 1}), (None, {"a": 1})], "weights: expected one for every source, found none for b"),
    ],
)
def test_stages_that_cannot_be_right(stages, message):
    with pytest.raises(ConfigError, match=f"^{re.escape(message)}$"):
        mixture_of({"a": 50, "b": 60}, stages=stages)


@pytest.mark.parametrize(
    ("sources", "options", "message"),
    [
        ({}, {}, "sources: expected {name: split} of at least one, found {}"),
        ([1], {}, "sources: expected {name: split} of at least one, found [1]"),
        ({"": 1}, {}, "sources: expected printable names, found ''"),
        ({"a\n": 1}, {}, r"sources: expected printable names, found 'a\n'"),
        ({"\ud800": 1}, {}, r"sources: expected printable names, found '\ud800'"),
        ({7: 1}, {}, "sources: expected printable names, found 7"),
        ({"a": "books"}, {}, "sources: a: expected a split, found str; use ladle.open(path)['train']"),
        (None, {"weights": {"a": 1}, "stages": [(None, {"a": 1})]}, "weights and stages: expected one of them, found both"),
        (None, {"max_epochs": 0}, "max_epochs: expected a number above 0, found 0"),
        (None, {"max_epochs": math.nan}, "max_epochs: expected a number above 0, found nan"),
        (None, {"max_epochs": "2"}, "max_epochs: expected a number above 0, found '2'"),
    ],
)
def test_sources_and_limits_that_cannot_be_right(sources, options, message):
    with pytest.raises(ConfigError, match=f"^{re.escape(message)}$"):
        ladle.Mixture({"a": split_of(50)} if sources is None else sources, **options)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"stride": 2}, "stride: expected None in a mixture, found 2: it mixes whole windows of several sources"),
        ({"score": "new"}, "score: expected 'all' in a mixture, found 'new': it mixes whole windows of several sources"),
        ({"shuffle_block": 2}, "shuffle_block: expected None in a mixture, found 2: neighbours come from different sources"),
        ({"tail": "pad"}, "tail: expected 'cover' or 'drop' in a mixture, found 'pad'"),
        ({"order": "sorted"}, "order: expected one of shuffled, sequential, random, found 'sorted'"),
        (
            {"order": "random", "tail": "drop"},
            f"tail: expected 'cover' with order='random', found 'drop': {INDEPENDENT}",
        ),
        (
            {"block_size": 64},
            "sources: b: expected at least 65 tokens for windows of 64, found 50; leave it out, or use a smaller block_size",
        ),
        ({"world_size": 9, "rank": 0}, "batch_size: expected at least a row for each of 9 ranks, found 5 rows"),
    ],
)
def test_a_feed_of_a_mixture_refuses(options, message):
    with pytest.raises(ConfigError, match=f"^{re.escape(message)}$"):
        feed_of(mixture_of({"a": 100, "b": 50}), **options)


def test_a_source_smaller_than_a_window(tmp_path):
    with ladle.open(make(tmp_path / "large", 500).parent) as large, ladle.open(make(tmp_path / "small", 20).parent) as small:
        mixture = ladle.Mixture({"large": large["train"], "small": small["train"]}, {"large": 1, "small": 1})
        with pytest.raises(ConfigError, match=r"^sources: small: expected at least 33 tokens for windows of 32, found 20; "):
            feed_of(mixture, block_size=32)


def test_two_stages_within_one_window():
    mixture = mixture_of({"a": 50, "b": 60}, stages=[(5, {"a": 1}), (7, {"b": 1}), (None, {"a": 1})])
    message = "stages: expected each to last at least one window, found stage 1 to begin at window 2 and stage 2 at window 2"
    with pytest.raises(ConfigError, match=f"^{message}$"):
        feed_of(mixture)


def test_different_tokenizers_are_refused():
    a, b = ladle.from_text("some text", "bytes"), ladle.from_text("some text", "gpt2")
    with pytest.raises(ConfigError, match=r"^sources: expected one tokenizer, found the tokenizer bytes \(\w+\) for a and the"):
        ladle.Mixture({"a": a, "b": b})
    with pytest.raises(ConfigError, match=r"^sources: expected one vocabulary, found 90 ids for a and 80 ids for b$"):
        ladle.Mixture({"a": split_of(50, vocab_size=90), "b": split_of(60, vocab_size=80)})
    text = ladle.from_text("abcabc", "chars")
    with pytest.raises(ConfigError, match="expected one tokenizer, found the tokenizer chars"):
        ladle.Mixture({"a": text, "b": ladle.from_text("cdecde", "chars")})  # as many characters, but others


def test_a_source_without_a_tokenizer_takes_the_others():
    mixture = ladle.Mixture({"a": split_of(50), "b": ladle.from_text("some text", "bytes")})
    assert mixture.tokenizer.name == "bytes"
    assert ladle.Mixture({"a": split_of(50)}).tokenizer is None


# --- stages and states ---


def test_stages_in_tokens_that_are_no_multiple_of_the_window():
    """Each begins at the first window that starts at or after it."""
    mixture = mixture_of({"a": 500, "b": 500}, stages=[(9, {"a": 1}), (16, {"b": 1}), (None, {"a": 1})])
    ids = np.concatenate([batch.x[:, 0] for batch in itertools.islice(feed_of(mixture), 2)])
    assert (ids // 100_000).tolist() == [0, 0, 0, 1, 0, 0, 0, 0, 0, 0]
    same = mixture_of({"a": 500, "b": 500}, stages=[(12, {"a": 2}), (13, {"b": 5}), (None, {"a": 9})])
    feed, other = feed_of(mixture), feed_of(same)
    assert targets(feed, 4) == targets(other, 4)
    other.load_state_dict(feed.state_dict())  # the same order, told in other numbers


@settings(max_examples=40, deadline=None)
@given(
    until=st.integers(1, 300),
    weights=st.tuples(*[st.sampled_from([1, 2, 9])] * 4),
    saved=st.integers(0, 25),
    position=st.integers(0, 400),
)
def test_a_later_stage_may_be_changed_and_an_earlier_one_not(until, weights, saved, position):
    """A state saved before a stage loads in a feed whose later stages differ; one saved after it does not."""
    one, two, three, four = weights
    sizes = {"a": 101, "b": 77}
    first = {"a": one, "b": two}
    plain = feed_of(mixture_of(sizes, first))
    staged = feed_of(mixture_of(sizes | {"c": 60}, stages=[(until, first), (None, {"b": three, "c": four})]))
    border = -(-until // W) * W
    done = targets(plain, saved)
    assert plain.position == saved * 5 * W
    if plain.position <= border:
        staged.load_state_dict(json.loads(json.dumps(plain.state_dict())))
        assert staged.position == plain.position
        assert done == targets(feed_of(staged.source), saved)
    else:
        with pytest.raises(StateError, match=r"^state: (corpus|recipe): expected "):
            staged.load_state_dict(plain.state_dict())
    state = staged.state_at(position)
    if position <= border:
        plain.load_state_dict(state)
    else:
        with pytest.raises(StateError, match=r"^state: (corpus|recipe): expected "):
            plain.load_state_dict(state)


def test_a_changed_weight_is_an_error_that_says_so():
    feed, other = (feed_of(mixture_of({"a": 101, "b": 77}, {"a": weight, "b": 1})) for weight in (1, 2))
    targets(feed, 2)
    with pytest.raises(StateError) as caught:
        other.load_state_dict(feed.state_dict())
    mine, found = other.state_at(feed.position)["recipe"], feed.state_dict()["recipe"]
    assert str(caught.value).startswith(f"state: recipe: expected {mine}, found {found}; order, stride, tail, ")
    assert "weights, stages" in str(caught.value)
    changed = feed_of(ladle.Mixture({"a": split_of(101), "b": split_of(78, 100_000)}, {"a": 1, "b": 1}))
    with pytest.raises(StateError, match=r"^state: corpus: expected .* it belongs to other data"):
        changed.load_state_dict(feed.state_dict())


def test_adding_and_removing_a_source_mid_run_leaves_the_past_exact():
    """One run in three configurations, each with one stage more, equals the run that knew all of them from the start."""
    sizes = {"a": 101, "b": 77, "c": 60}
    all_stages = [(100, {"a": 1, "b": 2}), (220, {"a": 1, "b": 1, "c": 3}), (None, {"b": 1, "c": 1})]
    knew = feed_of(mixture_of(sizes, stages=all_stages))
    whole = targets(knew, 40)
    feed = feed_of(mixture_of({"a": 101, "b": 77}, stages=[(None, {"a": 1, "b": 2})]))
    found = targets(feed, 4)
    second = feed_of(mixture_of(sizes, stages=[*all_stages[:1], (None, all_stages[1][1])]))
    second.load_state_dict(feed.state_dict())
    found += targets(second, 7)
    third = feed_of(mixture_of(sizes, stages=all_stages))
    third.load_state_dict(second.state_dict())
    found += targets(third, 29)
    assert found == whole
    for name, size in sizes.items():  # through the stages too nothing comes twice before all has come once
        own = np.bincount(of(name, whole), minlength=size)[1:]
        assert own.max() - own.min() <= 1
    assert third.state_dict() == knew.state_dict()


def test_stopping_after_an_epoch_of_both_resumes_exactly():
    """Two sources of 50 windows, stopped at window 130: each is in its second epoch."""
    options = {"batch_size": 10, "prefetch": 2}
    mixture = mixture_of({"a": 50 * W + 1, "b": 50 * W + 1}, {"a": 1, "b": 1})
    with feed_of(mixture, **options) as feed, feed_of(mixture, **options) as again:
        targets(feed, 13)
        assert {share.epochs for share in feed.shares().values()} == {1.3}
        again.load_state_dict(json.loads(json.dumps(feed.state_dict())))
        assert targets(again, 30) == targets(feed, 30)


def test_states_of_a_mixture_are_small_and_the_same_on_every_rank():
    splits = {f"a source with a rather long name, number {i:03}": split_of(50, i) for i in range(300)}
    stages = [(4000 * (k + 1), dict.fromkeys(splits, 1.0)) for k in range(20)] + [(None, dict.fromkeys(splits, 2.0))]
    mixture = ladle.Mixture(splits, stages=stages)
    states = [feed_of(mixture, rank=rank, world_size=3).state_at(2**62 - 1) for rank in range(3)]
    assert states == [states[0]] * 3
    assert len(json.dumps(states[0])) < 400


def test_a_mixture_pickles():
    mixture = mixture_of({"a": 101, "b": 77}, stages=[(100, {"a": 1}), (None, {"b": 1, "a": 2})], max_epochs=50)
    again = pickle.loads(pickle.dumps(mixture))
    assert targets(feed_of(again, total_tokens=800), 40) == targets(feed_of(mixture, total_tokens=800), 40)
    assert (again.max_epochs, again.names) == (50, ["a", "b"])


# --- any place ---


@settings(max_examples=30, deadline=None)
@given(step=st.integers(0, 2**40), batch_size=st.integers(1, 7), prefetch=st.sampled_from([0, 2]))
def test_any_batch_without_replaying(step, batch_size, prefetch):
    """feed[i], a feed that starts there, and the numbers of the windows by arithmetic agree, far out too."""
    mixture = mixture_of({"a": 101, "b": 77, "c": 4099}, stages=[(1000, {"a": 1, "c": 5}), (None, {"a": 2, "b": 1, "c": 1})])
    with feed_of(mixture, batch_size=batch_size, prefetch=prefetch) as feed:
        looked = feed[step]
        feed.load_state_dict(feed.state_at(step * batch_size * W))
        walked = next(feed)
    assert walked.digest == looked.digest
    start, low, high = feed.stream.spans(step * batch_size, batch_size)
    assert looked.starts.tolist() == start.tolist()
    assert looked.num_targets == int((high - low).sum())


def test_looking_far_computes_no_more_than_looking_near(monkeypatch):
    """Counted, not timed: units that the tree was asked for."""
    from ladle.order.mixture import Tree

    asked = []
    real = Tree.split
    monkeypatch.setattr(Tree, "split", lambda self, units: asked.append(units.size) or real(self, units))
    feed = feed_of(mixture_of({"a": 101, "b": 77}, {"a": 1, "b": 3}))
    counts = []
    for step in (0, 10**6, 10**15):
        asked.clear()
        feed.at(step * 5 * W)
        counts.append(list(asked))
    assert counts == [[5]] * 3


def test_where_names_the_source_and_its_own_place():
    text = {"web": ["one fish", "two fish"], "code": ["x = 1", "y = 2", "z = 3"]}
    splits = {name: ladle.from_text(documents, "bytes") for name, documents in text.items()}
    feed = feed_of(ladle.Mixture(splits, {"web": 1, "code": 1}))
    for step, row in itertools.product(range(6), range(5)):
        tokens = np.append(feed[step].x[row], feed[step].y[row][-1])
        for span in feed.where(step, row):
            first, last = span.columns
            split = splits[span.corpus]
            got = tokens[first:last]
            known = got >= 0  # a masked label is no id
            np.testing.assert_array_equal(got[known], split.read(span.tokens[0], last - first)[known])


def test_the_stream_is_made_before_the_first_batch_is_read():
    recipe = Recipe(seed=1, window=W)
    mixture = mixture_of({"a": 50, "b": 60})
    assert mixture.stream(recipe).num_tokens == mixture.num_tokens == 110
    assert repr(mixture) == "Mixture(a, b)"
