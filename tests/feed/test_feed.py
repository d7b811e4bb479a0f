"""The feed: what a batch holds, what an epoch covers, how it ends, and that nothing else moves.

The ids are consecutive integers, so a window's contents are its address.
"""

import hashlib
import itertools
import json
import random
import struct
import subprocess
import sys
from collections import Counter

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import ladle
from ladle.errors import ClosedError, ConfigError, LadleError, MissingExtra, TokenError


def ids(count: int) -> np.ndarray:
    return np.arange(count, dtype=np.uint32)


def feed_of(count: int, **options) -> ladle.Feed:
    chosen = {"batch_size": 2, "block_size": 4, "framework": "numpy", "prefetch": 0} | options
    return ladle.Feed(ladle.from_ids(ids(count)), **chosen)


def scored(batches) -> Counter:
    """How often each token was a target that counts, under ids that are addresses; checks each batch on the way."""
    seen: Counter = Counter()
    for batch in batches:
        x, y = np.asarray(batch.x), np.asarray(batch.y)
        counts = y >= 0
        assert (y[counts] == x[counts] + 1).all()
        seen.update(y[counts].tolist())
    return seen


# --- x and y ---


@pytest.mark.parametrize("framework", ["torch", "numpy"])
@pytest.mark.parametrize("prefetch", [0, 2])
def test_x_and_y_are_the_users_own(framework, prefetch):
    source = ids(1000)
    with ladle.Feed(
        ladle.from_ids(source), batch_size=3, block_size=8, seed=1, framework=framework, prefetch=prefetch, tail="drop"
    ) as feed:
        batch = next(feed)
        x, y = batch
        if framework == "torch":
            assert x.dtype == y.dtype == torch.int64
            assert x.is_contiguous()
            assert y.is_contiguous()
            y.view(-1)
            assert x.untyped_storage().data_ptr() != y.untyped_storage().data_ptr()
        else:
            assert x.dtype == y.dtype == np.int64
            assert x.flags.c_contiguous
            assert y.flags.c_contiguous
            assert not np.shares_memory(x, y)
            assert not np.shares_memory(x, source)
        assert tuple(x.shape) == tuple(y.shape) == (3, 8)
        inputs, targets = np.asarray(x).copy(), np.asarray(y).copy()
        np.testing.assert_array_equal(targets, inputs + 1)
        np.testing.assert_array_equal(inputs[:, 0], batch.starts)
        x[:] = 0
        np.testing.assert_array_equal(np.asarray(y), targets)
        y[:] = 7
        np.testing.assert_array_equal(np.asarray(feed.at(0).x), inputs)
        np.testing.assert_array_equal(source, ids(1000))


def test_torch_is_the_default_and_takes_a_device():
    feed = ladle.Feed(ladle.from_ids(ids(100)), batch_size=2, block_size=4, device="cpu")
    with feed:
        assert next(feed).x.device == torch.device("cpu")
    with ladle.Feed(ladle.from_ids(ids(100)), batch_size=2, block_size=4, device=torch.device("cpu")) as feed:
        assert isinstance(next(feed).y, torch.Tensor)


def test_many_batches_may_be_kept_and_stay_as_they_were():
    with feed_of(5000, prefetch=3, batch_size=4, block_size=16) as feed:
        kept = list(itertools.islice(feed, 500))
    for number, batch in enumerate(kept):
        np.testing.assert_array_equal(batch.x, feed_of(5000, batch_size=4, block_size=16)[number].x)


def test_what_the_plan_holds_cannot_be_written_through_a_batch():
    with pytest.raises(ValueError, match="read-only"):
        next(feed_of(100)).starts[0] = 5


def test_large_ids_are_kept_whole():
    """Ids above 65 535 in uint16, or above 2**31 in int32, would wrap."""
    source = np.array([70_000, 65_536, 65_535, 2**31, 2**32 - 1, 3], dtype=np.uint32)
    batch = ladle.Feed(ladle.from_ids(source), batch_size=1, block_size=5, framework="torch", prefetch=0)[0]
    assert batch.x.tolist() == [[70_000, 65_536, 65_535, 2**31, 2**32 - 1]]
    assert batch.y.tolist() == [[65_536, 65_535, 2**31, 2**32 - 1, 3]]


