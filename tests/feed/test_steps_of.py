"""When a document is seen, against a scan of every batch."""

import time
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import ladle
from ladle.errors import ConfigError
from ladle.feed.appearances import Appearance

IGNORED = -100


def split_of(lengths, first=0):
    ends = np.cumsum(lengths)
    return ladle.from_ids(np.arange(first, first + ends[-1], dtype=np.uint32), document_ends=ends)


def feed_of(source, **options):
    return ladle.Feed(source, **{"framework": "numpy", "prefetch": 0, "seed": 3} | options)


def scan(feed, first, last, base, batches):
    """The rows of the first batches that hold ids [first, last): every id is its own token number plus base."""
    found = []
    B, T = feed.shape.batch_size, feed.shape.block_size
    for step in range(batches):
        x, y = feed[step]
        starts = feed[step].starts
        for row in range(B):
            tokens = np.arange(starts[row], starts[row] + T + 1) + base
            real = np.concatenate([x[row] == tokens[:-1], [True]])  # what lies past a padded split is 0
            inside = np.flatnonzero((tokens >= first) & (tokens < last) & real)
            if inside.size:
                counted = np.count_nonzero((y[row] >= first) & (y[row] < last))
                columns = (int(inside[0]), int(inside[-1]) + 1)
                found.append((step, row, (step * B + row) * T, columns, counted))
    return found


def told(appearances):
    return [(one.step, one.row, one.position, one.columns, one.targets) for one in appearances]


def bounds(lengths):
    return list(pairwise([0, *np.cumsum(lengths).tolist()]))


LENGTHS = st.lists(st.integers(1, 12), min_size=1, max_size=12)


