"""The state is one integer and proof of where it belongs: saved anywhere, loaded under any schedule, exact."""

import itertools
import json
from collections import Counter

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import ladle
from ladle.errors import StateError
from ladle.feed.recipe import Recipe, canonical, digest
from ladle.feed.state import STATE_FORMAT
from ladle.order.permutation import ORDER_VERSION

N = 101  # 25 windows of 4 an epoch, 12.5 batches of 2


def feed_of(count: int = N, **options) -> ladle.Feed:
    chosen = {"batch_size": 2, "block_size": 4, "framework": "numpy", "prefetch": 0, "seed": 5} | options
    return ladle.Feed(ladle.from_ids(np.arange(count, dtype=np.uint32)), **chosen)


def digests(feed: ladle.Feed, count: int) -> list[int]:
    return [batch.digest for batch in itertools.islice(feed, count)]


def through_json(state: dict) -> dict:
    return json.loads(json.dumps(state))


# --- saving and loading ---


@pytest.mark.parametrize("prefetch", [0, 1, 4])
@pytest.mark.parametrize("other", [0, 3])
@pytest.mark.parametrize("steps", [0, 1, 12, 13, 25, 26, 60])
def test_loading_continues_exactly(prefetch, other, steps):
    """At the start, inside an epoch, in the batch that spans a border (12), at two whole epochs (25), beyond."""
    with feed_of(prefetch=prefetch) as first, feed_of(prefetch=other) as second:
        for _ in itertools.islice(first, steps):
            pass
        second.load_state_dict(through_json(first.state_dict()))
        assert second.position == first.position
        assert digests(second, 40) == digests(first, 40)


def test_saving_twice_and_right_after_loading():
    with feed_of(prefetch=3) as feed:
        whole = digests(feed_of(), 30)
        assert digests(feed, 7) == whole[:7]
        states = [feed.state_dict()]
        assert digests(feed, 3) == whole[7:10]
        states.append(feed.state_dict())
    with feed_of(prefetch=2) as again:
        again.load_state_dict(states[0])
        assert again.state_dict() == states[0]
        assert digests(again, 3) == whole[7:10]
        assert again.state_dict() == states[1]
        again.load_state_dict(states[1])
        assert digests(again, 5) == whole[10:15]


def test_a_whole_epoch_then_the_next_order():
    """At the last batch of an epoch: the next epoch is complete and in its own order."""
    feed, fresh = feed_of(), feed_of()
    list(feed.epoch())
    list(feed.epoch())
    fresh.load_state_dict(feed.state_dict())
    third = [batch.starts.tolist() for batch in fresh.epoch()]
    assert third == [batch.starts.tolist() for batch in feed.epoch()]
    assert sum(map(len, third)) == 26  # 25 windows and one masked row
    first = [batch.starts.tolist() for batch in feed_of().epoch()]
    assert third != first


def test_later_epochs_are_whole_after_a_resume():
    feed = feed_of(11, block_size=1, batch_size=1)
    feed.load_state_dict(feed.state_dict() | {"position": 7})
    assert [len(list(feed.epoch())) for _ in range(3)] == [3, 10, 10]


@pytest.mark.parametrize("prefetch", [0, 2])
def test_loading_takes_effect_on_an_iterator_made_before(prefetch):
    whole = digests(feed_of(), 20)
    with feed_of(prefetch=prefetch) as feed:
        walk = iter(feed)
        next(walk)
        feed.load_state_dict(feed_of().state_dict() | {"position": 80})
        assert next(walk).digest == whole[10]
        assert feed.position == 88
        feed.load_state_dict(feed.state_dict() | {"position": 8})
        assert digests(walk, 3) == whole[1:4]


def test_loading_inside_an_epoch_loop():
    feed = feed_of()
    seen = []
    for batch in feed.epoch():
        seen.append(batch.position)
        if len(seen) == 2:
            feed.load_state_dict(feed.state_dict() | {"position": 80})
    assert seen == [0, 8, 80, 88, 96]


def test_a_state_at_or_past_the_end_of_a_finite_feed_yields_nothing():
    feed = feed_of(epochs=2)
    feed.load_state_dict(feed.state_dict() | {"position": 200})
    assert list(feed) == []
    feed.load_state_dict(feed.state_dict() | {"position": 196})
    assert [batch.num_targets for batch in feed] == [4]


