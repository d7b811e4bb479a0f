"""Order version 1 is fixed: a plain-integer reading of docs/order.md, the library beside it, and frozen literals.

Nothing in `Reference` calls the library. If a literal breaks, that is a new ORDER_VERSION, not a new literal.
"""

import math
from hashlib import blake2b
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ladle.order.permutation import ORDER_VERSION, counter_hash, epoch_key, hash_key, mix64, multiply_high, permute
from ladle.order.stream import Order
from ladle.rows.windows import Windows

WORD = 2**64


class Reference:
    """docs/order.md in Python's own integers, one number at a time, slow and obvious."""

    @staticmethod
    def key(purpose, *parts):
        text = f"{purpose}-v1:" + ":".join(str(part) for part in parts)
        return sum(byte << 8 * i for i, byte in enumerate(blake2b(text.encode("utf-8"), digest_size=8).digest()))

    @staticmethod
    def mix64(z):
        z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9 % WORD
        z = (z ^ (z >> 27)) * 0x94D049BB133111EB % WORD
        return z ^ (z >> 31)

    @classmethod
    def counter(cls, key, i):
        return cls.mix64((key + (i + 1) * 0x9E3779B97F4A7C15) % WORD)

    @classmethod
    def permute(cls, i, n, key):
        if n <= 1024:
            return sorted(range(n), key=lambda number: cls.counter(key, number))[i]
        a = math.isqrt(n)
        a += a * a < n
        b = -(-n // a)
        while True:
            L, R = divmod(i, b)
            for r in range(6):
                k = cls.mix64(key ^ cls.mix64(r + 1))
                if r % 2 == 0:
                    L = (L + ((cls.mix64(R ^ k) >> 32) * a >> 32)) % a
                else:
                    R = (R + ((cls.mix64(L ^ k) >> 32) * b >> 32)) % b
            i = L * b + R
            if i < n:
                return i

    @classmethod
    def window(cls, unit, *, kind, n, seed, shuffle_block=None):
        """(epoch, window) of a unit; for "random" (0, start)."""
        if kind == "random":
            return 0, cls.counter(cls.key("random", seed), unit) * n >> 64
        epoch, place = divmod(unit, n)
        if kind == "sequential":
            return epoch, place
        key = cls.key("order", seed, epoch)
        if shuffle_block is None:
            return epoch, cls.permute(place, n, key)
        blocks = -(-n // shuffle_block)
        for block in (cls.permute(i, blocks, key) for i in range(blocks)):
            members = range(block * shuffle_block, min((block + 1) * shuffle_block, n))
            if place < len(members):
                inner = cls.counter(cls.key("inside", seed, epoch), block)
                return epoch, members[cls.permute(place, len(members), inner)]
            place -= len(members)
        raise AssertionError("unreachable: the blocks hold n windows")


# --- the library against the reference ---

sizes = st.one_of(
    st.integers(1, 40), st.integers(1000, 1100), st.integers(1, 2**20), st.integers(1, 2**48), st.integers(1, 2**62)
)
words = st.one_of(st.integers(0, WORD - 1), st.sampled_from([0, 1, WORD - 1, 2**63]))


@settings(deadline=None)
@given(n=sizes, i=st.integers(0, 2**62), key=words)
def test_one_index(n, i, key):
    assert permute(i % n, n, key) == Reference.permute(i % n, n, key)


@pytest.mark.parametrize(
    "n", [2**52 + 1, 2**53 - 1, 2**53 + 1, 2**60 - 1, 2**60, 2**60 + 1, (2**31 - 1) ** 2, (2**31 - 1) ** 2 + 1, 2**62 - 1, 2**62]
)
def test_where_float64_rounds_and_where_a_half_passes_30_bits(n):
    places = [0, 1, 2, n // 3, n // 2, n - 2, n - 1]
    assert permute(places, n, 77).tolist() == [Reference.permute(i, n, 77) for i in places]


@settings(deadline=None)
@given(value=words)
def test_mix64(value):
    assert int(mix64(np.array([value], dtype=np.uint64))[0]) == Reference.mix64(value)


@settings(deadline=None)
@given(key=words, i=st.integers(0, 2**63 - 2))
def test_counter_hash(key, i):
    assert int(counter_hash(i, key)) == Reference.counter(key, i)


@settings(deadline=None)
@given(word=words, bound=st.integers(1, 2**62))
def test_multiply_high(word, bound):
    assert int(multiply_high(np.array([word], dtype=np.uint64), bound)[0]) == word * bound >> 64


@settings(deadline=None)
@given(seed=st.integers(-(2**70), 2**70), epoch=st.integers(0, 2**62))
def test_keys(seed, epoch):
    assert epoch_key(seed, epoch) == hash_key("order", seed, epoch) == Reference.key("order", seed, epoch)


@settings(deadline=None)
@given(
    unit=st.integers(0, 5000),
    n=st.one_of(st.integers(1, 60), st.integers(1000, 1100)),
    seed=st.integers(-5, 2**64),
    how=st.sampled_from(
        [("random", None), ("sequential", None), ("shuffled", None), *(("shuffled", size) for size in (1, 2, 7, 16, 2000))]
    ),
)
def test_one_unit(unit, n, seed, how):
    kind, shuffle_block = how
    order = Order(kind=kind, n=n, seed=seed, shuffle_block=shuffle_block)
    epochs, windows = order.windows(unit, 1)
    assert (epochs[0], windows[0]) == Reference.window(unit, kind=kind, n=n, seed=seed, shuffle_block=shuffle_block)


# --- frozen: written by Reference once ---


def test_the_version_these_belong_to():
    assert ORDER_VERSION == 1


KEYS = {
    ("order", 0, 0): 17079167863563378026,
    ("order", 0, 1): 8448085635750170269,
    ("order", 1, 0): 7416312609917364904,
    ("order", 1337, 0): 12565001992784387592,
    ("order", -1, 0): 10131807731251247943,
    ("inside", 7, 0): 8926039309894197629,
    ("random", 7): 9769620153921127081,
    ("offset", 7, 0): 1741106014573219395,
}
MIXED = {
    (0, 0): 16294208416658607535,
    (0, 1): 7960286522194355700,
    (0, 2): 487617019471545679,
    (12565001992784387592, 0): 6743839176522649435,
    (18446744073709551615, 1099511627776): 7550352060150933567,
}
PERMUTED = {
    3: [0, 2, 1, 2, 1],
    10: [4, 5, 0, 6, 8],
    1000: [526, 614, 270, 594, 484],
    1024: [526, 614, 270, 38, 484],
    1025: [705, 746, 244, 1018, 878],
    4096: [572, 2765, 2392, 2115, 3203],
    65537: [20805, 31866, 60803, 64115, 29931],
    262145: [116640, 12416, 181055, 52922, 87058],
    1000003: [17891, 946284, 361377, 144935, 200722],
    1073741824: [368628927, 560548172, 990350127, 592920562, 462683447],
    1099511627776: [643928849292, 87223163524, 498769710444, 375471514859, 226806719171],
    281474976710597: [182852819135600, 3623735891933, 100052801529114, 89236339983772, 274407594519253],
    281474976710656: [182852819135600, 3623735891933, 100052801529114, 25517474220214, 60899222619627],
    4611686018427387904: [1749374016422646356, 2759449190008742212, 2632333931944081197, 251224040626197907, 2421468892369074781],
}
EPOCHS = {
    7: [8, 9, 3, 5, 4, 0, 1, 6, 7, 2, 6, 5, 4, 1, 3, 0, 2, 7, 8, 9, 1, 5, 9, 0, 4, 8, 2, 6, 7, 3],
    8: [4, 7, 2, 0, 3, 8, 1, 9, 6, 5, 5, 2, 3, 1, 0, 8, 4, 7, 9, 6, 4, 6, 9, 3, 7, 5, 2, 8, 0, 1],
}
BLOCKS = {
    (10, 4): [1, 3, 0, 2, 7, 4, 6, 5, 8, 9, 5, 7, 6, 4, 3, 2, 0, 1, 9, 8],
    (9, 3): [1, 0, 2, 3, 5, 4, 8, 6, 7, 4, 5, 3, 2, 0, 1, 8, 7, 6],
}
STARTS = {
    10: [2, 1, 4, 0, 7, 3],
    1000: [263, 109, 434, 29, 704, 361],
    1000000000000: [263843307552, 109564069272, 434462152466, 29034113297, 704572031302, 361667671672],
}
OFFSETS = {(8, "cover"): [4, 2, 8, 5], (8, "drop"): [3, 1, 7, 4], (1024, "cover"): [580, 410, 120, 37]}


def test_frozen_keys():
    for parts, value in KEYS.items():
        assert hash_key(*parts) == Reference.key(*parts) == value


def test_frozen_hashes():
    for (key, i), value in MIXED.items():
        assert int(counter_hash(i, key)) == Reference.counter(key, i) == value


@pytest.mark.parametrize("n", PERMUTED)
def test_frozen_permutations(n):
    key = Reference.key("order", 1337, 0)
    places = [0, 1, 2, n // 2, n - 1]
    assert permute(places, n, key).tolist() == [Reference.permute(i, n, key) for i in places] == PERMUTED[n]


def test_frozen_epochs():
    for seed, windows in EPOCHS.items():
        how = {"kind": "shuffled", "n": 10, "seed": seed}
        assert Order(**how).windows(0, 30)[1].tolist() == [Reference.window(j, **how)[1] for j in range(30)] == windows


def test_frozen_blocks():
    for (n, size), windows in BLOCKS.items():
        how = {"kind": "shuffled", "n": n, "seed": 7, "shuffle_block": size}
        assert Order(**how).windows(0, 2 * n)[1].tolist() == [Reference.window(j, **how)[1] for j in range(2 * n)] == windows


def test_frozen_random_starts():
    for n, starts in STARTS.items():
        how = {"kind": "random", "n": n, "seed": 7}
        assert Order(**how).windows(0, 6)[1].tolist() == [Reference.window(j, **how)[1] for j in range(6)] == starts


def test_frozen_epoch_offsets():
    for (window, tail), offsets in OFFSETS.items():
        windows = Windows(num_tokens=10_000, window=window, tail=tail, epoch_offset=True, seed=7)
        shifts = [Reference.key("offset", 7, epoch) % window + (tail == "cover") for epoch in range(4)]
        assert [windows.offset(epoch) for epoch in range(4)] == shifts == offsets


def test_the_page_says_the_same():
    page = (Path(__file__).parents[2] / "docs" / "order.md").read_text("utf-8")
    cells = [[cell.strip() for cell in line.strip("|").split("|")] for line in page.splitlines() if line.startswith("|")]
    table = {first: rest for first, *rest in cells}
    for (purpose, *parts), value in KEYS.items():
        assert table[f'key("{purpose}", {", ".join(map(str, parts))})'] == [str(value)]
    assert table["counter(0, 0), (0, 1), (0, 2)"] == [", ".join(str(MIXED[0, i]) for i in range(3))]
    for n, images in PERMUTED.items():
        name = {2**30: "2^30", 2**40: "2^40", 2**48 - 59: "2^48 - 59", 2**48: "2^48", 2**62: "2^62"}.get(n, str(n))
        assert table[name] == [str(image) for image in images]
    for name, expected in {
        "shuffled, n = 10, seed 7, three epochs": EPOCHS[7],
        "shuffle_block = 4, n = 10, seed 7, two epochs": BLOCKS[10, 4],
        "shuffle_block = 3, n = 9, seed 7, two epochs": BLOCKS[9, 3],
        "random, M - W + 1 = 1000, seed 7": STARTS[1000],
        "random, M - W + 1 = 10^12, seed 7": STARTS[10**12],
        'offsets o, "cover", W = 1024, seed 7, epochs 0 to 3': OFFSETS[1024, "cover"],
    }.items():
        assert table[name][0].replace(",", "").split() == [str(number) for number in expected]
