"""Memory: how much there is, how much a step used, and a bound on it that ends in an error and not in a killed process."""

from __future__ import annotations

import errno
import os
import resource
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from pathlib import Path
from typing import Protocol

import torch

from ladle.errors import ConfigError

MIB = 1 << 20
_UNLIMITED = 1 << 60  # cgroup v1 writes nearly 2**63 where there is no limit
_WORDS = (
    "out of memory",  # CUDA, HIP, MPS, XPU
    "can't allocate memory",  # torch on the CPU
    "Cannot allocate memory",
    "CUBLAS_STATUS_ALLOC_FAILED",
    "CUDNN_STATUS_ALLOC_FAILED",
    "std::bad_alloc",
    "could not create a memory",  # oneDNN, which does not say why: near a bound it is memory
    "could not create a primitive",
    "could not execute a primitive",
)


def out_of_memory(error: BaseException | None) -> bool:
    """Whether an error, or one that it was raised from, says that there was no memory left."""
    while error is not None:
        if isinstance(error, MemoryError | torch.OutOfMemoryError) or getattr(error, "errno", None) == errno.ENOMEM:
            return True
        if isinstance(error, RuntimeError) and any(words in str(error) for words in _WORDS):
            return True
        error = error.__cause__
    return False


class Meter(Protocol):
    """One device's memory, in bytes. total: what there is for all processes; what: what peak() is of, in words."""

    total: int
    what: str

    def held(self) -> int:
        """What this process holds."""

    def room(self) -> int:
        """The most this process may come to hold: what it holds already, and what is free."""

    def bounded(self, most: int) -> AbstractContextManager[None]:
        """Where this process holding more than `most` is an error it can catch. Its beginning sets peak() back."""

    def peak(self) -> int:
        """The most this process held since."""

    def settle(self) -> None:
        """Wait for the device's work."""

    def release(self) -> None:
        """Give back what is cached but not in use."""


def meter(device: torch.device, mapped: int = 0) -> Meter:
    """The memory of a device. Raises ConfigError for one that is neither the CPU nor CUDA. mapped: see ResidentMemory."""
    if device.type == "cpu":
        return ResidentMemory(mapped)
    if device.type == "cuda":
        return CudaMemory(device)
    raise ConfigError(f"device: expected cpu or cuda, whose memory can be measured, found {device}")


class ResidentMemory:
    """This process's resident memory: interpreter, libraries, data and all.

    mapped: for a forked child, the bytes of files (libraries, above all) that its parent has resident. A fork leaves them out
    until they are touched, and the child would seem to hold less than the same work would in its parent.
    """

    what = "resident memory"

    def __init__(self, mapped: int = 0) -> None:
        self._mapped = mapped
        bounds = [limit for limit, _ in cgroups()]
        self.total = min([os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE"), *bounds])

    def held(self) -> int:
        """Resident, now."""
        return _kib("/proc/self/status", "VmRSS") + self._untouched()

    def room(self) -> int:
        """A tenth of what is free stays free, for others and for the page tables."""
        free = min([_kib("/proc/meminfo", "MemAvailable"), *(limit - used for limit, used in cgroups())])
        return self.held() + max(0, free) * 9 // 10

    @contextmanager
    def bounded(self, most: int) -> Iterator[None]:
        """By RLIMIT_DATA: the kernel refuses memory, torch raises an error, and nothing is killed.

        It bounds what is writable and private, touched or not; mapped files are seen by peak() alone. Threads are started
        first, as their stacks would count.
        """
        torch.ones(1 << 20).sum()
        soft, hard = resource.getrlimit(resource.RLIMIT_DATA)
        limit = _kib("/proc/self/status", "VmData") + max(0, most - self.held())
        with suppress(OSError):  # where it cannot be set back the peak is since the process began
            Path("/proc/self/clear_refs").write_text("5", encoding="ascii")
        resource.setrlimit(resource.RLIMIT_DATA, (limit if soft < 0 else min(soft, limit), hard))
        try:
            yield
        finally:
            resource.setrlimit(resource.RLIMIT_DATA, (soft, hard))

    def peak(self) -> int:
        """The high-water mark of the kernel."""
        return _kib("/proc/self/status", "VmHWM") + self._untouched()

    def _untouched(self) -> int:
        return max(0, self._mapped - mapped())

    def settle(self) -> None:
        """Nothing runs behind the host's back."""

    def release(self) -> None:
        """The allocator of C gives large blocks back by itself."""


class CudaMemory:
    """What torch's allocator has reserved on one CUDA device; the device's own context is not in it."""

    what = "reserved memory"

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self.total = int(torch.cuda.get_device_properties(device).total_memory)

    def held(self) -> int:
        """Reserved, now."""
        return torch.cuda.memory_reserved(self._device)

    def room(self) -> int:
        """What is free on the device, and what this process has reserved."""
        return int(torch.cuda.mem_get_info(self._device)[0]) + self.held()

    @contextmanager
    def bounded(self, most: int) -> Iterator[None]:
        """By torch's own limit for a process, which is set back to the whole device."""
        self.release()
        torch.cuda.reset_peak_memory_stats(self._device)
        torch.cuda.set_per_process_memory_fraction(min(1.0, most / self.total), self._device)
        try:
            yield
        finally:
            torch.cuda.set_per_process_memory_fraction(1.0, self._device)

    def peak(self) -> int:
        """With what fragments cost."""
        return torch.cuda.max_memory_reserved(self._device)

    def settle(self) -> None:
        """Wait."""
        torch.cuda.synchronize(self._device)

    def release(self) -> None:
        """Empty the allocator's cache."""
        torch.cuda.empty_cache()


def mapped() -> int:
    """Resident bytes of this process that are of files."""
    return _kib("/proc/self/status", "RssFile")


def cgroups(root: Path = Path("/sys/fs/cgroup"), membership: Path = Path("/proc/self/cgroup")) -> list[tuple[int, int]]:
    """(limit, used) in bytes of every memory cgroup with a limit that this process is in; v2 and v1.

    used: without what the kernel can drop (inactive file pages).
    """
    found = []
    try:
        lines = membership.read_text("utf-8").splitlines()
    except OSError:
        return []
    for line in lines:
        _, controllers, place = line.split(":", 2)
        if controllers and "memory" not in controllers.split(","):
            continue
        base, names = (root / "memory", _V1) if controllers else (root, _V2)
        here = base / place.strip("/")
        for folder in dict.fromkeys([here, *here.parents, base]):
            if folder != base and base not in folder.parents:
                continue
            limit, used = (_number(folder / name) for name in names[:2])
            if limit is not None and limit < _UNLIMITED:
                found.append((limit, (used or 0) - _dropped(folder / "memory.stat", names[2])))
    return found


_V1 = ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file")
_V2 = ("memory.max", "memory.current", "inactive_file")


def _number(file: Path) -> int | None:
    """A file's one number; None where there is no file, or it says "max"."""
    try:
        return int(file.read_text("ascii"))
    except (OSError, ValueError):
        return None


def _dropped(file: Path, name: str) -> int:
    try:
        return next(int(line.split()[1]) for line in file.read_text("ascii").splitlines() if line.split()[0] == name)
    except (OSError, StopIteration):
        return 0


def _kib(file: str, field: str) -> int:
    """A field of a file of the kernel's, which is in KiB, in bytes."""
    with open(file, encoding="ascii", errors="replace") as lines:
        return next(int(line.split()[1]) << 10 for line in lines if line.startswith(f"{field}:"))
