"""A feed under torch's DataLoader and torchdata's: the same batches for any number of workers, and states that resume."""

import pickle
import random
import resource
import subprocess
import sys
import textwrap
import time

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader, get_worker_info

import ladle
from ladle.errors import ClosedError, ConfigError, FormatError, StateError
from ladle.feed.dataset import Rows
from ladle.feed.turns import WORKERS, Turns

pytestmark = pytest.mark.filterwarnings(
    "ignore:This DataLoader will create:UserWarning", "ignore:.*use of fork.*:DeprecationWarning"
)


def feed_of(count: int = 203, **options) -> ladle.Feed:
    chosen = {"batch_size": 4, "block_size": 5, "seed": 3, "prefetch": 0} | options
    return ladle.Feed(ladle.from_ids(np.arange(count, dtype=np.uint16)), **chosen)


def loader(dataset, num_workers=0, **options):
    return DataLoader(dataset, batch_size=None, num_workers=num_workers, **options)


def digests(batches):
    return [batch.digest for batch in batches]


def raised(batches):
    """The error that taking them raises, without its traceback: that would hold the loader, whose workers wait for seconds."""
    try:
        digests(batches)
    except Exception as error:
        return error.with_traceback(None)
    raise AssertionError("nothing was raised")


def epochs(count, tokens=203):
    """The digests of a feed's epochs, one list each: what every loader below must give."""
    feed = feed_of(tokens)
    return [digests(feed.epoch()) for _ in range(count)]


# --- workers change nothing ---


@pytest.mark.parametrize("num_workers", [0, 1, 2, 4])
def test_each_iteration_is_an_epoch_in_its_own_order_for_any_number_of_workers(num_workers):
    dataset = ladle.FeedDataset(feed_of())
    wanted = epochs(3)
    assert [digests(loader(dataset, num_workers)) for _ in range(3)] == wanted
    assert len({tuple(sorted(epoch)) for epoch in wanted}) == 3  # each with its own order
    assert len(dataset) == len(loader(dataset, num_workers)) == len(wanted[0]) == 11


@pytest.mark.parametrize("num_workers", [1, 3])
def test_a_batch_arrives_as_it_left(num_workers):
    feed = feed_of(total_tokens=90, ignore_index=-1)
    for found, batch in zip(loader(ladle.FeedDataset(feed_of(total_tokens=90, ignore_index=-1)), num_workers), feed, strict=True):
        x, y = found
        assert torch.equal(x, batch.x)
        assert torch.equal(y, batch.y)
        assert x.dtype == y.dtype == torch.int64
        assert x.is_contiguous()
        assert y.is_contiguous()
        assert y.data_ptr() - x.data_ptr() == x.nbytes  # one allocation
        assert (found.position, found.next_position, found.num_targets) == (
            batch.position,
            batch.next_position,
            batch.num_targets,
        )
        assert (found.rows, found.starts.tolist(), found.state) == (batch.rows, batch.starts.tolist(), batch.state)


def test_wide_ids_arrive_whole():
    ids = np.array([2**32 - 1, 5, 2**31, 7, 2**31 - 1] * 5, dtype=np.uint32)
    feed = ladle.Feed(ladle.from_ids(ids), batch_size=2, block_size=4, order="sequential", prefetch=0)
    (first, *_) = loader(ladle.FeedDataset(feed), 1)
    assert first.x[0].tolist() == ids[:4].tolist()
    assert first.y[0].tolist() == ids[1:5].tolist()


@pytest.mark.parametrize("framework", ["torch", "numpy"])
def test_a_batch_pickles_whatever_was_written_into_it(framework):
    batch = feed_of(framework=framework).at(195)  # an epoch's end
    whole = (batch.x.tolist(), batch.y.tolist())
    again = pickle.loads(pickle.dumps(batch))
    assert (again.x.tolist(), again.y.tolist()) == whole
    assert type(again.x) is type(batch.x)
    batch.x[1, 2], batch.x[0, 0], batch.y[0, 4], batch.y[2, 0] = -7, 2**53 + 1, 2**40, 9
    again = pickle.loads(pickle.dumps(batch))
    assert (again.x.tolist(), again.y.tolist()) == (batch.x.tolist(), batch.y.tolist())


