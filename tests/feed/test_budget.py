"""A budget of tokens a batch: whole documents, padded to their batch's longest; each token once, the same on any number of ranks.

The ids are consecutive integers from 1, so that a token's id is its address and 0 is padding.
"""

import itertools
import os
import pickle
import signal
import subprocess
import sys
import time

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import ladle
from ladle.corpus.documents import MemoryDocuments
from ladle.corpus.shard import ArrayShard
from ladle.corpus.split import Split
from ladle.errors import ConfigError, StateError

IGNORED = -100


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


def feed_of(lengths, batch_tokens=64, block_size=16, **options):
    options = {"framework": "numpy", "prefetch": 0, "seed": 3} | options
    return ladle.Feed(corpus(lengths), batch_tokens=batch_tokens, block_size=block_size, **options)


def some_lengths(n=400, seed=0, longest=60):
    return np.clip(np.random.default_rng(seed).lognormal(2.5, 0.9, n), 1, longest).astype(int).tolist()


def check(batch, lengths, block_size=16):
    """x, y and all boundaries of a batch, from the ids and the documents' lengths alone."""
    ends = np.cumsum(lengths)
    x = np.asarray(batch.x)
    real = x > 0
    assert (real.sum(axis=1) > 0).all()
    assert real.sum(axis=1).max() == x.shape[1]
    y, segments = np.full(x.shape, IGNORED), np.full(x.shape, -1)
    positions = np.zeros(x.shape, dtype=int)
    for row in range(len(x)):
        size = int(real[row].sum())
        token = int(x[row, 0]) - 1
        document = int(np.searchsorted(ends, token, side="right"))
        begin, end = int(ends[document] - lengths[document]), int(ends[document])
        assert (token - begin) % block_size == 0
        assert size == min(block_size, end - token)
        assert x[row, :size].tolist() == list(range(token + 1, token + 1 + size))
        assert not x[row, size:].any()
        y[row, :size] = np.where(np.arange(token, token + size) + 1 < end, np.arange(token, token + size) + 2, IGNORED)
        segments[row, :size] = 0
        positions[row, :size] = np.arange(token, token + size) - begin
    np.testing.assert_array_equal(batch.y, y)
    np.testing.assert_array_equal(batch.segments, segments)
    np.testing.assert_array_equal(batch.positions, positions)
    assert np.diff(batch.cu_seqlens).tolist() == real.sum(axis=1).tolist()
    assert batch.max_seqlen == x.shape[1]
    assert batch.num_local_targets == int((y != IGNORED).sum())


def tokens_of(batches):
    return np.sort(np.concatenate([np.asarray(b.x)[np.asarray(b.x) > 0] for b in batches])) - 1


