"""The plan's files: made once, never believed, gone when half-written; and no row depends on them."""

import multiprocessing
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import warnings
from pathlib import Path

import numpy as np
import pytest

import ladle
from ladle.feed import pack_cache
from ladle.rows.packs import POLICIES, Packing


def corpus_of(folder, documents=60, seed=1):
    rng = np.random.default_rng(seed)
    (folder / "text").mkdir()
    for number in range(documents):
        (folder / "text" / f"{number:03}.txt").write_text("word " * int(rng.integers(1, 40)))
    return ladle.prepare(folder / "text", folder / "corpus", tokenizer="bytes", val_fraction=0)


def rows_of(split, cache=None, **options):
    packs = pack_cache.packs_of(split, Packing(**{"row_length": 64} | options), cache)
    every = np.arange(packs.num_rows)
    pieces = packs.pieces(every, np.zeros_like(every))
    return np.stack([pieces.row, pieces.column, pieces.start, pieces.length, pieces.labelled, pieces.offset]).tolist()


def files(folder):
    return sorted(path.name for path in folder.iterdir() if path.suffix in {".npz", ".npy"})


@pytest.fixture
def corpus(tmp_path):
    with corpus_of(tmp_path) as corpus:
        yield corpus


@pytest.mark.parametrize("policy", POLICIES)
def test_a_plan_is_made_once_and_read_back(corpus, policy, monkeypatch):
    fresh = rows_of(corpus["train"], policy=policy)
    folder = Path(corpus.path) / "packs"
    assert len(files(folder)) == 2
    assert not [path for path in folder.iterdir() if path.name.startswith(".")]  # nothing half-written stays

    def never(*_args):
        raise AssertionError("made again")

    monkeypatch.setattr(pack_cache, "arrange", never)
    assert rows_of(corpus["train"], policy=policy) == fresh


@pytest.mark.parametrize("policy", POLICIES)
def test_no_row_depends_on_where_the_plan_lies(corpus, policy, tmp_path):
    rng = np.random.default_rng(1)
    ends = np.cumsum(rng.integers(1, 90, 100))
    memory = ladle.from_ids(np.zeros(ends[-1], dtype=np.uint16), document_ends=ends)
    assert rows_of(memory, policy=policy) == rows_of(memory, tmp_path / "elsewhere", policy=policy)
    assert rows_of(corpus["train"], policy=policy) == rows_of(corpus["train"], tmp_path / "other", policy=policy)


def test_many_shards_are_one_plan(tmp_path):
    whole = corpus_of(tmp_path)
    with (
        ladle.prepare(tmp_path / "text", tmp_path / "parts", tokenizer="bytes", val_fraction=0, shard_bytes=1000) as parts,
        whole,
    ):
        assert len(parts["train"].shards) > 3
        for policy in POLICIES:
            assert rows_of(parts["train"], policy=policy) == rows_of(whole["train"], policy=policy)