def test_a_finite_and_an_endless_feed_share_a_stream():
    assert feed_of(epochs=3).recipe == feed_of(total_tokens=50).recipe == feed_of(prefetch=3).recipe == feed_of().recipe


@pytest.mark.parametrize("order", ["random", "sequential"])
def test_other_orders_continue_too(order):
    feed, fresh = feed_of(order=order), feed_of(order=order, prefetch=2)
    digests(feed, 9)
    fresh.load_state_dict(feed.state_dict())
    with fresh:
        assert digests(fresh, 20) == digests(feed, 20)


# --- other schedules of the same stream ---

schedules = st.lists(
    st.tuples(
        st.integers(1, 6),  # B
        st.sampled_from([1, 2, 3, 4, 6, 12]),  # T, a divisor of the window
        st.integers(1, 3),  # ranks
        st.sampled_from([0, 0, 2]),  # prefetch
        st.integers(0, 9),  # batches
    ),
    min_size=1,
    max_size=8,
)


@settings(max_examples=120, deadline=None)
@given(
    count=st.integers(13, 150),
    schedule=schedules,
    seed=st.integers(0, 999),
    offset=st.booleans(),
    order=st.sampled_from(["shuffled", "sequential"]),
)
def test_any_schedule_of_shapes_and_ranks_is_exactly_once(count, schedule, seed, offset, order):
    """Stop, change B, T, the ranks or the prefetch depth, go on: nothing twice, nothing lost, to the token."""
    split = ladle.from_ids(np.arange(count, dtype=np.uint32))
    seen: Counter = Counter()
    state = None
    for batch_size, block_size, ranks, prefetch, steps in [*schedule, (2, 12, 1, 0, None)]:
        states = []
        for rank in range(min(ranks, batch_size)):
            with ladle.Feed(
                split,
                batch_size=batch_size,
                block_size=block_size,
                window=12,
                seed=seed,
                order=order,
                epoch_offset=offset,
                rank=rank,
                world_size=min(ranks, batch_size),
                prefetch=prefetch,
                framework="numpy",
            ) as feed:
                if state is not None:
                    feed.load_state_dict(through_json(state))
                for batch in feed.epoch() if steps is None else itertools.islice(feed, steps):
                    seen.update(batch.y[batch.y >= 0].tolist())
                states.append(feed.state_dict())
                epochs, rest = divmod(feed.position, feed.slots_per_epoch)
        assert all(each == states[0] for each in states)  # the state is the same on every rank
        state = states[0]
    assert rest == 0
    assert seen == dict.fromkeys(range(1, count), epochs)


def test_batch_size_counted_in_samples_not_steps():
    """8 steps of 4, then 2 rows a batch: the next row is the 33rd."""
    whole = feed_of(10_001, batch_size=1)
    feed, smaller = feed_of(10_001, batch_size=4), feed_of(10_001, batch_size=2)
    digests(feed, 8)
    smaller.load_state_dict(feed.state_dict())
    np.testing.assert_array_equal(next(smaller).x, np.concatenate([whole[32].x, whole[33].x]))


# --- what a state says ---


def test_a_state_is_small_plain_json():
    feed = feed_of(seed=2**64 - 1, window=2**2 * 25)
    feed.load_state_dict(feed.state_dict() | {"position": 2**62 - 1})
    text = json.dumps(feed.state_dict())
    assert len(text) < 400
    assert json.loads(text) == feed.state_dict()
    assert set(feed.state_dict()) == {"format", "order_version", "recipe", "corpus", "seed", "window", "unit", "position"}


def test_a_state_of_a_foreign_folder_is_small_too(tmp_path):
    np.arange(5000, dtype=np.uint16).tofile(tmp_path / "train.bin")
    with ladle.open(tmp_path) as corpus, ladle.Feed(corpus["train"], batch_size=1, block_size=8, framework="numpy") as feed:
        feed.load_state_dict(feed.state_dict() | {"position": 2**62 - 1})
        assert len(json.dumps(feed.state_dict())) < 400