def test_a_batch_takes_two_bytes_an_id_on_its_way():
    batch = next(feed_of(70_000, batch_size=64, block_size=1000))
    assert len(pickle.dumps(batch)) < 64 * 1001 * 2 + 2000


@pytest.mark.parametrize("num_workers", [0, 2, 3])
def test_more_workers_than_batches_and_one_batch_an_epoch(num_workers):
    dataset = ladle.FeedDataset(feed_of(11))
    assert [digests(loader(dataset, num_workers)) for _ in range(3)] == epochs(3, tokens=11)
    assert len(dataset) == 1


@pytest.mark.parametrize("num_workers", [0, 2])
def test_a_finite_feed_runs_to_its_end_epoch_by_epoch_and_then_gives_nothing(num_workers):
    dataset = ladle.FeedDataset(feed_of(total_tokens=300))
    wanted = feed_of(total_tokens=300)
    assert [digests(loader(dataset, num_workers)) for _ in range(3)] == [digests(wanted.epoch()), digests(wanted.epoch()), []]
    assert len(dataset) == 11
    assert len(ladle.FeedDataset(feed_of(total_tokens=41))) == 3


@pytest.mark.parametrize("num_workers", [0, 2])
def test_a_mixture_runs_to_its_end(num_workers):
    def feed():
        ids = np.arange(200, dtype=np.uint16)
        mixture = ladle.Mixture({"a": ladle.from_ids(ids), "b": ladle.from_ids(ids[:50])}, weights={"a": 3, "b": 1})
        return ladle.Feed(mixture, batch_size=4, block_size=5, total_tokens=330, prefetch=0)

    dataset = ladle.FeedDataset(feed())
    wanted = digests(feed())
    assert digests(loader(dataset, num_workers)) == wanted
    assert digests(loader(dataset, num_workers)) == []
    assert len(dataset) == len(wanted) == 17


@pytest.mark.parametrize("num_workers", [0, 2])
def test_independent_windows_have_no_end(num_workers):
    dataset = ladle.FeedDataset(feed_of(order="random"))
    wanted = feed_of(order="random")
    iterator = iter(loader(dataset, num_workers))
    assert digests(next(iterator) for _ in range(30)) == digests(next(wanted) for _ in range(30))
    with pytest.raises(TypeError, match=r"this feed is endless: pass total_tokens= to end it"):
        len(dataset)


@pytest.mark.parametrize("num_workers", [0, 2])
def test_ranks_are_the_feeds_business(num_workers):
    parts = [digests(loader(ladle.FeedDataset(feed_of(rank=rank, world_size=3)), num_workers)) for rank in range(3)]
    assert [sum(each) % 2**64 for each in zip(*parts, strict=True)] == epochs(1)[0]


@pytest.mark.parametrize("num_workers", [0, 2])
def test_two_evaluations_see_the_same_batches(num_workers):
    dataset = ladle.FeedDataset(feed_of(order="sequential"))
    first, second = ([batch.x.tolist() + batch.y.tolist() for batch in loader(dataset, num_workers)] for _ in range(2))
    assert first[:-1] == second[:-1]  # the last one is completed by rows of the pass after it, masked
    targets = [[y for batch in loader(dataset, num_workers) for y in batch.y[batch.y >= 0].tolist()] for _ in range(2)]
    assert targets == [list(range(1, 203))] * 2


def test_exclusions_go_with_the_feed():
    ids = np.arange(203, dtype=np.uint16)
    split = ladle.from_ids(ids, document_ends=np.arange(7, 204, 7))

    def feed():
        made = ladle.Feed(split, batch_size=4, block_size=5, seed=3, prefetch=0)
        made.exclude([2, 5], from_position=60)
        return made

    wanted = [(batch.digest, batch.num_targets, batch.state) for batch in feed().epoch()]
    assert sum(targets for _, targets, _ in wanted) < 202
    for num_workers in (0, 2):
        found = [(batch.digest, batch.num_targets, batch.state) for batch in loader(ladle.FeedDataset(feed()), num_workers)]
        assert found == wanted
    again = pickle.loads(pickle.dumps(feed()))
    assert [(batch.digest, batch.num_targets, batch.state) for batch in again.epoch()] == wanted