@settings(max_examples=20, deadline=None)
@given(
    lengths=st.lists(st.integers(0, 50), min_size=1, max_size=30).filter(any),
    budget=st.integers(16, 100),
    seed=st.integers(0, 3),
    order=st.sampled_from(["shuffled", "sequential"]),
)
def test_each_token_once_an_epoch_within_the_budget(lengths, budget, seed, order):
    feed = feed_of(lengths, budget, seed=seed, order=order)
    for _ in range(2):
        batches = list(feed.epoch())
        assert len(batches) == feed.batches_per_epoch
        np.testing.assert_array_equal(tokens_of(batches), np.arange(sum(lengths)))
        for batch in batches:
            assert batch.x.size <= budget
            assert batch.num_targets == batch.num_local_targets
            check(batch, lengths)
    assert feed.position == 2 * feed.slots_per_epoch == 2 * sum(-(-length // 16) for length in lengths)


def test_epochs_differ_and_sequential_ones_do_not():
    starts = lambda feed: [[b.starts.tolist() for b in feed.epoch()] for _ in range(2)]  # noqa: E731
    first, second = starts(feed_of(some_lengths()))
    assert first != second
    assert starts(feed_of(some_lengths(), seed=4)) != [first, second]
    assert starts(feed_of(some_lengths())) == [first, second]
    first, second = starts(feed_of(some_lengths(), order="sequential"))
    assert first == second
    widths = [b.x.shape[1] for b in feed_of(some_lengths(), order="sequential").epoch()]
    assert widths == sorted(widths, reverse=True)


@pytest.mark.parametrize("ranks", [1, 2, 3])
def test_ranks_have_equal_steps_and_together_every_row(ranks):
    """A8-06."""
    lengths = some_lengths()
    alone = list(feed_of(lengths, 128).epoch())
    together = [list(feed_of(lengths, 128, rank=rank, world_size=ranks).epoch()) for rank in range(ranks)]
    assert {len(batches) for batches in together} == {len(alone)}
    for whole, parts in zip(alone, zip(*together, strict=True), strict=True):
        np.testing.assert_array_equal(np.concatenate([part.x for part in parts]), whole.x)
        np.testing.assert_array_equal(np.concatenate([part.y for part in parts]), whole.y)
        assert {part.num_targets for part in parts} == {whole.num_targets}
        assert sum(part.num_local_targets for part in parts) == whole.num_targets
        assert sum(part.digest for part in parts) % 2**64 == whole.digest
        assert {tuple(part.state.items()) for part in parts} == {tuple(whole.state.items())}
        for part in parts:
            assert len(part.x) >= 1


@settings(max_examples=8, deadline=None)
@given(
    phases=st.lists(
        st.tuples(st.integers(1, 3), st.sampled_from([0, 2]), st.integers(0, 15), st.integers(0, 3)), min_size=1, max_size=5
    )
)
def test_any_schedule_of_ranks_and_kills_delivers_the_same_stream(phases):
    """A8-10: resumed at any batch, on other ranks, with other prefetching, also across an epoch's border."""
    lengths = some_lengths(60)
    reference = [b.x for b in itertools.islice(feed_of(lengths, 96), 200)]
    state, step = None, 0
    for ranks, prefetch, saved, undone in phases:
        feeds = [feed_of(lengths, 96, rank=rank, world_size=ranks, prefetch=prefetch) for rank in range(ranks)]
        for feed in feeds:
            if state is not None:
                feed.load_state_dict(state)
        delivered = [[next(feed) for feed in feeds] for _ in range(saved)]
        state = feeds[0].state_dict()
        assert {str(feed.state_dict()) for feed in feeds} == {str(state)}
        delivered += [[next(feed) for feed in feeds] for _ in range(undone)]  # and nobody remembers these
        for number, parts in enumerate(delivered):
            np.testing.assert_array_equal(np.concatenate([part.x for part in parts]), reference[step + number])
        step += saved
        for feed in feeds:
            feed.close()


def test_looking_and_walking_and_sharing_are_one_stream():
    lengths = some_lengths()
    feed = feed_of(lengths, epochs=2)
    walked = [(b.position, b.x.tolist()) for b in feed]
    assert len(walked) == len(feed) == 2 * feed.batches_per_epoch
    assert [(b.position, b.x.tolist()) for b in map(feed.__getitem__, range(len(feed)))] == walked
    assert feed[-1].x.tolist() == walked[-1][1]
    assert [feed.at(position).x.tolist() for position, _ in walked[:9]] == [x for _, x in walked[:9]]
    half = feed.batches_per_epoch
    shared = [[b.x.tolist() for b in feed.share(0, worker, 3)] for worker in range(3)]
    woven = [x for group in itertools.zip_longest(*shared) for x in group if x is not None]
    assert woven == [x for _, x in walked[:half]]
    with pytest.raises(IndexError):
        feed[len(feed)]
    split = ladle.from_ids(np.arange(1, sum(lengths) + 1), document_ends=np.cumsum(lengths))
    again = pickle.loads(pickle.dumps(ladle.Feed(split, **feed.arguments)))
    assert [(b.position, b.x.tolist()) for b in again] == walked


def test_a_batch_begins_where_it_begins():
    feed = feed_of(some_lengths())
    with pytest.raises(
        ConfigError, match="position: expected where a batch begins, found 1: the batch that holds it begins at 0"
    ):
        feed.at(1)
    first = feed[0].next_position
    assert [feed.shape.batches(position) for position in (0, 1, first, first + 1)] == [0, 1, 1, 2]


def test_where_and_steps_of():
    lengths = some_lengths(80)
    feed = feed_of(lengths, epochs=2)
    rows = {
        (epoch, step, row): batch
        for epoch in range(2)
        for step in range(epoch * feed.batches_per_epoch, (epoch + 1) * feed.batches_per_epoch)
        for batch in [feed[step]]
        for row in range(len(batch.x))
    }
    ends = np.cumsum(lengths)
    for document, (first, last) in enumerate(zip(ends - lengths, ends, strict=True)):
        expected = sorted(
            (epoch, step, row, int((batch.y[row] != IGNORED).sum()))
            for (epoch, step, row), batch in rows.items()
            if first <= batch.starts[row] < last
        )
        found = feed.steps_of(document, epochs=range(2))
        assert [(one.epoch, one.step, one.row, one.targets) for one in found] == expected
        for one in found:
            assert feed.at(feed[one.step].position).rows[one.row] == one.position
            spans = feed.where(one.step, one.row)
            assert {span.origin.document for span in spans} == {document}
    with pytest.raises(ConfigError, match="row: expected less than"):
        feed.where(0, 1000)


def test_counted_reported_and_audited():
    lengths = [*some_lengths(200), 0, 1, 1, 16, 15, 17]
    feed = feed_of(lengths, epochs=3)
    padded = boundary = trained = steps = 0
    for batch in itertools.islice(feed, feed.batches_per_epoch + 9):
        real = batch.x > 0
        padded, trained = padded + int((~real).sum()), trained + batch.num_targets
        boundary += int((real & (batch.y == IGNORED)).sum())
        steps += batch.x.size
    (told,) = feed.report().sources
    assert (told.trained, told.boundary, told.padded, told.slots) == (trained, boundary, padded, steps)
    assert told.masked == told.excluded == told.unlearned == 0
    plan = told.packs
    first = [feed[step] for step in range(feed.batches_per_epoch)]
    assert plan.slots == sum(batch.x.size for batch in first)
    assert plan.padded == sum(int((batch.x == 0).sum()) for batch in first)
    assert plan.labelled + plan.boundary == plan.tokens == sum(lengths)
    certificate = feed.audit(epochs=2)
    assert certificate.exact
    assert certificate.accounts[0].epochs == 2
    assert "each token stood in exactly one row in each" in str(certificate)
    assert feed.audit().accounts[0].epochs == 3


def test_padding_is_little_and_the_longest_come_first():
    lengths = np.clip(np.random.default_rng(1).lognormal(4, 1, 20_000), 1, 1000).astype(int).tolist()
    feed = feed_of(lengths, 8192, 1000)
    counts = feed.report().sources[0].packs
    assert counts.padded / counts.slots < 0.05
    assert 1 - np.mean(lengths) / max(lengths) > 0.8  # what padding all to the longest would cost
    assert next(feed).x.shape[1] == max(lengths)


def test_a_million_documents_are_planned_in_seconds():
    """A8-08: from the stored lengths; no token is read."""
    ends = np.cumsum(np.clip(np.random.default_rng(1).lognormal(4, 1, 1_000_000), 1, 1000).astype(np.int64))
    split = ladle.from_ids(np.zeros(int(ends[-1]), dtype=np.uint16), document_ends=ends)
    begin = time.process_time()
    feed = ladle.Feed(split, batch_tokens=16_384, block_size=1000, framework="numpy", prefetch=0)
    next(feed)
    assert time.process_time() - begin < 4  # about one, on a quiet machine


@pytest.mark.parametrize("overlong", ["split", "drop", "error"])
def test_documents_longer_than_a_row(overlong):
    lengths = [5, 40, 16, 17, 3]
    if overlong == "error":
        with pytest.raises(ConfigError, match="overlong"):
            feed_of(lengths, overlong=overlong)
        return
    feed = feed_of(lengths, overlong=overlong)
    x = tokens_of(feed.epoch())
    kept = np.arange(81) if overlong == "split" else np.concatenate([np.arange(5), np.arange(45, 61), np.arange(78, 81)])
    np.testing.assert_array_equal(x, kept)
    assert feed.report().sources[0].packs.dropped == (2 if overlong == "drop" else 0)


class Masked(Split):
    """A split whose every third token is not to be learned."""

    has_loss_mask = True

    def loss_mask(self, starts, lengths):
        places = np.concatenate([np.arange(start, start + length) for start, length in zip(starts, lengths, strict=True)])
        return (places % 3 > 0).astype(np.uint8)


def test_a_loss_mask_counts():
    lengths = some_lengths(150)
    split = corpus(lengths)
    split.__class__ = Masked
    feed = ladle.Feed(split, batch_tokens=128, block_size=16, framework="numpy", prefetch=0)
    batches = list(itertools.islice(feed, feed.batches_per_epoch + 3))
    for batch in batches:
        counts = batch.y != IGNORED
        assert batch.num_targets == counts.sum()
        assert ((batch.y - 1)[counts] % 3 > 0).all()
    (told,) = feed.report().sources
    assert told.unlearned > 0
    assert told.trained == sum(b.num_targets for b in batches)
    assert told.slots == sum(b.x.size for b in batches) == told.trained + told.unlearned + told.boundary + told.padded


def test_states_of_other_streams_are_refused():
    lengths = some_lengths(50)
    state = feed_of(lengths).state_dict()
    assert state["unit"] == "samples"
    with pytest.raises(StateError, match="state: unit: expected slots, found samples"):
        ladle.Feed(corpus(lengths), batch_size=2, block_size=16, seed=3, framework="numpy").load_state_dict(state)
    with pytest.raises(StateError, match="state: recipe"):
        feed_of(lengths, 80).load_state_dict(state | {"position": 4})
    with pytest.raises(StateError, match="state: window: expected 8, found 16"):
        feed_of(lengths, block_size=8).load_state_dict(state)


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({"batch_size": 4}, "batch_size, batch_tokens: expected one of them, found 4 and 64"),
        ({"batch_tokens": None}, "batch_size, batch_tokens: expected one of them, found None and None"),
        ({"batch_tokens": 0}, "batch_tokens: expected at least 1, found 0"),
        ({"batch_tokens": 10}, r"batch_tokens: expected at least the longest sample's 16 \(sample \d+\), found 10"),
        ({"pack": "best_fit"}, "pack: expected None with batch_tokens=64, found 'best_fit': a row is one document"),
        ({"window": 32}, r"window: expected block_size \(16\) with batch_tokens=, found 32"),
        ({"stride": 4}, "stride: expected None with batch_tokens=64, found 4"),
        ({"shuffle_block": 4}, "shuffle_block: expected None with batch_tokens=64, found 4"),
        ({"deal": "fresh"}, "deal: expected 'fixed' with batch_tokens=64, found 'fresh'"),
        ({"order": "random"}, "order: expected 'shuffled' or 'sequential' with batch_tokens=64, found 'random'"),
        ({"total_tokens": 100}, "total_tokens: expected None with batch_tokens=, found 100: its position counts"),
        ({"framework": "jax"}, "framework: expected 'torch' or 'numpy' with batch_tokens=, found 'jax'"),
        (
            {"rank": 0, "world_size": 8},
            r"batch_tokens: expected at least 8 samples a batch \(one for each rank\): 128 or more for samples of length 16, found 64",
        ),
    ],
)
def test_what_cannot_be_right(options, told):
    if options.get("framework") == "jax":
        pytest.importorskip("jax")
    with pytest.raises(ConfigError, match=told):
        feed_of([16] * 40, **options)


