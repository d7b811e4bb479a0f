"""What the kernel is told, judged by the kernel's own counters on real files."""

import contextlib
import os
import time

import numpy as np
import pytest

import ladle
from ladle.corpus.documents import MemoryDocuments
from ladle.corpus.split import Split
from ladle.feed import advise
from ladle.feed.advise import BATCHES_AHEAD, LOOK_EVERY, bytes_read, default_max_mapped, major_faults, mapped_bytes

TOKENS = 2**25  # 64 MiB of uint16


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A nanoGPT folder of random ids, really on the disk."""
    folder = tmp_path_factory.mktemp("cold")
    ids = np.random.default_rng(0).integers(0, 50_000, TOKENS, dtype=np.uint16)
    with open(folder / "train.bin", "wb") as file:
        ids.tofile(file)
        file.flush()
        os.fsync(file.fileno())  # what is not written cannot be dropped
    return folder


def chill(folder) -> None:
    """Drop the file from the page cache; skip where the system keeps it (tmpfs) or does not count what is read."""
    descriptor = os.open(folder / "train.bin", os.O_RDONLY)
    try:
        os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
        before = bytes_read()
        os.pread(descriptor, 4096, TOKENS)
        if bytes_read() == before:
            pytest.skip("this file system stays in memory, or this system does not count what is read from it")
        os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
    finally:
        os.close(descriptor)


def warm(folder) -> None:
    (folder / "train.bin").read_bytes()


@contextlib.contextmanager
def feed_of(folder, **options):
    chosen = {"batch_size": 12, "block_size": 1024, "framework": "numpy", "prefetch": 0} | options
    with ladle.open(folder) as corpus, ladle.Feed(corpus["train"], **chosen) as feed:
        yield feed


def spied(feed: ladle.Feed) -> list[int]:
    """Collects, from now on, how many rows each call asks the kernel for."""
    calls: list[int] = []
    (shard,) = feed.source.shards
    ask = shard.advise_willneed

    def note(starts, length):
        calls.append(len(starts))
        ask(starts, length)

    shard.advise_willneed = note
    return calls


def walk(feed: ladle.Feed, batches: int) -> tuple[int, int]:
    """(major faults, bytes read from storage) of so many batches."""
    faults, read = major_faults(), bytes_read()
    for _ in range(batches):
        next(feed)
    return major_faults() - faults, bytes_read() - read


@pytest.mark.parametrize("order", ["shuffled", "random"])
def test_a_cold_file_is_fetched_ahead(folder, order):
    """100 batches of 12 rows: nearly no row is waited for, and at most 4 bytes are read for each that is wanted."""
    chill(folder)
    with feed_of(folder, order=order, seed=1) as feed:
        faults, read = walk(feed, 100)
    wanted = 100 * 12 * 1025 * 2
    assert faults < 60
    assert 0.5 * wanted < read < 4 * wanted


def test_without_the_advice_every_row_is_waited_for(folder):
    """The test above can fail: the same walk with an advisor that keeps silent."""
    chill(folder)
    with feed_of(folder, seed=1) as feed:
        feed._walk._advisor._advising = False
        feed._walk._advisor._look = lambda: None
        faults, _ = walk(feed, 100)
    assert faults > 600


def test_the_kernel_is_asked_a_few_batches_ahead_each_row_once(folder):
    chill(folder)
    with feed_of(folder) as feed:
        calls = spied(feed)
        next(feed)
        assert calls == [12] * (1 + BATCHES_AHEAD)
        for _ in range(9):
            next(feed)
        assert calls == [12] * (10 + BATCHES_AHEAD)
        feed.load_state_dict(feed.state_dict() | {"position": 0})  # a jump: what comes is new again
        next(feed)
        assert calls == [12] * (11 + 2 * BATCHES_AHEAD)


def test_it_stops_when_the_file_is_warm_and_costs_nothing_then(folder):
    warm(folder)
    with feed_of(folder) as feed:
        calls = spied(feed)
        for _ in range(LOOK_EVERY):
            next(feed)
        assert len(calls) == LOOK_EVERY + BATCHES_AHEAD
        for _ in range(10 * LOOK_EVERY):
            next(feed)
        assert len(calls) == LOOK_EVERY + BATCHES_AHEAD
        advisor, reads = feed._walk._advisor, feed._walk._reads
        best = 9.0
        for _ in range(5):
            begun = time.perf_counter()
            for number in range(1000):
                advisor.before(number * 12, 12, reads)
            best = min(best, (time.perf_counter() - begun) / 1000)
        assert len(calls) == LOOK_EVERY + BATCHES_AHEAD
        assert best < 10e-6  # 1 to 2 on a quiet machine


def test_it_begins_again_when_the_file_is_cold_again(folder):
    warm(folder)
    with feed_of(folder) as feed:
        calls = spied(feed)
        for _ in range(3 * LOOK_EVERY):
            next(feed)
        before = len(calls)
        feed.source.shards[0].drop()  # mapped pages would stay in the cache
        chill(folder)
        walk(feed, 2 * LOOK_EVERY)
        assert len(calls) > before
        faults, _ = walk(feed, 40)
        assert faults < 40  # of 480 rows


def test_rows_in_the_files_order_are_left_to_the_kernel(folder):
    """Its own readahead does as well: nearly no waiting, nothing read twice."""
    chill(folder)
    with feed_of(folder, order="sequential") as feed:
        calls = spied(feed)
        faults, _ = walk(feed, 300)
        assert calls == []
        assert faults < 60  # of 3 600 rows


def test_a_split_of_many_shards_is_advised_too(tmp_path):
    (tmp_path / "in").mkdir()
    for number in range(20):
        (tmp_path / "in" / f"{number:02}.txt").write_text(f"document {number} " * 1500)
    ladle.prepare(tmp_path / "in", tmp_path / "out", tokenizer="bytes", val_fraction=0, shard_bytes=50_000).close()
    with ladle.open(tmp_path / "out") as corpus:
        asked = []
        for number, shard in enumerate(corpus["train"].shards):
            shard.advise_willneed = lambda starts, length, number=number: asked.extend((number, int(s)) for s in starts)
        with ladle.Feed(corpus["train"], batch_size=6, block_size=64, framework="numpy", prefetch=0) as feed:
            batches = [next(feed) for _ in range(5)]
        bases = corpus["train"].bases
        told = sorted(int(bases[shard]) + start for shard, start in asked)
        known = sorted(start for batch in batches for start in batch.starts.tolist())
        assert len(corpus["train"].shards) > 5
        assert set(known) <= set(told)
        assert len(told) == (5 + BATCHES_AHEAD) * 6


def test_of_packed_rows_the_pieces_alone_are_asked_for(tmp_path):
    """No more than is read: documents of 20 tokens among others would else be asked for by the row."""
    (tmp_path / "in").mkdir()
    for number in range(200):
        (tmp_path / "in" / f"{number:03}.txt").write_text("x" * (5 + number % 40))
    ladle.prepare(tmp_path / "in", tmp_path / "out", tokenizer="bytes", val_fraction=0, shard_bytes=2_000).close()
    with ladle.open(tmp_path / "out") as corpus:
        split, asked = corpus["train"], set()
        for number, shard in enumerate(split.shards):
            shard.advise_willneed = lambda starts, length, number=number: asked.update(
                (int(split.bases[number]) + int(start), int(size)) for start, size in zip(starts, length, strict=True)
            )
        with ladle.Feed(
            split, batch_size=6, block_size=64, pack="best_fit", framework="numpy", prefetch=0, rank=1, world_size=2
        ) as feed:
            pieces = [feed[i].boundaries.pieces for i in range(3 + BATCHES_AHEAD)]
            for _ in range(3):
                next(feed)
        assert len(split.shards) > 2
        assert asked == {(s, n + 1) for one in pieces for s, n in zip(one.start.tolist(), one.length.tolist(), strict=True)}


def test_padding_rows_are_not_asked_for():
    source = ladle.from_ids(np.arange(10, dtype=np.uint16))
    with ladle.Feed(source, batch_size=3, block_size=2, window=8, tail="pad", epochs=1, framework="numpy", prefetch=0) as feed:
        assert len(list(feed)) == 3


# --- resident pages ---


@pytest.fixture
def sparse(tmp_path):
    """128 MiB that take no room on the disk; pages of holes count as resident like any others."""
    with open(tmp_path / "train.bin", "wb") as file:
        file.truncate(2**27)
    return tmp_path


def test_many_small_pieces_are_let_go_of_in_time(sparse):
    """A row of 1024 in 64 places touches far more than its own bytes."""
    with open(sparse / "train.bin", "rb") as file:  # pages in memory come 16 at a time, and were they read in a row, 512
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_RANDOM)
        for page in range(0, 2**27, 4096):
            os.pread(file.fileno(), 1, page)
    bound, before = 24 * 2**20, mapped_bytes()
    count = 2**26
    with ladle.open(sparse) as corpus:
        known = corpus["train"]
        split = Split(
            name="train",
            where="sparse",
            shards=known.shards,
            dtype=known.dtype,
            fingerprint=lambda: "sparse",
            num_documents=count // 16,
            documents=MemoryDocuments(np.arange(16, count + 1, 16, dtype=np.uint64)),
        )
        options = {"pack": "best_fit", "deal": "fresh", "max_mapped": bound, "framework": "numpy", "prefetch": 0}
        with ladle.Feed(split, batch_size=1, block_size=1024, **options) as feed:
            most = 0
            for _ in range(100):
                next(feed)
                most = max(most, mapped_bytes() - before)
    assert bound / 2 < most < bound * 5 // 4


@pytest.mark.parametrize("order", ["shuffled", "sequential"])
@pytest.mark.parametrize(("batch_size", "block_size"), [(12, 1024), (64, 256), (2, 2**17)])
def test_resident_pages_stay_near_the_bound(sparse, order, batch_size, block_size):
    """Bound 24 MiB, file 128: whatever the shape, at most a quarter more, and it is reached."""
    bound = 24 * 2**20
    before = mapped_bytes()
    with feed_of(sparse, order=order, batch_size=batch_size, block_size=block_size, max_mapped=bound) as feed:
        most = 0
        enough = 2 * feed.source.num_tokens if order == "sequential" else feed.source.num_tokens // 4
        while feed.position < enough:
            next(feed)
            most = max(most, mapped_bytes() - before)
    assert 0.5 * bound < most < 1.25 * bound


def test_without_a_bound_all_that_was_read_stays_resident(sparse):
    before = mapped_bytes()
    with feed_of(sparse, order="sequential", max_mapped=2**40) as feed:
        while feed.position < 2**25:
            next(feed)
        assert mapped_bytes() - before > 0.9 * 2**26


def test_views_that_a_user_holds_survive_letting_go(folder):
    with feed_of(folder, max_mapped=0) as feed:
        tokens = feed.source.shards[0].tokens()
        first = tokens[:1000].copy()
        for _ in range(40):
            next(feed)
        np.testing.assert_array_equal(tokens[:1000], first)


def test_the_default_bound_is_4_gib_or_a_quarter_of_memory():
    assert 2**20 < default_max_mapped() <= 2**32
    assert default_max_mapped() <= os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") // 4


def test_the_counters_count(folder):
    chill(folder)
    read, faults = bytes_read(), major_faults()
    (folder / "train.bin").read_bytes()
    assert bytes_read() - read >= 2 * TOKENS * 0.9
    assert major_faults() - faults < 100
    assert mapped_bytes() > 2**20
    assert advise.FAULT_AROUND >= 4096