def test_a_feed_pickles_with_its_position_its_rank_and_its_stages():
    ids = np.arange(300, dtype=np.uint16)
    sources = {"a": ladle.from_ids(ids), "b": ladle.from_ids(ids[:120])}
    mixture = ladle.Mixture(sources, stages=[(200, {"a": 3, "b": 1}), (None, {"a": 1, "b": 2})])
    with ladle.Feed(mixture, batch_size=6, block_size=5, seed=4, rank=1, world_size=2, prefetch=2) as feed:
        digests(next(feed) for _ in range(9))
        with pickle.loads(pickle.dumps(feed)) as again:
            assert again.state_dict() == feed.state_dict()
            assert again.shape == feed.shape
            assert digests(next(again) for _ in range(20)) == digests(next(feed) for _ in range(20))


@pytest.mark.slow
def test_spawned_workers_open_the_corpus_themselves(tmp_path):
    (tmp_path / "a.txt").write_text("".join(f"line {i} of a small text\n" for i in range(300)))
    with (
        ladle.prepare(tmp_path / "a.txt", tmp_path / "corpus", tokenizer="bytes") as corpus,
        ladle.Feed(corpus["train"], batch_size=8, block_size=32, seed=1) as feed,
        ladle.Feed(corpus["train"], batch_size=8, block_size=32, seed=1) as wanted,
    ):
        dataset = ladle.FeedDataset(feed)
        for _ in range(2):
            assert digests(loader(dataset, 2, multiprocessing_context="spawn")) == digests(wanted.epoch())


@pytest.mark.parametrize("num_workers", [0, 2])
def test_the_number_of_workers_may_change_between_epochs(num_workers):
    dataset = ladle.FeedDataset(feed_of())
    schedule = [2, 0, 3, 1, 0, 0, 2, 2]
    assert [digests(loader(dataset, number)) for number in schedule] == epochs(len(schedule))


@pytest.mark.slow
def test_workers_that_live_on_leak_nothing_over_twenty_epochs():
    dataset = ladle.FeedDataset(feed_of())
    kept = loader(dataset, 2, persistent_workers=True)
    assert [digests(kept) for _ in range(20)] == epochs(20)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    for _ in range(20):
        digests(kept)
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 20_000  # KiB


def test_loaders_seeded_alike_still_give_one_epoch_after_another():
    dataset = ladle.FeedDataset(feed_of())
    found = [digests(loader(dataset, 2, generator=torch.Generator().manual_seed(5))) for _ in range(3)]
    assert found == epochs(3)


# --- leaving early, states ---


def test_without_workers_a_loop_left_early_goes_on_where_it_stopped():
    dataset = ladle.FeedDataset(feed_of())
    wanted = epochs(2)
    first = [batch.digest for batch, _ in zip(loader(dataset), range(4), strict=False)]
    # zip asks for one more batch before it sees that the range is over
    assert [*first, wanted[0][4], *digests(loader(dataset))] == wanted[0]
    assert digests(loader(dataset)) == wanted[1]


def test_with_workers_a_loop_left_early_has_ended_its_epoch_unless_a_state_is_loaded():
    dataset = ladle.FeedDataset(feed_of())
    wanted = epochs(3)
    for batch in loader(dataset, 2):
        if batch.digest == wanted[0][3]:
            state = batch.state
            break
    assert digests(loader(dataset, 2)) == wanted[1]
    dataset.load_state_dict(state)
    assert digests(loader(dataset, 2)) == wanted[0][4:]
    assert digests(loader(dataset, 2)) == wanted[1]


@pytest.mark.parametrize(("before", "after"), [(0, 0), (0, 3), (2, 0), (2, 1), (3, 2)])
def test_a_batch_state_resumes_with_another_number_of_workers(before, after):
    wanted = epochs(3)
    for stop in (3, 10):  # 10: the epoch's last batch
        iterator = iter(loader(ladle.FeedDataset(feed_of()), before))
        for _ in range(stop + 1):
            batch = next(iterator)
        resumed = ladle.FeedDataset(feed_of(seed=3))
        resumed.load_state_dict(batch.state)
        rest = [wanted[0][stop + 1 :], wanted[1], wanted[2]]
        rest = rest if rest[0] else rest[1:]  # at an epoch's border the next iteration is a whole epoch
        assert [digests(loader(resumed, after)) for _ in rest] == rest