def test_what_a_budget_does_not_have():
    feed = feed_of(some_lengths(50))
    with pytest.raises(ConfigError, match="exclude: expected windows or packs, found batch_tokens="):
        feed.exclude([1])
    with pytest.raises(ConfigError, match="audit: expected epochs with batch_tokens=, found total_tokens=9"):
        feed.audit(total_tokens=9)
    with pytest.raises(ConfigError, match="batch_tokens: expected one split, found Mixture"):
        ladle.Feed(ladle.Mixture({"a": corpus([5, 5])}, weights={"a": 1}), batch_tokens=64, block_size=16)
    with pytest.raises(ConfigError, match="documents"):
        ladle.Feed(ladle.from_ids(np.arange(50)), batch_tokens=64, block_size=16, framework="numpy")
    assert repr(feed).startswith("Feed(memory, batch_tokens=64, block_size=16, order='shuffled'")


WALK = """
import sys, json, numpy as np, ladle
sys.path.insert(0, sys.argv[2])
ends = np.cumsum(np.random.default_rng(0).integers(1, 60, 500))
split = ladle.from_ids(np.arange(1, ends[-1] + 1, dtype=np.uint32), document_ends=ends)
feed = ladle.Feed(split, batch_tokens=256, block_size=64, seed=1, framework="numpy")
state = sys.argv[1]
import os
if os.path.exists(state):
    feed.load_state_dict(json.load(open(state)))
for batch in feed:
    print(batch.position, batch.digest, flush=True)
    with open(state + ".new", "w") as file:
        json.dump(batch.state, file)
    os.replace(state + ".new", state)
"""


