"""Excluded documents: their targets do not count from a position on; nothing else moves, and the recipe says so."""

import itertools
import json

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import ladle
from ladle.errors import ClosedError, ConfigError, StateError
from ladle.feed.exclusions import NONE, Exclusions

LENGTHS = [5, 1, 7, 3, 12, 2, 20]  # 50 tokens
EDGES = [0, 5, 6, 13, 16, 28, 30, 50]


def split_of(lengths=LENGTHS, first=0):
    ends = np.cumsum(lengths)
    return ladle.from_ids(np.arange(first, first + ends[-1], dtype=np.uint32), document_ends=ends)


def feed_of(source=None, **options):
    settings = {"batch_size": 3, "block_size": 4, "framework": "numpy", "prefetch": 0, "seed": 3} | options
    return ladle.Feed(split_of() if source is None else source, **settings)


def expected_y(plain, position, excluded):
    """y of the same batch without exclusions, masked id by id: an id is its own token. excluded: {document: position}."""
    y = plain.y.copy()
    slots = np.array([[row * y.shape[1] + c for c in range(y.shape[1])] for row in plain.rows])
    for document, begins in excluded.items():
        inside = (y >= EDGES[document]) & (y < EDGES[document + 1]) & (slots >= begins)
        y[inside] = -100
    return y


@settings(max_examples=120, deadline=None)
@given(
    excluded=st.dictionaries(st.integers(0, 6), st.integers(0, 120), max_size=5),
    start=st.integers(0, 100),
    block=st.integers(1, 6),
    per_window=st.integers(1, 2),
    batch=st.integers(1, 5),
    tail=st.sampled_from(["cover", "drop", "pad"]),
    order=st.sampled_from(["shuffled", "sequential", "random"]),
    total=st.sampled_from([None, 130]),
    ranks=st.sampled_from([1, 2]),
)
def test_any_exclusion_is_what_masking_by_hand_gives(excluded, start, block, per_window, batch, tail, order, total, ranks):
    options = {"block_size": block, "window": block * per_window, "batch_size": max(batch, ranks), "order": order}
    options |= {"tail": "cover" if order == "random" else tail, "total_tokens": total}
    plain = feed_of(**options)
    for rank in range(ranks):
        feed = feed_of(**options, rank=rank, world_size=ranks)
        for document, position in excluded.items():
            feed.exclude([document], position)
        whole = plain.at(start)
        batch_ = feed.at(start)
        mine = feed.shape.slice
        masked = expected_y(whole, start, excluded)
        assert batch_.y.tolist() == masked[mine].tolist()
        assert batch_.x.tolist() == whole.x[mine].tolist()
        assert batch_.num_targets == np.count_nonzero(masked != -100)


def test_overlapping_windows_mask_too():
    plain, feed = feed_of(stride=2), feed_of(stride=2)
    feed.exclude([0, 4, 6], 30)
    for step in range(12):
        masked = expected_y(plain[step], 0, {0: 30, 4: 30, 6: 30})
        assert feed[step].y.tolist() == masked.tolist()
        assert feed[step].num_targets == np.count_nonzero(masked != -100)


def test_every_way_to_a_batch_agrees():
    walked, looked = feed_of(prefetch=3), feed_of()
    for feed in (walked, looked):
        feed.exclude([2, 4], 17)
    batches = list(itertools.islice(walked, 12))
    for step, batch in enumerate(batches):
        for other in (looked[step], looked.at(batch.position)):
            assert (other.digest, other.num_targets, other.state) == (batch.digest, batch.num_targets, batch.state)
    plain = feed_of()
    assert plain[0].digest == batches[0].digest
    assert plain[5].digest != batches[5].digest


@pytest.mark.parametrize("prefetch", [0, 1, 5])
def test_what_was_made_ahead_is_made_anew(prefetch):
    plain, feed = feed_of(), feed_of(prefetch=prefetch)
    for _ in range(4):
        next(feed)
    assert feed.position == 48
    feed.exclude([6])  # from here
    assert feed.exclusions == [{"from_position": 48, "documents": [6]}]
    for step in range(4, 10):
        batch = next(feed)
        assert batch.y.tolist() == expected_y(plain[step], 0, {6: 48}).tolist()
        assert batch.state == feed.state_dict()
    feed.exclude([0])
    assert next(feed).y.tolist() == expected_y(plain[10], 0, {6: 48, 0: 120}).tolist()


