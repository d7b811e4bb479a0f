"""What to tell the kernel about mapped files: read ahead what is coming, let go of what is past.

Cold files: the coming rows are known, so the kernel is asked for them a few batches ahead. On warm pages that would cost
up to half a millisecond a batch for nothing, so it is done only while this thread really reads from storage. Rows that
lie one after the other are left to the kernel's own readahead, which is as fast (measured: docs/benchmarks.md).
Resident pages: a map that has been read everywhere counts as the process's memory up to the file's size; above a bound
the pages are given back, and stay in the page cache.
"""

from __future__ import annotations

import os
import resource
from collections.abc import Callable

import numpy as np

from ladle.corpus.split import Split
from ladle.feed.gather import by_shard
from ladle.order.permutation import I64

BATCHES_AHEAD = 4
LOOK_EVERY = 16  # batches between two looks at the counters, or fewer where batches are large
FAULT_AROUND = 65536  # bytes that become resident with a page
_PAGE = resource.getpagesize()

Reads = tuple[I64, int | I64]  # where reading begins, in tokens, and how many follow: of all, or of each


class Advisor:
    """Decides, batch by batch, whether to advise the kernel. One a producer; not shared between threads.

    row_tokens: tokens that a row reads. stride: rows of the stream from one batch to the next (B). max_mapped: bytes of
    mapped pages that may be resident, None for the default. scattered: whether neighbouring rows lie apart.
    """

    def __init__(self, split: Split, *, row_tokens: int, stride: int, max_mapped: int | None, scattered: bool) -> None:
        self._split, self._stride = split, stride
        self._max_mapped = default_max_mapped() if max_mapped is None else max_mapped
        self._a_place = row_tokens * split.dtype.itemsize + FAULT_AROUND  # bytes that reading one may make resident
        self._room = 0  # bytes until the counters are looked at
        self._scattered = self._advising = scattered
        self._told = 0  # the kernel knows of the rows below this one
        self._next = -1  # where the next batch begins, if it follows this one
        self._bytes_read: int | None = None
        self._faults: int | None = None
        self._floor = mapped_bytes()
        if scattered:
            for shard in split.shards:
                shard.advise_random()

    def before(self, first_row: int, places: int, reads: Callable[[int], Reads]) -> None:
        """To be called before the batch at `first_row` is gathered, which reads at so many places. reads(row): what this rank
        reads in the batch at `row`."""
        allowed = self._max_mapped // 8
        cost = max(places * self._a_place, allowed // LOOK_EVERY)
        if cost > self._room:
            self._look()
            self._room = allowed
        self._room -= cost
        if not self._advising:
            return
        if first_row != self._next or self._told < first_row:
            self._told = first_row
        self._next = first_row + self._stride
        while self._told <= first_row + BATCHES_AHEAD * self._stride:
            starts, tokens = reads(self._told)
            real = np.flatnonzero(starts < self._split.num_tokens)
            for shard, chosen, inside in by_shard(self._split, starts[real]):
                self._split.shards[shard].advise_willneed(inside, tokens if isinstance(tokens, int) else tokens[real[chosen]])
            self._told += self._stride

    def _look(self) -> None:
        """Advise on only while it fetches something; begin again when the thread has waited for storage."""
        if self._scattered:
            faults, before = major_faults(), self._faults
            self._faults = faults
            if self._advising:
                read, last = bytes_read(), self._bytes_read
                self._bytes_read = read
                self._advising = read != last
            else:
                self._advising = faults != before
        resident = mapped_bytes()
        self._floor = min(self._floor, resident)
        if resident - self._floor > self._max_mapped:
            for shard in self._split.shards:
                shard.drop()
            self._floor = mapped_bytes()


def bytes_read() -> int:
    """Bytes this thread has fetched from storage so far; 0 where the system does not say."""
    try:
        with open("/proc/thread-self/io", "rb") as file:
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
    for limit in ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes"):
        try:
            with open(limit, "rb") as file:
                memory = min(memory, int(file.read()))
        except (OSError, ValueError):  # no such group, or "max"
            continue
    return min(4 * 2**30, memory // 4)
