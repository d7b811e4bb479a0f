"""A mixture's counts stay within 1.68 units of their due at every prefix, and every unit inverts."""

import math
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ladle.errors import ConfigError
from ladle.order.mixture import MOST, TOTAL, Stages, Tree, integer_weights

BOUND = 1.68
WEIGHTS = {
    "equal": lambda S, rng: np.ones(S),
    "uniform": lambda S, rng: rng.random(S) + 1e-6,
    "skewed": lambda S, rng: np.exp(rng.normal(0, 3, S)),
    "one giant": lambda S, rng: np.r_[1e6, np.ones(S - 1)],
}


def tree_of(weights):
    return Tree.of(list(integer_weights({f"s{i:04}": w for i, w in enumerate(weights)}).values()))


def split_by_hand(weights, unit):
    """One unit down the tree, in whole numbers of any size, from the definition."""
    nodes = [(w, i, i) for i, w in enumerate(weights)]  # weight, age, source or (left, right)
    age = len(nodes)
    while len(nodes) > 1:
        nodes.sort(key=lambda node: node[:2])
        light, heavy, *nodes = nodes
        nodes.append((light[0] + heavy[0], age, (heavy, light)))
        age += 1
    node = nodes[0]
    while isinstance(node[2], tuple):
        whole, (left, right) = node[0], node[2]

        def sent(i, whole=whole, half=left[0]):
            return (2 * i * half + whole) // (2 * whole)

        if sent(unit + 1) > sent(unit):
            node, unit = left, sent(unit)
        else:
            node, unit = right, unit - sent(unit)
    return node[2], unit


@pytest.mark.parametrize("kind", WEIGHTS)
@pytest.mark.parametrize("sources", [2, 10, 300])
def test_every_prefix_is_within_the_bound(sources, kind):
    units = 30_000
    tree = tree_of(WEIGHTS[kind](sources, np.random.default_rng(7)))
    source, count = tree.split(np.arange(units))
    share = tree.weight[:sources] / TOTAL
    for s in range(sources):
        mine = source == s
        np.testing.assert_array_equal(count[mine], np.arange(mine.sum()))
        assert np.abs(np.cumsum(mine) - share[s] * np.arange(1, units + 1)).max() < BOUND
    np.testing.assert_array_equal(tree.counts(units), np.bincount(source, minlength=sources))


def test_a_lottery_would_fail_the_bound():
    drawn = np.random.default_rng(7).random(30_000) < 0.5
    assert np.abs(np.cumsum(drawn) - 0.5 * np.arange(1, 30_001)).max() > BOUND


@given(
    weights=st.lists(st.floats(1e-6, 1e6), min_size=1, max_size=12),
    unit=st.integers(0, 2**58),
)
def test_any_unit_equals_the_definition_and_inverts(weights, unit):
    tree = tree_of(weights)
    source, count = tree.split(np.array([unit]))
    assert (int(source[0]), int(count[0])) == split_by_hand(tree.weight[: tree.sources].tolist(), unit)
    assert tree.join(int(source[0]), count).tolist() == [unit]
    before, after = tree.counts(unit), tree.counts(unit + 1)
    assert int(before[source[0]]) == int(count[0])
    assert int(before.sum()) == unit
    assert int((after - before).sum()) == 1


def test_golden():
    """Written once from the definition by hand: weights 3 : 2 : 1 of a, b, c. If this breaks, it is a new order version."""
    assert integer_weights({"b": 2, "a": 3, "c": 1}) == {"a": 536870912, "b": 357913941, "c": 178956971}
    source, count = Tree.of([536870912, 357913941, 178956971]).split(np.arange(12))
    # The root joins a and bc, equal in weight; bc is younger, so it is the left child, and half of 1 rounds up: bc, a, bc, a ...
    # Within bc, b is the heavier and so the left child: floor(2/3 i + 1/2) grows at i = 0, 2, 3, 5, ... so b, c, b, b, c, b.
    assert source.tolist() == [1, 0, 2, 0, 1, 0, 1, 0, 2, 0, 1, 0]
    assert count.tolist() == [0, 0, 0, 1, 1, 2, 2, 3, 1, 4, 3, 5]


