"""Windows whose documents are kept apart: the batches of plain windows, with the labels at documents' borders masked."""

import itertools
import pickle

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.utils.data import DataLoader

import ladle
from ladle.errors import ConfigError, StateError

IGNORED = -100


def split_of(lengths, first=0):
    """Documents of these lengths; a token's id is its address, from `first` on."""
    ids = np.arange(first, first + sum(lengths), dtype=np.uint32)
    return ladle.from_ids(ids, document_ends=np.cumsum(lengths))


def feed_of(source, **options):
    source = split_of(source) if isinstance(source, list) else source
    return ladle.Feed(source, **{"batch_size": 3, "block_size": 4, "framework": "numpy", "prefetch": 0, "seed": 5} | options)


def check(masked, plain, lengths, first=0):
    """masked: a batch whose documents are kept apart; plain: the same without. Every token of it is one of the documents'."""
    ends = np.cumsum(lengths)
    document = np.repeat(np.arange(len(lengths)), lengths)
    np.testing.assert_array_equal(masked.x, plain.x)
    crosses = np.isin(plain.y, first + ends[:-1])  # a document's first token is nobody's label
    np.testing.assert_array_equal(masked.y, np.where(crosses, IGNORED, plain.y))
    assert masked.num_local_targets == np.count_nonzero(masked.y != IGNORED)
    x = np.asarray(masked.x) - first
    np.testing.assert_array_equal(masked.positions, x - (ends - lengths)[document[x]])
    np.testing.assert_array_equal(masked.segments, document[x] - document[x[:, :1]])
    lengths_here = [len(list(run)) for row in document[x].tolist() for _, run in itertools.groupby(row)]
    assert masked.cu_seqlens.tolist() == [0, *itertools.accumulate(lengths_here)]
    assert masked.max_seqlen == max(lengths_here)
    assert masked.starts.tolist() == plain.starts.tolist()
    assert (masked.position, masked.next_position) == (plain.position, plain.next_position)


HOWS = [
    {},
    {"order": "sequential"},
    {"order": "random"},
    {"tail": "drop"},
    {"window": 12},
    {"epoch_offset": True, "window": 8},
    {"stride": 3},
    {"stride": 2, "score": "new"},
    {"shuffle_block": 2, "world_size": 2, "rank": 1},
]


@settings(deadline=None, max_examples=150)
@given(
    lengths=st.lists(st.integers(1, 20), min_size=1, max_size=30).filter(lambda lengths: sum(lengths) > 24),
    how=st.sampled_from(HOWS),
    position=st.integers(0, 500),
)
def test_only_labels_that_begin_a_document_are_masked(lengths, how, position):
    check(feed_of(lengths, mask_documents=True, **how).at(position), feed_of(lengths, **how).at(position), lengths)


def test_padding_of_the_last_window_is_in_no_document():
    batch = feed_of([3, 2, 2], batch_size=2, block_size=4, tail="pad", order="sequential", mask_documents=True)[0]
    assert batch.x.tolist() == [[0, 1, 2, 3], [4, 5, 6, 0]]
    assert batch.y.tolist() == [[1, 2, IGNORED, 4], [IGNORED, 6, IGNORED, IGNORED]]
    assert batch.segments.tolist() == [[0, 0, 0, 1], [0, 1, 1, -1]]
    assert batch.positions.tolist() == [[0, 1, 2, 0], [1, 0, 1, 0]]
    assert batch.cu_seqlens.tolist() == [0, 3, 4, 5, 7]


def test_over_shards(tmp_path):
    """Documents never cross shards, windows do."""
    texts = ["x" * n for n in (5, 40, 3, 17, 80, 2, 31)]
    (tmp_path / "in").mkdir()
    for number, text in enumerate(texts):
        (tmp_path / "in" / f"{number}.txt").write_text(text)
    ladle.prepare(tmp_path / "in", tmp_path / "out", tokenizer="bytes", val_fraction=0, shard_bytes=40).close()
    with ladle.open(tmp_path / "out") as corpus:
        split = corpus["train"]
        ends = split.document_ends().astype(np.int64)
        assert len(split.shards) > 2
        lengths = np.diff(ends, prepend=0)
        for batch in feed_of(split, block_size=16, mask_documents=True).epoch():
            tokens = batch.starts[:, None] + np.arange(16)
            document = np.searchsorted(ends, tokens, side="right")
            np.testing.assert_array_equal(batch.positions, tokens - (ends - lengths)[document])
            np.testing.assert_array_equal(batch.segments, document - document[:, :1])
            assert not np.isin(tokens[batch.y != IGNORED] + 1, ends).any()


