"""What to tell the kernel about mapped files: read ahead what is coming, let go of what is past.

Cold files: the coming windows are known, so the kernel is asked for them a few batches ahead. It costs up to half a
millisecond a batch on warm pages, so it is done only while the process really reads from disk. Resident pages: a map
that has been read everywhere counts as the process's memory up to the file's size; above a bound they are given back.
"""

from __future__ import annotations

import os
import resource
from typing import Protocol

from ladle.corpus.split import Split
from ladle.feed.gather import by_shard
from ladle.order.permutation import I64

CHECK_EVERY = 16  # batches between two looks at the counters
BATCHES_AHEAD = 4
_PAGE = resource.getpagesize()


class Wanted(Protocol):
    """Token indices where the rows of a coming batch start."""

    def __call__(self, batches_ahead: int) -> I64 | None: ...


class Advisor:
    """Decides, batch by batch, whether to advise the kernel. One a producer; not shared between threads."""

    def __init__(self, split: Split, row_tokens: int, max_mapped: int | None, *, shuffled: bool) -> None:
        """row_tokens: tokens a row reads. max_mapped: bytes of resident mapped pages, None for the default."""
        self._split, self._row_tokens = split, row_tokens
        self._max_mapped = default_max_mapped() if max_mapped is None else max_mapped
        self._shuffled = shuffled
        self._batches = 0
        self._advised = 0  # batches, from the current one, that the kernel knows of already
        self._reading = True
        self._bytes_read = bytes_read()
        self._faults = major_faults()
        self._floor = mapped_bytes()
        if shuffled:
            for shard in split.shards:
                shard.advise_random()

    def before(self, wanted: Wanted) -> None:
        """Called before each batch is gathered."""
        if self._batches % CHECK_EVERY == 0:
            self._look()
        self._batches += 1
        self._advised = max(self._advised - 1, 0)
        if not (self._reading and self._shuffled):
            self._advised = 0
            return
        while self._advised <= BATCHES_AHEAD:
            starts = wanted(self._advised)
            if starts is None:
                break
            for shard, inside in by_shard(self._split, starts):
                self._split.shards[shard].advise_willneed(inside, self._row_tokens)
            self._advised += 1

    def jump(self) -> None:
        """The next batch does not follow the last one."""
        self._advised = 0

    def _look(self) -> None:
        if self._batches:
            if self._reading:
                now = bytes_read()
                self._reading = now != self._bytes_read
                self._bytes_read = now
            else:
                self._reading = major_faults() != self._faults
            self._faults = major_faults()
        if mapped_bytes() - self._floor > self._max_mapped:
            for shard in self._split.shards:
                shard.drop()
            self._floor = mapped_bytes()


def bytes_read() -> int:
    """Bytes this process has fetched from storage so far; 0 where the system does not say."""
    try:
        with open("/proc/self/io", "rb") as file:
            for line in file:
                if line.startswith(b"read_bytes:"):
                    return int(line.split()[1])
    except OSError:
        pass
    return 0


def major_faults() -> int:
    """Page faults of this thread that waited for storage."""
    who = getattr(resource, "RUSAGE_THREAD", resource.RUSAGE_SELF)
    return resource.getrusage(who).ru_majflt


def mapped_bytes() -> int:
    """Resident bytes of this process that are backed by files; 0 where the system does not say."""
    try:
        with open("/proc/self/statm", "rb") as file:
            return int(file.read().split()[2]) * _PAGE
    except OSError:
        return 0


def default_max_mapped() -> int:
    """4 GiB, or a quarter of the memory that this process may use if that is less. In bytes."""
    memory = os.sysconf("SC_PHYS_PAGES") * _PAGE
    try:
        with open("/sys/fs/cgroup/memory.max", "rb") as file:
            limit = file.read().strip()
        memory = min(memory, int(limit)) if limit != b"max" else memory
    except OSError:
        pass
    return min(4 * 2**30, memory // 4)