def test_a_strided_array_is_read_as_it_looks():
    feed = ladle.Feed(ladle.from_ids(ids(200)[::2]), batch_size=1, block_size=4, order="sequential", framework="numpy")
    assert feed[1].x.tolist() == [[8, 10, 12, 14]]


# --- what an epoch covers ---


@st.composite
def splits(draw):
    """(N, sizes of shards): many tiny shards, so that rows cross several."""
    sizes = draw(st.lists(st.integers(1, 40), min_size=1, max_size=12))
    return sum(sizes), sizes


@settings(max_examples=150, deadline=None)
@given(
    split=splits(),
    block=st.integers(1, 9),
    per_window=st.integers(1, 3),
    batch=st.integers(1, 7),
    order=st.sampled_from(["shuffled", "sequential"]),
    offset=st.booleans(),
    seed=st.integers(0, 2**64 - 1),
    epochs=st.integers(1, 3),
    prefetch=st.sampled_from([0, 0, 2]),
)
def test_every_token_but_the_first_is_a_target_once_an_epoch(
    in_shards, split, block, per_window, batch, order, offset, seed, epochs, prefetch
):
    count, sizes = split
    window = block * per_window
    if count <= window:
        return
    feed = ladle.Feed(
        in_shards(ids(count), sizes),
        batch_size=batch,
        block_size=block,
        window=window,
        order=order,
        epoch_offset=offset,
        seed=seed,
        epochs=epochs,
        framework="numpy",
        prefetch=prefetch,
    )
    with feed:
        batches = list(feed)
        assert len(batches) == len(feed)
        assert {b.x.shape for b in batches} == {(batch, block)}
        assert [b.num_targets for b in batches] == [int((b.y >= 0).sum()) for b in batches]
        assert sum(b.num_targets for b in batches) == epochs * (count - 1)
        assert scored(batches) == dict.fromkeys(range(1, count), epochs)
        assert feed.position == epochs * feed.slots_per_epoch
    if epochs > 1:  # one epoch at a time gives each token once in each
        with ladle.Feed(
            in_shards(ids(count), sizes),
            batch_size=batch,
            block_size=block,
            window=window,
            order=order,
            epoch_offset=offset,
            seed=seed,
            framework="numpy",
            prefetch=prefetch,
        ) as endless:
            for _ in range(epochs):
                assert scored(endless.epoch()) == dict.fromkeys(range(1, count), 1)


@pytest.mark.parametrize("shuffle_block", [1, 3, 100])
def test_block_shuffle_covers_too(shuffle_block):
    feed = feed_of(101, shuffle_block=shuffle_block, epochs=2)
    assert scored(feed) == dict.fromkeys(range(1, 101), 2)


def test_sequential_order_is_the_files_order():
    feed = feed_of(17, order="sequential", batch_size=1)
    assert [batch.x.tolist() for batch in itertools.islice(feed, 5)] == [
        [[0, 1, 2, 3]],
        [[4, 5, 6, 7]],
        [[8, 9, 10, 11]],
        [[12, 13, 14, 15]],
        [[0, 1, 2, 3]],
    ]


def test_the_last_window_is_moved_back_and_masks_what_it_repeats():
    last = feed_of(15, order="sequential", batch_size=1, ignore_index=-1)[3]
    assert last.x.tolist() == [[10, 11, 12, 13]]
    assert last.y.tolist() == [[-1, -1, 13, 14]]
    assert last.num_targets == 2


def test_epochs_differ_and_each_number_is_always_the_same_order():
    feed, again = (feed_of(4001, batch_size=10, seed=3) for _ in range(2))
    orders = [np.concatenate([batch.starts for batch in feed.epoch()]) for _ in range(3)]
    assert all((a != b).any() for a, b in itertools.combinations(orders, 2))
    assert all(sorted(order) == sorted(orders[0]) for order in orders)
    np.testing.assert_array_equal(np.concatenate([batch.starts for batch in again.epoch()]), orders[0])
    other = feed_of(4001, batch_size=10, seed=4)
    for order in orders:  # a seed is no shifted epoch
        assert (np.concatenate([batch.starts for batch in other.epoch()]) != order).any()