@settings(max_examples=150, deadline=None)
@given(
    lengths=LENGTHS,
    block=st.integers(1, 5),
    per_window=st.integers(1, 3),
    tail=st.sampled_from(["cover", "drop", "pad"]),
    offset=st.booleans(),
    shuffle_block=st.sampled_from([None, 1, 3]),
    order=st.sampled_from(["shuffled", "sequential"]),
    batch=st.integers(1, 4),
    data=st.data(),
)
def test_steps_of_equals_a_scan(lengths, block, per_window, tail, offset, shuffle_block, order, batch, data):
    window = block * per_window
    number = data.draw(st.integers(0, len(lengths) - 1))
    try:
        feed = feed_of(
            split_of([5, *lengths]),
            batch_size=batch,
            block_size=block,
            window=window,
            tail=tail,
            epoch_offset=offset and tail != "pad",
            shuffle_block=shuffle_block if order == "shuffled" else None,
            order=order,
        )
    except ConfigError:  # too short for this window
        return
    first, last = bounds([5, *lengths])[number]
    per_epoch = feed.slots_per_epoch
    batches = -(-2 * per_epoch // feed.shape.slots)
    found = feed.steps_of(number, range(2))
    assert told(found) == [row for row in scan(feed, first, last, 0, batches) if row[2] < 2 * per_epoch]
    assert [one.epoch for one in found] == [one.position // per_epoch for one in found]
    if tail != "drop":
        assert sum(one.targets for one in found) == 2 * (last - first - (first == 0))


@settings(max_examples=60, deadline=None)
@given(
    lengths=LENGTHS,
    window=st.integers(2, 6),
    stride=st.integers(1, 5),
    score=st.sampled_from(["all", "new"]),
    tail=st.sampled_from(["cover", "drop"]),
    data=st.data(),
)
def test_overlapping_windows(lengths, window, stride, score, tail, data):
    lengths = [7, *lengths]
    number = data.draw(st.integers(0, len(lengths) - 1))
    feed = feed_of(split_of(lengths), batch_size=2, block_size=window, stride=min(stride, window), score=score, tail=tail)
    first, last = bounds(lengths)[number]
    scanned = scan(feed, first, last, 0, -(-feed.slots_per_epoch // feed.shape.slots))
    assert told(feed.steps_of(number)) == [row for row in scanned if row[2] < feed.slots_per_epoch]


@settings(max_examples=80, deadline=None)
@given(
    web=LENGTHS,
    code=LENGTHS,
    weight=st.integers(1, 5),
    until=st.integers(1, 150),
    block=st.integers(1, 3),
    per_window=st.integers(1, 2),
    tail=st.sampled_from(["cover", "drop"]),
    offset=st.booleans(),
    leaves=st.booleans(),
    data=st.data(),
)
def test_mixtures_with_stages(web, code, weight, until, block, per_window, tail, offset, leaves, data):
    window = block * per_window
    lengths = {"web": [2 * window + 1, *web], "code": [2 * window + 1, *code]}
    splits = {"code": split_of(lengths["code"]), "web": split_of(lengths["web"], first=1000)}
    later = {"code": 1} if leaves else {"web": 1, "code": 7}
    mixture = ladle.Mixture(splits, stages=[(until, {"web": weight, "code": 1}), (None, later)])
    name = data.draw(st.sampled_from(["web", "code"]))
    number = data.draw(st.integers(0, len(lengths[name]) - 1))
    feed = feed_of(mixture, batch_size=3, block_size=block, window=window, tail=tail, epoch_offset=offset)
    found = feed.steps_of((name, number), range(3))
    batches = 60
    base = 1000 if name == "web" else 0
    first, last = bounds(lengths[name])[number]
    joined = base - (splits["code"].num_tokens if name == "web" else 0)
    scanned = scan(feed, base + first, base + last, joined, batches)
    # Those of the source's first three epochs: of what was scanned, the first; and all that lie within the scan.
    within = [row for row in told(found) if row[0] < batches]
    assert within == scanned[: len(within)]
    own = feed.stream.stages.counts(batches * feed.shape.slots // window)[mixture.names.index(name)]
    assert len(within) == len(scanned) or own >= 3 * feed.stream.windows[mixture.names.index(name)].count


def test_a_finite_feed_ends_in_the_middle():
    feed = feed_of(split_of([4, 9, 8]), batch_size=3, block_size=4, total_tokens=14, order="sequential")
    assert len(feed) == 2
    assert told(feed.steps_of(1, range(2))) == scan(feed, 4, 13, 0, 2)
    assert told(feed.steps_of(2, range(2))) == scan(feed, 13, 21, 0, 2)
    assert [one.targets for one in feed.steps_of(2, range(2))] == [2, 0]  # slots 12 and 13 of the 14


def test_where_and_steps_of_agree():
    feed = feed_of(split_of([3, 11, 6, 30]), batch_size=2, block_size=4, window=8)
    for document in range(4):
        for one in feed.steps_of(document, range(3)):
            assert one.columns in [span.columns for span in feed.where(one.step, one.row) if span.origin.document == document]


def test_documents_of_many_shards(tmp_path):
    (tmp_path / "in").mkdir()
    for number in range(12):
        (tmp_path / "in" / f"{number:02}.txt").write_text(f"file {number:02} " * (1 + number % 5))
    options = {"tokenizer": "bytes", "val_fraction": 0, "shard_bytes": 60, "progress": False}
    with ladle.prepare(tmp_path / "in", tmp_path / "out", **options) as corpus:
        split = corpus["train"]
        assert len(split.shards) > 3
        first, last = split.document_tokens([3, 0, 11])
        ends = split.document_ends().astype(int).tolist()
        assert list(zip(first.tolist(), last.tolist(), strict=True)) == [(ends[2], ends[3]), (0, ends[0]), (ends[10], ends[11])]
        feed = feed_of(split, batch_size=2, block_size=8)
        for document in range(12):
            found = feed.steps_of(document)
            length = ends[document] - (ends[document - 1] if document else 0)
            assert sum(one.targets for one in found) == length - (document == 0)
            for one in found:
                spans = feed.where(one.step, one.row)
                assert {span.columns for span in spans if span.origin.source == f"{document:02}.txt"} == {one.columns}
        feed.exclude([5], 0)
        assert sum(batch.num_targets for batch in feed.epoch()) == split.num_tokens - 1 - (ends[5] - ends[4])
        with pytest.raises(ConfigError, match=r"train: document: expected a number from 0 to 11, found 12$"):
            split.document_tokens([12])


def test_an_appearance_is_plain():
    feed = feed_of(split_of([4, 6]), batch_size=1, block_size=9, order="sequential")
    assert feed.steps_of(1) == [Appearance(epoch=0, step=0, row=0, position=0, columns=(4, 10), targets=6)]
    assert feed.steps_of(0, [5]) == [Appearance(epoch=5, step=5, row=0, position=45, columns=(0, 4), targets=3)]
    assert feed.steps_of(0, []) == []


def test_no_scan_at_a_billion_windows():
    tokens = 1024 * 10**9 + 1
    # An array of one element repeated: no memory, and nothing reads it.
    ids = np.broadcast_to(np.zeros(1, dtype=np.uint16), tokens)
    from ladle.corpus.documents import MemoryDocuments
    from ladle.corpus.shard import ArrayShard
    from ladle.corpus.split import Split

    ends = np.array([500, tokens // 2, tokens // 2 + 700, tokens], dtype=np.uint64)
    split = Split(
        name="train",
        where="memory",
        shards=[ArrayShard(ids)],
        dtype=np.dtype(np.uint16),
        num_documents=4,
        fingerprint=lambda: "zeros",
        documents=MemoryDocuments(ends),
    )
    feed = feed_of(split, batch_size=64, block_size=1024)
    assert feed.batches_per_epoch == 10**9 // 64
    seconds = []
    for epoch in range(20):
        start = time.perf_counter()
        found = feed.steps_of(2, range(epoch, epoch + 1))
        seconds.append(time.perf_counter() - start)
        assert sum(one.targets for one in found) == 700
        for one in found:
            spans = [span for span in feed.where(one.step, one.row) if span.origin.document == 2]
            assert [span.columns for span in spans] == [one.columns]
    assert min(seconds) < 0.005


@pytest.mark.parametrize(
    ("document", "epochs", "message"),
    [
        (4, range(1), r"^memory: document: expected a number from 0 to 3, found 4$"),
        (-1, range(1), r"^document: expected at least 0, found -1$"),
        ("a", range(1), r"^document: expected an integer, found 'a'$"),
        (0, 3, r"^epochs: expected a range of epochs, found 3; range\(1\) is the first$"),
        (0, [-1], r"^epochs: expected at least 0, found -1$"),
        (0, [2**60], r"^epochs: expected less than \d+, found 1152921504606846976$"),
    ],
)
def test_what_cannot_be_asked(document, epochs, message):
    feed = feed_of(split_of([3, 11, 6, 30]), batch_size=2, block_size=4)
    with pytest.raises(ConfigError, match=message):
        feed.steps_of(document, epochs)


def test_random_windows_have_no_inverse():
    feed = feed_of(split_of([30]), batch_size=2, block_size=4, order="random")
    with pytest.raises(ConfigError, match=r"^steps_of: expected order 'shuffled' or 'sequential', found 'random': independent"):
        feed.steps_of(0)


def test_documents_that_are_not_known():
    feed = feed_of(ladle.from_ids(np.arange(30, dtype=np.uint16)), batch_size=2, block_size=4)
    with pytest.raises(ConfigError, match=r"^memory: the documents' ends are not known here; prepare the text"):
        feed.steps_of(0)


@pytest.mark.parametrize(
    ("document", "message"),
    [
        (3, r"^document: expected \(source, number\) in a mixture, found 3$"),
        (("books", 0), r"^document: expected a source among code, web, found 'books'$"),
        (("web", 9), r"^memory: document: expected a number from 0 to 0, found 9$"),
        (("web", True), r"^document: web: expected an integer, found True$"),
    ],
)
def test_documents_of_a_mixture(document, message):
    mixture = ladle.Mixture({"web": split_of([30]), "code": split_of([30])})
    with pytest.raises(ConfigError, match=message):
        feed_of(mixture, batch_size=2, block_size=4).steps_of(document)