def test_in_a_mixture_each_source_has_its_own_documents():
    a, b = [5, 9, 14, 3, 8, 2] * 4, [7, 7, 20, 1] * 3
    mixture = ladle.Mixture({"a": split_of(a), "b": split_of(b, 100_000)}, {"a": 3, "b": 1})
    plain, masked = feed_of(mixture, batch_size=1), feed_of(mixture, batch_size=1, mask_documents=True)
    seen = set()
    for step in range(60):
        source, lengths, first = ("b", b, 100_000) if plain[step].x[0, 0] >= 100_000 else ("a", a, 0)
        check(masked[step], plain[step], lengths, first)
        seen.add(source)
    assert seen == {"a", "b"}


def test_another_stream_than_plain_windows_and_the_same_hash_as_ever_without():
    lengths = [7, 9, 3] * 5
    plain, masked = feed_of(lengths).state_dict(), feed_of(lengths, mask_documents=True).state_dict()
    assert plain["recipe"] != masked["recipe"]
    with pytest.raises(StateError, match="recipe: expected"):
        feed_of(lengths).load_state_dict(masked)
    assert feed_of(lengths, mask_documents=False, loss_mask=None, pack=None).state_dict() == plain


def test_steps_of_counts_the_targets_that_are_left():
    lengths = [7, 9, 3, 1, 12] * 3
    feed = feed_of(lengths, batch_size=2, mask_documents=True)
    ends = np.cumsum(lengths)
    found = {(batch.position // 8, row): batch.y[row] for batch in feed.epoch() for row in range(2)}
    for document, (length, end) in enumerate(zip(lengths, ends.tolist(), strict=True)):
        told = feed.steps_of(document)
        assert sum(one.targets for one in told) == length - 1
        for one in told:
            y = found[one.step, one.row]
            assert one.targets == np.count_nonzero((y >= end - length) & (y < end))


# --- delivered where x lives ---

MADE = [{"pack": "best_fit"}, {"pack": "sequential", "block_size": 6}, {"mask_documents": True}]
NAMES = ["positions", "segments", "cu_seqlens"]
LENGTHS = [5, 9, 2, 14, 1, 1, 7] * 5


@pytest.mark.parametrize("how", MADE)
@pytest.mark.parametrize("prefetch", [0, 2])
def test_torch(how, prefetch):
    with feed_of(LENGTHS, framework="torch", prefetch=prefetch, **how) as feed:
        for batch, wanted in zip(itertools.islice(feed, 7), feed_of(LENGTHS, **how), strict=False):
            for name in NAMES:
                tensor = getattr(batch, name)
                assert isinstance(tensor, torch.Tensor)
                assert tensor.device == batch.x.device
                np.testing.assert_array_equal(tensor, getattr(wanted, name))
                assert getattr(batch, name) is tensor  # computed once
            assert batch.positions.dtype == torch.int64
            assert batch.segments.dtype == batch.cu_seqlens.dtype == torch.int32
            assert batch.max_seqlen == wanted.max_seqlen
            assert batch.digest == wanted.digest
            moved = batch.to("meta")
            assert {getattr(moved, name).device.type for name in NAMES} == {"meta"}


@pytest.mark.parametrize("how", MADE)
def test_pickled_batches_and_feeds(how):
    feed = feed_of(LENGTHS, framework="torch", **how)
    next(feed)
    again = pickle.loads(pickle.dumps(feed))
    for _ in range(5):
        batch = next(feed)
        for other in (next(again), pickle.loads(pickle.dumps(batch))):
            assert other.digest == batch.digest
            assert (other.num_targets, other.num_local_targets) == (batch.num_targets, batch.num_local_targets)
            for name in NAMES:
                assert torch.equal(getattr(other, name), getattr(batch, name))


@pytest.mark.parametrize("how", MADE)
@pytest.mark.filterwarnings("ignore:This DataLoader will create:UserWarning", "ignore:.*use of fork.*:DeprecationWarning")
def test_the_same_batches_from_workers(how):
    wanted = list(feed_of(LENGTHS, framework="torch", **how).epoch())
    dataset = ladle.FeedDataset(feed_of(LENGTHS, framework="torch", **how))
    found = list(DataLoader(dataset, batch_size=None, num_workers=2))
    assert [batch.digest for batch in found] == [batch.digest for batch in wanted]
    for batch, other in zip(found, wanted, strict=True):
        assert batch.num_targets == other.num_targets
        for name in NAMES:
            assert torch.equal(getattr(batch, name), getattr(other, name))


def test_a_boundary_costs_nothing_until_it_is_asked_for():
    batch = feed_of(LENGTHS, pack="best_fit")[0]
    assert not set(vars(batch.boundaries)) & set(NAMES)
    _ = batch.segments
    assert set(vars(batch.boundaries)) & set(NAMES) == {"segments"}


def test_a_plain_feed_says_what_to_ask_for():
    with pytest.raises(ConfigError, match="mask_documents=True"):
        _ = feed_of(LENGTHS)[0].positions