@pytest.mark.parametrize("num_workers", [0, 2])
def test_another_batch_and_block_size_and_a_position_inside_a_row(num_workers):
    def feed(**shape):
        return feed_of(403, window=10, **shape)

    first = feed(block_size=5, batch_size=3)
    state = next(first).state  # 15 slots: half of a window
    resumed, wanted = (feed(block_size=10, batch_size=2) for _ in range(2))
    wanted.load_state_dict(state)
    dataset = ladle.FeedDataset(resumed)
    dataset.load_state_dict(state)
    found = list(loader(dataset, num_workers))
    assert digests(found) == digests(wanted.epoch())
    assert found[0].num_targets == 15


def test_a_state_that_is_loaded_after_the_iterator_was_made_takes_effect_or_raises():
    wanted = epochs(1)[0]
    state = feed_of().at(100).state
    dataset = ladle.FeedDataset(feed_of())
    iterator = iter(loader(dataset))
    dataset.load_state_dict(state)
    assert next(iterator).digest == wanted[6]

    busy = loader(ladle.FeedDataset(feed_of(2000)), 1)
    iterator = iter(busy)
    next(iterator)
    busy.dataset.load_state_dict(feed_of(2000).at(100).state)
    error = raised(iterator)
    assert isinstance(error, StateError)
    assert "a state was loaded while workers were at work: begin a new iteration" in str(error)
    assert next(iter(busy)).position == 120


def test_workers_that_live_on_take_a_loaded_state():
    dataset = ladle.FeedDataset(feed_of())
    kept = loader(dataset, 2, persistent_workers=True)
    wanted = epochs(2)
    assert digests(kept) == wanted[0]
    dataset.load_state_dict(feed_of().at(160).state)
    assert digests(kept) == wanted[0][9:]
    assert digests(kept) == wanted[1]


def test_the_main_process_does_not_pretend_to_know():
    dataset = ladle.FeedDataset(feed_of())
    assert dataset.state_dict() == feed_of().state_dict()
    next(iter(loader(dataset)))
    assert dataset.state_dict()["position"] == 20
    digests(loader(dataset, 1))
    with pytest.raises(StateError, match=r"does not know what it has received from DataLoader's workers: save batch\.state"):
        dataset.state_dict()
    digests(loader(dataset))  # alone again
    assert dataset.state_dict()["position"] == 2 * dataset.feed.slots_per_epoch


def test_states_of_another_stream_or_another_worker_are_refused():
    dataset = ladle.FeedDataset(feed_of())
    with pytest.raises(StateError, match="seed: expected 3, found 4"):
        dataset.load_state_dict(feed_of(seed=4).state_dict())
    mine = {**feed_of().state_dict(), "workers": 2, "worker": 1, "made": 3}
    with pytest.raises(
        StateError, match=r"\(workers, worker\): expected \(0, 0\), found \(2, 1\): it was saved by one of several"
    ):
        dataset.load_state_dict(mine)
    with pytest.raises(StateError, match="made: expected a number of batches, found -1"):
        dataset.load_state_dict({**mine, "workers": 0, "worker": 0, "made": -1})


# --- bad input ---


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: ladle.FeedDataset([1, 2]), "feed: expected a ladle.Feed, found list"),
        (lambda: ladle.FeedDataset(feed_of(framework="numpy")), "feed: expected one with framework='torch', found 'numpy'"),
        (lambda: ladle.FeedDataset(feed_of(), form="rows"), "form: expected 'batch' or 'huggingface', found 'rows'"),
        (
            lambda: ladle.FeedDataset(feed_of(ignore_index=-1), form="huggingface"),
            "feed: expected ignore_index=-100 with form='huggingface', whose losses leave it out, found -1",
        ),
    ],
)
def test_arguments_that_cannot_be_right(make, message):
    with pytest.raises(ConfigError, match=message.replace("(", r"\(")):
        make()


