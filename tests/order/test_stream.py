"""The stream of units: cut anywhere, every window once an epoch, inverted, and by blocks where asked."""

import re

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ladle.errors import ConfigError
from ladle.order.permutation import counter_hash, epoch_key, hash_key, permute
from ladle.order.stream import KINDS, Order

sizes = st.one_of(st.integers(1, 12), st.integers(1, 300), st.integers(1000, 1100))
blocks = st.one_of(st.none(), st.integers(1, 6), st.integers(1, 400), st.just(10**12))


def laid_out(n, seed, epoch, size):
    """One epoch as a list: the blocks in their order, and each block's windows in theirs."""
    if size is None:
        return permute(np.arange(n), n, epoch_key(seed, epoch)).tolist()
    count = -(-n // size)
    epoch_order = []
    for block in permute(np.arange(count), count, epoch_key(seed, epoch)).tolist():
        members = range(block * size, min((block + 1) * size, n))
        inside = int(counter_hash(block, hash_key("inside", seed, epoch)))
        epoch_order += [members[i] for i in permute(np.arange(len(members)), len(members), inside).tolist()]
    return epoch_order


@settings(deadline=None)
@given(n=sizes, seed=st.integers(0, 2**32), first=st.integers(0, 5000), count=st.integers(0, 700), size=blocks)
def test_any_cut_of_the_shuffled_stream(n, seed, first, count, size):
    epochs, windows = Order(kind="shuffled", n=n, seed=seed, shuffle_block=size).windows(first, count)
    units = np.arange(first, first + count)
    assert epochs.tolist() == (units // n).tolist()
    whole = {epoch: laid_out(n, seed, epoch, size) for epoch in set(epochs.tolist())}
    assert windows.tolist() == [whole[unit // n][unit % n] for unit in units.tolist()]
    assert epochs.dtype == windows.dtype == np.int64


@settings(deadline=None)
@given(
    n=sizes, seed=st.integers(0, 99), epoch=st.integers(0, 2**40), size=blocks, kind=st.sampled_from(["shuffled", "sequential"])
)
def test_every_window_once_an_epoch_and_found_again(n, seed, epoch, size, kind):
    order = Order(kind=kind, n=n, seed=seed, shuffle_block=size if kind == "shuffled" else None)
    epochs, windows = order.windows(epoch * n, n)
    assert (epochs == epoch).all()
    assert sorted(windows.tolist()) == list(range(n))
    assert order.units(epoch, windows).tolist() == list(range(epoch * n, (epoch + 1) * n))
    some = np.array([n - 1, 0, n // 2])
    assert windows[order.units(epoch, some) - epoch * n].tolist() == some.tolist()


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("n", [1, 3, 1024, 1025, 2**40])
def test_far_along(n, kind):
    order, first = Order(kind=kind, n=n, seed=5), 2**61 + 3
    epochs, windows = order.windows(first, 5000)
    assert ((windows >= 0) & (windows < n)).all()
    for i in (0, 1, 999, 4999):
        (epoch,), (window,) = order.windows(first + i, 1)
        assert (epochs[i], windows[i]) == (epoch, window)
        if kind != "random":
            assert order.units(int(epoch), np.array([window])).tolist() == [first + i]


def test_sequential_is_as_they_lie():
    epochs, windows = Order(kind="sequential", n=3, seed=9).windows(2, 6)
    assert epochs.tolist() == [0, 1, 1, 1, 2, 2]
    assert windows.tolist() == [2, 0, 1, 2, 0, 1]


def test_another_epoch_or_seed_is_another_order():
    orders = {
        tuple(Order(kind="shuffled", n=50, seed=seed).windows(50 * epoch, 50)[1]) for seed in range(30) for epoch in range(30)
    }
    assert len(orders) == 900
    blocked = {
        tuple(Order(kind="shuffled", n=50, seed=seed, shuffle_block=5).windows(50 * epoch, 50)[1])
        for seed in range(30)
        for epoch in range(30)
    }
    assert len(blocked) == 900


def test_random_draws_have_no_epoch_and_do_not_depend_on_the_cut():
    order = Order(kind="random", n=1000, seed=4)
    epochs, starts = order.windows(0, 3000)
    assert not epochs.any()
    assert starts[1234:2000].tolist() == order.windows(1234, 766)[1].tolist()
    assert order.windows(0, 50)[1].tolist() != Order(kind="random", n=1000, seed=5).windows(0, 50)[1].tolist()


# --- blocks ---


@pytest.mark.parametrize(("n", "size"), [(1000, 16), (1000, 40), (5000, 1500), (7, 3), (17, 16)])
def test_a_block_stays_together(n, size):
    _, windows = Order(kind="shuffled", n=n, seed=2, shuffle_block=size).windows(3 * n, n)
    changes = np.count_nonzero(np.diff(windows // size))
    assert changes == -(-n // size) - 1  # each block is one run
    for run in (size, 2 * size, 5 * size):
        touched = [np.unique(windows[i : i + run] // size).size for i in range(0, n, 7)]
        assert max(touched) <= run // size + 2  # and a run of places reads few of them (a short one may lie between)


def test_the_short_block_can_stand_anywhere():
    n, size = 22, 5  # 4 blocks of five, one of two
    places = set()
    for epoch in range(60):
        _, windows = Order(kind="shuffled", n=n, seed=2, shuffle_block=size).windows(epoch * n, n)
        places.add(int(np.flatnonzero(windows >= 20)[0]))
    assert places == {0, 5, 10, 15, 20}


def test_blocks_and_their_insides_are_shuffled_anew():
    n, size = 4096, 64
    order = Order(kind="shuffled", n=n, seed=2, shuffle_block=size)
    first, second = (order.windows(epoch * n, n)[1].reshape(-1, size) for epoch in (0, 1))
    assert (first[:, 0] // size).tolist() != (second[:, 0] // size).tolist()
    insides = {tuple(row % size) for row in first} | {tuple(row % size) for row in second}
    assert len(insides) == 128


@pytest.mark.parametrize("size", [1, 10**6])
def test_a_block_of_one_and_a_block_of_all_are_whole_shuffles(size):
    _, windows = Order(kind="shuffled", n=3000, seed=2, shuffle_block=size).windows(0, 3000)
    assert sorted(windows.tolist()) == list(range(3000))
    assert abs(np.corrcoef(windows[1:], windows[:-1])[0, 1]) < 0.07  # 3.9 / sqrt(3000)


# --- bad arguments ---


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"kind": "shufled"}, "order: expected one of shuffled, sequential, random, found 'shufled'"),
        ({"n": 0}, "order: expected 1 to 2**62 windows an epoch, found 0"),
        ({"n": 2**62 + 1}, "order: expected 1 to 2**62 windows an epoch, found 4611686018427387905"),
        ({"n": 10.0}, "n: expected an integer, found 10.0"),
        ({"seed": None}, "seed: expected an integer, found None"),
        ({"seed": True}, "seed: expected an integer, found True"),
        ({"shuffle_block": 2.5}, "shuffle_block: expected an integer, found 2.5"),
        (
            {"shuffle_block": 0},
            "shuffle_block: expected a number of windows from 1 to 2**62 with order='shuffled', found 0 with order='shuffled'",
        ),
        (
            {"kind": "random", "shuffle_block": 8},
            "shuffle_block: expected a number of windows from 1 to 2**62 with order='shuffled', found 8 with order='random'",
        ),
    ],
)
def test_bad_arguments(arguments, message):
    with pytest.raises(ConfigError, match=f"^{re.escape(message)}$"):
        Order(**{"kind": "shuffled", "n": 10, "seed": 0, **arguments})


def test_random_has_no_inverse():
    message = "order='random' draws with replacement: a window has no one place to invert to"
    with pytest.raises(ConfigError, match=f"^{re.escape(message)}$"):
        Order(kind="random", n=10, seed=0).units(0, np.array([1]))


def test_numpy_integers_are_integers():
    order = Order(kind="shuffled", n=np.int64(10), seed=np.uint64(7), shuffle_block=np.int32(3))
    assert order == Order(kind="shuffled", n=10, seed=7, shuffle_block=3)
    assert type(order.n) is type(order.seed) is type(order.shuffle_block) is int
