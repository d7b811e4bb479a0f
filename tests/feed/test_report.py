"""What has been handed out, against a count of every target of every batch."""

import json

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import ladle
from ladle.errors import ConfigError
from ladle.feed import report

EDGES = {"web": [7, 20, 64, 101], "code": [30, 41]}


def split_of(name, first=0):
    return ladle.from_ids(np.arange(first, first + EDGES[name][-1], dtype=np.uint32), document_ends=EDGES[name])


def feed_of(source=None, **options):
    settings = {"batch_size": 3, "block_size": 4, "framework": "numpy", "prefetch": 0, "seed": 5} | options
    return ladle.Feed(split_of("web") if source is None else source, **settings)


def counted(feed, position, first, last):
    """(slots trained, slots in all) of the source with ids [first, last), slot by slot."""
    trained = slots = done = step = 0
    while done < position:
        batch = feed[step]
        for x, y in zip(batch.x, batch.y, strict=True):
            here = min(len(x), max(position - done, 0))
            if first <= x[0] < last:
                slots += here
                trained += int(np.count_nonzero(y[:here] != -100))
            done += len(x)
        step += 1
    return trained, slots


def at(feed, position):
    feed.load_state_dict(
        {
            **feed.state_dict(),
            "position": position,
            "recipe": feed.history.at(position)[0],
            "corpus": feed.history.at(position)[1],
        }
    )
    return feed.report()


@settings(max_examples=150, deadline=None)
@given(
    block=st.integers(1, 6),
    per_window=st.integers(1, 3),
    order=st.sampled_from(["shuffled", "sequential", "random"]),
    tail=st.sampled_from(["cover", "drop", "pad"]),
    offset=st.booleans(),
    stride=st.sampled_from([None, 1, 2, 5]),
    score=st.sampled_from(["all", "new"]),
    excluded=st.lists(st.tuples(st.integers(0, 3), st.integers(0, 400)), max_size=3, unique_by=lambda one: one[0]),
    position=st.integers(0, 700),
)
def test_a_split_is_reported_as_it_was(block, per_window, order, tail, offset, stride, score, excluded, position):
    options = {"block_size": block, "window": block * per_window, "order": order}
    if order != "random":
        options |= {"tail": tail, "epoch_offset": offset}
        if stride and stride < block * per_window:
            options |= {"stride": stride, "score": score, "block_size": block * per_window}
    try:
        feed, plain = feed_of(**options), feed_of(**options)
    except ConfigError:
        return
    for document, begins in excluded:
        feed.exclude([document], begins)
    (found,) = at(feed, position).sources
    trained, _ = counted(feed, position, 0, 2**31)
    whole, _ = counted(plain, position, 0, 2**31)
    assert (found.slots, found.trained, found.excluded, found.masked) == (position, trained, whole - trained, position - whole)
    assert (found.share, found.weight, found.epochs_at_end) == (1.0 if position else 0.0, 1.0, None)


@settings(max_examples=60, deadline=None)
@given(
    options=st.sampled_from(
        [{}, {"window": 8}, {"epoch_offset": True}, {"tail": "drop", "epoch_offset": True}, {"order": "random"}]
    ),
    excluded=st.lists(
        st.tuples(st.sampled_from(["web", "code"]), st.integers(0, 1), st.integers(0, 300)),
        max_size=3,
        unique_by=lambda one: one[:2],
    ),
    position=st.integers(0, 900),
    leaves=st.booleans(),
)
def test_a_mixture_is_reported_per_source(options, excluded, position, leaves):
    later = {"code": 1} if leaves else {"web": 1, "code": 2}
    mixture = ladle.Mixture(
        {"web": split_of("web", first=1000), "code": split_of("code")}, stages=[(200, {"web": 3, "code": 1}), (None, later)]
    )
    feed, plain = feed_of(mixture, **options), feed_of(mixture, **options)
    for name, document, begins in excluded:
        feed.exclude({name: [document]}, begins)
    told = at(feed, position)
    assert [one.source for one in told.sources] == ["code", "web"]
    for one, first in zip(told.sources, (0, 1000), strict=True):
        trained, slots = counted(feed, position, first, first + 1000)
        whole, _ = counted(plain, position, first, first + 1000)
        assert (one.slots, one.trained, one.excluded, one.masked) == (slots, trained, whole - trained, slots - whole)
    assert sum(one.slots for one in told.sources) == position
    weights = [0.25, 0.75] if position < 200 else [1.0, 0.0] if leaves else [2 / 3, 1 / 3]
    assert [one.weight for one in told.sources] == pytest.approx(weights, abs=1e-8)


def test_as_a_table():
    mixture = ladle.Mixture({"web": split_of("web"), "code": split_of("code")}, weights={"web": 3, "code": 1})
    feed = feed_of(mixture, total_tokens=1200)
    feed.exclude({"web": [3]}, 48)
    for _ in range(20):
        next(feed)
    assert str(feed.report()) == (
        "240 slots handed out\n"
        "      tokens  weight   share  trained  masked  excluded  epochs  at the end\n"
        "code      41  0.2500  0.2500       60       0         0    1.50        7.50\n"
        "web      101  0.7500  0.7500      138       0        42    1.80        9.00"
    )
    told = feed.report().to_dict()
    assert json.loads(json.dumps(told)) == told
    assert [one["epochs_at_end"] for one in told["sources"]] == [7.5, 9.0]


def test_before_the_first_batch_and_of_an_endless_split():
    feed = feed_of()
    assert str(feed.report()) == (
        "0 slots handed out\n"
        "        tokens  weight   share  trained  masked  excluded  epochs  at the end\n"
        "memory     101  1.0000  0.0000        0       0         0    0.00"
    )


def test_a_long_run_costs_nothing():
    feed = feed_of(block_size=8, shuffle_block=3)
    feed.exclude([2], 10_000)
    position = 10**12 * feed.slots_per_epoch
    (found,) = at(feed, position).sources
    assert found.slots == found.trained + found.masked + found.excluded == position
    assert found.masked == 10**12 * 4
    # Of document 2's 44 tokens every epoch from 10 000 slots on: the 97th is under way there.
    assert 44 * (10**12 - 97) <= found.excluded <= 44 * (10**12 - 96)


def test_many_drawn_windows_are_looked_at_in_blocks(monkeypatch):
    feed = feed_of(order="random")
    feed.exclude([1, 3], 17)
    whole = at(feed, 999)
    monkeypatch.setattr(report, "AT_ONCE", 7)
    assert at(feed, 999) == whole