def test_a_device_is_never_touched_in_a_worker(monkeypatch):
    dataset = ladle.FeedDataset(feed_of())
    dataset.feed.arguments["device"] = "meta"  # stands for "cuda", which this machine may lack
    error = raised(loader(dataset, 1))
    assert isinstance(error, ConfigError)
    assert "feed: expected no device under DataLoader's workers, found 'meta'" in str(error)
    with pytest.raises(ConfigError, match=r"a worker must not touch it; move the batches where they are used"):
        pickle.dumps(dataset)


def test_what_goes_wrong_in_a_worker_keeps_its_type_and_its_words(tmp_path):
    (tmp_path / "a.txt").write_text("some text\n" * 2000)
    ladle.prepare(tmp_path / "a.txt", tmp_path / "corpus", tokenizer="bytes").close()
    shard = tmp_path / "corpus" / "train-00000.bin"
    content = bytearray(shard.read_bytes())
    content[9000] ^= 1
    shard.write_bytes(content)
    with ladle.open(tmp_path / "corpus") as corpus:
        feed = ladle.Feed(corpus["train"], batch_size=4, block_size=64, prefetch=0)
        error = raised(loader(ladle.FeedDataset(feed), 2))
        assert isinstance(error, FormatError)
        assert f"{shard} @ byte 8192: CRC-32 of block 2: expected" in str(error)


def test_a_closed_feed_says_so():
    feed = feed_of()
    dataset = ladle.FeedDataset(feed)
    feed.close()
    for num_workers in (0, 1):
        error = raised(loader(dataset, num_workers))
        assert isinstance(error, ClosedError)
        assert "this feed is closed" in str(error)
    with pytest.raises(ClosedError):
        pickle.dumps(feed)


# --- processes, descriptors, exits ---


def run(code, *, limit=None, timeout=60):
    prepared = "import numpy as np, torch, ladle\nfrom torch.utils.data import DataLoader\ntorch.set_num_threads(1)\n"
    command = [sys.executable, "-W", "ignore", "-c", prepared + textwrap.dedent(code)]
    if limit is not None:
        command = ["bash", "-c", f'ulimit -n {limit}; exec "$@"', "bash", *command]
    return subprocess.run(command, capture_output=True, text=True, timeout=timeout)


@pytest.mark.slow
def test_two_thousand_batches_may_be_kept_with_256_descriptors():
    done = run(
        """
        feed = ladle.Feed(ladle.from_ids(np.arange(40_000, dtype=np.uint16)), batch_size=2, block_size=10)
        kept = list(DataLoader(ladle.FeedDataset(feed), batch_size=None, num_workers=2))
        assert len(kept) == 2000 and len(list(DataLoader(ladle.FeedDataset(feed, form="huggingface"), batch_size=None, num_workers=2))) == 2000
        print("kept")
        """,
        limit=256,
    )
    assert (done.returncode, done.stdout) == (0, "kept\n"), done.stderr


@pytest.mark.slow
@pytest.mark.parametrize("how", ["pass", "raise ValueError('mine')", "import os, signal; os.kill(os.getpid(), signal.SIGINT)"])
def test_a_loop_that_is_left_ends_the_process_soon(how):
    began = time.monotonic()
    done = run(
        f"""
        feed = ladle.Feed(ladle.from_ids(np.arange(60_000, dtype=np.uint16)), batch_size=4, block_size=100)
        for batch in DataLoader(ladle.FeedDataset(feed), batch_size=None, num_workers=2):
            {how}
            break
        """
    )
    assert time.monotonic() - began < 30
    assert done.stderr.count("Traceback") <= 1, done.stderr
    assert done.returncode == 0 if how == "pass" else done.returncode != 0


# --- what models take ---


def test_rows_lose_no_target_and_shift_nothing():
    dataset = ladle.FeedDataset(feed_of(23, order="sequential", tail="cover"), form="huggingface")
    (rows, last) = dataset
    assert rows["input_ids"].tolist() == [
        [0, 1, 2, 3, 4, 5],
        [5, 6, 7, 8, 9, 10],
        [10, 11, 12, 13, 14, 15],
        [15, 16, 17, 18, 19, 20],
    ]
    assert rows["labels"].tolist() == [
        [-100, 1, 2, 3, 4, 5],
        [-100, 6, 7, 8, 9, 10],
        [-100, 11, 12, 13, 14, 15],
        [-100, 16, 17, 18, 19, 20],
    ]
    assert last["labels"][0].tolist() == [-100, -100, -100, -100, 21, 22]
    assert last["labels"][1:].eq(-100).all()  # the next epoch's rows complete the shape
    assert int((last["input_ids"] < 0).sum()) == 0
    assert sorted(
        torch.cat([rows["labels"], last["labels"]])[:, 1:][torch.cat([rows["labels"], last["labels"]])[:, 1:] >= 0].tolist()
    ) == list(range(1, 23))
    assert rows.state == rows.batch.state
    assert set(rows) == {"input_ids", "labels"}