@given(weights=st.dictionaries(st.text(min_size=1, max_size=4), st.floats(1e-300, 1e300), min_size=1, max_size=40))
def test_integer_weights_add_up_and_are_nearest(weights):
    integers = integer_weights(weights)
    assert list(integers) == sorted(weights)
    assert sum(integers.values()) == TOTAL
    assert min(integers.values()) >= 1
    total = sum(Fraction(w) for w in weights.values())
    raised = len(weights)
    for name, integer in integers.items():
        assert abs(integer - TOTAL * Fraction(weights[name]) / total) <= 1 + raised


def test_300_sources_and_ten_tenths():
    assert len(integer_weights({f"s{i}": 1.0 for i in range(300)})) == 300
    assert set(integer_weights({f"s{i}": 0.1 for i in range(10)}).values()) == {TOTAL // 10, TOTAL // 10 + 1}


@pytest.mark.parametrize("weight", [0, -2, math.nan, math.inf, "1", None, True])
def test_a_wrong_weight_is_named(weight):
    with pytest.raises(ConfigError, match=r"weights: code: expected a finite number above 0, found"):
        integer_weights({"web": 1.0, "code": weight})


def test_weights_may_be_any_real_numbers():
    expected = {"a": TOTAL // 4, "b": 3 * TOTAL // 4}
    for one, three in ((1, 3), (0.1, 0.3), (Fraction(1, 3), 1), (np.float32(1), np.int8(3)), (10**400, 3 * 10**400)):
        assert integer_weights({"b": three, "a": one}) == expected
    assert integer_weights({"a": 1e-300, "b": 1e300}) == {"a": 1, "b": TOTAL - 1}


def test_as_many_weights_as_there_may_be():
    """All but one too light for an integer: each is raised to 1, and the heaviest gives it."""
    integers = integer_weights({f"{i:05}": 1e-20 for i in range(MOST - 1)} | {"x": 1.0})
    assert integers.pop("x") == TOTAL - MOST + 1
    assert set(integers.values()) == {1}
    with pytest.raises(ConfigError, match=f"weights: expected at most {MOST} sources, found {MOST + 1}"):
        integer_weights({str(i): 1.0 for i in range(MOST + 1)})


def test_shares_within_a_hundredth_over_100_000_units():
    """Weights whose sum is not 1, and ten tenths whose floating sum is not: normalised, not refused."""
    for weights in ([3, 1], [0.1] * 10):
        share = tree_of(weights).counts(100_000) / 100_000
        assert np.abs(share - np.array(weights) / sum(weights)).max() < 0.01


def test_no_weights():
    with pytest.raises(ConfigError, match="weights: expected at least one source, found none"):
        integer_weights({})


# --- stages ---

names = ["a", "b", "c", "d"]
some_weights = st.dictionaries(st.sampled_from(names), st.sampled_from([1e-9, 0.3, 1.0, 7.0]), min_size=1)
schedules = st.lists(st.tuples(st.integers(1, 60), some_weights), min_size=1, max_size=6)


def stages_of(schedule):
    """schedule: [(units it lasts, weights)], the last one for ever."""
    begins = np.cumsum([0, *(units for units, _ in schedule)])
    return Stages(names, [(int(first), integer_weights(w)) for first, (_, w) in zip(begins, schedule, strict=False)])


def split_by_stage(schedule, units):
    """[(source, own)] of the first units: each stage's tree alone, each source going on from where it was."""
    had, found, stage, left = [0] * len(names), [], 0, schedule[0][0]
    placed = 0
    while len(found) < units:
        members = sorted(schedule[stage][1])
        source, _ = Tree.of(list(integer_weights(schedule[stage][1]).values())).split(np.array([placed]))
        s = names.index(members[int(source[0])])
        found.append((s, had[s]))
        had[s], placed = had[s] + 1, placed + 1
        if placed == left and stage + 1 < len(schedule):
            stage, placed, left = stage + 1, 0, schedule[stage + 1][0]
    return found


@settings(max_examples=60, deadline=None)
@given(schedule=schedules, first=st.integers(0, 300), count=st.integers(1, 300))
def test_stages_from_the_definition(schedule, first, count):
    """Any piece, over any borders: split, counts and join agree with one unit after the other."""
    stages = stages_of(schedule)
    expected = split_by_stage(schedule, first + count)
    source, own = stages.split(first, count)
    assert list(zip(source.tolist(), own.tolist(), strict=True)) == expected[first:]
    had = np.bincount([s for s, _ in expected[:first]], minlength=len(names))
    assert stages.counts(first).tolist() == had.tolist()
    for s in range(len(names)):
        units = [unit for unit, (each, _) in enumerate(expected) if each == s]
        assert stages.join(s, np.arange(len(units))).tolist() == units


@given(schedule=schedules, unit=st.integers(0, 2**55), source=st.integers(0, 3))
def test_stages_invert_anywhere(schedule, unit, source):
    stages = stages_of(schedule)
    found, own = stages.split(unit, 1)
    assert stages.join(int(found[0]), own).tolist() == [unit]
    had = int(stages.counts(unit)[source])
    later = int(stages.join(source, np.array([had]))[0])
    assert later >= unit or later == -1
    assert (later == -1) <= (names[source] not in schedule[-1][1])


def test_a_source_that_leaves_comes_back_and_leaves_for_good():
    stages = stages_of([(4, {"a": 1, "b": 1}), (3, {"a": 1}), (4, {"a": 1, "b": 1}), (1, {"a": 1})])
    source, own = stages.split(0, 14)
    assert "".join(names[s] for s in source) == "babaaaababaaaa"
    assert own[source == 1].tolist() == [0, 1, 2, 3]
    assert stages.counts(14).tolist() == [10, 4, 0, 0]
    units = stages.join(1, np.arange(6)).tolist()
    assert units[:4] == np.flatnonzero(source == 1).tolist()
    assert units[4:] == [-1, -1]
    assert stages.join(2, np.arange(2)).tolist() == [-1, -1]  # it never came
    assert stages.split(2**50, 1)[1].tolist() == [2**50 - 4]


def test_a_stage_may_be_too_short_for_a_source():
    stages = stages_of([(3, {"a": 1.0, "b": 1e-9}), (5, {"b": 1})])
    assert stages.counts(3).tolist() == [3, 0, 0, 0]
    assert stages.join(1, np.arange(2)).tolist() == [3, 4]


def test_two_stages_at_one_window():
    message = "stages: expected each to last at least one window, found stage 0 to begin at window 0 and stage 1 at window 0"
    with pytest.raises(ConfigError, match=message):
        Stages(["a"], [(0, {"a": TOTAL}), (0, {"a": TOTAL})])


@pytest.mark.parametrize("S", [2, 300])
def test_the_bound_holds_through_stages(S):
    """Each stage begins afresh, so a source's error is below 1.68 within each."""
    rng = np.random.default_rng(3)
    every = [f"{i:03}" for i in range(S)]
    weights = [integer_weights({name: float(w) for name, w in zip(every, rng.random(S) + 0.01, strict=True)}) for _ in range(4)]
    begins = [0, 777, 1500, 4001]
    source, _ = Stages(every, list(zip(begins, weights, strict=True))).split(0, 6000)
    for first, last, told in zip(begins, [*begins[1:], 6000], weights, strict=True):
        for s, weight in enumerate(told.values()):
            had = np.cumsum(source[first:last] == s)
            assert np.abs(had - weight / TOTAL * np.arange(1, last - first + 1)).max() < BOUND


def test_any_place_costs_the_same(monkeypatch):
    """Counted, not timed: divisions for units at the start and at 2**55."""
    counted = []
    real = np.divmod
    monkeypatch.setattr(np, "divmod", lambda *args: counted.append(1) or real(*args))
    tree = tree_of(np.ones(300))
    found = []
    for first in (0, 10**6, 2**55):
        counted.clear()
        tree.split(np.arange(first, first + 64))
        found.append(len(counted))
    assert found[0] <= 9  # once a level: of 300 equal weights none lies deeper
    assert found == [found[0]] * 3
