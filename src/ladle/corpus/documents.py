"""Where a split's documents end and where they came from."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from ladle.corpus import format
from ladle.corpus.shard import map_file
from ladle.errors import FormatError

Ends = npt.NDArray[np.uint64]


class Documents(Protocol):
    """What a split needs to know of them, shard by shard."""

    counts: list[int]  # documents in each shard
    folder: Path | None  # where the corpus lies; None in memory

    def ends(self, shard: int) -> Ends:
        """Each document's end within the shard: the index after its last token, uint64 [documents], ascending."""

    def origins(self, shard: int) -> npt.NDArray[Any] | None:
        """Each document's place in its source: format.FROM_DTYPE [documents], or None when unknown."""

    def source(self, shard: int, number: int) -> str | None:
        """A source's name, from its number in the shard's origins; None when unknown."""


class MemoryDocuments:
    """Ends in memory, for one shard; sources are unknown. Source of every method: Documents."""

    folder: Path | None = None

    def __init__(self, ends: Ends) -> None:
        self._ends = ends
        self.counts = [len(ends)]

    def ends(self, shard: int) -> Ends:  # noqa: ARG002  there is one
        return self._ends

    def origins(self, shard: int) -> None:
        pass

    def source(self, shard: int, number: int) -> None:
        pass


class Sources:
    """The names of the input files, one JSON object a line; read when first asked for, parsed one line at a time."""

    def __init__(self, path: Path, entry: Mapping[str, Any]) -> None:
        """entry: the manifest's, with the file's "bytes" and "sha256"."""
        self.path = path
        self._entry = entry
        self._content = b""
        self._ends: npt.NDArray[np.int64] | None = None

    def __getitem__(self, number: int) -> dict[str, Any]:
        """Source `number`, from 0: as docs/format.md says; it has a "name". Raises FormatError."""
        if self._ends is None:
            self._content = self._read()
            self._ends = np.flatnonzero(np.frombuffer(self._content, np.uint8) == ord("\n"))
        if not 0 <= number < len(self._ends):
            raise FormatError(self.path, None, "source", f"a number below {len(self._ends)}", number)
        start = int(self._ends[number - 1]) + 1 if number else 0
        try:
            found = json.loads(self._content[start : int(self._ends[number])])
        except ValueError:
            found = None
        if not isinstance(found, dict) or not isinstance(found.get("name"), str):
            raise FormatError(self.path, start, "source", "a JSON object with a name", "something else")
        return found

    def _read(self) -> bytes:
        with open(self.path, "rb") as file:
            content = file.read(self._entry["bytes"])  # one that has grown since begins with what this manifest knows
        found = {"bytes": len(content), "sha256": hashlib.sha256(content).hexdigest()}
        for key, shown in (("bytes", "size"), ("sha256", "SHA-256")):
            if found[key] != self._entry[key]:
                raise FormatError(self.path, None, shown, self._entry[key], found[key], "it was changed since it was prepared")
        return content


@dataclass(frozen=True, slots=True)
class ShardFiles:
    """One shard's side files: its name, its counts, and where they lie."""

    folder: Path
    name: str
    num_tokens: int
    num_documents: int
    itemsize: int
    first_source: int
    masked: bool = False

    def path(self, kind: str) -> Path:
        """The path of one of the files. kind: a key of format.SUFFIXES."""
        return self.folder / (self.name + format.SUFFIXES[kind])

    def num_bytes(self, kind: str) -> int:
        """The size one of the files must have."""
        return format.file_bytes(kind, **self.counts, mask=self.masked)

    @property
    def counts(self) -> dict[str, int]:
        """What sizes follow from."""
        return {"num_tokens": self.num_tokens, "num_documents": self.num_documents, "itemsize": self.itemsize}

    def side(self, kind: str) -> npt.NDArray[Any]:
        """The content of the "docs" or "from" file, mapped read-only, its header and its checksums verified."""
        path = self.path(kind)
        content = memoryview(map_file(path, self.num_bytes(kind)))
        header = format.npy_header(kind, self.num_documents)
        if content[: len(header)] != header:
            raise FormatError(path, 0, "header", f"that of {self.num_documents} entries (docs/format.md)", "another")
        sums_path = self.path("sums")
        sums = np.frombuffer(map_file(sums_path, self.num_bytes("sums")), format.SUMS_DTYPE, offset=format.HEADER_BYTES["sums"])
        first = format.first_sum(kind, **self.counts)
        found = format.block_sums(content)
        expected = sums[first : first + len(found)]
        for block in np.flatnonzero(found != expected).tolist():
            raise FormatError(
                path,
                block * format.BLOCK_BYTES,
                f"CRC-32 of block {block}",
                f"{int(expected[block]):08x}",
                f"{int(found[block]):08x}",
                "the file was damaged since it was prepared; `ladle verify` lists every fault",
            )
        return np.frombuffer(content, format.ENDS_DTYPE if kind == "docs" else format.FROM_DTYPE, offset=len(header))


class StoredDocuments:
    """Ends and origins in a corpus folder. Source of every method: Documents."""

    def __init__(self, shards: Sequence[ShardFiles], sources: Sources) -> None:
        self._shards = shards
        self._sources = sources
        self.folder = shards[0].folder if shards else None
        self.counts = [shard.num_documents for shard in shards]

    def ends(self, shard: int) -> Ends:
        return self._shards[shard].side("docs")

    def origins(self, shard: int) -> npt.NDArray[Any]:
        return self._shards[shard].side("from")

    def source(self, shard: int, number: int) -> str:
        return str(self._sources[self._shards[shard].first_source + number]["name"])
