"""Write one shard, streaming: the tokens as they come, the side files at the end."""

from __future__ import annotations

import hashlib
import io
import os
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from ladle.corpus import format
from ladle.errors import TokenError

CHUNK_BYTES = 1 << 20  # written at once; a multiple of the block


class ShardWriter:
    """One shard's files. The token file grows as ids come; finish() writes the rest, all of it synced to the disk.

    Holds one chunk of tokens, 4 bytes for each 4 KiB written, 32 bytes a document, and a mask's bit a token. Nothing is
    written through a map: a full disk is an OSError that names the file, not a bus error. close() before finish() leaves
    files no manifest lists.
    """

    def __init__(self, folder: Path, name: str, vocab_size: int, *, masked: bool = False) -> None:
        """name: the shard's, such as "train-00000"; its files must not exist yet. masked: write() is told what is learned."""
        self.name = name
        self.num_tokens = 0
        self.max_id = 0
        self._folder = folder
        self._vocab_size = vocab_size
        self._dtype = format.TOKEN_DTYPES[format.dtype_name(vocab_size)]
        self._ends: list[int] = []
        self._origins: list[tuple[int, int, int, int]] = []
        self._mask = _Flags() if masked else None
        self._bin = _SummedFile(folder / (name + format.SUFFIXES["bin"]))

    @property
    def num_documents(self) -> int:
        """Documents ended so far."""
        return len(self._ends)

    def write(self, ids: npt.NDArray[Any], learned: npt.NDArray[np.bool_] | None = None) -> None:
        """Append ids (integers [n]) to the current document. learned: bool [n], of a masked shard.

        Raises TokenError naming the first id outside the vocabulary, its document and place, and the dtype.
        """
        if len(ids) == 0:
            return
        largest = int(ids.max())
        if largest >= self._vocab_size or int(ids.min()) < 0:
            place = int(np.argmax((ids >= self._vocab_size) | (ids < 0)))
            where = f"document {len(self._ends)} of {self.name}, token {self.num_tokens + place}"
            raise TokenError(
                f"{where}: id: expected 0 to {self._vocab_size - 1}, as the vocabulary's size {self._vocab_size} says, "
                f"stored as {self._dtype.name}; found {int(ids[place])}"
            )
        self.max_id = max(self.max_id, largest)
        self.num_tokens += len(ids)
        if self._mask is not None:
            self._mask.append(np.ones(len(ids), np.bool_) if learned is None else learned)
        self._bin.write(ids.astype(self._dtype, copy=False).tobytes())

    def end_document(self, *, source: int, flags: int, byte: int, line: int) -> None:
        """End the current document, which has at least one token. The rest: as format.FROM_DTYPE."""
        self._ends.append(self.num_tokens)
        self._origins.append((source, flags, byte, line))

    def finish(self) -> dict[str, Any]:
        """Write the side files, sync them all, and return the shard's entry for the manifest (without its inputs)."""
        files = {"bin": self._bin}
        files["bin"].finish()
        docs, origins = np.array(self._ends, format.ENDS_DTYPE), np.array(self._origins, format.FROM_DTYPE)
        for kind, array in (("docs", docs), ("from", origins)):
            files[kind] = self._side(kind, len(array), [array.tobytes()])
        told: dict[str, int] = {}
        if self._mask is not None:
            files["mask"] = self._side("mask", self.num_tokens, self._mask.chunks())
            told["learned"] = self._mask.num_set
        sums = np.concatenate([file.sums() for file in files.values()])
        files["sums"] = self._side("sums", len(sums), [sums.tobytes()])
        return {
            **told,
            "name": self.name,
            "tokens": self.num_tokens,
            "documents": self.num_documents,
            "max_id": self.max_id,
            "files": {kind: {"bytes": file.num_bytes, "sha256": file.sha256()} for kind, file in files.items()},
        }

    def close(self) -> None:
        """Close the token file, finished or not."""
        self._bin.close()

    def _side(self, kind: str, count: int, chunks: Iterable[bytes]) -> _SummedFile:
        file = _SummedFile(self._folder / (self.name + format.SUFFIXES[kind]))
        try:
            file.write(format.npy_header(kind, count))
            for chunk in chunks:
                file.write(chunk)
            file.finish()
        finally:
            file.close()
        return file


class _Flags:
    """Flags that are appended, kept as bits, and given back as bytes. num_set: how many are set."""

    def __init__(self) -> None:
        self.num_set = 0
        self._bits: list[npt.NDArray[np.uint8]] = []  # CHUNK_BYTES flags each
        self._waiting = bytearray()

    def append(self, flags: npt.NDArray[np.bool_]) -> None:
        self.num_set += int(np.count_nonzero(flags))
        self._waiting += flags.tobytes()
        while len(self._waiting) >= CHUNK_BYTES:
            self._bits.append(np.packbits(np.frombuffer(self._waiting[:CHUNK_BYTES], np.uint8)))
            del self._waiting[:CHUNK_BYTES]

    def chunks(self) -> Iterator[bytes]:
        """A byte for each flag, 0 or 1, in order."""
        yield from (np.unpackbits(bits).tobytes() for bits in self._bits)
        yield bytes(self._waiting)


class _SummedFile:
    """A new file, written in whole chunks, with its SHA-256 and the CRC-32 of each block kept on the way."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.num_bytes = 0
        self._sums: list[npt.NDArray[np.uint32]] = []
        self._sha256 = hashlib.sha256()
        self._waiting = bytearray()
        self._file = io.FileIO(path, "xb")

    def write(self, content: bytes) -> None:
        """Append. Raises OSError naming the file."""
        self._waiting += content
        if len(self._waiting) >= CHUNK_BYTES:
            whole = len(self._waiting) // CHUNK_BYTES * CHUNK_BYTES
            self._put(bytes(memoryview(self._waiting)[:whole]))
            del self._waiting[:whole]

    def finish(self) -> None:
        """Write what waits, sync, close."""
        self._put(bytes(self._waiting))
        self._waiting.clear()
        with naming(self.path):
            os.fsync(self._file.fileno())
        self.close()

    def sums(self) -> npt.NDArray[np.uint32]:
        """The CRC-32 of each block written."""
        return np.concatenate(self._sums)

    def sha256(self) -> str:
        """Of everything written, in hexadecimal."""
        return self._sha256.hexdigest()

    def close(self) -> None:
        self._file.close()

    def _put(self, content: bytes) -> None:
        self._sums.append(format.block_sums(content))
        self._sha256.update(content)
        self.num_bytes += len(content)
        with naming(self.path):
            view = memoryview(content)
            while view:
                view = view[self._file.write(view) :]


def write_file(path: Path, chunks: Iterator[bytes] | list[bytes]) -> tuple[int, str]:
    """Write a new file and sync it. Returns its size in bytes and its SHA-256. Raises OSError naming it."""
    file = _SummedFile(path)
    try:
        for chunk in chunks:
            file.write(chunk)
        file.finish()
    finally:
        file.close()
    return file.num_bytes, file.sha256()


def sync_folder(path: Path) -> None:
    """Sync a folder, so that the names in it survive a loss of power."""
    with naming(path):
        descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


@contextmanager
def naming(path: Path) -> Iterator[None]:
    """An OSError from within names the file: writing to a full disk alone would not say where."""
    try:
        yield
    except OSError as error:
        if error.filename is None:
            error.filename = str(path)
        raise
