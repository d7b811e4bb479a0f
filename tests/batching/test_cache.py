"""Samples made once: the same bytes however often the writer was killed, nothing half-written that opens."""

import functools
import io
import json
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
import torch

from ladle.batching import Arrays, cache, identity
from ladle.errors import ConfigError, FormatError


class Noise(torch.utils.data.Dataset):
    """Samples of tensors, numbers and a nested tuple; random ones, keyed by the sample."""

    def __init__(self, samples=40, extra=()):
        self.samples, self.extra = samples, extra

    def __len__(self):
        return self.samples

    def __getitem__(self, index):
        if index in self.extra:
            return {"x": torch.zeros(2, 2), "y": (index, 0.5)}
        return {"x": torch.full((2, 3), float(index)) + torch.rand(()), "y": (index, random.random())}


def plain(sample):
    return sample["x"].tolist(), sample["y"][0], float(sample["y"][1])


def contents(folder):
    return {path.name: path.read_bytes() for path in sorted(Path(folder).iterdir())}


def half(sample):
    return {"x": sample["x"] / 2, "y": sample["y"]}


def test_samples_come_back_as_they_were(tmp_path):
    first = cache(Noise(), tmp_path / "a", workers=0, seed=3)
    assert len(first) == 40
    assert isinstance(first, Arrays)
    assert first[7]["x"].dtype == torch.float32
    assert first[7]["y"][0] == 7
    assert first[7]["y"][1].dtype == torch.float64  # a Python float is stored as it is
    again = cache(Noise(), tmp_path / "a", workers=0, seed=3)  # read, not made
    assert [plain(again[i]) for i in range(40)] == [plain(first[i]) for i in range(40)]


def test_the_bytes_are_the_same_for_any_number_of_workers(tmp_path):
    cache(Noise(150), tmp_path / "none", workers=0, seed=3)
    cache(Noise(150), tmp_path / "two", workers=2, seed=3)
    assert contents(tmp_path / "none") == contents(tmp_path / "two")
    other = cache(Noise(150), tmp_path / "other", workers=0, seed=4)
    assert contents(tmp_path / "other")["000.npy"] != contents(tmp_path / "none")["000.npy"]
    assert len(other) == 150


def test_writing_a_cache_moves_no_generator(tmp_path):
    torch.manual_seed(1)
    random.seed(1)
    before = torch.get_rng_state(), random.getstate()
    cache(Noise(), tmp_path / "a", workers=0)
    assert torch.equal(torch.get_rng_state(), before[0])
    assert random.getstate() == before[1]


def test_a_transform_comes_first(tmp_path):
    whole, halves = cache(Noise(), tmp_path / "a", workers=0), cache(Noise(), tmp_path / "b", workers=0, transform=half)
    assert torch.equal(halves[5]["x"], whole[5]["x"] / 2)
    with pytest.raises(ConfigError, match=r"a: transform: expected 'half', found None: it is the cache of another dataset"):
        cache(Noise(), tmp_path / "a", workers=0, transform=half)


@pytest.mark.parametrize(
    ("dataset", "name"),
    [(Noise(41), "samples: expected 41, found 40"), (Arrays(np.zeros((40, 2))), "dataset: expected 'Arrays', found 'Noise'")],
)
def test_a_cache_of_another_dataset_is_refused(tmp_path, dataset, name):
    cache(Noise(), tmp_path / "a", workers=0)
    with pytest.raises(ConfigError, match=f"{name}: it is the cache of another dataset; name another folder, or remove this one"):
        cache(dataset, tmp_path / "a", workers=0)


def test_a_sample_of_another_shape_is_named_and_nothing_opens(tmp_path):
    with pytest.raises(
        ConfigError, match=r"sample 17, field 0: expected float32 of shape \(2, 3\) .* found float32 of shape \(2, 2\)"
    ):
        cache(Noise(extra={17}), tmp_path / "a", workers=0)
    assert not (tmp_path / "a").exists()
    with pytest.raises(ConfigError, match="sample 0, field 1: expected numbers, found str"):
        cache([("a", "b")], tmp_path / "c", workers=0, transform=lambda pair: (1, pair[1]))