def test_the_recipe_is_canonical_json_with_defaults_left_out():
    assert Recipe(seed=7, window=4).settings() == {"seed": 7, "window": 4, "order_version": 1}
    assert canonical({"window": 4, "seed": 7, "stride": 2}) == '{"seed":7,"stride":2,"window":4}'
    assert digest('{"seed":7,"stride":2,"window":4}') == "025a145e497525b82d93aa0387560d84"


@pytest.mark.parametrize(
    ("key", "value", "reason"),
    [
        ("format", STATE_FORMAT + 1, "it was saved by another version of Ladle"),
        ("order_version", ORDER_VERSION + 1, "it was saved under another order version, which deals windows in another order"),
        ("corpus", "0" * 64, "it belongs to other data (the fingerprints differ)"),
        ("unit", "samples", "it counts something else"),
        ("seed", 6, "it belongs to another seed"),
        ("window", 8, "windows are what is shuffled: pass window= from the start to change block_size later"),
        (
            "recipe",
            "0" * 32,
            "order, stride, tail, epoch_offset, shuffle_block, score, or weights, stages and exclusions before that position, differ from the run that saved it",
        ),
    ],
)
def test_a_foreign_state_names_both(key, value, reason):
    feed = feed_of()
    digests(feed, 3)
    before = feed.state_dict()
    with pytest.raises(StateError) as caught:
        feed.load_state_dict(before | {key: value})
    assert str(caught.value) == f"state: {key}: expected {before[key]}, found {value}; {reason}"
    assert feed.state_dict() == before


def test_a_newer_format_is_named_before_what_it_lacks():
    with pytest.raises(StateError, match=r"^state: format: expected 1, found 9; it was saved by another version of Ladle$"):
        feed_of().load_state_dict({"format": 9, "place": 3})


@pytest.mark.parametrize(
    ("other", "key"),
    [
        ({"count": N + 1}, "corpus"),
        ({"seed": 6}, "seed"),
        ({"window": 8}, "window"),
        ({"order": "sequential"}, "recipe"),
        ({"tail": "drop"}, "recipe"),
        ({"epoch_offset": True}, "recipe"),
        ({"shuffle_block": 5}, "recipe"),
        ({"stride": 2}, "recipe"),
    ],
)
def test_a_state_of_another_stream_is_refused(other, key):
    state = feed_of(**other).state_dict()
    with pytest.raises(StateError, match=f"^state: {key}: expected "):
        feed_of().load_state_dict(state)


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (lambda s: None, "state: expected a feed's state_dict, found NoneType"),
        (lambda s: [s], "state: expected a feed's state_dict, found list"),
        (lambda s: {}, "state: format: expected 1, found nothing; it is not a feed's state_dict"),
        (
            lambda s: {k: v for k, v in s.items() if k != "seed"},
            "state: seed: expected 5, found nothing; it is not a feed's state_dict",
        ),
        (lambda s: s | {"position": -1}, "state: position: expected 0 to 2**62 slots, found -1"),
        (lambda s: s | {"position": 2**62}, f"state: position: expected 0 to 2**62 slots, found {2**62}"),
        (lambda s: s | {"position": 8.0}, "state: position: expected 0 to 2**62 slots, found 8.0"),
        (lambda s: s | {"position": True}, "state: position: expected 0 to 2**62 slots, found True"),
        (lambda s: {k: v for k, v in s.items() if k != "position"}, "state: position: expected 0 to 2**62 slots, found None"),
        (lambda s: s | {"format": True}, "state: format: expected 1, found True; it was saved by another version of Ladle"),
    ],
)
def test_what_is_no_state_is_named(spoil, message):
    feed = feed_of()
    with pytest.raises(StateError) as caught:
        feed.load_state_dict(spoil(feed.state_dict()))
    assert str(caught.value) == message


def test_a_state_survives_numpy_and_torch_saving(tmp_path):
    import torch

    state = feed_of().state_dict() | {"position": 16}
    torch.save(state, tmp_path / "state.pt")
    feed = feed_of()
    feed.load_state_dict(torch.load(tmp_path / "state.pt", weights_only=True))
    assert feed.position == 16
