"""How many worker processes: from the CPUs that this process may use, never from those that the machine has."""

from __future__ import annotations

import multiprocessing
import os
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch.utils.data import ConcatDataset, IterableDataset, Subset, TensorDataset

MOST = 8  # workers a rank


def usable_cpus(cgroups: Path = Path("/sys/fs/cgroup"), mine: Path = Path("/proc/self/cgroup")) -> tuple[int, str]:
    """(CPUs, what says so): this process's affinity, or a cgroup's quota (version 1 or 2) where that is less. At least 1."""
    affinity = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    quota = min(_quotas(cgroups, mine), default=float("inf"))
    if quota < affinity:
        return max(int(quota), 1), f"the cgroup's quota of {quota:g} CPUs"
    return affinity, f"an affinity of {affinity} CPU{'s' * (affinity > 1)}"


def automatic(dataset: Any, world_size: int = 1) -> tuple[int, str]:
    """(workers, why) for a dataset: none where its samples lie in memory, else half of the CPUs, at most MOST a rank.

    world_size: ranks that share the CPUs, as many as this machine has GPUs, or all where it has none.
    """
    if in_memory(dataset):
        return 0, "the samples are in memory or mapped: handing them to another process costs more than making them"
    if multiprocessing.current_process().daemon:
        return 0, "this process is itself a worker, and may start none"
    cpus, why = usable_cpus()
    sharers = min(world_size, torch.cuda.device_count() or world_size)
    count = min(cpus // 2 // sharers, MOST)
    shared = f", shared by {sharers} ranks" if sharers > 1 else ""
    if isinstance(dataset, IterableDataset):
        return min(count, 1), f"an iterable dataset is read by one process; {why}{shared}"
    return count, f"half of {why}{shared}" + (f", at most {MOST} a rank" if count == MOST else "")


def in_memory(dataset: Any) -> bool:
    """Whether samples come without reading or decoding: a dataset says so by `in_memory = True`."""
    told = getattr(dataset, "in_memory", None)
    if isinstance(told, bool):
        return told
    if isinstance(dataset, Subset):
        return in_memory(dataset.dataset)
    if isinstance(dataset, ConcatDataset):
        return all(map(in_memory, dataset.datasets))
    return isinstance(dataset, TensorDataset | list | tuple | range | np.ndarray | torch.Tensor)


def _quotas(cgroups: Path, mine: Path) -> list[float]:
    """The CPU quotas above this process, in CPUs."""
    try:
        lines = [line for line in mine.read_text("utf-8").splitlines() if line.count(":") >= 2]
    except OSError:
        return []
    found: list[float] = []
    for line in lines:
        _, controllers, place = line.split(":", 2)
        if controllers and "cpu" not in controllers.split(","):
            continue
        base = cgroups / "cpu" if controllers else cgroups
        here = base / place.strip("/")
        for folder in dict.fromkeys([here, *here.parents, base]):
            if folder == base or base in folder.parents:
                found += _version_1(folder) if controllers else _version_2(folder)
    return found


def _version_1(folder: Path) -> list[float]:
    try:
        quota, period = (int((folder / f"cpu.cfs_{name}_us").read_text("ascii")) for name in ("quota", "period"))
    except (OSError, ValueError):
        return []
    return [quota / period] if quota > 0 < period else []


def _version_2(folder: Path) -> list[float]:
    try:
        quota, period = (folder / "cpu.max").read_text("ascii").split()
        return [int(quota) / int(period)]
    except (OSError, ValueError, ZeroDivisionError):  # "max": no quota
        return []
