"""A shard: one run of tokens, in memory or mapped from a file.

Files are mapped when they are first read, and at most `Pool.limit` of them stay mapped, so that thousands of shards
need few open files. Nothing here holds a lock or a file position: forked processes may read the same shards.
"""

from __future__ import annotations

import mmap
import os
import resource
import zlib
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Protocol
from weakref import ref

import numpy as np
import numpy.typing as npt

from ladle.corpus import format
from ladle.errors import ClosedError, FormatError

Tokens = npt.NDArray[np.unsignedinteger[Any]]
PAGE = mmap.PAGESIZE
SHRANK = "the file shrank while it was open; prepare it again"
MOST_MAPS = 16_384  # Linux gives a process 65 530 maps in all


class Shard(Protocol):
    """What a split needs of one. Starts and ends are tokens within the shard, but for `piece`."""

    num_tokens: int
    where: str  # for messages: the file, or "memory"
    dtype: np.dtype[Any]  # of its tokens

    def piece(self, first: int, end: int) -> memoryview | bytes:
        """Bytes [first, end), verified: the quick way to one row. The file's size is taken as known: see check_size."""

    def check_size(self) -> None:
        """Raise FormatError for a file that became shorter since it was mapped: touching what is gone ends the process."""

    def tokens(self) -> Tokens:
        """All of them: a read-only 1-D view, little-endian; it never owns the bytes and may be let go at any time."""

    def check(self, first: int, end: int) -> None:
        """Verify the blocks that hold tokens [first, end), once a block. Raises FormatError naming block and sums."""

    def check_many(self, starts: npt.NDArray[np.int64], length: int) -> None:
        """check(s, s + length) for every s of starts (int64 [rows])."""

    def advise_random(self) -> None:
        """Tell the kernel that reads will be scattered."""

    def advise_willneed(self, starts: npt.NDArray[np.int64], length: int | npt.NDArray[np.int64]) -> None:
        """Ask the kernel to fetch tokens [s, s + length) for every s of starts. length: of all, or int64 of each."""

    def drop(self) -> None:
        """Let go of the resident pages; the next read brings them back."""

    def close(self) -> None:
        """Unmap. Reading afterwards raises ClosedError."""