DAMAGE = {
    "the table is cut short": (".npz", lambda content: content[: len(content) // 2]),
    "the table is empty": (".npz", lambda _: b""),
    "the table's bytes are flipped": (".npz", lambda content: content[:200] + bytes([content[200] ^ 255]) + content[201:]),
    "the pieces are cut short": (".npy", lambda content: content[:-8]),
    "a piece is flipped": (".npy", lambda content: content[:-5] + bytes([content[-5] ^ 1]) + content[-4:]),
    "the pieces are something else": (".npy", lambda _: b"<html>not found</html>"),
    "the pieces are pickled": (
        ".npy",
        lambda _: b"\x93NUMPY\x01\x00\x76\x00{'descr': '|O', 'fortran_order': False, 'shape': (1,)}",
    ),
}


@pytest.mark.parametrize("what", DAMAGE)
def test_a_damaged_plan_is_made_again_and_that_is_said(corpus, what):
    suffix, damage = DAMAGE[what]
    fresh = rows_of(corpus["train"])
    (path,) = (Path(corpus.path) / "packs").glob(f"*{suffix}")
    path.write_bytes(damage(path.read_bytes()))
    with pytest.warns(UserWarning, match=r"train-64-best_fit-.*: the plan of packs is made again: "):
        assert rows_of(corpus["train"]) == fresh
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert rows_of(corpus["train"]) == fresh


def test_pieces_that_are_missing_are_made_again(corpus):
    fresh = rows_of(corpus["train"])
    (path,) = (Path(corpus.path) / "packs").glob("*.npy")
    path.unlink()
    with pytest.warns(UserWarning, match="made again"):
        assert rows_of(corpus["train"]) == fresh


def test_a_plan_of_another_corpus_is_never_used(tmp_path):
    (tmp_path / "a").mkdir()
    (tmp_path / "b").mkdir()
    with corpus_of(tmp_path / "a") as a, corpus_of(tmp_path / "b", seed=2) as b:
        rows_of(a["train"])
        folder = Path(b.path) / "packs"
        folder.mkdir()
        for path in (Path(a.path) / "packs").iterdir():
            (folder / path.name).write_bytes(path.read_bytes())
        theirs = rows_of(b["train"])
        assert theirs == rows_of(b["train"], tmp_path / "fresh")
        # Under the very name that b's plan has, too.
        for path in folder.glob("*.np?"):
            path.unlink()
        wanted = {path.suffix: path.name for path in (tmp_path / "fresh").glob("*.np?")}
        for path in (Path(a.path) / "packs").glob("*.np?"):
            (folder / wanted[path.suffix]).write_bytes(path.read_bytes())
        with pytest.warns(UserWarning, match="made again: it is of another corpus or packing"):
            assert rows_of(b["train"]) == theirs


def test_policies_and_lengths_do_not_share_a_plan(corpus):
    for options in ({}, {"policy": "sequential"}, {"overlong": "drop"}, {"row_length": 65}):
        rows_of(corpus["train"], **options)
    assert len(files(Path(corpus.path) / "packs")) == 8
    rows_of(corpus["train"], deal="fresh", seed=4)  # the deal is arithmetic on the same plan
    assert len(files(Path(corpus.path) / "packs")) == 8


def test_a_corpus_with_plans_still_verifies(corpus):
    rows_of(corpus["train"])
    done = subprocess.run(
        [sys.executable, "-m", "ladle", "verify", str(corpus.path)], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.fixture
def temporary(tmp_path, monkeypatch):
    """Where the system keeps temporary files."""
    (tmp_path / "temporary").mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "temporary"))
    return tmp_path / "temporary"


def test_a_folder_that_cannot_be_written_to_sends_the_plan_elsewhere(corpus, temporary):
    """A file stands where the folder would be: no user, not even root, can write there."""
    (Path(corpus.path) / "packs").write_text("in the way")
    fresh = rows_of(corpus["train"])
    (private,) = temporary.iterdir()
    assert private.stat().st_mode & 0o777 == 0o700
    assert len(files(private)) == 2
    private.chmod(0o777)  # others could have written there
    with pytest.warns(UserWarning, match="packs: the plan could not be kept"):
        assert rows_of(corpus["train"]) == fresh
    shutil.rmtree(private)
    private.symlink_to(corpus.path)
    with pytest.warns(UserWarning, match="packs: the plan could not be kept"):
        assert rows_of(corpus["train"]) == fresh


def test_nothing_is_made_elsewhere_when_the_corpus_can_keep_its_plan(corpus, temporary):
    rows_of(corpus["train"])
    assert list(temporary.iterdir()) == []


def test_a_plan_that_came_with_a_read_only_corpus_is_used(corpus, monkeypatch):
    """No lock is taken, nothing is written: what is there is read."""
    fresh = rows_of(corpus["train"])
    monkeypatch.setattr(pack_cache, "_turn", None)
    monkeypatch.setattr(pack_cache, "_made", None)
    assert rows_of(corpus["train"]) == fresh


def test_a_closed_plan_says_so(corpus):
    for policy in POLICIES:
        packs = pack_cache.packs_of(corpus["train"], Packing(row_length=64, policy=policy))
        packs.close()
        packs.close()
        for use in (lambda packs=packs: packs.pieces(np.array([0]), np.array([0])), lambda packs=packs: packs.holding(0, 9, 0)):
            with pytest.raises(ladle.errors.ClosedError, match="this plan of packs is closed"):
                use()


@pytest.mark.parametrize(("suffix", "step"), [(".npz", 53), (".npy", 7)])
def test_any_flipped_bit_is_harmless(corpus, suffix, step):
    fresh = rows_of(corpus["train"])
    (path,) = (Path(corpus.path) / "packs").glob(f"*{suffix}")
    content = path.read_bytes()
    tried, made_again = range(0, min(len(content), 6000 if suffix == ".npz" else 128), step), 0
    for at in tried:
        path.write_bytes(content[:at] + bytes([content[at] ^ (1 << at % 8)]) + content[at + 1 :])
        with warnings.catch_warnings(record=True) as said:
            warnings.simplefilter("always")
            assert rows_of(corpus["train"]) == fresh
        made_again += bool(said)
    assert made_again > len(tried) / 2


def test_the_table_is_small_whatever_the_corpus(tmp_path):
    lengths = np.clip(np.random.default_rng(3).lognormal(6, 1.2, 300_000), 1, None).astype(np.int64)
    ends = np.cumsum(lengths)
    split = ladle.from_ids(np.zeros(1, dtype=np.uint16), document_ends=[1])  # its tokens are never read here
    split.num_tokens = int(ends[-1])
    split.ends_by_shard = lambda: iter([(0, ends.astype(np.uint64))])
    for row_length in (2048, 8192, 2**20):
        packs = pack_cache.packs_of(split, Packing(row_length=row_length), tmp_path)
        assert packs.counts.padded < 1e-4 * packs.counts.slots + row_length
        (table,) = tmp_path.glob(f"*-{row_length}-*.npz")
        assert table.stat().st_size < 1e6


def test_a_full_disk_leaves_nothing_half_written(corpus, tmp_path, monkeypatch):
    def full(*_args):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(pack_cache.os, "posix_fallocate", full)
    with pytest.warns(UserWarning, match=r"could not be kept .*No space left"):
        rows_of(corpus["train"], tmp_path / "full")
    assert files(tmp_path / "full") == []


def _make(path, queue):
    with ladle.open(path) as corpus:
        queue.put(rows_of(corpus["train"]))


def test_processes_that_want_the_same_plan_take_turns(corpus):
    context = multiprocessing.get_context("spawn")
    queue = context.Queue()
    ranks = [context.Process(target=_make, args=(str(corpus.path), queue)) for _ in range(3)]
    for rank in ranks:
        rank.start()
    found = [queue.get(timeout=60) for _ in ranks]
    for rank in ranks:
        rank.join()
    assert found[0] == found[1] == found[2] == rows_of(corpus["train"])
    assert len(files(Path(corpus.path) / "packs")) == 2


WAITED = """
import sys, time
import ladle
from ladle.feed import pack_cache

arrange = pack_cache.arrange

def slowly(*args):
    print("writing", flush=True)
    time.sleep(1)
    return arrange(*args)

pack_cache.arrange = slowly
with ladle.open(sys.argv[1]) as corpus:
    pack_cache.packs_of(corpus["train"], pack_cache.Packing(row_length=64))
"""


def test_who_waits_for_long_says_so_and_makes_nothing(corpus, monkeypatch):
    monkeypatch.setattr(pack_cache, "PATIENCE_SECONDS", 0.1)
    process = subprocess.Popen([sys.executable, "-c", WAITED, str(corpus.path)], stdout=subprocess.PIPE)
    assert process.stdout.readline() == b"writing\n"
    monkeypatch.setattr(pack_cache, "_made", None)
    with pytest.warns(UserWarning, match="another process makes this plan of packs; waiting for it"):
        rows_of(corpus["train"])
    assert process.wait() == 0
    process.stdout.close()


KILLED = """
import sys, time
import ladle
from ladle.feed import pack_cache
import numpy as np

def slowly(*args):
    print("writing", flush=True)
    time.sleep(60)

pack_cache.arrange = slowly
with ladle.open(sys.argv[1]) as corpus:
    pack_cache.packs_of(corpus["train"], pack_cache.Packing(row_length=64))
"""


def test_killed_while_the_plan_is_written_the_next_one_makes_it(corpus):
    process = subprocess.Popen([sys.executable, "-c", KILLED, str(corpus.path)], stdout=subprocess.PIPE)
    assert process.stdout.readline() == b"writing\n"
    os.kill(process.pid, signal.SIGKILL)
    process.wait()
    process.stdout.close()
    begin = time.monotonic()
    rows_of(corpus["train"])  # the lock went with the process
    assert time.monotonic() - begin < 5
    assert len(files(Path(corpus.path) / "packs")) == 2  # what the killed one left is gone
