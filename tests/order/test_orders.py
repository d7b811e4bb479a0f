"""Many sources' orders at once are each source's own: the permutation of its size under a key of name, seed and epoch."""

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ladle.errors import ConfigError
from ladle.order.mixture import Tree, integer_weights
from ladle.order.orders import FEW, Orders
from ladle.order.permutation import SMALL, counter_hash, hash_key, multiply_high, permute

NAMES = ["a", "b", "c", "d", "e"]
sizes = st.one_of(st.integers(1, 5), st.sampled_from([FEW - 1, FEW, 100, SMALL, SMALL + 1, 5000]))


def by_definition(n, name, seed, unit):
    """One unit, from docs/order.md."""
    epoch, place = divmod(unit, n)
    return epoch, int(permute(place, n, int(counter_hash(epoch, hash_key("source", seed, name)))))


@settings(max_examples=40, deadline=None)
@given(
    counts=st.lists(sizes, min_size=5, max_size=5),
    seed=st.integers(0, 99),
    asked=st.lists(st.tuples(st.integers(0, 4), st.integers(0, 20_000), st.integers(1, 30)), min_size=1, max_size=5),
)
def test_units_of_any_sources_in_any_order(counts, seed, asked):
    """What was asked before changes nothing, though orders of few windows are kept."""
    orders = Orders("shuffled", counts, NAMES, seed)
    for _ in range(2):
        source = np.concatenate([np.full(count, s) for s, _, count in asked])
        own = np.concatenate([np.arange(first, first + count) for _, first, count in asked])
        epoch, window = orders.windows(source, own)
        expected = [by_definition(counts[s], NAMES[s], seed, u) for s, u in zip(source.tolist(), own.tolist(), strict=True)]
        assert list(zip(epoch.tolist(), window.tolist(), strict=True)) == expected
        for s, e, w, u in zip(source.tolist(), epoch.tolist(), window.tolist(), own.tolist(), strict=True):
            assert orders.units(s, e, np.array([w])).tolist() == [u]
        asked.reverse()


@pytest.mark.parametrize("n", [1, 2, 7, FEW, 700, SMALL, 3000])
def test_an_epoch_holds_every_window_once_in_a_fresh_order(n):
    orders = Orders("shuffled", [n], ["a"], 3)
    epochs = [orders.windows(np.zeros(n, dtype=np.int64), np.arange(e * n, (e + 1) * n))[1].tolist() for e in range(3)]
    for order in epochs:
        assert sorted(order) == list(range(n))
    assert n < 3 or len(set(map(tuple, epochs))) == 3


def test_a_source_depends_on_its_name_and_the_seed_alone():
    def order_of(name, names, seed):
        orders = Orders("shuffled", [500] * len(names), names, seed)
        return orders.windows(np.full(500, names.index(name)), np.arange(500))[1].tolist()

    alone = order_of("web", ["web"], 1)
    assert order_of("web", ["code", "web", "wiki"], 1) == alone
    assert order_of("code", ["code", "web"], 1) != alone
    assert order_of("web", ["web"], 2) != alone


def test_sequential_and_random():
    source, own = np.array([0, 1, 1, 0]), np.array([9, 7, 8, 10])
    epoch, window = Orders("sequential", [10, 8], ["a", "b"], 1).windows(source, own)
    assert list(zip(epoch.tolist(), window.tolist(), strict=True)) == [(0, 9), (0, 7), (1, 0), (1, 0)]
    assert Orders("sequential", [10, 8], ["a", "b"], 1).units(1, 1, np.array([0])).tolist() == [8]
    orders = Orders("random", [10**12, 8], ["a", "b"], 1)
    epoch, start = orders.windows(source, own)
    assert epoch.tolist() == [0] * 4
    for s, u, found, n in zip(source.tolist(), own.tolist(), start.tolist(), [10**12, 8, 8, 10**12], strict=True):
        word = int(counter_hash(u, hash_key("source", 1, "ab"[s])))
        assert found == word * n >> 64 == int(multiply_high(np.array(word, dtype=np.uint64), n))
    with pytest.raises(ConfigError, match="order='random' draws with replacement"):
        orders.units(0, 0, np.array([1]))


def test_an_unknown_order():
    with pytest.raises(ConfigError, match="order: expected one of shuffled, sequential, random, found 'sorted'"):
        Orders("sorted", [10], ["a"], 1)


def test_threads_may_share_it():
    counts = np.random.default_rng(0).integers(FEW, 300, 40).tolist()
    names = [f"s{i}" for i in range(40)]
    shared = Orders("shuffled", counts, names, 1)

    def walk(offset):
        source = np.arange(4000) % 40
        found = [
            shared.windows(source, np.arange(first, first + 4000) // 40) for first in range(offset, offset + 400_000, 40_000)
        ]
        fresh = Orders("shuffled", counts, names, 1)
        return all(
            np.array_equal(window, fresh.windows(source, np.arange(first, first + 4000) // 40)[1])
            for first, (_, window) in zip(range(offset, offset + 400_000, 40_000), found, strict=True)
        )

    with ThreadPoolExecutor(4) as pool:
        assert all(pool.map(walk, range(0, 8000, 2000)))


def test_the_page_says_the_same():
    """Golden: written once. If this breaks, it is a new order version."""
    page = (Path(__file__).parents[2] / "docs" / "order.md").read_text("utf-8")
    cells = [[cell.strip() for cell in line.strip("|").split("|")] for line in page.splitlines() if line.startswith("|")]
    told = {row[0]: row[1] for row in cells if len(row) == 2}

    def numbers(*values):
        return " ".join(str(int(value)) for value in values)

    weights = integer_weights({"a": 3, "b": 2, "c": 1})
    assert f"a = 3, b = 2, c = 1 are {', '.join(map(str, weights.values()))} of 2^30" in page
    tree = Tree.of(list(weights.values()))
    assert told["sources of units 0 to 11, weights 3, 2, 1"] == " ".join("abc"[s] for s in tree.split(np.arange(12))[0])
    assert told["units 0 to 3 of b"] == numbers(*tree.join(1, np.arange(4)))
    assert told["unit 10^12 of b"] == numbers(*tree.join(1, np.array([10**12])))
    assert told["a, b and c in the first 3 * 10^12 units"] == numbers(*tree.counts(3 * 10**12))
    assert told['key("source", 7, "code")'] == numbers(hash_key("source", 7, "code"))
    orders = Orders("shuffled", [10, 2000], ["a", "c"], 7)
    first, second = (orders.windows(np.zeros(10, dtype=np.int64), np.arange(10) + 10 * e)[1] for e in (0, 1))
    assert told['windows of source "a", n = 10, seed 7, two epochs'] == f"{numbers(*first)}, {numbers(*second)}"
    later = orders.windows(np.ones(6, dtype=np.int64), np.arange(1997, 2003))[1]
    assert told['windows of source "c", n = 2000, seed 7, units 1997 to 2002'] == numbers(*later)
    starts = Orders("random", [1000], ["a"], 7).windows(np.zeros(6, dtype=np.int64), np.arange(6))[1]
    assert told['starts of source "a", random, M - W + 1 = 1000, seed 7'] == numbers(*starts)
