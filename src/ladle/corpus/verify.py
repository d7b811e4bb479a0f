"""Reread a corpus: every checksum, every hash, every id."""

from __future__ import annotations

import hashlib
import os
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from ladle.corpus import format, manifest
from ladle.corpus.manifest import Manifest, ShardEntry, regular_size
from ladle.corpus.open import tokenizer_of
from ladle.corpus.progress import Progress
from ladle.errors import FormatError, LadleError, MissingExtra, TokenError

READ_BYTES = 1 << 22


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """num_files, num_bytes: how much was reread. faults: what is wrong, in the order of the files; empty when all is well."""

    num_files: int
    num_bytes: int
    faults: tuple[LadleError, ...]

    def __str__(self) -> str:
        lines = [str(fault) for fault in self.faults]
        read = f"{self.num_files:,} files, {self.num_bytes / 1e6:,.1f} MB reread"
        return "\n".join([*lines, f"{read}: " + (f"{len(lines)} faults" if lines else "every checksum, hash and id is right")])


def verify(path: str | os.PathLike[str], *, progress: bool = False) -> Verdict:
    """Reread a corpus that `prepare` made, beginning to end, and list every fault with its shard, block and byte.

    Memory: a few megabytes, and a shard's document ends. progress: draw it on stderr. Raises FormatError when there is no
    manifest, or it cannot be believed; faults of the other files are listed, not raised.
    """
    folder = Path(path)
    if not os.path.lexists(folder / format.MANIFEST):
        raise FormatError(folder, None, "corpus", f"a folder with {format.MANIFEST}, which holds the checksums", "none")
    read = manifest.read(folder / format.MANIFEST)
    shards = [shard for listed in read.splits.values() for shard in listed]
    total = sum(file["bytes"] for shard in shards for file in shard.raw["files"].values())
    with Progress("verifying", total, sys.stderr if progress else None) as drawn:
        reread = _Reread(folder, drawn)
        for shard in shards:
            reread.shard(read, shard)
        reread.sources(read)
        reread.tokenizer(read)
    return Verdict(num_files=reread.num_files, num_bytes=reread.num_bytes, faults=tuple(reread.faults))