@pytest.mark.parametrize("num_workers", [0, 2])
def test_rows_pass_through_a_loader(num_workers):
    found = list(loader(ladle.FeedDataset(feed_of(), form="huggingface"), num_workers))
    wanted = [Rows.of(batch) for batch in feed_of().epoch()]
    for got, want in zip(found, wanted, strict=True):
        assert type(got) is Rows
        assert torch.equal(got["input_ids"], want["input_ids"])
        assert torch.equal(got["labels"], want["labels"])
        assert got.state == want.state
        assert got.to("cpu").state == want.state


def test_a_batch_moves_to_another_device():
    batch = next(feed_of())
    assert batch.to("cpu") is batch
    moved = batch.to(torch.device("meta"))
    assert moved.x.device.type == moved.y.device.type == "meta"
    assert (moved.state, moved.num_targets, moved.rows) == (batch.state, batch.num_targets, batch.rows)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device: pinning needs one")
@pytest.mark.parametrize("form", ["batch", "huggingface"])
def test_a_loader_pins_what_it_delivers(form):
    wanted = list(loader(ladle.FeedDataset(feed_of(), form=form)))
    for found, right in zip(loader(ladle.FeedDataset(feed_of(), form=form), 2, pin_memory=True), wanted, strict=True):
        x = found["labels"] if form == "huggingface" else found.y
        assert x.is_pinned()
        moved = found.to("cuda", non_blocking=True)
        assert torch.equal((moved["labels"] if form == "huggingface" else moved.y).cpu(), x)
        assert found.state == right.state == moved.state


# --- random states ---


@pytest.mark.parametrize("form", ["batch", "huggingface"])
@pytest.mark.parametrize("num_workers", [0, 2])
def test_no_global_random_state_is_read_or_moved(num_workers, form):
    """torch's DataLoader itself draws one number from torch's generator an iteration, unless it is given one of its own."""

    def states():
        return torch.get_rng_state().tolist(), np.random.get_state()[1].tolist(), random.getstate()

    torch.manual_seed(1)
    before = states()
    dataset = ladle.FeedDataset(feed_of(), form=form)
    first = [item.state for item in loader(dataset, num_workers, generator=torch.Generator())]
    dataset.load_state_dict(feed_of().state_dict())
    assert states() == before
    torch.manual_seed(2)
    np.random.seed(2)
    random.seed(2)
    assert [item.state for item in loader(dataset, num_workers)] == first


class Drawn(torch.utils.data.IterableDataset):
    """Tells what the workers' global generators draw after the dataset's iterator has been used."""

    def __init__(self, dataset):
        self.dataset = dataset

    def __iter__(self):
        for _ in self.dataset:
            pass
        yield get_worker_info().id, torch.rand(()).item(), np.random.rand(), random.random()


class Untouched:
    def __iter__(self):
        return iter(())


def test_nor_in_a_worker():
    seeded = [
        list(loader(Drawn(inner), 2, generator=torch.Generator().manual_seed(7)))
        for inner in (ladle.FeedDataset(feed_of()), Untouched())
    ]
    assert seeded[0] == seeded[1]


# --- the workers' notes ---


def test_turns_agree_whoever_comes_first():
    turns = Turns()
    follow = {0: 100, 100: 200, 200: 300, 300: 400}.__getitem__
    assert turns.last() is None
    assert [turns.begin(worker, 7, 0, follow) for worker in (1, 0)] == [0, 0]
    assert [turns.begin(worker, 7, 0, follow) for worker in (0, 1)] == [100, 100]  # they live on
    assert [turns.begin(worker, 9, 0, follow) for worker in (2, 0, 1)] == [200, 200, 200]  # one more worker
    assert turns.last() == 200
    turns.reset(300)
    assert not turns.holds(0, 9)
    assert turns.begin(0, 9, 0, follow) == 300
    turns.reset()
    assert turns.begin(0, 9, 40, {}.get) == 40
    with pytest.raises(ConfigError, match=f"num_workers: expected at most {WORKERS}, found a worker {WORKERS}"):
        turns.note(WORKERS, 1, 1)