def test_files_that_stand_there_are_left_alone(tmp_path):
    (tmp_path / "a").mkdir()
    (tmp_path / "a/thesis.txt").write_text("mine")
    with pytest.raises(ConfigError, match="expected a cache or an empty folder, found other files in it"):
        cache(Noise(), tmp_path / "a", workers=0)
    assert (tmp_path / "a/thesis.txt").read_text() == "mine"


def test_a_cache_that_was_cut_short_is_an_error(tmp_path):
    cache(Noise(), tmp_path / "a", workers=0)
    path = tmp_path / "a/000.npy"
    os.truncate(path, path.stat().st_size - 8)
    with pytest.raises(FormatError, match=r"000\.npy: array: expected an \.npy file of numbers"):
        cache(Noise(), tmp_path / "a", workers=0)


def test_a_full_disk_is_one_error_before_anything_is_written(tmp_path, monkeypatch):
    import shutil

    monkeypatch.setattr(shutil, "disk_usage", lambda _: shutil._ntuple_diskusage(100, 99, 1))
    with pytest.raises(OSError, match=r"No space left on device: the cache needs 1,600 bytes, 1 are free"):
        cache(Noise(), tmp_path / "a", workers=0)
    assert not (tmp_path / "a").exists()
    assert not list((tmp_path / "a.partial").glob("*.npy"))


@pytest.fixture
def small_disk(tmp_path):
    folder = tmp_path / "disk"
    folder.mkdir()
    told = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=128k", "none", folder], capture_output=True, text=True)
    if told.returncode:
        pytest.skip(f"this system refuses to mount a tmpfs: {told.stderr.strip()}")
    yield folder
    subprocess.run(["umount", folder], check=True)


def test_a_disk_that_is_full_leaves_nothing_that_opens_and_room_helps(small_disk):
    with pytest.raises(OSError, match=r"No space left on device: the cache needs 160,000 bytes, 1\d\d,\d{3} are free"):
        cache(Noise(4000), small_disk / "a", workers=0)
    assert not (small_disk / "a").exists()
    filler = small_disk / "filler"
    with pytest.raises(OSError, match="No space left on device"):
        cache(Noise(1000), small_disk / "a", workers=0, transform=functools.partial(taking_room, filler))
    assert not (small_disk / "a").exists()
    filler.unlink()
    (small_disk / "b").mkdir()
    assert len(cache(Noise(1000), small_disk / "b", workers=0)) == 1000


def taking_room(filler, sample):
    if not filler.exists():
        filler.write_bytes(bytes(100_000))
    return sample


SLOWLY = """
import sys, time
sys.path.insert(0, sys.argv[1])
from test_cache_data import Noise
from ladle.batching import cache

class Slow(Noise):
    __qualname__ = "Noise"
    def __getitem__(self, index):
        time.sleep(0.0005)
        return super().__getitem__(index)

cache(Slow(4000), sys.argv[2], workers=int(sys.argv[3]), seed=3)
"""


@pytest.mark.slow
@pytest.mark.parametrize("workers", [0, 2])
def test_killed_at_random_moments_the_bytes_are_the_same(tmp_path, workers):
    (tmp_path / "test_cache_data.py").write_text(Path(__file__).read_text(encoding="utf-8"), encoding="utf-8")
    cache(Noise(4000), tmp_path / "whole", workers=0, seed=3)
    command = [sys.executable, "-c", SLOWLY, str(tmp_path), str(tmp_path / "killed"), str(workers)]
    rng, kills, done = random.Random(workers), 0, -1
    note = tmp_path / "killed.partial/progress.json"
    while not (tmp_path / "killed").exists():
        process = subprocess.Popen(command, start_new_session=True, stderr=subprocess.PIPE)
        while kills < 4 and process.poll() is None:
            reached = json.loads(note.read_text())["done"] if note.exists() else -1
            if reached > done:  # it has gone on from where the last one was killed
                time.sleep(rng.uniform(0, 0.1))
                os.killpg(process.pid, signal.SIGKILL)
                kills, done = kills + 1, reached
                break
            time.sleep(0.005)
        error = process.communicate()[1].decode()
        assert process.returncode in {0, -signal.SIGKILL}, error
        time.sleep(0.05)  # the workers of a killed parent see its end
    assert kills
    assert contents(tmp_path / "killed") == contents(tmp_path / "whole")


