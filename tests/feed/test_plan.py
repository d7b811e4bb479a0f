"""Rows: the same whatever was asked before, the same slots at every T, and exactly once under any schedule."""

import re

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import ladle
from ladle.errors import ConfigError
from ladle.feed.plan import AHEAD, Plan
from ladle.order.stream import Order
from ladle.rows.stream import WindowStream
from ladle.rows.windows import Windows

IGNORED = -100


def divisors(W):
    return [T for T in range(1, W + 1) if W % T == 0]


def plan(cut, T, *, kind="shuffled", seed=7, ahead=AHEAD, shuffle_block=None):
    n = cut.targets - cut.window + 1 if kind == "random" else cut.count
    return Plan(WindowStream(Order(kind=kind, n=n, seed=seed, shuffle_block=shuffle_block), cut), T, ahead)


def slots(rows, T):
    """Row after row: the target in each slot, or -1 where it does not count."""
    columns = np.arange(T)
    target = rows.start[:, np.newaxis] + columns
    counts = (columns >= rows.low[:, np.newaxis]) & (columns < rows.high[:, np.newaxis])
    return np.where(counts, target, -1).ravel()


cuts = st.builds(
    lambda W, more, tail, offset, seed: Windows(
        num_tokens=2 * W + more, window=W, tail=tail, epoch_offset=offset and tail != "pad", seed=seed
    ),
    W=st.sampled_from([1, 2, 4, 6, 8, 12, 16]),
    more=st.integers(1, 90),
    tail=st.sampled_from(["cover", "drop", "pad"]),
    offset=st.booleans(),
    seed=st.integers(0, 9),
)
kinds = st.sampled_from(["shuffled", "sequential", "random"])


@settings(deadline=None)
@given(cut=cuts, kind=kinds, first=st.integers(0, 2000), count=st.integers(1, 80), data=st.data())
def test_rows_from_the_definition(cut, kind, first, count, data):
    T = data.draw(st.sampled_from(divisors(cut.window)))
    made = plan(cut, T, kind=kind)
    rows = made.rows(first, count)
    for i in range(count):
        slot = (first + i) * T
        unit, column = divmod(slot, cut.window)
        (epoch,), (window,) = made.stream.order.windows(unit, 1)
        if kind == "random":
            start, owned = int(window), range(int(window), int(window) + cut.window)
        else:
            (start,), (low,), (high,) = cut.spans(np.array([epoch]), np.array([window]))
            owned = range(int(start + low), int(start + high))
        targets = [int(start) + column + c for c in range(T)]
        assert slots(rows.part(i, i + 1), T).tolist() == [t if t in owned else -1 for t in targets]
        assert int(rows.start[i]) == min(int(start) + column, cut.targets)
        assert 0 <= rows.low[i] <= rows.high[i] <= T or rows.high[i] == 0 <= rows.low[i]