def test_dropped_tail():
    feed = feed_of(15, order="sequential", tail="drop", epochs=1)
    assert scored(feed) == dict.fromkeys(range(1, 13), 1)
    assert feed.slots_per_epoch == 12


def test_padded_tail_of_a_text_shorter_than_a_window():
    batch = feed_of(3, window=8, tail="pad", batch_size=2, epochs=1, ignore_index=-1)[0]
    assert batch.x[0].tolist() == [0, 1, 2, 0]
    assert batch.y.tolist() == [[1, 2, -1, -1], [-1, -1, -1, -1]]
    assert batch.num_targets == 2


@given(
    count=st.integers(9, 60),
    stride=st.integers(1, 7),
    score=st.sampled_from(["all", "new"]),
    tail=st.sampled_from(["cover", "drop"]),
)
@settings(max_examples=60, deadline=None)
def test_strides_repeat_targets_or_mask_them(count, stride, score, tail):
    feed = feed_of(count, block_size=8, stride=stride, score=score, tail=tail, epochs=1)
    starts = sorted({min(k * stride, count - 9) for k in range(count)} if tail == "cover" else set(range(0, count - 8, stride)))
    expected = Counter(start + 1 + column for start in starts for column in range(8))
    if score == "new":
        expected = Counter(dict.fromkeys(expected, 1))
    assert scored(feed) == expected


# --- the walk ---


def test_a_feed_is_its_own_iterator_and_goes_on_after_a_break():
    feed, whole = feed_of(101, prefetch=2), feed_of(101)
    assert iter(feed) is feed
    seen = []
    with feed:
        for batch in feed:
            seen.append(batch)
            if len(seen) == 4:
                break
        assert feed.position == 4 * 8
        seen.extend(itertools.islice(feed, 5))
    np.testing.assert_array_equal(np.concatenate([b.x for b in seen]), np.concatenate([whole[i].x for i in range(9)]))


def test_a_batch_may_span_two_epochs():
    """5 windows an epoch, 2 a batch: the third batch holds the last of epoch 0 and the first of epoch 1."""
    feed = feed_of(21, order="sequential")
    batch = feed[2]
    assert batch.x.tolist() == [[16, 17, 18, 19], [0, 1, 2, 3]]
    assert batch.num_targets == 8
    assert (batch.position, batch.next_position) == (16, 24)


def test_an_endless_feed_has_no_length():
    with pytest.raises(TypeError) as caught:
        len(feed_of(21))
    assert str(caught.value) == "this feed is endless: pass epochs= or total_tokens= to end it (feed.batches_per_epoch is 3)"
    assert feed_of(21)
    assert feed_of(21).batches_per_epoch == 3


@pytest.mark.parametrize(
    ("options", "batches"),
    [
        ({"epochs": 1}, 3),
        ({"epochs": 2}, 5),
        ({"total_tokens": 8}, 1),
        ({"total_tokens": 9}, 2),
        ({"epochs": 2, "total_tokens": 16}, 2),
    ],
)
@pytest.mark.parametrize("prefetch", [0, 1, 5])
def test_a_finite_feed_ends_where_it_says(options, batches, prefetch):
    with feed_of(21, order="sequential", prefetch=prefetch, **options) as feed:
        assert len(feed) == batches
        found = list(feed)
        assert len(found) == batches
        assert all(batch.x.shape == (2, 4) for batch in found)
        with pytest.raises(StopIteration):
            next(feed)
        with pytest.raises(StopIteration):
            next(feed)
        slots = min(options.get("epochs", 99) * 20, options.get("total_tokens", 999))
        assert feed.position == found[-1].next_position == slots
        assert sum(batch.num_targets for batch in found) == slots
        np.testing.assert_array_equal(feed[batches - 1].y, found[-1].y)


def test_an_end_inside_a_row_masks_the_rest_of_it():
    (batch,) = feed_of(21, order="sequential", total_tokens=6, ignore_index=-1)
    assert batch.y.tolist() == [[1, 2, 3, 4], [5, 6, -1, -1]]
    assert batch.num_targets == 6