COUNTED = """
import sys, time
sys.path.insert(0, sys.argv[1])
from test_cache_data import Noise
from ladle.batching import cache

class Counted(Noise):
    __qualname__ = "Noise"
    def __getitem__(self, index):
        with open(sys.argv[3], "a") as made:
            made.write(f"{index}\\n")
        time.sleep(0.005)
        return super().__getitem__(index)

print(len(cache(Counted(200), sys.argv[2], workers=0, seed=3)))
"""


@pytest.mark.slow
def test_writers_that_come_at_once_make_each_sample_once(tmp_path):
    (tmp_path / "test_cache_data.py").write_text(Path(__file__).read_text(encoding="utf-8"), encoding="utf-8")
    command = [sys.executable, "-c", COUNTED, str(tmp_path), str(tmp_path / "a"), str(tmp_path / "made")]
    writers = [subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) for _ in range(3)]
    told = [writer.communicate(timeout=120) for writer in writers]
    assert [out for out, _ in told] == ["200\n"] * 3, told
    assert [int(line) for line in (tmp_path / "made").read_text().splitlines()] == list(range(200))
    assert contents(tmp_path / "a") == contents(cache(Noise(200), tmp_path / "b", workers=0, seed=3).folder)
    assert sorted(path.name for path in tmp_path.iterdir() if path.name.startswith("a")) == ["a"]


def test_it_is_said_that_another_writer_is_waited_for(tmp_path, monkeypatch):
    from ladle.batching import cache as found  # the function: the module has its name

    module = sys.modules[found.__module__]
    monkeypatch.setattr(module, "PATIENCE_SECONDS", 0)
    (tmp_path / "a.partial").mkdir()
    hold = "import fcntl, sys, time; file = open(sys.argv[1], 'ab'); fcntl.flock(file, fcntl.LOCK_EX); print(flush=True); time.sleep(1)"
    with subprocess.Popen([sys.executable, "-c", hold, str(tmp_path / "a.partial.lock")], stdout=subprocess.PIPE) as other:
        other.stdout.readline()
        with pytest.warns(UserWarning, match=r"a\.partial: another process writes this cache; waiting for it"):
            assert len(cache(Noise(), tmp_path / "a", workers=0)) == 40


def test_killed_after_its_last_word_a_cache_is_finished_without_making_a_sample(tmp_path):
    whole = cache(Noise(), tmp_path / "whole", workers=0)
    cache(Noise(), tmp_path / "a", workers=0)
    (tmp_path / "a").rename(tmp_path / "a.partial")  # as it stands before its last step
    (tmp_path / "a.partial/shape.json").write_text("0")
    finished = cache(Unmakable(), tmp_path / "a", workers=0)
    assert contents(finished.folder) == contents(whole.folder)


class Unmakable(Noise):
    __qualname__ = "Noise"

    def __getitem__(self, index):
        raise AssertionError("made again")


def test_a_cache_of_other_samples_of_the_same_dataset_is_refused(tmp_path):
    subset, both = torch.utils.data.Subset, torch.utils.data.ConcatDataset
    cache(subset(Noise(), [0, 1]), tmp_path / "subset", workers=0)
    with pytest.raises(ConfigError, match="subset: listing: expected"):
        cache(subset(Noise(), [5, 6]), tmp_path / "subset", workers=0)
    assert len(cache(subset(Noise(), [0, 1]), tmp_path / "subset", workers=0)) == 2
    cache(both([subset(Noise(), [0]), subset(Noise(), [1, 2])]), tmp_path / "both", workers=0)
    with pytest.raises(ConfigError, match="both: listing: expected"):
        cache(both([subset(Noise(), [0, 1]), subset(Noise(), [2])]), tmp_path / "both", workers=0)
    tensors = torch.utils.data.TensorDataset
    cache(tensors(torch.zeros(4)), tmp_path / "tensors", workers=0)
    with pytest.raises(ConfigError, match="tensors: listing: expected"):
        cache(tensors(torch.ones(4)), tmp_path / "tensors", workers=0)