@settings(deadline=None)
@given(cut=cuts, kind=kinds, first=st.integers(0, 500))
def test_the_same_slots_at_every_block_size(cut, kind, first):
    W = cut.window
    whole = slots(plan(cut, W, kind=kind).rows(first, 20), W)
    for T in divisors(W):
        assert slots(plan(cut, T, kind=kind).rows(first * W // T, 20 * W // T), T).tolist() == whole.tolist()


@settings(deadline=None)
@given(
    cut=cuts,
    asked=st.lists(st.tuples(st.integers(0, 9000), st.integers(1, 200)), min_size=1, max_size=12),
    ahead=st.sampled_from([1, 64, AHEAD]),
)
def test_what_was_asked_before_changes_nothing(cut, asked, ahead):
    T = divisors(cut.window)[-2] if cut.window > 1 else 1
    kept = plan(cut, T, ahead=ahead)
    for first, count in asked:
        fresh = plan(cut, T, ahead=1).rows(first, count)
        found = kept.rows(first, count)
        for name in ("start", "low", "high"):
            assert getattr(found, name).tolist() == getattr(fresh, name).tolist()
            assert getattr(found, name).dtype == np.int64


@settings(deadline=None)
@given(cut=cuts, epoch=st.integers(0, 50), data=st.data())
def test_an_epoch_hands_out_every_target_once(cut, epoch, data):
    T = data.draw(st.sampled_from(divisors(cut.window)))
    per_epoch = cut.count * cut.window // T
    handed_out = slots(plan(cut, T).rows(epoch * per_epoch, per_epoch), T)
    handed_out = np.sort(handed_out[handed_out >= 0])
    if cut.tail == "drop":
        assert np.unique(handed_out).size == handed_out.size == cut.count * cut.window
    else:
        assert handed_out.tolist() == list(range(cut.targets))


def test_rows_are_planned_ahead_once_batches_follow_each_other(monkeypatch):
    """The first batch, also of a resumed run, waits for its own rows alone."""
    made = plan(Windows(num_tokens=10**9, window=8), 4)
    asked = []
    real = made.stream.spans
    monkeypatch.setattr(made.stream, "spans", lambda first, count: asked.append((first * 2, count * 2)) or real(first, count))
    for first in (10**6, 10**6 + 64, *range(10**6 + 128, 10**6 + 64 * 60, 64), 5, 1000 * 64):
        made.rows(first, 64)
    assert asked == [(10**6, 64), (10**6 + 64, AHEAD), (4, 66), (64_000, 64)]
    asked.clear()
    for first in range(0, 20_000, 64 * 8):  # a worker's share: every eighth batch
        made.rows(first, 64)
    assert len(asked) < 8


def test_kept_rows_cannot_be_written_into():
    for T in (4, 8):
        rows = plan(Windows(num_tokens=100, window=8), T).rows(0, 4)
        for array in (rows.start, rows.low, rows.high):
            with pytest.raises(ValueError, match="read-only"):
                array[0] = 1


def test_rows_of_a_padded_window_past_the_split_own_nothing():
    rows = plan(Windows(num_tokens=6, window=8, tail="pad"), 2, kind="sequential").rows(0, 4)
    assert rows.start.tolist() == [0, 2, 4, 5]  # the last stands at the last token, so that it can be read
    assert slots(rows, 2).tolist() == [0, 1, 2, 3, 4, -1, -1, -1]


@pytest.mark.parametrize(
    ("cut", "T", "message"),
    [
        ({"window": 8}, 3, "block_size: expected a divisor of the window 8, found 3"),
        ({"window": 8}, 16, "block_size: expected a divisor of the window 8, found 16"),
        ({"window": 8}, 0, "block_size: expected a divisor of the window 8, found 0"),
        ({"window": 8, "stride": 4}, 4, "stride below the window needs block_size equal to it: 8, found 4"),
    ],
)
def test_bad_block_sizes(cut, T, message):
    with pytest.raises(ConfigError, match=f"^{re.escape(message)}$"):
        plan(Windows(num_tokens=100, **cut), T)


# --- the whole line, from a split to y: any schedule of batch and block sizes ---


def delivered(batch):
    """The targets that count in a batch of a split whose ids are 0, 1, 2 ...: target t has label t + 1."""
    y = batch.y.ravel()
    x = batch.x.ravel()
    counted = y != IGNORED
    assert (y[counted] == x[counted] + 1).all()
    return (y[counted] - 1).tolist()


def walk(cut_options, num_tokens, W, seed, schedule, epochs):
    """Feeds that hand over their state: (targets delivered, final position). schedule: [(B, T, batches)]."""
    source = ladle.from_ids(np.arange(num_tokens, dtype=np.uint16))
    state, found, step = None, [], 0
    while True:
        B, T, batches = schedule[step % len(schedule)]
        step += 1
        with ladle.Feed(
            source, batch_size=B, block_size=T, window=W, seed=seed, epochs=epochs, framework="numpy", prefetch=0, **cut_options
        ) as feed:
            if state is not None:
                feed.load_state_dict(state)
            for _ in range(batches):
                batch = next(feed, None)
                if batch is None:
                    return found, feed.position
                got = delivered(batch)
                assert len(got) == batch.num_targets
                found += got
                assert feed.at(batch.position).digest == batch.digest
            state = feed.state_dict()


schedules = st.lists(st.tuples(st.integers(1, 9), st.integers(0, 10), st.integers(1, 4)), min_size=1, max_size=6)
options = st.fixed_dictionaries(
    {"order": st.sampled_from(["shuffled", "sequential"]), "tail": st.sampled_from(["cover", "pad"])},
    optional={"shuffle_block": st.integers(1, 5)},
)


@settings(max_examples=60, deadline=None)
@given(
    W=st.sampled_from([4, 6, 8, 12]),
    more=st.integers(1, 60),
    seed=st.integers(0, 99),
    steps=schedules,
    how=options,
    offset=st.booleans(),
)
def test_any_schedule_is_exactly_once(W, more, seed, steps, how, offset):
    if how["order"] == "sequential":
        how.pop("shuffle_block", None)
    how["epoch_offset"] = offset and how["tail"] == "cover"
    schedule = [(B, divisors(W)[T % len(divisors(W))], batches) for B, T, batches in steps]
    num_tokens, epochs = W + more, 2
    found, position = walk(how, num_tokens, W, seed, schedule, epochs)
    assert np.bincount(found, minlength=num_tokens - 1).tolist() == [epochs] * (num_tokens - 1)
    n = Windows(num_tokens=num_tokens, window=W, tail=how["tail"], epoch_offset=how["epoch_offset"], seed=seed).count
    assert position == epochs * n * W


@settings(max_examples=60, deadline=None)
@given(W=st.sampled_from([8, 12]), position=st.integers(0, 5000), B=st.integers(1, 9), kind=kinds, data=st.data())
def test_a_batch_that_begins_inside_a_row(W, position, B, kind, data):
    T = data.draw(st.sampled_from(divisors(W)))
    cut = Windows(num_tokens=200, window=W)
    source = ladle.from_ids(np.arange(200, dtype=np.uint16))
    with ladle.Feed(source, batch_size=B, block_size=T, window=W, seed=7, order=kind, framework="numpy", prefetch=0) as feed:
        batch = feed.at(position)
    assert batch.next_position == (position // T + B) * T
    whole = slots(plan(cut, 1, kind=kind).rows(position, batch.next_position - position), 1)
    assert delivered(batch) == whole[whole >= 0].tolist()
    assert batch.x.shape == (B, T)
    assert (batch.y.ravel()[: position % T] == IGNORED).all()
