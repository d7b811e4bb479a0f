"""The permutation is a bijection with an inverse at every n, however n and keys are given. (Its values: test_golden.py.)"""

import re

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ladle.errors import ConfigError
from ladle.order.permutation import BLOCK, LARGEST, SMALL, epoch_key, hash_key, permute

POWERS = sorted({2**k + d for k in range(1, 21) for d in (-1, 0, 1)} | {65_537, 262_145})
keys = st.integers(0, 2**64 - 1)


def assert_bijection(n, key):
    everyone = np.arange(n)
    image = permute(everyone, n, key)
    assert image.dtype == np.int64
    assert (np.bincount(image, minlength=n) == 1).all(), n  # none below 0, none at or above n, each once
    assert image.size == n
    np.testing.assert_array_equal(permute(image, n, key, inverse=True), everyone)


def test_bijection_at_every_n_to_4096():
    for n in range(1, 4097):
        assert_bijection(n, epoch_key(n % 3, n))


@pytest.mark.parametrize("n", POWERS)
def test_bijection_around_powers_of_two(n):
    assert_bijection(n, epoch_key(1337, 0))


@pytest.mark.slow
@pytest.mark.parametrize("n", [2**24 - 1, 2**24, 2**24 + 1, 10**7 + 19])
def test_bijection_of_millions(n):
    assert_bijection(n, epoch_key(1337, 1))


def test_every_size_at_once_is_a_bijection_too():
    sizes = np.arange(1, 1500)
    n = np.repeat(sizes, sizes)
    index = np.concatenate([np.arange(size) for size in sizes])
    key = np.repeat(np.array([hash_key("order", 5, int(size)) for size in sizes], dtype=np.uint64), sizes)
    image = permute(index, n, key)
    np.testing.assert_array_equal(np.sort(image + n * 4096), index + n * 4096)
    np.testing.assert_array_equal(permute(image, n, key, inverse=True), index)


@settings(deadline=None)
@given(
    data=st.data(),
    key=keys,
    n=st.one_of(st.integers(1, 2**48), st.integers(1, 2**62), st.sampled_from([SMALL, SMALL + 1, LARGEST])),
)
def test_inverse_at_any_n(data, key, n):
    index = np.array(data.draw(st.lists(st.integers(0, n - 1), min_size=1, max_size=20)))
    image = permute(index, n, key)
    assert ((image >= 0) & (image < n)).all()
    np.testing.assert_array_equal(permute(image, n, key, inverse=True), index)
    np.testing.assert_array_equal(permute(permute(index, n, key, inverse=True), n, key), index)


@settings(max_examples=60, deadline=None)
@given(
    elements=st.lists(
        st.tuples(
            st.one_of(st.integers(1, 8), st.integers(1, 2000), st.integers(1020, 1030), st.integers(1, 2**62)),
            st.one_of(st.integers(0, 3), keys),
            st.integers(0, 2**62),
        ),
        min_size=1,
        max_size=60,
    ),
    inverse=st.booleans(),
)
def test_a_size_and_a_key_for_each_index(elements, inverse):
    n, key, index = (
        np.array(column, dtype=dtype)
        for column, dtype in zip(zip(*elements, strict=True), (np.int64, np.uint64, np.int64), strict=True)
    )
    index %= n
    expected = [int(permute(int(i), int(size), int(word), inverse=inverse)) for i, size, word in zip(index, n, key, strict=True)]
    assert permute(index, n, key, inverse=inverse).tolist() == expected


def test_more_small_orders_than_are_sorted_at_once():
    rng = np.random.default_rng(0)
    n = rng.integers(1, SMALL + 1, 5000)
    key = rng.integers(0, 2**64, 700, dtype=np.uint64)[rng.integers(0, 700, 5000)]
    index = (rng.random(5000) * n).astype(np.int64)
    for inverse in (False, True):
        expected = [
            int(permute(int(i), int(size), int(word), inverse=inverse))
            for i, size, word in zip(index[:400], n, key, strict=False)
        ]
        found = permute(index, n, key, inverse=inverse)
        assert found[:400].tolist() == expected
        np.testing.assert_array_equal(permute(found, n, key, inverse=not inverse), index)


