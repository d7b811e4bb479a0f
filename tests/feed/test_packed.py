"""Packed feeds: documents kept whole in rows, labels that stay within them, and everything a feed of windows can do.

The ids are consecutive integers from 1, so that a token's id is its address and 0 is padding. What is expected is computed from the
ids that a row holds and the documents' lengths alone.
"""

import itertools
from collections import Counter

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import ladle
from ladle.corpus.documents import MemoryDocuments
from ladle.corpus.shard import ArrayShard
from ladle.corpus.split import Split
from ladle.errors import ConfigError, FormatError

IGNORED = -100
POLICIES = ["best_fit", "sequential", "single"]


def corpus(lengths):
    """A split in memory whose documents have these lengths, 0 among them, which from_ids would refuse."""
    ids = np.arange(1, sum(lengths) + 1, dtype=np.uint32)
    return Split(
        name="train",
        where="memory",
        shards=[ArrayShard(ids)],
        dtype=ids.dtype,
        fingerprint=lambda: f"documents of {lengths}",
        num_documents=len(lengths),
        documents=MemoryDocuments(np.cumsum(lengths).astype(np.uint64)),
    )


def feed_of(lengths, block_size=8, batch_size=2, pack="best_fit", **options):
    options = {"framework": "numpy", "prefetch": 0, "seed": 3} | options
    source = corpus(lengths) if isinstance(lengths, list) else lengths
    return ladle.Feed(source, batch_size=batch_size, block_size=block_size, pack=pack, **options)


def expected(x, lengths):
    """(y, positions, segments) of rows of ids that are addresses, by looking at one token after the other."""
    ends = np.cumsum(lengths).tolist()
    documents = [number for number, length in enumerate(lengths) for _ in range(length)]
    y, positions, segments = np.full(x.shape, IGNORED), np.zeros(x.shape, dtype=np.int64), np.full(x.shape, -1)
    for row in range(x.shape[0]):
        segment, before = -1, None
        for column, id_ in enumerate(x[row].tolist()):
            if id_ == 0:
                before = None
                continue
            token = id_ - 1
            document = documents[token]
            segment += before is None or documents[before] != document or before + 1 != token
            positions[row, column], segments[row, column] = token - (ends[document] - lengths[document]), segment
            if token + 1 < ends[document]:
                y[row, column] = id_ + 1
            before = token
    return y, positions, segments


def check(batch, lengths):
    """x, y and all boundaries of a whole batch, in which every target counts that can."""
    x = np.asarray(batch.x)
    y, positions, segments = expected(x, lengths)
    np.testing.assert_array_equal(batch.y, y)
    np.testing.assert_array_equal(batch.positions, positions)
    np.testing.assert_array_equal(batch.segments, segments)
    parts = [int((row == s).sum()) for row in segments for s in range(row.max() + 1)]
    assert np.diff(batch.cu_seqlens).tolist() == parts
    assert batch.cu_seqlens[0] == 0
    assert batch.max_seqlen == max(parts, default=0)
    assert batch.num_local_targets == int((y != IGNORED).sum())


lengths_of = st.lists(st.integers(0, 20), min_size=1, max_size=40).filter(any)


# --- an epoch: each token once, in rows that are right ---