class _Reread:
    """The pass over the files, and what it found."""

    def __init__(self, folder: Path, progress: Callable[[int], None]) -> None:
        self.folder, self.progress = folder, progress
        self.num_files = self.num_bytes = 0
        self.faults: list[LadleError] = []

    def shard(self, read: Manifest, shard: ShardEntry) -> None:
        """All files of a shard: sizes and hashes, then the blocks of those whose hash is wrong, then ids and ends."""
        kinds = format.kinds(mask=shard.masked)
        paths = {kind: self.folder / (shard.name + format.SUFFIXES[kind]) for kind in kinds}
        files = shard.raw["files"]
        sound = {kind: self._file(paths[kind], files[kind]["bytes"], files[kind]["sha256"]) for kind in kinds}
        if sound["sums"]:
            sums = np.fromfile(paths["sums"], format.SUMS_DTYPE, offset=format.HEADER_BYTES["sums"])
            first = 0
            for kind in kinds[:-1]:
                count = format.num_blocks(files[kind]["bytes"])
                if not sound[kind]:
                    self._blocks(paths[kind], sums[first : first + count])
                first += count
        if sound["bin"]:
            self._ids(paths["bin"], read, shard)
        if sound["docs"]:
            self._ends(paths["docs"], shard)
        if sound["from"]:
            self._origins(paths["from"], shard)
        if shard.masked and sound["mask"]:
            self._mask(paths["mask"], shard)

    def sources(self, read: Manifest) -> None:
        """The list of sources."""
        path, entry = self.folder / format.SOURCES, read.raw["sources"]
        if self._file(path, entry["bytes"], entry["sha256"]):
            lines = sum(chunk.count(b"\n") for chunk in self._chunks(path, counted=False))
            if lines != entry["count"]:
                self.faults.append(FormatError(read.path, None, "sources.count", f"{path.name}'s {lines} lines", entry["count"]))

    def tokenizer(self, read: Manifest) -> None:
        """What the manifest says of the tokenizer, which no file's hash covers."""
        if read.tokenizer is None:
            return
        try:
            tokenizer_of(read)
        except FormatError as error:
            self.faults.append(error)
        except (TokenError, MissingExtra):  # it cannot be built here: for want of a network or a package, or being damaged
            found = hashlib.blake2b(format.canonical(read.tokenizer), digest_size=16).hexdigest()
            if found != read.tokenizer_hash:
                self.faults.append(FormatError(read.path, None, "tokenizer_hash", read.tokenizer_hash, found))

    def _file(self, path: Path, num_bytes: object, sha256: object) -> bool:
        """Whether a file has the size and the hash that the manifest says."""
        try:
            size = regular_size(path, self.folder)
        except FormatError as error:
            self.faults.append(error)
            return False
        digest = hashlib.sha256()
        self.num_files += 1
        for chunk in self._chunks(path):
            digest.update(chunk)
        if size != num_bytes:
            self.faults.append(FormatError(path, None, "size", f"{num_bytes} bytes", f"{size} bytes"))
        elif digest.hexdigest() != sha256:
            self.faults.append(FormatError(path, None, "SHA-256", sha256, digest.hexdigest()))
        else:
            return True
        return False

    def _blocks(self, path: Path, sums: np.ndarray) -> None:
        """Name each block whose checksum is wrong."""
        if not path.exists():
            return
        block = 0
        for chunk in self._chunks(path, counted=False):
            found = format.block_sums(chunk)
            for i in np.flatnonzero(found[: len(sums) - block] != sums[block : block + len(found)]).tolist():
                expected = f"{int(sums[block + i]):08x}"
                place = (block + i) * format.BLOCK_BYTES
                self.faults.append(FormatError(path, place, f"CRC-32 of block {block + i}", expected, f"{int(found[i]):08x}"))
            block += len(found)

    def _ids(self, path: Path, read: Manifest, shard: ShardEntry) -> None:
        """The largest id must be the manifest's, which is below the vocabulary's size."""
        dtype = format.TOKEN_DTYPES[read.dtype]
        largest = max(int(np.frombuffer(chunk, dtype).max()) for chunk in self._chunks(path, counted=False))
        if largest != shard.max_id:
            self.faults.append(FormatError(path, None, "largest id", shard.max_id, largest))

    def _ends(self, path: Path, shard: ShardEntry) -> None:
        """Ends must ascend to the number of tokens."""
        ends = np.fromfile(path, format.ENDS_DTYPE, offset=format.HEADER_BYTES["docs"])
        if int(ends[0]) < 1 or int(ends[-1]) != shard.num_tokens or not np.all(ends[1:] > ends[:-1]):
            self.faults.append(FormatError(path, None, "document ends", f"ends that ascend to {shard.num_tokens}", "others"))

    def _origins(self, path: Path, shard: ShardEntry) -> None:
        """Sources must ascend within the shard's inputs, with the flags that there are."""
        origins = np.fromfile(path, format.FROM_DTYPE, offset=format.HEADER_BYTES["from"])
        numbers = origins["source"].astype(np.int64) + shard.first[0]
        last = shard.end[0] - (shard.end[1] == 0)
        if np.any(numbers[1:] < numbers[:-1]) or int(numbers[-1]) > last:
            expected = f"sources that ascend within {shard.first[0]} to {last}, the shard's inputs"
            self.faults.append(FormatError(path, None, "sources", expected, "others"))
        if int(origins["flags"].max()) >= 2 * format.RECORD:
            self.faults.append(FormatError(path, None, "flags", f"at most {2 * format.RECORD - 1}", int(origins["flags"].max())))

    def _mask(self, path: Path, shard: ShardEntry) -> None:
        """Nothing but 0 and 1, and as many 1 as the manifest says."""
        byte = learned = 0
        for chunk in self._chunks(path, counted=False):
            flags = np.frombuffer(chunk, np.uint8)[0 if byte else format.HEADER_BYTES["mask"] :]
            if flags.size and int(flags.max()) > 1:
                at = int(np.argmax(flags > 1))
                self.faults.append(FormatError(path, byte + len(chunk) - len(flags) + at, "mask", "0 or 1", int(flags[at])))
                return
            learned += int(np.count_nonzero(flags))
            byte += len(chunk)
        if learned != shard.raw["learned"]:
            self.faults.append(FormatError(path, None, "mask", f"{shard.raw['learned']} tokens to be learned", learned))

    def _chunks(self, path: Path, *, counted: bool = True) -> Iterator[bytes]:
        with open(path, "rb", buffering=0) as file:
            while chunk := file.read(READ_BYTES):
                if counted:
                    self.num_bytes += len(chunk)
                    self.progress(len(chunk))
                yield chunk