@pytest.mark.parametrize("n", [1000, 1025, 65_537, 2**40 + 1])
def test_blocks_do_not_show(n):
    index = np.random.default_rng(1).integers(0, n, 2 * BLOCK + 5)
    whole = permute(index, n, 99)
    np.testing.assert_array_equal(
        whole[BLOCK - 3 : BLOCK + 3], [int(permute(int(i), n, 99)) for i in index[BLOCK - 3 : BLOCK + 3]]
    )
    np.testing.assert_array_equal(whole, np.concatenate([permute(part, n, 99) for part in np.array_split(index, 7)]))
    np.testing.assert_array_equal(whole, permute(index, np.full(index.size, n), np.full(index.size, 99, dtype=np.uint64)))


@pytest.mark.parametrize("n", [7, 3000])
def test_shapes(n):
    grid = np.arange(6).reshape(2, 3)
    assert permute(grid, n, 1).shape == (2, 3)
    assert permute(grid.T, n, 1).tolist() == permute(grid, n, 1).T.tolist()  # not contiguous
    assert permute(2, n, 1).shape == ()
    assert permute([], n, 1).shape == (0,)
    assert permute(np.empty(0, np.int64), np.empty(0, np.int64), np.empty(0, np.uint64)).shape == (0,)
    assert permute(np.zeros((2, 1), np.int64), np.full(3, n), 1).shape == (2, 3)
    assert permute(3, n, np.arange(4, dtype=np.uint64)).shape == (4,)
    frozen = np.arange(5)
    frozen.flags.writeable = False
    image = permute(frozen, n, 1)
    image[:] = 0  # the caller's own memory
    assert frozen.tolist() == [0, 1, 2, 3, 4]
    assert permute(np.arange(5, dtype=np.uint16), n, 1).tolist() == permute(frozen, n, 1).tolist()


@pytest.mark.parametrize(
    ("index", "n", "message"),
    [
        (10, 10, "index: expected 0 <= index < 10, found 10 at place 0"),
        (-1, 10, "index: expected 0 <= index < 10, found -1 at place 0"),
        ([0, 1, 3000, 5000], 2000, "index: expected 0 <= index < 2000, found 3000 at place 2"),
        ([5, 5, 5], np.array([6, 5, 6]), "index: expected 0 <= index < 5, found 5 at place 1"),
        (0, 0, "n: expected 1 to 2**62, found 0 to 0"),
        (0, 2**62 + 1, "n: expected 1 to 2**62, found 4611686018427387905 to 4611686018427387905"),
        ([0, 0], np.array([4, -4]), "n: expected 1 to 2**62, found -4 to 4"),
        (1.5, 10, "index: expected integers, found float64"),
        (1, np.array([10.0]), "n: expected integers, found float64"),
        (True, 10, "index: expected integers, found bool"),
    ],
)
def test_bad_numbers(index, n, message):
    with pytest.raises(ConfigError, match=f"^{re.escape(message)}$"):
        permute(index, n, 1)


def test_a_mixed_dtype_never_becomes_a_float():
    """int64 beside uint64 is float64 in NumPy: above 2**53 neighbours would share an image."""
    n = 2**62
    index = np.arange(n - 2000, n)
    image = permute(index, n, np.uint64(2**64 - 1))
    assert np.unique(image).size == 2000
    np.testing.assert_array_equal(permute(image.astype(np.uint64), n, 2**64 - 1, inverse=True), index)


def test_keys_of_neighbouring_seeds_and_epochs_never_meet():
    """seed + epoch would: (42, 1) and (43, 0)."""
    grid = {epoch_key(seed, epoch) for seed in range(-100, 100) for epoch in range(100)}
    assert len(grid) == 200 * 100
    assert hash_key("order", 1, 23) != hash_key("order", 12, 3)
    assert hash_key("order", 1, 2) != hash_key("inside", 1, 2)


def test_memory_does_not_grow_with_n():
    import tracemalloc

    permute(np.arange(4096), 2**48, 1)
    tracemalloc.start()
    try:
        for n in (2**20, 2**40, 2**62):
            tracemalloc.reset_peak()
            permute(np.arange(4096), n, 1)
            assert tracemalloc.get_traced_memory()[1] < 2**20, n
    finally:
        tracemalloc.stop()