@pytest.mark.slow
def test_killed_and_resumed(tmp_path):
    """kill -9 at random moments: no batch is lost, and those after the last saved state come again, the same."""
    seen, state = {}, str(tmp_path / "state.json")
    rng = np.random.default_rng(0)
    for _ in range(4):
        with subprocess.Popen([sys.executable, "-c", WALK, state, str(tmp_path)], stdout=subprocess.PIPE, text=True) as process:
            time.sleep(0.4)
            for line in itertools.islice(process.stdout, int(rng.integers(5, 60))):
                position, digest = map(int, line.split())
                assert seen.setdefault(position, digest) == digest
            os.kill(process.pid, signal.SIGKILL)
    ends = np.cumsum(np.random.default_rng(0).integers(1, 60, 500))
    split = ladle.from_ids(np.arange(1, ends[-1] + 1, dtype=np.uint32), document_ends=ends)
    feed = ladle.Feed(split, batch_tokens=256, block_size=64, seed=1, framework="numpy")
    assert len(seen) > 30
    for batch in itertools.islice(feed, len(seen)):
        assert seen.get(batch.position, batch.digest) == batch.digest
    assert all(feed.at(position).digest == digest for position, digest in seen.items())


def test_torch_tensors_and_a_device():
    torch = pytest.importorskip("torch")
    feed = feed_of(some_lengths(50), framework="torch")
    batch = next(feed)
    assert batch.x.dtype == torch.int64
    assert batch.positions.shape == batch.x.shape
    assert batch.to("meta").x.device.type == "meta"
    moved = pickle.loads(pickle.dumps(batch))
    assert torch.equal(moved.x, batch.x)
    assert torch.equal(moved.y, batch.y)
    dataset = ladle.FeedDataset(feed_of(some_lengths(50), framework="torch"))
    assert len(dataset) == feed.batches_per_epoch
    assert len(list(torch.utils.data.DataLoader(dataset, batch_size=None))) == feed.batches_per_epoch