def test_one_epoch_at_a_time():
    """Evaluation: the last batch is completed by wholly masked rows, and the feed stands at the border."""
    with feed_of(21, order="sequential", prefetch=2, ignore_index=-1) as feed:
        first = list(feed.epoch())
        assert [batch.num_targets for batch in first] == [8, 8, 4]
        assert first[-1].y.tolist() == [[17, 18, 19, 20], [-1, -1, -1, -1]]
        assert feed.position == 20
        assert scored(feed.epoch()) == dict.fromkeys(range(1, 21), 1)
        assert feed.position == 40
        half = feed.epoch()
        next(half)
        assert feed.position == 48
        assert sum(batch.num_targets for batch in feed.epoch()) == 12  # the rest of it
        assert list(half) == []
        next(feed)
        assert feed.position == 68


def test_an_epoch_of_a_finite_feed_ends_with_the_feed():
    feed = feed_of(21, order="sequential", epochs=1, total_tokens=10)
    assert [batch.num_targets for batch in feed.epoch()] == [8, 2]
    assert list(feed.epoch()) == []


# --- looking ---


def test_any_batch_can_be_looked_at():
    with feed_of(1001, prefetch=2, seed=9) as feed:
        seen = [next(feed) for _ in range(40)]
        for number in (39, 0, 17):
            np.testing.assert_array_equal(feed[number].x, seen[number].x)
            assert feed[number].position == seen[number].position == number * 8
            assert feed[np.int32(number)].digest == seen[number].digest
        assert feed.position == 320
        assert feed[10**15].x.shape == (2, 4)
        np.testing.assert_array_equal(feed.at(40).y, seen[5].y)


def test_an_unaligned_position_masks_what_was_handed_out():
    feed = feed_of(101, order="sequential", ignore_index=-1)
    batch = feed.at(6)
    assert batch.y.tolist() == [[-1, -1, 7, 8], [9, 10, 11, 12]]
    assert (batch.num_targets, batch.next_position) == (6, 12)


def test_negative_steps_count_from_the_end():
    feed = feed_of(21, order="sequential", epochs=1)
    np.testing.assert_array_equal(feed[-1].x, feed[2].x)
    np.testing.assert_array_equal(feed[-3].x, feed[0].x)


@pytest.mark.parametrize(
    ("look", "kind", "message"),
    [
        (lambda f: f[-1], ConfigError, "step: expected at least 0, found -1"),
        (lambda f: f[1.5], ConfigError, "step: expected an integer, found 1.5"),
        (lambda f: f[True], ConfigError, "step: expected an integer, found True"),
        (lambda f: f[0:2], ConfigError, "step: expected an integer, found slice(0, 2, None)"),
        (lambda f: f[2**62], ConfigError, "step: expected less than 576460752303423488, found 4611686018427387904"),
        (lambda f: f.at(-1), ConfigError, "position: expected at least 0, found -1"),
        (lambda f: f.at(2**63), ConfigError, f"position: expected less than {2**62}, found {2**63}"),
        (lambda f: f.at("3"), ConfigError, "position: expected an integer, found '3'"),
        (lambda f: f.where(0, 2), ConfigError, "row: expected less than 2, found 2"),
        (lambda f: f.where(-1, 0), ConfigError, "step: expected at least 0, found -1"),
    ],
)
def test_places_that_are_none_are_named(look, kind, message):
    with pytest.raises(kind) as caught:
        look(feed_of(21))
    assert str(caught.value) == message


@pytest.mark.parametrize(
    ("look", "message"),
    [
        (lambda f: f[3], "step: expected -3 to 2 in a feed of 3 batches, found 3"),
        (lambda f: f[-4], "step: expected -3 to 2 in a feed of 3 batches, found -4"),
        (lambda f: f.at(20), "position: expected below the feed's end at 20 slots, found 20"),
        (lambda f: f.where(3, 0), "step: expected -3 to 2 in a feed of 3 batches, found 3"),
    ],
)
def test_a_finite_feed_has_no_batch_past_its_end(look, message):
    with pytest.raises(IndexError) as caught:
        look(feed_of(21, epochs=1))
    assert str(caught.value) == message


def test_the_farthest_position_still_is_a_batch():
    batch = feed_of(21).at(2**62 - 8)
    assert batch.x.shape == (2, 4)
    assert batch.next_position == 2**62


