"""The permutation looks like a true shuffle, to statistics whose distribution under a true shuffle is known.

Each statistic is a sum of squared deviations over many keys. Under a true shuffle its mean is exact (sampling without
replacement included) and its spread close to a chi-square's, so it is given as a z: near 0. Far above 0 is structure;
far below is an order too even to be a shuffle. Everything is deterministic, so nothing here is flaky: the bounds are
the two-sided 1 in 10 000 of a normal variable for one z, and for all together the chi-square of their squares.
The tests of the tests: numpy's own shuffle passes, and weak orders fail.
"""

import math
from functools import cache
from itertools import pairwise

import numpy as np
import pytest

from ladle.order.permutation import SMALL, epoch_key, hash_key, permute
from ladle.order.stream import Order

LIMIT = 3.9  # two-sided 1e-4
SIZES = [1000, 1025, 4097, 65_537, 2**20, 2**48 - 59, 2**62]
MORE = [1024, 1600, 4096, 65_536, 262_145, 10**6 + 3, 2**26 - 5, 2**32, 2**40 + 15]
RUN = 16_384  # consecutive places looked at, for each key
KEYS = 40


def ladle(index, n, seed, epoch):
    return permute(index, n, epoch_key(seed, epoch))


def true_shuffle(index, n, seed, epoch):
    return np.random.default_rng([abs(seed), epoch]).permutation(n)[index]


# --- sums of squares as z ---


def excess(value, mean, freedom):
    """How far a sum of squares lies from its mean, in standard deviations of a chi-square of so many degrees."""
    return (value - mean) / (mean * math.sqrt(2 / freedom))


def cells_z(counts, draws, p, p2):
    """counts: [keys, cells] of `draws` draws. p: a cell's probability; p2: of two different draws in the same cell."""
    expected = draws * p
    mean = np.sum(1 - p + (draws - 1) * (p2 / p - p))
    return excess(np.sum((counts - expected) ** 2 / expected), len(counts) * mean, len(counts) * (p.size - 1))


