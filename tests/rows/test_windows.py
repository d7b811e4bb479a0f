"""Windows against a brute-force reading of the definition, target by target, over thousands of cases."""

import re
from collections import Counter
from itertools import product

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ladle.errors import ConfigError
from ladle.rows.windows import TAILS, Windows

SMALL_CASES = [(M, W) for M in range(1, 41) for W in range(1, 13)]


def brute(cut, epoch):
    """docs/order.md, "Windows", with sets: [(start, the targets that count)] of every window of an epoch."""
    M, W, S = cut.num_tokens - 1, cut.window, cut.stride or cut.window
    if S < W:
        starts = [0]
        while starts[-1] + W < M:  # until a window ends at the last target
            starts.append(min(starts[-1] + S, M - W))
        if cut.tail == "drop":  # a moved window repeats what it should not have to
            starts = [start for start in starts if start % S == 0]
        seen, found = set(), []
        for start in starts:
            targets = set(range(start, start + W))
            found.append((start, targets - seen if cut.score == "new" else targets))
            seen |= targets
        return found
    if cut.tail == "drop":
        room = M - W + 1 if cut.epoch_offset else M
        return [(first, set(range(first, first + W))) for first in (cut.offset(epoch) + k * W for k in range(room // W))]
    first = cut.offset(epoch) - W
    count = 1 + -(-(M - 1) // W) if cut.epoch_offset else -(-M // W)
    found = []
    for k in range(count):
        nominal = {t for t in range(first + k * W, first + (k + 1) * W) if 0 <= t < M}
        start = first + k * W if cut.tail == "pad" else min(max(first + k * W, 0), M - W)
        found.append((start, nominal))
    return found


def spans(cut, epoch):
    """Every window of an epoch, as brute has them."""
    start, low, high = cut.spans(np.full(cut.count, epoch), np.arange(cut.count))
    assert start.dtype == low.dtype == high.dtype == np.int64
    assert ((low >= 0) & (low <= high) & (high <= cut.window)).all()
    assert (start >= 0).all()
    assert cut.tail == "pad" or (start + cut.window <= cut.targets).all()  # fixed shape, inside the split
    rows = zip(start.tolist(), low.tolist(), high.tolist(), strict=True)
    return [(s, set(range(s + a, s + b))) for s, a, b in rows]


def possible(M, W, tail, epoch_offset):
    if M < W:
        return tail == "pad" and not epoch_offset
    return not (epoch_offset and (tail == "pad" or (tail == "drop" and M < 2 * W - 1)))


def epochs_of(W, tail):
    """An epoch for every offset there is."""
    cut = Windows(num_tokens=2 * W + 1, window=W, tail=tail, epoch_offset=True, seed=1)
    found = {}
    for epoch in range(400):
        found.setdefault(cut.offset(epoch), epoch)
    assert len(found) == W
    return list(found.values())


KINDS = [("cover", False), ("drop", False), ("pad", False), ("cover", True), ("drop", True)]


@pytest.mark.parametrize(("tail", "epoch_offset"), KINDS)
def test_every_case(tail, epoch_offset):
    cases = 0
    epochs = {W: epochs_of(W, tail) if epoch_offset else [0] for W in range(1, 13)}
    for M, W in SMALL_CASES:
        if not possible(M, W, tail, epoch_offset):
            continue
        cut = Windows(num_tokens=M + 1, window=W, tail=tail, epoch_offset=epoch_offset, seed=1)
        for epoch in epochs[W]:
            cases += 1
            found = spans(cut, epoch)
            expected = brute(cut, epoch)
            assert [s for s, _ in found] == [s for s, _ in expected], (cut, epoch)
            assert [t for _, t in found] == [t for _, t in expected], (cut, epoch)
            counts = Counter(t for _, targets in found for t in targets)
            assert max(counts.values(), default=0) <= 1  # no target twice
            if tail == "drop":
                assert sum(counts.values()) == cut.count * W  # nothing masked
                assert M - len(counts) < (2 * W if epoch_offset else W)  # and less than that left out
            else:
                assert len(counts) == M  # every token but the first is a target exactly once
                assert cut.count * W - M < 2 * W
            assert sum(not targets for _, targets in found) <= (1 if epoch_offset else 0)  # at most one wholly masked
            assert len(found) == cut.count  # the same in every epoch
    assert cases > (1000 if epoch_offset else 300)


@pytest.mark.parametrize("score", ["all", "new"])
@pytest.mark.parametrize("tail", ["cover", "drop"])
def test_every_overlapping_case(tail, score):
    for (M, W), S in product(SMALL_CASES, range(1, 13)):
        if M < W or S >= W:
            continue
        cut = Windows(num_tokens=M + 1, window=W, stride=S, tail=tail, score=score)
        found = spans(cut, 0)
        assert found == brute(cut, 0), cut
        counts = Counter(t for _, targets in found for t in targets)
        covered = M if tail == "cover" else (cut.count - 1) * S + W
        assert set(counts) == set(range(covered))
        if tail == "cover":
            assert cut.count == 1 + -(-(M - W) // S)
        if score == "new":
            assert set(counts.values()) == {1}
        else:
            assert max(counts.values()) <= -(-W // S) + 1
            assert sum(counts.values()) == cut.count * W


@pytest.mark.parametrize(
    ("tail", "epoch_offset", "stride"),
    [(*kind, None) for kind in KINDS] + [(tail, False, S) for tail in ("cover", "drop") for S in (1, 2, 3)],
)
def test_holding_is_a_scan(tail, epoch_offset, stride):
    for M, W in product([1, 2, 3, 7, 12, 17, 18, 19, 25], range(1, 8)):
        if (stride or 1) > W or not possible(M, W, tail, epoch_offset):
            continue
        cut = Windows(num_tokens=M + 1, window=W, stride=stride, tail=tail, epoch_offset=epoch_offset, seed=1)
        for epoch in epochs_of(W, tail) if epoch_offset else [0]:
            start, _, _ = cut.spans(np.full(cut.count, epoch), np.arange(cut.count))
            for first, last in product(range(-1, M + 2), range(-1, M + 3)):
                reads = [
                    k for k, s in enumerate(start.tolist()) if set(range(s, s + W)) & set(range(max(first, 0), min(last, M)))
                ]
                assert cut.holding(epoch, first, last).tolist() == reads, (cut, epoch, first, last)


@settings(deadline=None)
@given(
    M=st.integers(1, 2**45),
    W=st.integers(1, 2**20),
    tail=st.sampled_from(TAILS),
    epoch_offset=st.booleans(),
    epoch=st.integers(0, 2**50),
    data=st.data(),
)
def test_huge_splits(M, W, tail, epoch_offset, epoch, data):
    if not possible(M, W, tail, epoch_offset):
        return
    cut = Windows(num_tokens=M + 1, window=W, tail=tail, epoch_offset=epoch_offset, seed=1)
    k = np.unique([0, data.draw(st.integers(0, cut.count - 1)), max(cut.count - 2, 0), cut.count - 1])
    start, low, high = cut.spans(np.full(k.size, epoch), k)
    assert ((start >= 0) & (low >= 0) & (low <= high) & (high <= W)).all()
    first_owned, end_owned = start + low, start + high
    if tail != "drop":
        assert first_owned[0] == 0
        assert end_owned[-1] == M
    if k.size > 1 and k[-2] == k[-1] - 1:
        assert end_owned[-2] == first_owned[-1]  # neighbours meet: no gap, no overlap
    target = data.draw(st.integers(0, M - 1))
    held = cut.holding(epoch, target, target + 1)
    start, low, high = cut.spans(np.full(held.size, epoch), held)
    owners = np.count_nonzero((start + low <= target) & (target < start + high))
    assert owners == 1 if tail != "drop" else owners <= 1
    assert held.size <= 3


def test_offsets_come_from_seed_and_epoch():
    def offsets(seed, tail="cover"):
        cut = Windows(num_tokens=1000, window=8, tail=tail, epoch_offset=True, seed=seed)
        return [cut.offset(epoch) for epoch in range(200)]

    assert offsets(1) == offsets(1) != offsets(2)
    assert set(offsets(1)) == set(range(1, 9))
    assert set(offsets(1, "drop")) == set(range(8))
    still = Windows(num_tokens=1000, window=8, seed=1)
    assert {still.offset(epoch) for epoch in range(10)} == {8}


def test_spans_take_many_epochs_at_once():
    cut = Windows(num_tokens=100, window=8, epoch_offset=True, seed=3)
    epochs = np.array([5, 2, 2, 900, 5])
    windows = np.array([0, 3, 12, 7, 1])
    together = cut.spans(epochs, windows)
    for i in range(5):
        alone = cut.spans(epochs[i : i + 1], windows[i : i + 1])
        assert [int(array[i]) for array in together] == [int(array[0]) for array in alone]


def test_a_drawn_example():
    """10 tokens, windows of 4: targets 0-3, 4-7, and the last one moved back to end at target 8."""
    start, low, high = Windows(num_tokens=10, window=4).spans(np.zeros(3, np.int64), np.arange(3))
    assert start.tolist() == [0, 4, 5]
    assert low.tolist() == [0, 0, 3]
    assert high.tolist() == [4, 4, 4]


# --- bad arguments ---


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"window": 0}, "window: expected >= 1, found 0"),
        ({"window": 4.0}, "window: expected an integer, found 4.0"),
        ({"window": True}, "window: expected an integer, found True"),
        ({"stride": 1.5}, "stride: expected an integer, found 1.5"),
        ({"seed": "7"}, "seed: expected an integer, found '7'"),
        ({"tail": "keep"}, "tail: expected one of cover, drop, pad, found 'keep'"),
        ({"score": "old"}, "score: expected 'all' or 'new', found 'old'"),
        ({"epoch_offset": 128}, "epoch_offset: expected True or False, found 128"),
        ({"num_tokens": 0}, "books/val: expected at least 2 tokens (an input and its target), found 0"),
        ({"num_tokens": 1, "tail": "pad"}, "books/val: expected at least 2 tokens (an input and its target), found 1"),
        (
            {"num_tokens": 18, "window": 512},
            (
                "books/val: expected at least 513 tokens for windows of 512 (each needs one token more), found 18; "
                "use a smaller block_size, or tail='pad'"
            ),
        ),
        (
            {"num_tokens": np.uint64(10), "window": 20},
            (
                "books/val: expected at least 21 tokens for windows of 20 (each needs one token more), found 10; "
                "use a smaller block_size, or tail='pad'"
            ),
        ),
        ({"stride": 0}, "stride: expected 1 to the window's 8, found 0"),
        ({"stride": 11}, "stride: expected 1 to the window's 8, found 11; 3 targets between windows would never be seen"),
        ({"stride": 4, "tail": "pad"}, "stride=4 below the window needs tail 'cover' or 'drop' and no epoch_offset"),
        ({"stride": 4, "epoch_offset": True}, "stride=4 below the window needs tail 'cover' or 'drop' and no epoch_offset"),
        ({"epoch_offset": True, "tail": "pad"}, "epoch_offset: expected tail 'cover' or 'drop', found 'pad'"),
        (
            {"num_tokens": 15, "epoch_offset": True, "tail": "drop"},
            "books/val: expected at least 16 tokens for one window of 8 at every epoch_offset with tail='drop', found 15",
        ),
    ],
)
def test_bad_arguments(arguments, message):
    with pytest.raises(ConfigError, match=f"^{re.escape(message)}$"):
        Windows(**{"num_tokens": 100, "window": 8, "where": "books/val", **arguments})


@pytest.mark.parametrize("num_tokens", [9, 16])
def test_the_least_that_is_enough(num_tokens):
    assert Windows(num_tokens=num_tokens, window=8, tail="drop").count == 1
    assert Windows(num_tokens=16, window=8, tail="drop", epoch_offset=True).count == 1
    assert Windows(num_tokens=2, window=8, tail="pad").count == 1


def test_numpy_integers_do_not_wrap():
    cut = Windows(num_tokens=np.uint16(65_535), window=np.uint8(200), stride=np.uint8(7))
    assert cut == Windows(num_tokens=65_535, window=200, stride=7)
    assert cut.count == 1 + -(-(65_534 - 200) // 7)