def test_an_epoch_counts_what_is_left():
    feed = feed_of()
    feed.exclude([0, 4, 6])
    assert sum(batch.num_targets for batch in feed.epoch()) == 49 - 4 - 12 - 20  # the first token is no target


def test_everything_excluded():
    feed = feed_of()
    feed.exclude(range(7))
    assert [batch.num_targets for batch in feed.epoch()] == [0] * 5
    assert (feed[0].y == -100).all()


def test_steps_of_counts_what_still_counts():
    feed = feed_of(order="sequential", batch_size=1)
    feed.exclude([6], 36)
    # Targets are the tokens 1 to 49: slots 0 to 48 of the first epoch. Document 6 is the tokens 30 to 49.
    assert [(one.position, one.targets) for one in feed.steps_of(6, range(2))][:4] == [(28, 3), (32, 4), (36, 0), (40, 0)]
    assert sum(one.targets for one in feed.steps_of(6, range(2))) == 7


# --- the recipe ---


def test_the_past_stays_exact():
    plain = feed_of()
    states = [feed_of().state_dict(), *(batch.state for batch in itertools.islice(plain, 12))]
    feed = feed_of()
    feed.exclude([1, 5], 60)
    for state in states:
        if state["position"] <= 60:
            feed.load_state_dict(state)
            assert feed.state_dict() == state
        else:
            with pytest.raises(
                StateError, match=r"^state: recipe: expected \w+, found \w+; .*exclusions before that position, differ"
            ):
                feed.load_state_dict(state)


def test_later_states_need_the_same_exclusions():
    first = feed_of()
    first.exclude([2], 24)
    first.exclude([4], 60)
    states = [batch.state for batch in itertools.islice(first, 10)]
    for told, good in (
        ([(24, [2]), (60, [4])], 120),
        ([(60, [4]), (24, [2])], 120),  # in whatever order they are told
        ([(24, [2])], 60),
        ([(24, [3]), (60, [4])], 24),
        ([(23, [2]), (60, [4])], 12),
        ([(24, [2]), (60, [4, 5])], 60),
        ([], 24),
    ):
        feed = feed_of()
        for position, documents in told:
            feed.exclude(documents, position)
        for state in states:
            if state["position"] <= good:
                feed.load_state_dict(json.loads(json.dumps(state)))
            else:
                with pytest.raises(StateError):
                    feed.load_state_dict(state)


def test_continuing_after_a_spike():
    """Go back to a checkpoint, leave the documents out from there, go on, be killed, come back."""
    run = feed_of(prefetch=2)
    checkpoint = [batch.state for batch in itertools.islice(run, 8)][3]
    run.load_state_dict(checkpoint)
    run.exclude([4, 6])
    rest = [batch.digest for batch in itertools.islice(run, 6)]
    saved = json.loads(json.dumps({"feed": run.state_dict(), "exclusions": run.exclusions}))
    after = [batch.digest for batch in itertools.islice(run, 6)]
    again = feed_of()
    for one in saved["exclusions"]:
        again.exclude(one["documents"], one["from_position"])
    again.load_state_dict(saved["feed"])
    assert [batch.digest for batch in itertools.islice(again, 6)] == after
    again.load_state_dict(checkpoint)
    assert [batch.digest for batch in itertools.islice(again, 6)] == rest


def test_twice_keeps_the_earlier_position():
    feed, other = feed_of(), feed_of()
    feed.exclude([2, 4], 40)
    feed.exclude([4, 5], 20)
    feed.exclude([2, 4, 5, 6], 70)
    other.exclude([4, 5], 20)
    other.exclude([2], 40)
    other.exclude([6], 70)
    assert feed.exclusions == other.exclusions
    assert feed.exclusions == [
        {"from_position": 20, "documents": [4, 5]},
        {"from_position": 40, "documents": [2]},
        {"from_position": 70, "documents": [6]},
    ]
    assert [feed[i].state for i in range(9)] == [other[i].state for i in range(9)]
    assert [feed[i].digest for i in range(9)] == [other[i].digest for i in range(9)]
    same = feed.exclusions
    feed.exclude([6, 2], 99)
    assert feed.exclusions == same