def test_the_functions_that_make_samples_are_told_by_name_and_arguments(tmp_path):
    class Scaled(Noise):
        transform = functools.partial(torch.mul, other=2)

    cache(Scaled(), tmp_path / "a", workers=0)
    Scaled.transform = functools.partial(torch.mul, other=3)
    with pytest.raises(ConfigError, match=r"dataset: expected '.*Scaled\(transform=.*mul\(other=3\)\)', found .*other=2"):
        cache(Scaled(), tmp_path / "a", workers=0)
    assert identity.named(Noise()) == "Noise"  # an address would differ in every process
    assert identity.named(functools.partial(half, Noise())) == "half(Noise)"


@pytest.mark.parametrize(
    ("told", "message"),
    [
        ("{", "content: expected JSON as a cache writes it"),
        ("[" * 100_000, "content: expected JSON as a cache writes it"),
        ("[]", "format: expected 1, found list; it was written by another version"),
        ({"format": 2}, "format: expected 1, found 2; it was written by another version"),
        ({"of": []}, "of: expected the dataset that was cached"),
        ({"arrays": 10**12}, "arrays: expected 3 for this shape, found 1000000000000"),
        ({"shape": {"dict": 3}}, "arrays: expected None for this shape"),
        ({"of": {"samples": 41}}, r"000\.npy: samples: expected 41, found 40; write the cache again"),
    ],
)
def test_what_a_cache_says_of_itself_is_checked(tmp_path, told, message):
    from ladle.batching.cached import CachedSamples

    cache(Noise(), tmp_path / "a", workers=0)
    stated = tmp_path / "a/cache.json"
    stated.write_text(told if isinstance(told, str) else json.dumps({**json.loads(stated.read_text()), **told}))
    with pytest.raises(FormatError, match=message):
        CachedSamples(tmp_path / "a")


@pytest.mark.parametrize(
    ("dataset", "message"),
    [
        (iter([1]), "cache: expected a dataset with __len__ and __getitem__, found list_iterator"),
        ([], "dataset: expected at least one sample, found none"),
        ([{1: 2}], "sample 0: expected keys that are str, found 1"),
        ([torch.zeros(2, dtype=torch.bfloat16)], "sample 0: expected numbers as NumPy has them, found .*BFloat16"),
        ([None], "sample 0: expected one, found none"),
        ([1, 2.5], "sample 1, field 0: expected int64 .* found float64"),
        ([(1, 2), (1,)], "sample 1: expected a sample built like sample 0, found another"),
    ],
)
def test_what_cannot_be_cached_is_named(tmp_path, dataset, message):
    with pytest.raises(ConfigError, match=message):
        cache(dataset, tmp_path / "a", workers=0)
    assert not (tmp_path / "a").exists()


def test_a_file_in_the_cache_s_place_is_left_alone(tmp_path):
    (tmp_path / "a").write_text("mine")
    with pytest.raises(ConfigError, match="a: expected a cache or an empty folder, found a file; name another folder"):
        cache(Noise(), tmp_path / "a", workers=0)
    assert (tmp_path / "a").read_text() == "mine"


def test_progress_is_told_by_the_sample(tmp_path, monkeypatch):
    from ladle.corpus import progress

    monkeypatch.setattr(progress, "LINE_SECONDS", 0)
    drawn = io.StringIO()
    cache(Noise(), tmp_path / "a", workers=0, progress=drawn)
    assert drawn.getvalue().startswith("caching: 40 of 40 samples, ")