def test_rows_know_their_documents():
    source = ladle.from_ids(ids(21), document_ends=[3, 6, 21])
    feed = ladle.Feed(source, batch_size=2, block_size=4, order="sequential", framework="numpy")
    spans = feed.where(0, 0)
    assert [(span.columns, span.tokens, span.origin.document, span.origin.offset) for span in spans] == [
        ((0, 3), (0, 3), 0, 0),
        ((3, 5), (3, 5), 1, 0),
    ]
    assert [(span.columns, span.origin.document, span.origin.offset) for span in feed.where(1, 1)] == [((0, 5), 2, 6)]


# --- random windows ---


def test_random_windows_reach_every_start_and_have_no_epochs():
    feed = feed_of(12, order="random", batch_size=50)
    starts = np.concatenate([batch.starts for batch in itertools.islice(feed, 40)])
    counts = np.bincount(starts, minlength=8)
    assert len(counts) == 8  # 0 to N - T - 1
    assert counts.min() > 180  # of 250 each, give or take 15
    assert counts.max() < 320
    for look in (lambda: feed.slots_per_epoch, lambda: feed.batches_per_epoch, feed.epoch):
        with pytest.raises(
            ConfigError, match=r"^order='random' has no epochs: it draws independent windows for ever; use total_tokens="
        ):
            look()
    with pytest.raises(TypeError, match=r"^this feed is endless: pass total_tokens= to end it$"):
        len(feed)


def test_random_windows_end_by_total_tokens():
    feed = feed_of(100, order="random", total_tokens=20)
    assert [batch.num_targets for batch in feed] == [8, 8, 4]


@pytest.mark.parametrize(
    ("name", "value"),
    [("epochs", 1), ("stride", 2), ("tail", "drop"), ("tail", "pad"), ("epoch_offset", True), ("score", "new")],
)
def test_random_windows_refuse_what_only_epochs_have(name, value):
    with pytest.raises(ConfigError) as caught:
        feed_of(100, order="random", **{name: value})
    assert str(caught.value).startswith(f"{name}: expected ")
    assert f"with order='random', found {value!r}: independent windows have no epochs" in str(caught.value)


# --- ignore_index, digest ---


def test_masked_targets_hold_ignore_index():
    feed = feed_of(15, order="sequential", batch_size=4)
    assert feed[0].y[3].tolist() == [-100, -100, 13, 14]
    assert feed_of(15, order="sequential", batch_size=4, ignore_index=0)[0].y[3].tolist() == [0, 0, 13, 14]


GOLDEN_DIGEST = 9775269358898475026  # of the two rows below; computed once, from the documentation


@pytest.mark.parametrize("framework", ["torch", "numpy"])
def test_the_digest_is_what_the_documentation_says(framework):
    """Row 0 is [0, 1, 2] -> [1, 2, 3], row 1 is [2, 3, 4] -> [-100, 4, 5] (6 tokens, 5 targets: the window moves back by 1)."""
    feed = feed_of(6, block_size=3, order="sequential", framework=framework)
    rows = [(0, (0, 1, 2), (1, 2, 3)), (1, (2, 3, 4), (-100, 4, 5))]
    by_hand = 0
    for number, x, y in rows:
        content = struct.pack("<Q3I3i", number, *x, *y)
        by_hand += int.from_bytes(hashlib.blake2b(content, digest_size=8).digest(), "little")
    assert by_hand % 2**64 == GOLDEN_DIGEST
    assert feed[0].digest == GOLDEN_DIGEST
    assert feed[1].digest != GOLDEN_DIGEST  # the same windows as rows 2 and 3 of the stream


# --- state on the way ---


@pytest.mark.parametrize("prefetch", [0, 3])
def test_each_batch_carries_the_state_that_follows_it(prefetch):
    with feed_of(101, prefetch=prefetch) as feed:
        for batch in itertools.islice(feed, 30):
            assert batch.state == feed.state_dict()
            assert batch.state["position"] == batch.next_position == feed.position
        assert feed[7].state["position"] == 64
    json.dumps(batch.state)


# --- lifetime ---


def test_a_closed_feed_says_so():
    feed = feed_of(101, prefetch=2)
    next(feed)
    walk = feed.epoch()
    next(walk)
    feed.close()
    feed.close()
    for use in (
        lambda: next(feed),
        lambda: feed[0],
        lambda: feed.at(0),
        feed.epoch,
        lambda: next(walk),
        lambda: feed.load_state_dict(feed.state_dict()),
    ):
        with pytest.raises(ClosedError) as caught:
            use()
        assert str(caught.value) == "this feed is closed; make another from the same source and load its state_dict()"
    assert feed.state_dict()["position"] == 16


