"""How many workers, and why: affinity, quotas, memory."""

import os

import numpy as np
import pytest
import torch
from torch.utils.data import ConcatDataset, Dataset, IterableDataset, Subset, TensorDataset

from ladle.batching import loader
from ladle.batching.workers import automatic, in_memory, usable_cpus


class Slow(Dataset):
    def __len__(self):
        return 5

    def __getitem__(self, index):
        return index


def fake(tmp_path, lines, files):
    """A /proc/self/cgroup and a /sys/fs/cgroup."""
    mine = tmp_path / "self"
    mine.write_text("\n".join(lines) + "\n")
    for name, text in files.items():
        path = tmp_path / "cgroups" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return tmp_path / "cgroups", mine


@pytest.fixture
def sixteen(monkeypatch):
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(16)))


def test_the_affinity_counts_not_the_machine(monkeypatch, tmp_path):
    monkeypatch.setattr(os, "cpu_count", lambda: 64)
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {3, 5})
    assert usable_cpus(*fake(tmp_path, [], {})) == (2, "an affinity of 2 CPUs")


@pytest.mark.usefixtures("sixteen")
@pytest.mark.parametrize(
    ("lines", "files", "expected"),
    [
        (["0::/a/b"], {"a/b/cpu.max": "max 100000", "a/cpu.max": "300000 100000"}, (3, "the cgroup's quota of 3 CPUs")),
        (["0::/a"], {"a/cpu.max": "50000 100000"}, (1, "the cgroup's quota of 0.5 CPUs")),
        (["0::/"], {"cpu.max": "250000 100000"}, (2, "the cgroup's quota of 2.5 CPUs")),
        (["0::/gone"], {}, (16, "an affinity of 16 CPUs")),
        (["0::/a"], {"a/cpu.max": "nonsense"}, (16, "an affinity of 16 CPUs")),
        (
            ["4:memory:/m", "1:cpu,cpuacct:/a"],
            {"cpu/a/cpu.cfs_quota_us": "400000", "cpu/a/cpu.cfs_period_us": "100000"},
            (4, "the cgroup's quota of 4 CPUs"),
        ),
        (["1:cpu:/"], {"cpu/cpu.cfs_quota_us": "-1", "cpu/cpu.cfs_period_us": "100000"}, (16, "an affinity of 16 CPUs")),
        (
            ["1:cpu:/elsewhere"],
            {"cpu/cpu.cfs_quota_us": "200000", "cpu/cpu.cfs_period_us": "100000"},
            (2, "the cgroup's quota of 2 CPUs"),
        ),
    ],
)
def test_a_quota_counts_where_it_is_less(tmp_path, lines, files, expected):
    assert usable_cpus(*fake(tmp_path, lines, files)) == expected


@pytest.mark.parametrize(("cpus", "expected"), [(1, 0), (2, 1), (3, 1), (8, 4), (15, 7), (64, 8)])
def test_half_of_them_at_most_eight(monkeypatch, cpus, expected):
    monkeypatch.setattr("ladle.batching.workers.usable_cpus", lambda: (cpus, f"an affinity of {cpus} CPUs"))
    count, why = automatic(Slow())
    assert count == expected
    assert why == f"half of an affinity of {cpus} CPUs" + (", at most 8 a rank" if expected == 8 else "")


def test_ranks_share_them(monkeypatch):
    monkeypatch.setattr("ladle.batching.workers.usable_cpus", lambda: (16, "an affinity of 16 CPUs"))
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 0)
    assert automatic(Slow(), 4) == (2, "half of an affinity of 16 CPUs, shared by 4 ranks")
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)  # two ranks a machine
    assert automatic(Slow(), 4) == (4, "half of an affinity of 16 CPUs, shared by 2 ranks")


class Held(Slow):
    in_memory = True


@pytest.mark.parametrize(
    "dataset",
    [
        TensorDataset(torch.zeros(3)),
        [1, 2],
        range(3),
        np.zeros(3),
        torch.zeros(3),
        Held(),
        Subset(Held(), [0]),
        ConcatDataset([Held(), TensorDataset(torch.zeros(3))]),
    ],
)
def test_samples_in_memory_need_none(dataset):
    assert in_memory(dataset)
    batches = loader(dataset, verbose=False)
    assert batches.num_workers == 0
    assert "workers     0: the samples are in memory or mapped: handing" in batches.banner()


@pytest.mark.parametrize("dataset", [Slow(), Subset(Slow(), [0]), ConcatDataset([Held(), Slow()])])
def test_what_may_be_slow_is_no_memory(dataset):
    assert not in_memory(dataset)


def test_an_iterable_dataset_has_one_reader(monkeypatch):
    class Rows(IterableDataset):
        def __iter__(self):
            return iter(range(3))

    monkeypatch.setattr("ladle.batching.workers.usable_cpus", lambda: (16, "an affinity of 16 CPUs"))
    assert automatic(Rows()) == (1, "an iterable dataset is read by one process; an affinity of 16 CPUs")


def test_a_worker_may_start_none():
    class Asks(Slow):
        def __getitem__(self, index):
            return automatic(Slow())[1]

    with loader(Asks(), workers=1, verbose=False) as batches:
        assert next(iter(batches)) == ["this process is itself a worker, and may start none"]


def test_torchs_arguments_for_workers_are_dropped_where_auto_finds_none():
    assert list(loader([1, 2], prefetch_factor=3, timeout=5, verbose=False))


def test_more_workers_than_cpus_are_started_without_a_warning():
    """The suite turns warnings into errors; the banner says what there is."""
    with loader(Slow(), workers=5, verbose=False) as batches:
        assert torch.cat(list(batches)).tolist() == list(range(5))
        assert "workers     5: as asked; " in batches.banner()