def test_a_note_that_is_half_written_is_not_believed():
    turns = Turns()
    turns.note(0, 7, 100)
    turns._notes[1, 1] = 500
    assert turns.last() is None


# --- torchdata ---


def stateful(dataset, num_workers=0, **options):
    module = pytest.importorskip("torchdata.stateful_dataloader", reason="torchdata is not installed: pip install torchdata")
    return module.StatefulDataLoader(dataset, batch_size=None, num_workers=num_workers, **options)


@pytest.mark.peer
@pytest.mark.parametrize("num_workers", [0, 2, 3])
def test_torchdata_resumes_at_every_step(num_workers):
    wanted = epochs(2)
    running = stateful(ladle.FeedDataset(feed_of()), num_workers)
    states = []
    for batch in running:
        assert batch.digest == wanted[0][len(states)]
        states.append(running.state_dict())
    for stop in (0, 1, 5, 9):
        again = stateful(ladle.FeedDataset(feed_of()), num_workers)
        again.load_state_dict(states[stop])
        assert digests(again) == wanted[0][stop + 1 :]
        assert digests(again) == wanted[1]


@pytest.mark.peer
@pytest.mark.parametrize("num_workers", [0, 2])
def test_torchdata_at_an_epochs_end(num_workers):
    """Two whole epochs, save, load: the next is complete and has the third order."""
    wanted = epochs(4)
    running = stateful(ladle.FeedDataset(feed_of()), num_workers)
    assert [digests(running) for _ in range(2)] == wanted[:2]
    state = running.state_dict()
    again = stateful(ladle.FeedDataset(feed_of()), num_workers)
    again.load_state_dict(state)
    assert [digests(again) for _ in range(2)] == wanted[2:]
    assert digests(running) == wanted[2]


@pytest.mark.peer
@pytest.mark.parametrize("num_workers", [0, 4])
def test_torchdata_saved_again_soon_after_a_resume(num_workers):
    wanted = epochs(1)[0]
    running = stateful(ladle.FeedDataset(feed_of()), num_workers)
    iterator = iter(running)
    found = [next(iterator).digest for _ in range(3)]
    for _ in range(3):
        state = running.state_dict()
        running = stateful(ladle.FeedDataset(feed_of()), num_workers)
        running.load_state_dict(state)
        iterator = iter(running)
        found += [next(iterator).digest for _ in range(2)]
    assert found == wanted[:9]


@pytest.mark.peer
def test_torchdata_whose_workers_live_on():
    wanted = epochs(4)
    running = stateful(ladle.FeedDataset(feed_of()), 2, persistent_workers=True)
    assert [digests(running) for _ in range(2)] == wanted[:2]
    state = running.state_dict()
    again = stateful(ladle.FeedDataset(feed_of()), 2, persistent_workers=True)
    again.load_state_dict(state)
    assert [digests(again) for _ in range(2)] == wanted[2:]


@pytest.mark.peer
def test_torchdata_goes_back_to_an_earlier_state():
    wanted = epochs(3)
    running = stateful(ladle.FeedDataset(feed_of()), 2)
    iterator = iter(running)
    next(iterator)
    state = running.state_dict()
    del iterator
    running.load_state_dict(state)
    assert [digests(running) for _ in range(3)] == [wanted[0][1:], *wanted[1:]]
    running.load_state_dict(state)
    assert [digests(running) for _ in range(2)] == [wanted[0][1:], wanted[1]]


@pytest.mark.peer
def test_torchdata_asked_for_a_state_before_the_first_batch():
    running = stateful(ladle.FeedDataset(feed_of()), 2)
    state = running.state_dict()
    assert digests(running) == epochs(1)[0]
    again = stateful(ladle.FeedDataset(feed_of()), 2)
    again.load_state_dict(state)
    assert [digests(again) for _ in range(2)] == epochs(2)