@pytest.mark.parametrize("prefetch", [0, 2])
def test_a_closed_corpus_is_named(tmp_path, prefetch):
    ids(5000).astype(np.uint16).tofile(tmp_path / "train.bin")
    corpus = ladle.open(tmp_path)
    with ladle.Feed(corpus["train"], batch_size=2, block_size=8, framework="numpy", prefetch=prefetch) as feed:
        next(feed)
        corpus.close()
        with pytest.raises(ClosedError, match=r"train\.bin: read after its corpus was closed$"):
            list(itertools.islice(feed, 10))


def test_it_shows_itself():
    assert repr(feed_of(21)) == "Feed(memory, batch_size=2, block_size=4, order='shuffled', position=0)"
    assert repr(feed_of(21)[1]) == "Batch(position=8, rows=2, block_size=4, num_targets=8)"


# --- arguments ---


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"batch_size": 0}, "batch_size: expected at least 1, found 0"),
        ({"batch_size": 2.0}, "batch_size: expected an integer, found 2.0"),
        ({"batch_size": True}, "batch_size: expected an integer, found True"),
        ({"batch_size": np.array([4])}, "batch_size: expected an integer, found array([4])"),
        ({"block_size": -1}, "block_size: expected at least 1, found -1"),
        ({"block_size": None}, "block_size: expected an integer, found None"),
        ({"window": 0}, "window: expected at least 1, found 0"),
        ({"window": 6}, "block_size: expected a divisor of the window 6, found 4"),
        ({"window": 2}, "block_size: expected a divisor of the window 2, found 4"),
        ({"stride": 6}, "stride: expected 1 to the window's 4, found 6; 2 targets between windows would never be seen"),
        ({"seed": 1.5}, "seed: expected an integer, found 1.5"),
        ({"seed": 2**64}, f"seed: expected less than {2**64}, found {2**64}"),
        ({"order": "shuffle"}, "order: expected one of shuffled, sequential, random, found 'shuffle'"),
        ({"tail": "keep"}, "tail: expected one of cover, drop, pad, found 'keep'"),
        ({"epochs": 0}, "epochs: expected at least 1, found 0"),
        ({"epochs": 2**61}, f"epochs: the feed's slots: expected less than {2**62}, found {2**61 * 20}"),
        ({"total_tokens": 0}, "total_tokens: expected at least 1, found 0"),
        ({"ignore_index": 2**31}, f"ignore_index: expected less than {2**31}, found {2**31}"),
        ({"prefetch": -1}, "prefetch: expected at least 0, found -1"),
        ({"max_mapped": -1}, "max_mapped: expected at least 0, found -1"),
        ({"framework": "tensorflow"}, "framework: expected 'torch', 'numpy' or 'jax', found 'tensorflow'"),
        ({"device": "cpu"}, "device: expected None with framework='numpy', found 'cpu'"),
        ({"rank": 1}, "rank, world_size: expected both or neither, found rank=1, world_size=None"),
        ({"rank": 2, "world_size": 2}, "rank: expected less than 2, found 2"),
        ({"rank": -1, "world_size": 2}, "rank: expected at least 0, found -1"),
        ({"rank": 0, "world_size": 3}, "batch_size: expected at least a row for each of 3 ranks, found 2 rows"),
    ],
)
def test_arguments_that_cannot_be_right(options, message):
    with pytest.raises(ConfigError) as caught:
        feed_of(21, **options)
    assert str(caught.value) == message


def test_eighteen_tokens_for_a_block_of_512(tmp_path):
    np.arange(18, dtype=np.uint16).tofile(tmp_path / "train.bin")
    with ladle.open(tmp_path) as corpus:
        for order in ("shuffled", "random", "sequential"):
            with pytest.raises(ConfigError) as caught:
                ladle.Feed(corpus["train"], batch_size=1, block_size=512, order=order, framework="numpy")
            assert str(caught.value) == (
                f"{tmp_path}/train.bin: expected at least 513 tokens for windows of 512 (each needs one token more), "
                "found 18; use a smaller block_size, or tail='pad'"
            )


