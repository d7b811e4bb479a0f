"""Plans of packs against the classical algorithms, document by document."""

import bisect
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ladle.errors import ConfigError
from ladle.rows import cuts
from ladle.rows.best_fit import best_fit
from ladle.rows.next_fit import next_fit
from ladle.rows.packs import POLICIES, Packing
from ladle.rows.plans import pack


def shards(lengths, cuts=1):
    """(what gives each shard's first token and ends, the ends of all documents)."""
    ends = np.cumsum(lengths)

    def each():
        for part in np.array_split(np.arange(len(lengths)), cuts):
            if part.size:
                base = int(ends[part[0]] - lengths[part[0]])
                yield base, (ends[part] - base).astype(np.uint64)

    return each, ends


def documents(ends):
    def holding(first, last):
        low = np.searchsorted(ends, first, side="right")
        high = min(np.searchsorted(ends, last - 1, side="right") + 1, len(ends))
        return np.concatenate([[0], ends])[low:high], ends[low:high]

    return holding


def plan(lengths, row_length, cuts=1, **options):
    lengths = np.asarray(lengths, dtype=np.int64)
    each, ends = shards(lengths, cuts)
    return pack(each, int(lengths.sum()), Packing(row_length=row_length, **options), documents(ends))


def cut(lengths, row_length, overlong="split"):
    """The lengths of the pieces, document after document."""
    found = []
    for length in lengths:
        if length <= row_length:
            found += [length] * (length > 0)
        elif overlong == "split":
            found += [row_length] * (length // row_length) + [length % row_length] * (length % row_length > 0)
    return found


def classical(pieces, row_length):
    """The room left in each row of best-fit-decreasing: the longest piece first, where the least room that is enough remains."""
    rooms = []
    for piece in sorted(pieces, reverse=True):
        place = bisect.bisect_left(rooms, piece)
        room = rooms.pop(place) if place < len(rooms) else row_length
        bisect.insort(rooms, room - piece)
    return rooms


def rooms(packs):
    """The room left in each row, ascending."""
    every = np.arange(packs.num_rows)
    pieces = packs.pieces(every, np.zeros_like(every))
    return sorted((packs.packing.row_length - np.bincount(pieces.row, pieces.length, packs.num_rows)).astype(int).tolist())


def greedy(pieces, row_length):
    """Rows that next-fit needs."""
    room = rows = 0
    for piece in pieces:
        if piece > room:
            rows, room = rows + 1, row_length
        room -= piece
    return rows


LENGTHS = st.lists(st.integers(0, 70), min_size=1, max_size=80).filter(any)


@settings(max_examples=200, deadline=None)
@given(lengths=LENGTHS, row_length=st.integers(2, 40), overlong=st.sampled_from(["split", "drop"]), cuts=st.integers(1, 3))
def test_as_many_rows_as_the_classical_algorithms_need(lengths, row_length, overlong, cuts):
    pieces = cut(lengths, row_length, overlong)
    if not pieces:
        with pytest.raises(ConfigError, match="longer than the row"):
            plan(lengths, row_length, overlong=overlong)
        return
    plans = {policy: plan(lengths, row_length, cuts, policy=policy, overlong=overlong) for policy in POLICIES}
    assert rooms(plans["best_fit"]) == classical(pieces, row_length)
    assert plans["sequential"].num_rows == greedy(pieces, row_length)
    assert rooms(plans["single"]) == sorted(row_length - piece for piece in pieces)


@pytest.mark.parametrize(
    "lengths",
    [
        pytest.param([1] * 1000, id="one token each"),
        pytest.param([16] * 50, id="exactly a row"),
        pytest.param([15, 16, 17] * 20, id="around a row"),
        pytest.param([9, 7] * 40, id="pairs that fit"),
        pytest.param([9] * 40, id="more than half a row"),
        pytest.param([6, 5, 5] * 30 + [11, 4, 1] * 7, id="triples"),
        pytest.param(list(range(1, 17)) * 9, id="every length"),
        pytest.param([1000], id="one long document"),
        pytest.param([1], id="a single token"),
        pytest.param([0, 0, 3, 0], id="empty documents between"),
    ],
)
def test_adversarial_lengths(lengths):
    assert rooms(plan(lengths, 16)) == classical(cut(lengths, 16), 16)


def test_log_normal_lengths_are_packed_as_the_classical_algorithm_packs_them():
    lengths = np.clip(np.random.default_rng(8).lognormal(6, 1.2, 20_000), 1, None).astype(np.int64).tolist()
    for row_length in (500, 2048):
        assert rooms(plan(lengths, row_length)) == classical(cut(lengths, row_length), row_length)


@settings(max_examples=150, deadline=None)
@given(
    lengths=LENGTHS,
    row_length=st.integers(2, 40),
    how=st.sampled_from([("best_fit", "fixed"), ("best_fit", "fresh"), ("sequential", "fixed"), ("single", "fixed")]),
    cuts=st.integers(1, 3),
    seed=st.integers(0, 2**64 - 1),
    data=st.data(),
)
def test_each_token_in_exactly_one_place_and_found_there(lengths, row_length, how, cuts, seed, data):
    policy, deal = how
    packs = plan(lengths, row_length, cuts, policy=policy, deal=deal, seed=seed)
    ends, total = np.cumsum(lengths), sum(lengths)
    begins = ends - lengths
    document = np.repeat(np.arange(len(lengths)), lengths)
    rows = np.array(data.draw(st.permutations(range(packs.num_rows))), dtype=np.int64)
    for epoch in (0, 3):
        pieces = packs.pieces(rows, np.full(rows.size, epoch))
        assert sorted(np.concatenate([np.arange(s, s + n) for s, n in zip(pieces.start, pieces.length, strict=True)])) == list(
            range(total)
        )
        assert (np.diff(pieces.row) >= 0).all()
        same = np.flatnonzero(np.diff(pieces.row) == 0)
        assert (pieces.column[same + 1] == (pieces.column + pieces.length)[same]).all()  # side by side
        assert ((pieces.column + pieces.length) <= row_length).all()
        assert (pieces.offset == pieces.start - begins[document[pieces.start]]).all()
        at_end = pieces.start + pieces.length == ends[document[pieces.start]]
        assert (pieces.labelled == pieces.length - at_end).all()
        assert (pieces.column + pieces.length == row_length)[~at_end].all()  # a cut happens at a row's end alone
        first = data.draw(st.integers(0, total - 1))
        last = data.draw(st.integers(first + 1, total))
        holds = (pieces.start < last) & (pieces.start + pieces.length > first)
        assert packs.holding(first, last, epoch).tolist() == np.unique(rows[pieces.row[holds]]).tolist()


@settings(max_examples=100, deadline=None)
@given(
    lengths=LENGTHS, row_length=st.integers(2, 40), policy=st.sampled_from(POLICIES), overlong=st.sampled_from(["split", "drop"])
)
def test_the_counts_add_up(lengths, row_length, policy, overlong):
    if not cut(lengths, row_length, overlong):
        return
    packs = plan(lengths, row_length, policy=policy, overlong=overlong)
    counts, pieces = packs.counts, packs.pieces(np.arange(packs.num_rows), np.zeros(packs.num_rows, dtype=np.int64))
    long = [length for length in lengths if length > row_length]
    assert counts.tokens == sum(lengths) == counts.labelled + counts.boundary + counts.dropped_tokens
    assert counts.slots == packs.num_rows * row_length == counts.labelled + counts.boundary + counts.padded
    assert counts.labelled == pieces.labelled.sum()
    assert counts.pieces == pieces.size
    assert (counts.documents, counts.empty) == (len(lengths), lengths.count(0))
    assert (counts.split, counts.dropped) == ((len(long), 0) if overlong == "split" else (0, len(long)))
    assert counts.dropped_tokens == (sum(long) if overlong == "drop" else 0)
    assert counts.fill == pytest.approx(pieces.length.sum() / counts.slots)


def test_a_fresh_deal_puts_other_documents_together_each_epoch():
    lengths = np.random.default_rng(1).integers(1, 12, 400)
    fixed, fresh = plan(lengths, 32), plan(lengths, 32, deal="fresh", seed=5)
    rows = np.arange(fixed.num_rows)

    def starts(packs, epoch):
        return packs.pieces(rows, np.full(rows.size, epoch)).start.tolist()

    assert starts(fixed, 0) == starts(fixed, 1)
    assert starts(fresh, 0) != starts(fresh, 1)
    assert starts(fresh, 0) == starts(plan(lengths, 32, deal="fresh", seed=5), 0)
    assert starts(fresh, 0) != starts(plan(lengths, 32, deal="fresh", seed=6), 0)
    # One document in twelve of a length keeps its place by chance alone.
    assert np.mean(np.array(starts(fresh, 0)) == np.array(starts(fresh, 1))) < 0.2


def test_epochs_of_one_call_are_dealt_apart():
    lengths = np.random.default_rng(1).integers(1, 12, 400)
    packs = plan(lengths, 32, deal="fresh")
    rows = np.arange(packs.num_rows)
    both = packs.pieces(np.concatenate([rows, rows]), np.repeat([4, 9], rows.size))
    for half, epoch in enumerate((4, 9)):
        alone = packs.pieces(rows, np.full(rows.size, epoch))
        assert both.part(half * rows.size, (half + 1) * rows.size).start.tolist() == alone.start.tolist()


def test_golden_plan():
    """Written by hand. Lengths 5 3 3 2 1 in rows of 8: 5 + 3, then 3 + 2 + 1."""
    packs = plan([3, 1, 5, 2, 3], 8)
    pieces = packs.pieces(np.array([0, 1]), np.array([0, 0]))
    assert packs.num_rows == 2
    rows = [sorted(pieces.start[pieces.row == row].tolist()) for row in (0, 1)]
    assert sorted(map(tuple, rows)) == [(0, 4), (3, 9, 11)]
    assert pieces.part(0, 1).column.tolist() == [0, 5]


def test_the_issue_s_documents_of_5_2_3_1_in_rows_of_4():
    packs = plan([5, 2, 3, 1], 4)
    assert packs.counts.split == 1
    assert packs.counts.dropped_tokens == 0
    assert packs.counts.labelled + packs.counts.boundary == 11
    dropped = plan([5, 2, 3, 1], 4, overlong="drop")
    assert (dropped.counts.dropped, dropped.counts.dropped_tokens) == (1, 5)
    assert dropped.counts.labelled + dropped.counts.boundary == 6


@pytest.mark.parametrize(
    ("lengths", "options", "message"),
    [
        ([3], {"row_length": 1}, "block_size: expected 2 to 16777216 with pack='best_fit'"),
        ([3], {"row_length": 8, "policy": "worst_fit"}, "pack: expected one of best_fit, sequential, single, found 'worst_fit'"),
        ([3], {"row_length": 8, "overlong": "cut"}, "overlong: expected one of split, drop, error, found 'cut'"),
        ([3], {"row_length": 8, "policy": "single", "deal": "fresh"}, "deal: expected 'fixed' with pack='single', found 'fresh'"),
        ([3, 9, 2], {"row_length": 8, "overlong": "error"}, r"document 1: expected at most 8 tokens .* found 9 \(from token 3\)"),
        ([0, 0], {"row_length": 8}, "expected a document to put into a row, found empty documents alone"),
        ([9, 10], {"row_length": 8, "overlong": "drop"}, "found 2 longer than the row of 8, which overlong='drop' leaves out"),
    ],
)
def test_what_cannot_be_packed_is_named(lengths, options, message):
    with pytest.raises(ConfigError, match=message):
        plan(lengths, **options)


def test_work_follows_the_lengths_and_not_the_documents():
    lengths = np.arange(1, 1025)
    patterns = best_fit(lengths, np.full(lengths.size, 10**12), 1024)
    assert patterns.rows.size < 5 * lengths.size
    held = np.zeros(1025, dtype=object)
    for i, rows in enumerate(patterns.rows.tolist()):
        for entry in range(int(patterns.first[i]), int(patterns.first[i + 1])):
            held[int(patterns.length[entry])] += rows * int(patterns.times[entry])
    assert held[1:].tolist() == [10**12] * 1024


def test_one_slot_more_in_a_row_changes_the_rows_by_little():
    lengths = np.clip(np.random.default_rng(3).lognormal(6, 1.2, 200_000), 1, None).astype(np.int64)
    for row_length in (2048, 8192):
        rows = [plan(lengths, length).num_rows for length in (row_length, row_length + 1)]
        assert abs(rows[0] - rows[1]) < 0.02 * rows[0]


def test_little_is_padded():
    lengths = np.clip(np.random.default_rng(3).lognormal(6, 1.2, 1_000_000), 1, None).astype(np.int64)
    counts = plan(lengths, 2048).counts
    assert counts.padded < 1e-4 * counts.slots


@settings(max_examples=100, deadline=None)
@given(lengths=st.lists(st.integers(1, 9), min_size=1, max_size=60), row_length=st.integers(9, 20), at_once=st.integers(1, 12))
def test_next_fit_in_chunks_is_next_fit(lengths, row_length, at_once):
    first = next_fit(np.array(lengths, dtype=np.uint32), row_length, at_once).tolist()
    assert first[0] == 0
    assert first[-1] == len(lengths)
    assert len(first) - 1 == greedy(lengths, row_length)
    for low, high in pairwise(first):
        assert sum(lengths[low:high]) <= row_length
        assert high == len(lengths) or sum(lengths[low : high + 1]) > row_length


@settings(max_examples=150, deadline=None)
@given(lengths=st.lists(st.integers(1, 60), min_size=1, max_size=30), row_length=st.integers(2, 20), at_once=st.integers(1, 9))
def test_pieces_cut_some_at_a_time_are_the_pieces(lengths, row_length, at_once):
    ends = np.cumsum(lengths)
    found = list(cuts.cut(ends - lengths, np.array(lengths), row_length, at_once))
    expected = [
        (int(end - length + low), min(row_length, length - low), 2 * number + (length - low > row_length))
        for end, length in zip(ends, lengths, strict=True)
        for number, low in enumerate(range(0, length, row_length))
    ]
    assert all(0 < pieces[0].size <= at_once for pieces in found)
    assert [tuple(piece) for pieces in found for piece in np.transpose(pieces).tolist()] == expected


@settings(max_examples=60, deadline=None)
@given(lengths=LENGTHS, row_length=st.integers(2, 40), policy=st.sampled_from(POLICIES), at_once=st.integers(1, 9))
def test_no_plan_depends_on_how_many_documents_are_looked_at_together(lengths, row_length, policy, at_once):
    whole = plan(lengths, row_length, policy=policy)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(cuts, "AT_ONCE", at_once)
        parts = plan(lengths, row_length, policy=policy)
    every = np.arange(whole.num_rows)
    assert parts.counts == whole.counts
    assert parts.pieces(every, every * 0).start.tolist() == whole.pieces(every, every * 0).start.tolist()


def test_thousands_of_documents_of_one_token():
    packs = plan([1] * 5000, 64)
    assert (packs.num_rows, packs.counts.labelled, packs.counts.boundary, packs.counts.padded) == (79, 0, 5000, 56)


@pytest.mark.parametrize(("length", "rows", "labelled"), [(63, [63], [62]), (64, [64], [63]), (65, [64, 1], [64, 0])])
@pytest.mark.parametrize("policy", POLICIES)
def test_a_document_about_as_long_as_a_row(length, rows, labelled, policy):
    packs = plan([length], 64, policy=policy)
    pieces = packs.pieces(np.arange(packs.num_rows), np.zeros(packs.num_rows, dtype=np.int64))
    assert sorted(zip(pieces.length.tolist(), pieces.labelled.tolist(), strict=True), reverse=True) == list(
        zip(rows, labelled, strict=True)
    )


def test_next_fit_of_a_long_document_fills_rows_and_goes_on_after_its_remainder():
    """Written by hand: 3 leave 5 free; 20 are 8, 8 and 4, each 8 a row; the 4 share a row with the 3 that follow."""
    packs = plan([3, 20, 3, 2], 8, policy="sequential")
    pieces = packs.pieces(np.arange(packs.num_rows), np.zeros(packs.num_rows, dtype=np.int64))
    assert pieces.row.tolist() == [0, 1, 2, 3, 3, 4]
    assert pieces.length.tolist() == [3, 8, 8, 4, 3, 2]
    assert pieces.column.tolist() == [0, 0, 0, 0, 4, 0]
    assert pieces.offset.tolist() == [0, 0, 8, 16, 0, 0]
    assert pieces.labelled.tolist() == [2, 8, 8, 3, 2, 1]


@pytest.mark.parametrize(
    ("ends", "num_tokens", "message"),
    [
        ([5, 3], 3, "document 1: expected an end from token 5 on, where it begins, found 3"),
        ([4, 2**63 + 1], 4, "document 1: expected an end from token 4 on, where it begins, found 9223372036854775809"),
        (
            [4, 2**63 - 1],
            2**63 - 1,
            r"document 1: expected less than 2147483648 rows of 8 tokens, found 9223372036854775803 tokens",
        ),
        ([4, 9], 8, "expected documents of 8 tokens in all, found 9"),
        ([], 0, "expected a document to put into a row, found no document"),
    ],
)
def test_ends_that_cannot_be_are_named(ends, num_tokens, message):
    with pytest.raises(ConfigError, match=message):
        pack(lambda: [(0, np.array(ends, dtype=np.uint64))], num_tokens, Packing(row_length=8), documents(ends))


def test_where_a_token_of_an_endless_document_lies_is_arithmetic():
    """2**30 tokens in rows of 2**10: the row of one token is found without cutting the whole document."""
    begun = []

    def within(first, last):
        begun.append((first, last))
        return np.array([0]), np.array([2**30])

    packs = pack(lambda: [(0, np.array([2**30], dtype=np.uint64))], 2**30, Packing(row_length=2**10, policy="single"), within)
    assert packs.num_rows == 2**20
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(np, "repeat", lambda array, times: few(array, times))
        assert packs.holding(5 * 2**20 + 1, 5 * 2**20 + 2, 0).tolist() == [5 * 2**10]
        assert packs.holding(2**11 - 1, 2**11 + 1, 0).tolist() == [1, 2]
        assert packs.holding(2**30 - 1, 2**30, 0).tolist() == [2**20 - 1]
    assert len(begun) == 3


def few(array, times, repeat=np.repeat):
    """np.repeat, of what fits on a line."""
    found = repeat(array, times)
    assert found.size < 10
    return found
