"""Reading shards: checks on first touch, few open files, forks, files that shrink."""

import os
import resource
import subprocess
import sys
import time
import zlib

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import ladle
from ladle.corpus.shard import ArrayShard, FileShard, Maps, Pool
from ladle.errors import ClosedError, ConfigError, FormatError, TokenError

N = 50_000


@pytest.fixture
def folder(tmp_path):
    """A corpus of one split and one shard: N bytes of text, N + 1 tokens."""
    (tmp_path / "t.txt").write_bytes(bytes(np.random.default_rng(0).integers(32, 127, N, np.uint8)))
    ladle.prepare(tmp_path / "t.txt", tmp_path / "out", tokenizer="bytes", val_fraction=0).close()
    return tmp_path / "out"


def flip(path, offset):
    """Change one bit of a file in place."""
    with open(path, "r+b") as file:
        file.seek(offset)
        byte = file.read(1)[0]
        file.seek(offset)
        file.write(bytes([byte ^ 1]))


@settings(max_examples=200, suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(place=st.integers(0, 2 * N + 1), start=st.integers(0, N - 2000), length=st.integers(1, 2000))
def test_a_read_fails_exactly_when_a_block_it_touches_is_damaged(folder, place, start, length):
    path = folder / "train-00000.bin"
    flip(path, place)
    try:
        with ladle.open(folder) as corpus:
            blocks = range(start * 2 // 4096, ((start + length) * 2 - 1) // 4096 + 1)
            if place // 4096 in blocks:
                with pytest.raises(FormatError) as caught:
                    corpus["train"].read(start, length)
                block = place // 4096
                data = path.read_bytes()[block * 4096 : block * 4096 + 4096]
                assert f"{path} @ byte {block * 4096}: CRC-32 of block {block}: expected " in str(caught.value)
                assert f"found {zlib.crc32(data):08x}; the file was damaged" in str(caught.value)
            else:
                corpus["train"].read(start, length)
    finally:
        flip(path, place)


@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(place=st.integers(0, 2 * N + 1), starts=st.lists(st.integers(0, N - 9000), max_size=8), length=st.integers(0, 9000))
def test_many_rows_are_checked_as_one_by_one(folder, place, starts, length):
    path = folder / "train-00000.bin"
    touched = {b for s in starts if length for b in range(s * 2 // 4096, ((s + length) * 2 - 1) // 4096 + 1)}
    flip(path, place)
    try:
        with ladle.open(folder) as corpus:
            shard = corpus["train"].shards[0]
            for _ in range(2):  # a block found bad stays unchecked
                if place // 4096 in touched:
                    with pytest.raises(FormatError, match=f"CRC-32 of block {place // 4096}"):
                        shard.check_many(np.array(starts, np.int64), length)
                else:
                    shard.check_many(np.array(starts, np.int64), length)
    finally:
        flip(path, place)


def test_a_block_is_checked_once(folder):
    with ladle.open(folder) as corpus:
        shard = corpus["train"].shards[0]
        shard.check(0, 4096)
        flip(folder / "train-00000.bin", 100)
        shard.check(0, 2048)
        shard.check(4000, 4100)
    with ladle.open(folder) as corpus, pytest.raises(FormatError):
        corpus["train"].read(0, 1)


def test_checking_again_costs_microseconds(folder):
    """Generous: the aim is 10 us for 64 rows of 1024; a machine under load is given 20 times that."""
    with ladle.open(folder) as corpus:
        shard = corpus["train"].shards[0]
        starts = np.random.default_rng(1).integers(0, N - 1024, 64)
        shard.check_many(starts, 1024)
        times = []
        for _ in range(200):
            begun = time.perf_counter()
            shard.check_many(starts, 1024)
            times.append(time.perf_counter() - begun)
        assert min(times) < 200e-6


def test_a_file_that_shrinks_raises_instead_of_killing_the_process(folder):
    code = f"""
import ladle, subprocess, sys
from ladle.errors import FormatError
split = ladle.open({str(folder)!r})["train"]
split.read(0, 10)
subprocess.run([sys.executable, "-c", "import os; os.truncate({str(folder / "train-00000.bin")!r}, 50000)"], check=True)
for start in (0, 40000):
    try:
        split.read(start, 1000)
    except FormatError as error:
        print(error)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done
    assert (
        done.stdout.count("train-00000.bin: size: expected 100002 bytes, found 50000 bytes; the file shrank while it was open")
        == 2
    )


@pytest.mark.parametrize(("begun", "left"), [(True, 0), (True, 140), (False, 0), (False, 130), (False, 140)])
def test_checksums_that_shrink_raise_instead_of_killing_the_process(folder, begun, left):
    """begun: the checksums are mapped already when their file is cut off."""
    path = folder / "train-00000.sums.npy"
    size = path.stat().st_size
    code = f"""
import ladle, os
from ladle.errors import FormatError
split = ladle.open({str(folder)!r})["train"]
if {begun}:
    split.read(0, 10)
os.truncate({str(path)!r}, {left})
try:
    split.read(40000, 10)
except FormatError as error:
    print(error)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done
    assert done.stdout.startswith(f"{path}: size: expected {size} bytes, found {left} bytes; ")


def test_after_close_reading_raises(folder):
    corpus = ladle.open(folder)
    split = corpus["train"]
    assert len(split.read(0, 5)) == 5
    corpus.close()
    corpus.close()
    with pytest.raises(ClosedError, match=r"train-00000\.bin: read after its corpus was closed"):
        split.read(0, 5)


def test_no_descriptor_is_left_open(folder):
    before = sorted(os.listdir("/proc/self/fd"))
    with ladle.open(folder) as corpus:
        corpus["train"].read(0, 100)
        corpus["train"].document_ends()
        corpus["train"].locate([5])
    assert sorted(os.listdir("/proc/self/fd")) == before


def test_advice_and_drop_change_no_token(folder):
    with ladle.open(folder) as corpus:
        shard = corpus["train"].shards[0]
        before = shard.tokens().copy()
        shard.advise_random()
        shard.advise_willneed(np.array([0, 1000, 2047, 2048, N]), 500)
        view = shard.tokens()
        shard.drop()
        assert np.array_equal(view, before)
        with pytest.raises(ValueError, match="read-only"):
            view[0] = 1


def test_rows_may_cross_shards(tmp_path):
    (tmp_path / "in").mkdir()
    for i in range(30):
        (tmp_path / "in" / f"{i:02}.txt").write_text(f"{i:02}" * (i % 7))
    whole = [b for i in range(30) if i % 7 for b in [*(f"{i:02}" * (i % 7)).encode(), 256]]
    with ladle.prepare(tmp_path / "in", tmp_path / "out", tokenizer="bytes", val_fraction=0, shard_bytes=5) as corpus:
        split = corpus["train"]
        assert len(split.shards) > 10
        assert split.bases.tolist() == [0, *np.cumsum([s.num_tokens for s in split.shards]).tolist()]
        for start in range(len(whole)):
            for count in (0, 1, 7, len(whole) - start):
                if start + count <= len(whole):
                    assert split.read(start, count).tolist() == whole[start : start + count]
        ends = split.document_ends()
        assert ends.dtype == np.uint64
        assert ends.tolist() == [i + 1 for i, b in enumerate(whole) if b == 256]
        for token, place in enumerate(split.locate(np.arange(len(whole)))):
            document = int(np.searchsorted(ends, token, side="right"))
            start = int(ends[document - 1]) if document else 0
            assert (place.token, place.document, place.offset) == (token, document, token - start)
            assert place.source == f"{[i for i in range(30) if i % 7][document]:02}.txt"
            assert place.token_byte == token - start


@pytest.mark.parametrize(("start", "count"), [(-1, 1), (0, N + 2), (N + 1, 1), (5, -1), (1 << 63, 1)])
def test_ranges_outside_the_split_are_refused(folder, start, count):
    with ladle.open(folder) as corpus, pytest.raises(ConfigError, match=f"expected a range of tokens within 0 to {N + 1}"):
        corpus["train"].read(start, count)


def test_tokens_outside_the_split_are_not_located(folder):
    with ladle.open(folder) as corpus:
        for token in (-1, N + 1):
            with pytest.raises(ConfigError, match=f"expected a token index within 0 to {N}, found {token}"):
                corpus["train"].locate([0, token])
        assert corpus["train"].locate([]) == []


def test_forked_processes_read_the_same(folder):
    with ladle.open(folder) as corpus:
        split = corpus["train"]
        expected = split.read(0, 1000).tolist()
        children = []
        for i in range(4):
            if (child := os.fork()) == 0:
                try:
                    ok = split.read(0, 1000).tolist() == expected and len(split.read(20_000 + i, 10_000)) == 10_000
                    os._exit(0 if ok else 1)
                except BaseException:
                    os._exit(2)
            children.append(child)
        assert [os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in children] == [0] * 4
        assert split.read(0, 1000).tolist() == expected


def test_the_longest_unused_map_is_let_go(tmp_path):
    pool = Pool(limit=3)
    shards = []
    for i in range(5):
        np.full(10, i, np.uint16).tofile(tmp_path / f"{i}.bin")
        shards.append(FileShard(tmp_path / f"{i}.bin", np.dtype("<u2"), 10, pool, None))
    for i in (0, 1, 2, 0, 3):
        shards[i].tokens()
    assert [s._map is not None for s in shards] == [True, False, True, True, False]
    view = shards[0].tokens()
    for i in (1, 2, 3, 4):
        shards[i].tokens()
    assert shards[0]._map is None
    assert view.tolist() == [0] * 10, "a view outlives its map's place in the pool"
    assert shards[0].tokens().tolist() == [0] * 10


def test_a_shard_that_is_read_again_and_again_stays_mapped(tmp_path):
    pool = Pool(limit=4)
    shards = []
    for i in range(40):
        np.full(10, i, np.uint16).tofile(tmp_path / f"{i}.bin")
        shards.append(FileShard(tmp_path / f"{i}.bin", np.dtype("<u2"), 10, pool, None))
    mapped = 0
    for i in range(1, 40):
        mapped += shards[0]._map is None
        assert bytes(shards[0].piece(4, 8)) == b"\0\0\0\0"
        assert bytes(shards[i].piece(4, 8)) == bytes([i, 0, i, 0])
        assert sum(shard._map is not None for shard in shards) <= 4
    assert mapped == 1


def test_how_many_stay_mapped_follows_from_how_many_may_be_open():
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    try:
        for files, expected in ((256, 85), (1024, 341), (min(hard, 60_000) if hard > 0 else 60_000, None)):
            resource.setrlimit(resource.RLIMIT_NOFILE, (files, hard))
            assert Pool().limit == (min(files // 3, 16_384) if expected is None else expected)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def test_the_maps_of_a_split_hold_until_one_is_let_go(tmp_path):
    pool = Pool(limit=3)
    for i in range(4):
        np.full(10, i, np.uint16).tofile(tmp_path / f"{i}.bin")
    shards = [FileShard(tmp_path / f"{i}.bin", np.dtype("<u2"), 10, pool, None) for i in range(4)]
    assert Maps.of(shards[:3]) is None  # none is mapped yet
    for shard in shards[:3]:
        shard.tokens()
    maps = Maps.of(shards[:3])
    assert maps.hold
    assert [bytes(content[:1]) for content in maps.contents] == [b"\0", b"\1", b"\2"]
    shards[3].tokens()
    assert not maps.hold
    assert Maps.of(shards[:3]) is None
    again = Maps.of(shards[3:])
    shards[3].close()
    assert not again.hold
    for shard in shards[:2]:
        shard.tokens()
    assert Maps.of(shards[:2]).hold
    shards[0].move(Pool())
    assert Maps.of(shards[:2]) is None
    assert Maps.of([ArrayShard(np.arange(3, dtype=np.uint16))]) is None


@pytest.mark.slow
def test_5000_shards_need_few_open_files(tmp_path, monkeypatch):
    monkeypatch.setattr(os, "fsync", lambda _: None)  # 20 000 of them would take a minute
    (tmp_path / "in").mkdir()
    for i in range(5000):
        (tmp_path / "in" / f"{i:04}.txt").write_text(f"{i:04}")
    ladle.prepare(tmp_path / "in", tmp_path / "out", tokenizer="bytes", val_fraction=0, shard_bytes=1).close()
    code = f"""
import ladle, time, numpy as np
begun = time.perf_counter()
split = ladle.open({str(tmp_path / "out")!r})["train"]
seconds = time.perf_counter() - begun
assert len(split.shards) == 5000
split.shards[0].advise_random()
for i in np.random.default_rng(0).integers(0, 5000, 6000).tolist():
    assert bytes(split.read(5 * i, 4).tolist()) == b"%04d" % i
assert split.read(0, 25_000).reshape(5000, 5)[:, 4].tolist() == [256] * 5000
assert split.document_ends().tolist() == list(range(5, 25_001, 5))
assert split.locate([24_999])[0].source == "4999.txt"
print(seconds)
"""
    done = subprocess.run(
        [sys.executable, "-c", code],
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_NOFILE, (256, 256)),
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    assert float(done.stdout) < 3


def test_ids_outside_the_vocabulary_name_file_byte_and_id(tmp_path):
    np.array([5, 120, 7], "<u2").tofile(tmp_path / "train.bin")
    (tmp_path / "val.bin").write_bytes(b"\x01\x00")
    with ladle.open(tmp_path) as corpus:
        split = corpus["train"]
        split.check_ids(split.read(0, 3), 0)  # no vocabulary is known
        split.vocab_size = 100
        for ids, starts in ((split.read(0, 3), 0), (np.array([[5], [120]]), np.array([0, 1])), (split.read(1, 1), 1)):
            with pytest.raises(TokenError) as caught:
                split.check_ids(ids, starts)
            assert f"{tmp_path / 'train.bin'} @ byte 2: id: expected less than the vocabulary's 100, found 120" in str(
                caught.value
            )
        split.check_ids(split.read(2, 1), 2)
        split.check_ids(split.read(0, 0), 0)


def test_a_known_largest_id_makes_the_check_free():
    split = ladle.from_ids(np.array([1, 2, 3], np.uint16), vocab_size=4)
    split.check_ids(np.array([9]), 0)  # not looked at: no stored id is above 3
    assert split.max_id == 3