class ArrayShard:
    """Tokens in memory. Source of every method: Shard."""

    where = "memory"

    def __init__(self, array: Tokens) -> None:
        self._tokens = array
        self.num_tokens = len(array)
        self.dtype = array.dtype

    def piece(self, first: int, end: int) -> bytes:
        size = self.dtype.itemsize
        return self._tokens[first // size : end // size].tobytes()

    def check_size(self) -> None:
        pass

    def tokens(self) -> Tokens:
        return self._tokens

    def check(self, first: int, end: int) -> None:
        pass

    def check_many(self, starts: npt.NDArray[np.int64], length: int) -> None:
        pass

    def advise_random(self) -> None:
        pass

    def advise_willneed(self, starts: npt.NDArray[np.int64], length: int | npt.NDArray[np.int64]) -> None:
        pass

    def drop(self) -> None:
        pass

    def close(self) -> None:
        pass


class Pool:
    """Which shards are mapped now: at most `limit`. Room is made by letting go of one that has not been read for long.

    It holds weak references: a corpus that is dropped without close() lets go of its files at once.
    """

    def __init__(self, limit: int | None = None) -> None:
        """limit: None takes a third of the files that this process may open. A map holds one, and one for its sums until all
        of its blocks are verified."""
        files, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
        most = MOST_MAPS if files == resource.RLIM_INFINITY else min(files // 3, MOST_MAPS)
        self.limit = max(most, 1) if limit is None else limit
        self.let_go = 0  # maps that were let go of so far
        self._mapped: OrderedDict[ref[FileShard], None] = OrderedDict()

    def make_room(self, shard: ref[FileShard]) -> None:
        """Note that shard is about to be mapped. Of the others the one is unmapped that was mapped first and has not been
        read since it was last spared (the clock algorithm: near enough to the longest unused, and reading costs nothing)."""
        self._mapped.pop(shard, None)
        while len(self._mapped) >= self.limit:
            try:
                oldest, _ = self._mapped.popitem(last=False)  # in single steps that threads may interleave
            except KeyError:
                break
            other = oldest()
            if other is not None and other.read_again:
                other.read_again = False
                self._mapped[oldest] = None
            elif other is not None:
                other.unmap()
        self._mapped[shard] = None


@dataclass(frozen=True, slots=True)
class _Map:
    file: mmap.mmap
    content: memoryview
    tokens: Tokens
    sums: _Sums | None


@dataclass(frozen=True)
class _Sums:
    path: Path
    file: mmap.mmap

    def of(self, blocks: npt.NDArray[np.int64]) -> npt.NDArray[np.uint32]:
        """The checksums of these blocks. Raises FormatError where the file was cut off: touching it would kill the process."""
        if self.file.size() < len(self.file):
            raise FormatError(self.path, None, "size", f"{len(self.file)} bytes", f"{self.file.size()} bytes", SHRANK)
        sums: npt.NDArray[np.uint32] = np.frombuffer(self.file, format.SUMS_DTYPE, offset=format.HEADER_BYTES["sums"])[blocks]
        return sums


class FileShard:
    """Tokens of a file, bare and little-endian, mapped read-only. Source of every method: Shard."""

    def __init__(
        self,
        path: Path,
        dtype: np.dtype[Any],
        num_tokens: int,
        pool: Pool,
        sums: tuple[Path, int] | None,
        *,
        first_sum: int = 0,
    ) -> None:
        """path: the .bin file. sums: its .sums.npy and the size that has, or None for foreign files, which cannot be checked.
        first_sum: where the file's checksums begin in it."""
        self.path = path
        self.where = str(path)
        self.num_tokens = num_tokens
        self.num_bytes = num_tokens * dtype.itemsize
        self.dtype = dtype
        self.pool = pool
        self.read_again = False
        self._self = ref(self)
        self._sums, self._first_sum = sums, first_sum
        self._map: _Map | None = None
        self._content: memoryview | None = None  # of the map
        self._random = False
        self._closed = False
        self._checked = memoryview(b"")  # one bit a block
        self._unchecked = format.num_blocks(self.num_bytes) if sums else 0  # blocks left; 0 is certain: it is counted then

    def tokens(self) -> Tokens:
        return self._mapped().tokens

    def piece(self, first: int, end: int) -> memoryview:
        # Hundreds of shards do not stay in the processor's caches: as few objects as possible are touched here.
        content = self._content
        if content is None:
            content = self._mapped().content
        else:
            self.read_again = True
        if self._unchecked:
            self._check_bytes(first, end)
        return content[first:end]

    @property
    def verified(self) -> memoryview | None:
        """The bytes, where they are mapped and every block has been verified."""
        return None if self._unchecked else self._content

    def _check_bytes(self, first: int, end: int) -> None:
        checked = self._checked or self._begun()
        blocks = range(first >> format.BLOCK_SHIFT, (end - 1 >> format.BLOCK_SHIFT) + 1)
        todo = [block for block in blocks if not checked[block >> 3] >> (block & 7) & 1]
        if todo:
            self._check_blocks(self._mapped(), np.array(todo, np.int64))

    def check(self, first: int, end: int) -> None:
        self.check_many(np.array([first], np.int64), end - first)

    def check_many(self, starts: npt.NDArray[np.int64], length: int) -> None:
        now = self._mapped()
        self.check_size()
        if self._unchecked == 0 or length < 1:
            return
        checked = np.frombuffer(self._checked or self._begun(), np.uint8)
        blocks = _blocks(starts * self.dtype.itemsize, length * self.dtype.itemsize)
        bits = checked[blocks >> 3] >> (blocks & 7).astype(np.uint8)
        if not np.bitwise_and.reduce(bits, axis=None) & 1:
            self._check_blocks(now, np.array(sorted(set(blocks[(bits & 1) == 0].tolist())), np.int64))

    def _begun(self) -> memoryview:
        """The bits of the blocks, none of them set. NumPy takes them as zero pages: a bytearray would touch them all."""
        self._checked = np.zeros(-(-format.num_blocks(self.num_bytes) // 8), np.uint8).data
        return self._checked

    def check_size(self) -> None:
        now = self._map
        if now is not None and (size := now.file.size()) < self.num_bytes:  # fstat
            raise FormatError(
                self.path,
                None,
                "size",
                f"{self.num_bytes} bytes",
                f"{size} bytes",
                SHRANK,
            )

    def _check_blocks(self, now: _Map, blocks: npt.NDArray[np.int64]) -> None:
        """blocks: int64 [k], ascending. Raises FormatError for the first that is not as it was written."""
        if now.sums is None:
            return
        content, size, crc32 = now.content[: self.num_bytes], format.BLOCK_BYTES, zlib.crc32
        found = np.array([crc32(content[at : at + size]) for at in (blocks << format.BLOCK_SHIFT).tolist()], np.uint32)
        expected = now.sums.of(blocks + self._first_sum)
        for wrong in np.flatnonzero(found != expected)[:1].tolist():
            block = int(blocks[wrong])
            raise FormatError(
                self.path,
                block << format.BLOCK_SHIFT,
                f"CRC-32 of block {block}",
                f"{int(expected[wrong]):08x}",
                f"{int(found[wrong]):08x}",
                "the file was damaged since it was prepared; `ladle verify` lists every fault",
            )
        checked = np.frombuffer(self._checked, np.uint8)
        np.bitwise_or.at(checked, blocks >> 3, np.left_shift(1, blocks & 7).astype(np.uint8))
        self._unchecked -= len(blocks)
        if self._unchecked <= 0:  # two threads may have counted the same block twice
            self._unchecked = format.num_blocks(self.num_bytes) - int(np.bitwise_count(checked).sum())
        if self._unchecked == 0:
            self._map = replace(now, sums=None)

    def advise_random(self) -> None:
        self._random = True
        if self._map is not None:
            self._map.file.madvise(mmap.MADV_RANDOM)

    def advise_willneed(self, starts: npt.NDArray[np.int64], length: int | npt.NDArray[np.int64]) -> None:
        advise = self._mapped().file.madvise
        first = starts * self.dtype.itemsize
        ends = np.minimum(first + length * self.dtype.itemsize, self.num_bytes)
        first &= -PAGE
        for offset, size in zip(first.tolist(), (ends - first).tolist(), strict=True):
            advise(mmap.MADV_WILLNEED, offset, size)

    def drop(self) -> None:
        if self._map is not None:
            self._map.file.madvise(mmap.MADV_DONTNEED)

    def move(self, pool: Pool) -> None:
        """From now on this pool decides how long it stays mapped."""
        self.unmap()
        self.pool = pool

    def unmap(self) -> None:
        """Forget the map; it is released once no view of it is left. The next read maps the file again."""
        self._map = self._content = None
        self.pool.let_go += 1

    def close(self) -> None:
        self._closed = True
        self.unmap()

    def _mapped(self) -> _Map:
        now = self._map
        if now is None:
            if self._closed:
                raise ClosedError(f"{self.where}: read after its corpus was closed")
            self.pool.make_room(self._self)
            now = self._map = self._open()
            self._content = now.content
        else:
            self.read_again = True
        return now

    def _open(self) -> _Map:
        file = map_file(self.path, self.num_bytes)
        if self._random:
            file.madvise(mmap.MADV_RANDOM)
        wanted = self._sums if self._unchecked else None
        sums = None if wanted is None else _Sums(wanted[0], map_file(*wanted))
        return _Map(file, memoryview(file), np.frombuffer(file, self.dtype, self.num_tokens), sums)


@dataclass(frozen=True, slots=True)
class Maps:
    """The bytes of all of a split's shards, where every one is mapped and verified. Until their pool lets go of one."""

    contents: list[memoryview]
    pool: Pool
    let_go: int

    @staticmethod
    def of(shards: Sequence[Shard]) -> Maps | None:
        """None where a shard is in memory, not mapped, not verified yet, or kept by another pool."""
        first, contents = shards[0], []
        if not isinstance(first, FileShard):
            return None
        pool, let_go = first.pool, first.pool.let_go
        for shard in shards:
            if not isinstance(shard, FileShard) or shard.pool is not pool or (content := shard.verified) is None:
                return None
            contents.append(content)
        return Maps(contents, pool, let_go)

    @property
    def hold(self) -> bool:
        """Whether they are all still mapped."""
        return self.pool.let_go == self.let_go


def map_file(path: Path, num_bytes: int | None) -> mmap.mmap:
    """Map a file read-only, whole. num_bytes: the size it must have, or None. Raises FormatError, or OSError as it is."""
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        size = os.fstat(descriptor).st_size
        if num_bytes is not None and size != num_bytes:
            raise FormatError(
                path, None, "size", f"{num_bytes} bytes", f"{size} bytes", "the file is cut off or not the one prepared"
            )
        return mmap.mmap(descriptor, size, access=mmap.ACCESS_READ)
    finally:
        os.close(descriptor)


def _blocks(first_bytes: npt.NDArray[np.int64], num_bytes: int) -> npt.NDArray[np.int64]:
    """The blocks that [b, b + num_bytes) touches for every b: int64 [rows, most blocks a row can touch], with repeats."""
    first = first_bytes >> format.BLOCK_SHIFT
    last = (first_bytes + (num_bytes - 1)) >> format.BLOCK_SHIFT
    most = (num_bytes - 2) // format.BLOCK_BYTES + 2 if num_bytes > 1 else 1
    blocks: npt.NDArray[np.int64] = np.minimum(first[:, None] + np.arange(most), last[:, None])
    return blocks