def test_nothing_excluded_is_nothing():
    feed = feed_of()
    feed.exclude([])
    assert feed.exclusions == []
    assert feed[9].state == feed_of()[9].state
    assert not NONE
    assert Exclusions().to_list() == []


def test_states_stay_small():
    feed = feed_of(split_of([2] * 5000))
    feed.exclude(range(0, 5000, 3))
    next(feed)
    assert len(json.dumps(feed.state_dict())) < 400


# --- mixtures ---


def test_a_mixture_names_its_sources():
    splits = {"code": split_of([9, 4, 30]), "web": split_of([20, 3, 40, 6], first=1000)}
    plain, feed = (feed_of(ladle.Mixture(splits, weights={"web": 2, "code": 1})) for _ in range(2))
    feed.exclude({"web": [2, 0], "code": [1]}, 30)
    feed.exclude({"web": {2}}, 40)
    assert feed.exclusions == [{"from_position": 30, "documents": {"code": [1], "web": [0, 2]}}]
    excluded = [(9, 13), (1000, 1020), (1023, 1063)]
    for step in range(30):
        y = plain[step].y.copy()
        slots = np.arange(step * 12, step * 12 + 12).reshape(3, 4)
        for first, last in excluded:
            y[(y >= first) & (y < last) & (slots >= 30)] = -100
        assert feed[step].y.tolist() == y.tolist()
        assert feed[step].num_targets == np.count_nonzero(y != -100)
    for state, good in ((plain[1].state, True), (plain[3].state, False)):
        if good:
            feed.load_state_dict(state)
        else:
            with pytest.raises(StateError):
                feed.load_state_dict(state)
    again = feed_of(ladle.Mixture(splits, weights={"web": 2, "code": 1}))
    for one in feed.exclusions:
        again.exclude(one["documents"], one["from_position"])
    again.load_state_dict(feed[20].state)


# --- what cannot be ---


@pytest.mark.parametrize(
    ("documents", "position", "message"),
    [
        ([7], None, r"^memory: document: expected a number from 0 to 6, found 7$"),
        ([-1], None, r"^documents: expected at least 0, found -1$"),
        ([1, 2, 1], None, r"^documents: expected each number once, found 1 twice$"),
        ([1.0], None, r"^documents: expected an integer, found 1.0$"),
        (3, None, r"^documents: expected document numbers, found 3$"),
        ("3", None, r"^documents: expected document numbers, found '3'$"),
        ({"web": [3]}, None, r"^documents: expected document numbers, found \{'web': \[3\]\}$"),
        ([3], -1, r"^from_position: expected at least 0, found -1$"),
        ([3], 2.5, r"^from_position: expected an integer, found 2.5$"),
        ([3], 2**62, r"^from_position: expected less than 4611686018427387904, found 4611686018427387904$"),
    ],
)
def test_what_cannot_be_excluded(documents, position, message):
    feed = feed_of()
    with pytest.raises(ConfigError, match=message):
        feed.exclude(documents, position)
    assert feed.exclusions == []


@pytest.mark.parametrize(
    ("documents", "message"),
    [
        ([3], r"^documents: expected \{source: numbers\} in a mixture, found \[3\]$"),
        ({"books": [0]}, r"^documents: expected sources among code, web, found 'books'$"),
        ({"web": 1}, r"^documents: web: expected document numbers, found 1$"),
        ({"web": [9]}, r"^memory: document: expected a number from 0 to 0, found 9$"),
    ],
)
def test_what_cannot_be_excluded_from_a_mixture(documents, message):
    feed = feed_of(ladle.Mixture({"web": split_of([30]), "code": split_of([30])}))
    with pytest.raises(ConfigError, match=message):
        feed.exclude(documents)


def test_the_past_cannot_be_changed():
    feed = feed_of()
    next(feed)
    with pytest.raises(ConfigError, match=r"^from_position: expected at least the feed's position 12, found 11: what was handed"):
        feed.exclude([3], 11)
    feed.exclude([3], 12)


def test_documents_that_are_not_known():
    feed = feed_of(ladle.from_ids(np.arange(30, dtype=np.uint16)))
    with pytest.raises(ConfigError, match=r"^memory: the documents' ends are not known here"):
        feed.exclude([0])


def test_a_closed_feed_excludes_nothing():
    feed = feed_of()
    feed.close()
    with pytest.raises(ClosedError):
        feed.exclude([0])