def sizes_of(n, cells):
    """How many of [0, n) fall in each of `cells` cells of nearly equal size; value v is in cell v * cells // n."""
    edges = [-(-n * cell // cells) for cell in range(cells + 1)]
    return np.array([high - low for low, high in pairwise(edges)], dtype=np.float64)


def cell_of(values, n, cells):
    edges = np.array([-(-n * cell // cells) for cell in range(1, cells)])
    return np.searchsorted(edges, values, side="right")


def counted(cells, kinds):
    """[keys, draws] of cell numbers -> [keys, kinds] counts."""
    rows = np.arange(len(cells))[:, np.newaxis] * kinds
    return np.bincount((cells + rows).ravel(), minlength=len(cells) * kinds).reshape(len(cells), kinds)


# --- the statistics: images is int64 [keys, run], consecutive places of each key's order ---


def bits(images, n):
    """In windows of 1 024 (or half of n): how many values have each bit set, and how many have an odd number of ones."""
    window = min(1024, images.shape[1])
    windows = images[:, : images.shape[1] // window * window].reshape(-1, window)
    ones = {bit: (n >> bit + 1 << bit) + max(0, (n & (1 << bit + 1) - 1) - (1 << bit)) for bit in range((n - 1).bit_length())}
    yield from ((f"bit {bit}", windows >> bit & 1, count) for bit, count in ones.items())
    odd = n // 2 + (n % 2 and (n - 1).bit_count() % 2)
    yield "parity of the bits", np.bitwise_count(windows) & 1, odd


def bits_z(images, n):
    squares, count = 0.0, 0
    for _, is_one, ones in bits(images, n):
        window, p = is_one.shape[1], ones / n
        if window * min(p, 1 - p) < 20:
            continue
        variance = window * p * (1 - p) * (n - window) / (n - 1)
        squares += np.sum((is_one.sum(axis=1) - window * p) ** 2 / variance)
        count += len(is_one)
    return excess(squares, count, count)


def buckets_z(images, n):
    cells = 64
    size, draws = sizes_of(n, cells), images.shape[1]
    return cells_z(counted(cell_of(images, n, cells), cells), draws, size / n, size / n * (size - 1) / (n - 1))


def pairs_z(first, second, n):
    """Where the values at two places lie, jointly: one order, so the two are never equal."""
    cells = 16 if first.shape[1] >= 1024 else 8
    size, draws = sizes_of(n, cells), first.shape[1]
    same = np.eye(cells, dtype=bool)
    a, b = np.meshgrid(size, size, indexing="ij")
    p = np.where(same, a * (a - 1), a * b) / n / (n - 1)
    p2 = np.where(same, a * (a - 1) * (a - 2) * (a - 3), a * (a - 1) * b * (b - 1)) / n / (n - 1) / (n - 2) / (n - 3)
    joint = cell_of(first, n, cells) * cells + cell_of(second, n, cells)
    return cells_z(counted(joint, cells * cells), draws, p.ravel(), p2.ravel())


def orders_z(first, second, n):
    """Where two orders put the same place, jointly."""
    cells = 16 if first.shape[1] >= 1024 else 8
    size, draws = sizes_of(n, cells), first.shape[1]
    a, b = np.meshgrid(size / n, size / n, indexing="ij")
    a2, b2 = np.meshgrid(*[size / n * (size - 1) / (n - 1)] * 2, indexing="ij")
    joint = cell_of(first, n, cells) * cells + cell_of(second, n, cells)
    return cells_z(counted(joint, cells * cells), draws, (a * b).ravel(), (a2 * b2).ravel())


def differences_z(first, second, n, least):
    """(second - first) mod n, which is uniform over least to n - 1."""
    cells = 64 if first.shape[1] >= 1024 else 16
    size = sizes_of(n - least, cells) / (n - least)
    differences = (second - first) % n - least
    return cells_z(counted(cell_of(differences, n - least, cells), cells), first.shape[1], size, size**2)


def serial_z(first, second, n):
    """Correlation of the values at two places, key by key: (is it far from 0 at random, is it so on the whole)."""
    deviation = (n * n - 1) / 12
    centre = (n - 1) / 2
    products = (first - centre) * (second - centre)
    draws = products.shape[1]
    z = (products.sum(axis=1) / deviation + draws / (n - 1)) / math.sqrt(draws)
    return excess(np.sum(z**2), len(z), len(z)), z.sum() / math.sqrt(len(z))


def battery(order, n, keys=KEYS):
    """Every statistic of `order` at n, as {name: z}."""
    rng = np.random.default_rng(n % 2**32)
    run = min(RUN, n // 2)
    starts = rng.integers(0, n, keys)
    places = (starts[:, np.newaxis] + np.arange(run)) % n
    images = np.stack([order(row, n, 5, epoch) for epoch, row in enumerate(places)])
    found = {"bits": bits_z(images, n), "buckets": buckets_z(images, n)}
    row_length = -(-n // (math.isqrt(n - 1) + 1))  # b: places i and i + b share the network's right half
    for lag in {1, 2, 16, row_length}:
        draws = min(run // 2, n // 8)
        # Pairs that share no place: of each 2 * lag places the first lag.
        offset = np.arange(draws) // lag * 2 * lag + np.arange(draws) % lag
        here = [(start + offset) % n for start in starts]
        first = np.stack([order(row, n, 5, epoch) for epoch, row in enumerate(here)])
        second = np.stack([order((row + lag) % n, n, 5, epoch) for epoch, row in enumerate(here)])
        name = "b" if lag == row_length else str(lag)
        found[f"pairs, lag {name}"] = pairs_z(first, second, n)
        found[f"differences, lag {name}"] = differences_z(first, second, n, 1)
        found[f"serial, lag {name}"], found[f"serial sum, lag {name}"] = serial_z(first, second, n)
    for name, seed, later in (("the next epoch", 5, 1), ("the next seed", 6, 0)):
        other = np.stack([order(row, n, seed, epoch + later) for epoch, row in enumerate(places)])
        mine, other = images[:, : n // 8], other[:, : n // 8]
        found[f"joint with {name}"] = orders_z(mine, other, n)
        found[f"difference to {name}"] = differences_z(mine, other, n, 0)
        found[f"serial with {name}"], found[f"serial sum with {name}"] = serial_z(mine, other, n)
    return found


def worst(found):
    return max(found.items(), key=lambda item: abs(item[1]))


def together(values):
    """z of the sum of squares of many z's."""
    squares = np.square(list(values))
    return excess(squares.sum(), squares.size, squares.size)


@cache
def ours(n):
    return battery(ladle, n)


@pytest.mark.parametrize("n", [*SIZES, *(pytest.param(n, marks=pytest.mark.slow) for n in MORE)])
def test_nothing_tells_it_from_a_true_shuffle(n):
    found = ours(n)
    assert len(found) == 26
    assert all(abs(z) < LIMIT for z in found.values()), worst(found)
    assert abs(together(found.values())) < LIMIT, found


@pytest.mark.slow
def test_all_sizes_together_are_neither_too_far_out_nor_too_calm():
    assert abs(together(z for n in SIZES + MORE for z in ours(n).values())) < 3


@pytest.mark.slow
@pytest.mark.parametrize(("n", "keys"), [(1025, 4000), (1600, 4000), (4097, 2000), (65_537, 400), (10**6 + 3, 200)])
def test_nor_do_many_more_keys(n, keys):
    found = battery(ladle, n, keys)
    assert all(abs(z) < LIMIT for z in found.values()), worst(found)
    assert abs(together(found.values())) < LIMIT, found


# --- the tests of the tests ---


@pytest.mark.parametrize("n", [1000, 1025, 4097, 65_537])
def test_a_true_shuffle_passes(n):
    found = battery(true_shuffle, n)
    assert all(abs(z) < LIMIT for z in found.values()), worst(found)
    assert abs(together(found.values())) < LIMIT, found


@cache
def hashes(size, *parts):
    """A hash of each number below size, spread over [0, size)."""
    return np.array([hash_key("weak", *parts, number) for number in range(size)], dtype=np.uint64) % np.uint64(size)


def network(rounds):
    """The same network with so many rounds, written plainly, for n whose square root is whole."""

    def order(index, n, seed, epoch):
        a = math.isqrt(n)
        left, right = (half.astype(np.uint64) for half in np.divmod(index, a))
        for r in range(rounds):
            if r % 2 == 0:
                left = (left + hashes(a, seed, epoch, r)[right]) % np.uint64(a)
            else:
                right = (right + hashes(a, seed, epoch, r)[left]) % np.uint64(a)
        return (left * np.uint64(a) + right).astype(np.int64)

    return order


def affine(index, n, seed, epoch):
    factor = next(f for f in range(hash_key("weak", seed, epoch) % n, 2 * n) if math.gcd(f, n) == 1)
    return (index * factor + hash_key("weak", epoch, seed) % n) % n


def rotated_each_epoch(index, n, seed, epoch):
    return (permute(index, n, epoch_key(seed, 0)) + epoch * n // 7) % n


def parity_kept(index, n, seed, epoch):
    """A shuffle in which neighbours always differ in the lowest bit, as an order by too few bits can do."""
    return permute(index // 2, n // 2, epoch_key(seed, epoch)) * 2 + index % 2


def sorted_in_runs(index, n, seed, epoch):
    """A shuffle of runs of 64, as a shuffle of shards is."""
    return permute(index // 64, n // 64, epoch_key(seed, epoch)) * 64 + index % 64


@pytest.mark.parametrize("n", [1600, 65_536])
@pytest.mark.parametrize(
    ("order", "statistic"),
    [
        (network(2), "differences, lag b"),
        (network(2), "pairs, lag 1"),
        (network(3), "differences, lag b"),
        (network(4), "differences, lag b"),
        (affine, "differences, lag 1"),
        (rotated_each_epoch, "difference to the next epoch"),
        (parity_kept, "bits"),
        (sorted_in_runs, "pairs, lag 1"),
    ],
    ids=["two rounds", "two rounds, neighbours", "three rounds", "four rounds", "affine", "rotated", "parity", "runs"],
)
def test_a_weak_order_fails(order, statistic, n):
    found = battery(order, n)
    assert found[statistic] > 5, found


def test_an_order_that_is_too_even_fails():
    n = 10**6 + 3

    def golden(index, n, seed, epoch):
        return (index * 618_034 + hash_key("weak", seed, epoch) % n) % n

    found = battery(golden, n)
    assert found["buckets"] < -LIMIT, found["buckets"]


# --- tiny n, where every order can be counted ---


def chi_square_z(counts):
    expected = counts.sum() / counts.size
    return excess(np.sum((counts - expected) ** 2 / expected), counts.size - 1, counts.size - 1)


@pytest.mark.parametrize("n", [2, 3, 4, 5, 6])
def test_every_order_of_a_few_is_equally_likely(n):
    trials = 100 * math.factorial(n)
    keys = np.repeat(np.array([epoch_key(11, epoch) for epoch in range(trials)], dtype=np.uint64), n)
    orders = permute(np.tile(np.arange(n), trials), n, keys).reshape(trials, n)
    _, counts = np.unique(orders, axis=0, return_counts=True)
    assert counts.size == math.factorial(n)
    assert abs(chi_square_z(counts)) < LIMIT


@pytest.mark.parametrize("n", [31, 64, 100, SMALL, SMALL + 1, 1056])
def test_where_two_neighbours_go_is_uniform_over_keys(n):
    keys = np.array([epoch_key(3, epoch) for epoch in range(20_000)], dtype=np.uint64)
    for place in (0, n // 2):
        first, second = permute(place, n, keys), permute(place + 1, n, keys)
        for image in (first, second):
            assert abs(chi_square_z(np.bincount(image, minlength=n))) < LIMIT
        assert abs(chi_square_z(np.bincount((second - first) % n, minlength=n)[1:])) < LIMIT


@pytest.mark.parametrize("n", [5, 1000, 2000])
def test_a_place_meets_itself_as_often_as_in_a_true_shuffle(n):
    """Fixed points of one order, and places on which two orders agree: 1 on average, variance 1, whatever n."""
    keys = np.array([epoch_key(17, epoch) for epoch in range(401)], dtype=np.uint64)
    orders = permute(np.arange(n), n, keys[:, np.newaxis])
    fixed = (orders == np.arange(n)).sum(axis=1)
    agreeing = (orders[1:] == orders[:-1]).sum(axis=1)
    for met in (fixed[:400], agreeing):
        assert abs(met.sum() - 400) / math.sqrt(400) < LIMIT


# --- random starts ---


@pytest.mark.parametrize("n", [1, 2, 7, 1000, 1024])
def test_random_starts_reach_every_start_equally(n):
    _, starts = Order(kind="random", n=n, seed=3).windows(0, 200 * n + 1000)
    counts = np.bincount(starts, minlength=n)
    assert counts.size == n
    assert counts.min() > 0
    if n > 1:
        assert abs(chi_square_z(counts)) < LIMIT


@pytest.mark.parametrize("n", [10**6, 2**40, 2**62])
def test_random_starts_are_independent(n):
    _, starts = Order(kind="random", n=n, seed=3).windows(10**9, 200_000)
    _, other = Order(kind="random", n=n, seed=4).windows(10**9, 200_000)
    cell = cell_of(starts, n, 32)
    for second in (np.roll(cell, 1), cell_of(other, n, 32)):
        joint = np.bincount((cell * 32 + second)[::2], minlength=1024)
        assert abs(chi_square_z(joint)) < LIMIT


def test_random_starts_leave_37_percent_unseen_after_an_epochs_worth():
    n = 100_000
    _, starts = Order(kind="random", n=n, seed=3).windows(0, n)
    unseen = n - np.unique(starts).size
    assert abs(unseen - n / math.e) / math.sqrt(n * (1 / math.e - 2 / math.e**2)) < LIMIT
