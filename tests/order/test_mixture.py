"""A mixture's counts stay within 1.68 units of their due at every prefix, and every unit inverts."""

import math
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ladle.errors import ConfigError
from ladle.order.mixture import TOTAL, Tree, integer_weights

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


def test_no_weights():
    with pytest.raises(ConfigError, match="weights: expected at least one source, found none"):
        integer_weights({})