def test_a_source_that_is_no_split():
    with pytest.raises(ConfigError) as caught:
        ladle.Feed("data/books", batch_size=1, block_size=1)
    assert str(caught.value) == ("source: expected a split, found str; use ladle.open(path)['train'] or ladle.from_ids(array)")


def test_numpy_integers_are_integers():
    """Fixed-width arithmetic would wrap, and would not be JSON."""
    feed = feed_of(
        100_000,
        batch_size=np.int16(300),
        block_size=np.uint8(200),
        seed=np.uint64(2**63),
        window=np.int32(400),
        epochs=np.int8(100),
        rank=np.int64(0),
        world_size=np.int64(1),
    )
    json.dumps(feed.state_dict())
    assert feed.shape.slots == 60_000
    assert feed[150].position == 9_000_000


def test_an_id_outside_the_vocabulary_is_an_error_not_a_wrap(tmp_path):
    np.full(100, 120, dtype=np.uint16).tofile(tmp_path / "train.bin")
    with ladle.open(tmp_path) as corpus:
        corpus["train"].vocab_size = 100
        with pytest.raises(TokenError) as caught:
            next(ladle.Feed(corpus["train"], batch_size=1, block_size=9, order="sequential", framework="numpy", prefetch=1))
    assert str(caught.value).startswith(
        f"{tmp_path}/train.bin @ byte 0: id: expected less than the vocabulary's 100, found 120; "
    )


# --- what is not touched ---


@pytest.mark.parametrize("framework", ["torch", "numpy"])
@pytest.mark.parametrize("order", ["shuffled", "random", "sequential"])
def test_no_global_random_state_moves(framework, order):
    def states():
        return random.getstate(), np.random.get_state()[1].tolist(), torch.get_rng_state().tolist()

    before = states()
    for prefetch in (0, 2):
        with ladle.Feed(
            ladle.from_ids(ids(500)), batch_size=4, block_size=8, order=order, framework=framework, prefetch=prefetch
        ) as feed:
            for batch in itertools.islice(feed, 20):
                _ = batch.digest, batch.state
            feed[3]
    assert states() == before


WITHOUT_ENVIRONMENT = """
import sys, os, numpy, itertools, {framework}
class Closed(dict):
    def refuse(self, *_): raise RuntimeError("the environment was read")
    __getitem__ = get = __contains__ = __iter__ = items = keys = copy = refuse
os.environ = Closed()
os.getenv = Closed().refuse
import ladle
split = ladle.from_ids(numpy.arange(500))
for order in ("shuffled", "random", "sequential"):
    with ladle.Feed(split, batch_size=4, block_size=8, order=order, framework="{framework}") as feed:
        for batch in itertools.islice(feed, 20): batch.digest, batch.state
try:
    os.getenv("HOME")
except RuntimeError:
    print("fine")
"""


@pytest.mark.parametrize("framework", ["torch", "numpy"])
def test_the_environment_is_not_read(framework):
    done = subprocess.run(
        [sys.executable, "-c", WITHOUT_ENVIRONMENT.format(framework=framework)], capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "fine\n", "")


WITHOUT_TORCH = """
import sys
sys.modules["torch"] = None
import numpy, itertools, ladle
split = ladle.from_ids(numpy.arange(500))
with ladle.Feed(split, batch_size=4, block_size=8, framework="numpy") as feed:
    batches = list(itertools.islice(feed, 20))
    print(batches[0].x.shape, batches[0].digest == feed[0].digest)
try:
    ladle.Feed(split, batch_size=4, block_size=8)
except ladle.errors.MissingExtra as error:
    print(error)
"""


def test_numpy_needs_no_torch():
    done = subprocess.run([sys.executable, "-c", WITHOUT_TORCH], capture_output=True, text=True, check=False)
    assert done.stderr == ""
    assert done.stdout.splitlines() == [
        "(4, 8) True",
        (
            "a feed with framework='torch' (there is framework='numpy') needs the package 'torch', which is not installed; "
            "pip install 'ladle[torch]'"
        ),
    ]


def test_errors_are_ladles():
    for error in (ConfigError, ClosedError, MissingExtra, TokenError):
        assert issubclass(error, LadleError)