@settings(deadline=None, max_examples=150)
@given(lengths=lengths_of, T=st.integers(2, 12), policy=st.sampled_from(POLICIES), deal=st.sampled_from(["fixed", "fresh"]))
def test_each_token_is_in_exactly_one_row_an_epoch_and_labels_stay_in_their_document(lengths, T, policy, deal):
    if policy != "best_fit":
        deal = "fixed"
    feed = feed_of(lengths, T, 3, policy, deal=deal)
    for _ in range(3):
        seen, targets = Counter(), 0
        for batch in feed.epoch():
            rows = min((feed.slots_per_epoch - batch.position % feed.slots_per_epoch) // T, 3)
            x, y = batch.x[:rows], batch.y[:rows]  # what lies past the epoch's border is masked
            assert (batch.y[rows:] == IGNORED).all()
            np.testing.assert_array_equal(y, expected(x, lengths)[0])
            assert batch.num_targets == batch.num_local_targets == int((y != IGNORED).sum())
            seen.update(x[x > 0].tolist())
            targets += batch.num_targets
        assert seen == dict.fromkeys(range(1, sum(lengths) + 1), 1)
        assert targets == sum(length - 1 for length in lengths if length)


@settings(deadline=None, max_examples=100)
@given(lengths=lengths_of, T=st.integers(2, 12), policy=st.sampled_from(POLICIES), step=st.integers(0, 50))
def test_boundaries_are_those_of_the_stored_lengths(lengths, T, policy, step):
    check(feed_of(lengths, T, 3, policy)[step], lengths)


def test_a_document_as_long_as_a_row_one_less_and_one_more():
    for T, rows in ((6, 1), (7, 1), (5, 2)):
        feed = feed_of([6], T, 1, order="sequential")
        assert feed.batches_per_epoch == rows
        for batch in itertools.islice(feed, 2):
            check(batch, [6])
    assert [batch.y.tolist() for batch in itertools.islice(feed, 2)] == [[[2, 3, 4, 5, 6]], [[IGNORED] * 5]]


@pytest.mark.parametrize("policy", POLICIES)
def test_rows_of_one_token_documents_have_no_target(policy):
    feed = feed_of([1] * 50, 4, 2, policy)
    batch = feed[0]
    assert batch.num_targets == batch.num_local_targets == 0
    assert (batch.y == IGNORED).all()
    check(batch, [1] * 50)


def test_documents_come_together_anew_each_epoch_where_that_is_asked_for():
    def rows(deal):
        feed = feed_of([3, 5] * 40, 8, 1, deal=deal)
        return [{tuple(batch.x[0].tolist()) for batch in feed.epoch()} for _ in range(2)]

    fixed, fresh = rows("fixed"), rows("fresh")
    assert fixed[0] == fixed[1]
    assert len(fresh[0] & fresh[1]) < len(fresh[0]) // 2


def test_sequential_packs_keep_the_documents_order():
    feed = feed_of([3, 2, 5, 1, 7], 6, 1, "sequential", order="sequential")
    assert [batch.x[0].tolist() for batch in feed.epoch()] == [
        [1, 2, 3, 4, 5, 0],
        [6, 7, 8, 9, 10, 11],
        [12, 13, 14, 15, 16, 17],
        [18, 0, 0, 0, 0, 0],
    ]


def test_single_packs_hold_one_document_a_row():
    feed = feed_of([3, 2], 4, 2, "single", order="sequential")
    assert feed[0].x.tolist() == [[1, 2, 3, 0], [4, 5, 0, 0]]
    assert feed[0].y.tolist() == [[2, 3, IGNORED, IGNORED], [5, IGNORED, IGNORED, IGNORED]]


# --- what others got wrong ---


def test_what_becomes_of_documents_that_are_longer_than_a_row_is_said():
    """Documents of 5, 2, 3 and 1 tokens in rows of 4."""
    lengths = [5, 2, 3, 1]
    for overlong, tokens in (("split", set(range(1, 12))), ("drop", set(range(6, 12)))):
        feed = feed_of(lengths, 4, 1, overlong=overlong)
        ids = [int(id_) for batch in feed.epoch() for id_ in batch.x.ravel() if id_]
        assert sorted(ids) == sorted(tokens)
    with pytest.raises(ConfigError, match=r"document 0: expected at most 4 tokens with overlong='error', found 5"):
        feed_of(lengths, 4, 1, overlong="error")


def test_empty_documents_alone_are_refused():
    with pytest.raises(ConfigError, match="expected a document to put into a row, found empty documents alone"):
        feed_of([0, 0])


def test_a_remainder_shorter_than_a_row_is_kept():
    feed = feed_of([9], 4, 1, order="sequential")
    assert [batch.x[0].tolist() for batch in feed.epoch()] == [[1, 2, 3, 4], [5, 6, 7, 8], [9, 0, 0, 0]]


def test_eleven_rows_on_four_ranks_are_equal_steps():
    """No rank has fewer batches than another, and what fills the last one up is masked."""
    lengths = [8] * 11
    targets = []
    for rank in range(4):
        feed = feed_of(lengths, 8, 4, rank=rank, world_size=4, epochs=1)
        batches = list(feed)
        assert len(batches) == len(feed) == 3
        targets.append([batch.num_local_targets for batch in batches])
        assert [batch.num_targets for batch in batches] == [28, 28, 21]
    assert [sum(step) for step in zip(*targets, strict=True)] == [28, 28, 21]
    assert sorted(step[2] for step in targets) == [0, 7, 7, 7]


def test_lengths_are_strictly_increasing_with_and_without_an_end_of_text():
    """The separator 0 is the last of its document, twice, and then missing."""
    ids = np.array([5, 6, 0, 7, 0, 8, 9])
    for ends in ([3, 5, 7], [2, 5, 7]):
        batch = feed_of(ladle.from_ids(ids, document_ends=ends), 7, 1, "sequential", order="sequential")[0]
        assert batch.cu_seqlens.tolist() == [0, *ends]
        assert batch.cu_seqlens.dtype == np.int32


def test_a_begin_that_is_also_the_end_makes_no_document():
    """0 a b 0 and 0 c 0: two documents, though the id stands twice in a row."""
    source = ladle.from_ids(np.array([0, 10, 11, 0, 0, 12, 0]), document_ends=[4, 7])
    batch = feed_of(source, 7, 1)[0]
    assert batch.cu_seqlens.tolist() == [0, 4, 7]
    assert batch.segments.tolist() == [[0, 0, 0, 0, 1, 1, 1]]
    assert batch.y.tolist() == [[10, 11, 0, IGNORED, 12, 0, IGNORED]]


def test_documents_without_tokens_are_no_segments():
    """Lengths 0, 1, 0, 1."""
    feed = feed_of([0, 1, 0, 1], 4, 1)
    assert feed[0].cu_seqlens.tolist() == [0, 1, 2]
    windows = ladle.Feed(
        corpus([0, 3, 0, 0, 2, 0]), batch_size=1, block_size=4, mask_documents=True, framework="numpy", prefetch=0
    )
    assert windows[0].cu_seqlens.tolist() == [0, 3, 4]
    assert windows[0].segments.tolist() == [[0, 0, 0, 1]]


def test_rows_begin_where_documents_begin():
    lengths = np.random.default_rng(0).integers(1, 30, 200).tolist()
    begins = {end - length + 1 for length, end in zip(lengths, np.cumsum(lengths).tolist(), strict=True)}
    for batch in feed_of(lengths, 30, 4).epoch():
        assert set(batch.x[:, 0].tolist()) <= begins


# --- resuming, ranks, looking ---


@settings(deadline=None, max_examples=60)
@given(
    lengths=lengths_of,
    T=st.integers(2, 9),
    policy=st.sampled_from(POLICIES),
    position=st.integers(0, 2000),
    ranks=st.sampled_from([1, 2, 3, 8]),
)
def test_any_position_on_any_number_of_ranks(lengths, T, policy, position, ranks):
    """Row after row from position 0 on: what comes is the same, but for the targets before an unaligned position."""
    B = 8
    whole = feed_of(lengths, T, B, policy)
    state = {**whole.state_dict(), "position": position}
    first = position // T
    rows = [feed_of(lengths, T, 1, policy)[row] for row in range(first, first + 2 * B)]
    x, y = np.concatenate([row.x for row in rows]), np.concatenate([row.y for row in rows])
    y[0, : position % T] = IGNORED
    digests = []
    for rank in range(ranks):
        feed = feed_of(lengths, T, B, policy, rank=rank, world_size=ranks)
        feed.load_state_dict(state)
        for step in range(2):
            batch = next(feed)
            mine = slice(step * B + rank * B // ranks, step * B + (rank + 1) * B // ranks)
            np.testing.assert_array_equal(batch.x, x[mine])
            np.testing.assert_array_equal(batch.y, y[mine])
            assert batch.num_local_targets == int((y[mine] != IGNORED).sum())
            assert batch.num_targets == int((y[step * B : (step + 1) * B] != IGNORED).sum())
            digests.append((step, batch.digest))
    for step in range(2):
        whole.load_state_dict({**state, "position": position if step == 0 else (first + B) * T})
        assert sum(digest for which, digest in digests if which == step) % 2**64 == next(whole).digest


@pytest.mark.parametrize("prefetch", [0, 2])
def test_a_feed_continues_where_it_stopped(prefetch):
    lengths = [5, 9, 2, 14, 1, 1, 7] * 9
    with feed_of(lengths, prefetch=prefetch) as feed, feed_of(lengths, prefetch=prefetch) as again:
        there = [next(feed).digest for _ in range(30)]
        for _ in range(11):
            state = next(again).state
        with feed_of(lengths, prefetch=prefetch) as resumed:
            resumed.load_state_dict(state)
            assert [next(resumed).digest for _ in range(19)] == there[11:]
        assert [feed[i].digest for i in range(30)] == there


def test_total_tokens_ends_a_packed_feed_in_the_middle_of_a_row():
    lengths = [5, 3, 8, 8, 2, 6] * 3
    feed = feed_of(lengths, 8, 2, total_tokens=21)
    batches = list(feed)
    assert len(batches) == len(feed) == 2
    endless = feed_of(lengths, 8, 2)[1]
    y = endless.y.copy()
    y[0, 5:] = y[1] = IGNORED
    np.testing.assert_array_equal(batches[1].y, y)
    np.testing.assert_array_equal(batches[1].x, endless.x)
    assert batches[1].num_targets == int((y != IGNORED).sum())
    np.testing.assert_array_equal(batches[1].segments, endless.segments)


@settings(deadline=None, max_examples=60)
@given(
    lengths=lengths_of,
    T=st.integers(2, 9),
    policy=st.sampled_from(POLICIES),
    deal=st.sampled_from(["fixed", "fresh"]),
    order=st.sampled_from(["shuffled", "sequential"]),
)
def test_where_and_steps_of_against_every_row(lengths, T, policy, deal, order):
    options = {"deal": deal if policy == "best_fit" else "fixed", "order": order}
    feed = feed_of(lengths, T, 2, policy, **options)
    ends = np.cumsum(lengths).tolist()
    rows = 2 * feed.slots_per_epoch // T
    held: dict[int, list] = {number: [] for number in range(len(lengths))}
    for row in range(rows):
        step, place = divmod(row, 2)
        x, y = feed[step].x[place], feed[step].y[place]
        spans = feed.where(step, place)
        found = []
        for span in spans:
            first, last = span.tokens
            document = span.origin.document
            inputs = min(span.columns[1], T) - span.columns[0]
            assert x[span.columns[0] : span.columns[0] + inputs].tolist() == list(range(first + 1, first + 1 + inputs))
            assert last - first == span.columns[1] - span.columns[0]
            assert ends[document] - lengths[document] <= first
            assert last <= ends[document]
            found += range(first + 1, first + 1 + inputs)
            targets = int((y[span.columns[0] : span.columns[1]] != IGNORED).sum())
            held[document].append((row // (rows // 2), step, place, span.columns, targets))
        assert found == x[x > 0].tolist()
    for document in range(len(lengths)):
        said = feed.steps_of(document, range(2))
        assert [(a.epoch, a.step, a.row, a.columns, a.targets) for a in said] == held[document]
        assert all(a.position == (a.step * 2 + a.row) * T for a in said)


def test_excluded_documents_are_not_targets_and_nothing_moves():
    lengths = [5, 9, 2, 14, 1, 1, 7] * 4
    plain, feed = feed_of(lengths), feed_of(lengths)
    ends = np.cumsum(lengths)
    feed.exclude([1, 3, 4, 10], from_position=20)
    excluded = {t for d in (1, 3, 4, 10) for t in range(ends[d] - lengths[d] + 1, ends[d] + 1)}
    for step in range(8):
        before, after = plain[step], feed[step]
        np.testing.assert_array_equal(before.x, after.x)
        y = before.y.copy()
        slot = before.position + np.arange(16).reshape(2, 8)
        y[(slot >= 20) & np.isin(y, list(excluded))] = IGNORED
        np.testing.assert_array_equal(after.y, y)
        assert after.num_targets == int((y != IGNORED).sum())
        for rank in range(2):
            mine = feed_of(lengths, rank=rank, world_size=2)
            mine.exclude([1, 3, 4, 10], from_position=20)
            np.testing.assert_array_equal(mine[step].y, y[rank : rank + 1])
            assert mine[step].num_local_targets == int((y[rank] != IGNORED).sum())
            assert mine[step].num_targets == after.num_targets


# --- several sources ---


def mixture_of(lengths, weights=None, **options):
    """Sources a, b, ... whose ids begin at 1, 10 001, ..."""
    sources = {
        "abc"[i]: ladle.from_ids(
            np.arange(10_000 * i + 1, 10_000 * i + 1 + sum(one), dtype=np.uint32), document_ends=np.cumsum(one)
        )
        for i, one in enumerate(lengths)
    }
    return ladle.Mixture(sources, weights, **options)


@settings(deadline=None, max_examples=40)
@given(
    lengths=st.lists(st.lists(st.integers(1, 20), min_size=1, max_size=12), min_size=2, max_size=3),
    policy=st.sampled_from(POLICIES),
    until=st.integers(1, 300),
    position=st.integers(0, 600),
    ranks=st.sampled_from([1, 2, 3]),
)
def test_a_mixture_in_stages_at_any_position(lengths, policy, until, position, ranks):
    """Each row is its own source's next one; states and ranks are as of one source."""
    T, B, names = 7, 4, "abc"[: len(lengths)]
    stages = [(until, dict.fromkeys(names, 1)), (None, {name: i + 1 for i, name in enumerate(names)})]
    mixture = mixture_of(lengths, stages=stages)
    single, whole = feed_of(mixture, T, 1, policy), feed_of(mixture, T, B, policy)
    given = [0] * len(lengths)
    for row in range(position // T + B):
        batch = single[row]
        (source,) = set(((batch.x[batch.x > 0] - 1) // 10_000).tolist())
        check_row = batch.x - 10_000 * source * (batch.x > 0)
        y, positions, segments = expected(check_row, lengths[source])
        np.testing.assert_array_equal(batch.y, np.where(y == IGNORED, y, y + 10_000 * source))
        np.testing.assert_array_equal(batch.positions, positions)
        np.testing.assert_array_equal(batch.segments, segments)
        given[source] += 1
    assert [share.slots for share in single.shares((position // T + B) * T).values()] == [T * rows for rows in given]
    rows = [single[row] for row in range(position // T, position // T + B)]
    y = np.concatenate([row.y for row in rows])
    y[0, : position % T] = IGNORED
    parts = [feed_of(mixture, T, B, policy, rank=rank, world_size=ranks) for rank in range(ranks)]
    for part in parts:
        part.load_state_dict(whole.state_at(position))
    batches = [next(part) for part in parts]
    np.testing.assert_array_equal(np.concatenate([batch.x for batch in batches]), np.concatenate([row.x for row in rows]))
    np.testing.assert_array_equal(np.concatenate([batch.y for batch in batches]), y)
    assert {batch.num_targets for batch in batches} == {int((y != IGNORED).sum())}


# --- from files ---


@pytest.fixture
def folder(tmp_path):
    """A corpus of three shards and 120 documents."""
    (tmp_path / "in").mkdir()
    for number in range(120):
        (tmp_path / "in" / f"{number:03}.txt").write_text(f"{number} " * (1 + 13 * number % 90))
    ladle.prepare(tmp_path / "in", tmp_path / "out", tokenizer="bytes", val_fraction=0, shard_bytes=5_000).close()
    return tmp_path / "out"


@pytest.mark.parametrize("policy", POLICIES)
def test_rows_come_from_all_shards(folder, policy):
    with ladle.open(folder) as opened, feed_of(opened["train"], 100, 4, policy, prefetch=2) as feed:
        split, seen = opened["train"], np.zeros(opened["train"].num_tokens, dtype=int)
        assert len(split.shards) > 2
        for batch in feed.epoch():
            pieces = batch.boundaries.pieces
            for row, column, start, length in zip(pieces.row, pieces.column, pieces.start, pieces.length, strict=True):
                np.testing.assert_array_equal(batch.x[row, column : column + length], split.read(int(start), int(length)))
                if batch.position + (row + 1) * 100 <= feed.slots_per_epoch:
                    seen[start : start + length] += 1
        assert (seen == 1).all()


@pytest.mark.parametrize("prefetch", [0, 2])
def test_damaged_tokens_are_never_handed_out(folder, prefetch):
    damaged = sorted(folder.glob("train-*.bin"))[1]
    content = bytearray(damaged.read_bytes())
    content[5000] ^= 1
    damaged.write_bytes(content)
    refused = pytest.raises(FormatError, match=rf"{damaged.name} @ byte 4096: ")
    with ladle.open(folder) as opened, feed_of(opened["train"], 100, 4, prefetch=prefetch) as feed, refused:
        list(feed.epoch())


def test_the_plan_beside_the_corpus_changes_no_row(folder, tmp_path):
    with ladle.open(folder) as opened:
        split = opened["train"]
        wanted = [batch.digest for batch in feed_of(split, 100, 4).epoch()]
        assert list((folder / "packs").glob("train-100-best_fit-*.npz"))
        assert [batch.digest for batch in feed_of(split, 100, 4).epoch()] == wanted
        assert [batch.digest for batch in feed_of(split, 100, 4, pack_cache=tmp_path / "elsewhere").epoch()] == wanted
        assert list((tmp_path / "elsewhere").glob("train-100-best_fit-*.npz"))
