"""The plan of packs of a split, made once and kept in files beside the corpus. A cache only: it never decides a row.

Two files a plan: `NAME.npz` has what it is of and its table, `NAME.npy` the pieces (rows/cuts.py: PIECE), which are mapped.
Both are written under other names and renamed when they are whole, the table last. Whoever finds a plan reads it; of the
processes that find none one makes it, and the others wait.
"""

from __future__ import annotations

import fcntl
import io
import json
import os
import stat
import tempfile
import time
import warnings
import zipfile
import zlib
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from tokenize import TokenError
from typing import Any, BinaryIO

import numpy as np

from ladle.corpus.split import Split
from ladle.feed.recipe import canonical, digest
from ladle.rows.best_fit import Patterns
from ladle.rows.cuts import PIECE, Records, survey
from ladle.rows.packs import PackCounts, Packing, Packs
from ladle.rows.plans import Table, arrange, counted, plan_of

PLAN_VERSION = 2
CHUNK = 1 << 24  # bytes of pieces checked at once
PATIENCE_SECONDS = 1  # that a process waits for another before it says so
DAMAGED = (  # what zipfile and NumPy raise for one flipped bit or another
    OSError,
    EOFError,
    ValueError,
    TypeError,
    KeyError,
    RuntimeError,
    SyntaxError,
    TokenError,
    zipfile.BadZipFile,
    zlib.error,
)


def packs_of(split: Split, packing: Packing, cache: str | os.PathLike[str] | None = None) -> Packs:
    """The plan of a split, from its cache where there is one.

    cache: the folder to keep it in; None: `packs/` in the corpus's folder, or where that cannot be written to a private folder
    in the system's place for temporary files, or memory. A split in memory has its plan in memory.
    Raises ConfigError for a split without documents, and what a packing cannot hold.
    """
    if split.folder is None and cache is None:
        _ = next(split.ends_by_shard())  # raises where it does not know its documents
        return _made(split, packing, None)
    why: OSError | None = None
    for place in _places(split, cache):
        try:
            return _kept(split, packing, place)
        except OSError as error:
            why = error
    warnings.warn(f"packs: the plan could not be kept ({why}); it is made in memory, here and the next time", stacklevel=4)
    return _made(split, packing, None)


def _kept(split: Split, packing: Packing, place: Path) -> Packs:
    key = {
        "version": PLAN_VERSION,
        "corpus": split.fingerprint,
        "split": split.name,
        "tokens": split.num_tokens,
        "row_length": packing.row_length,
        "policy": packing.policy,
        "overlong": packing.overlong,
    }
    path = place / f"{split.name}-{packing.row_length}-{packing.policy}-{digest(canonical(key))[:16]}"
    if (found := _found(split, packing, path, key)) is not None:  # a plan is there whole, or not: no turn is needed to read it
        return found
    place.mkdir(parents=True, exist_ok=True)
    with _turn(path.with_name(path.name + ".lock")):
        for abandoned in place.glob(f".{path.name}.*"):  # by a process that was killed
            abandoned.unlink(missing_ok=True)
        if (found := _found(split, packing, path, key)) is not None:  # another process made it meanwhile
            return found
        return _made(split, packing, (path, key))


def _found(split: Split, packing: Packing, path: Path, key: dict[str, Any]) -> Packs | None:
    """The plan that is kept there, or None where there is none; a damaged one is none, and that is said."""
    if path.with_name(path.name + ".npz").exists():
        try:
            return _read(split, packing, path, key)
        except DAMAGED as error:
            warnings.warn(f"{path}.npz: the plan of packs is made again: {error}", stacklevel=6)
    return None


def _made(split: Split, packing: Packing, keep: tuple[Path, dict[str, Any]] | None) -> Packs:
    """A new plan, written where it is to be kept."""
    classes, counts = survey(split.ends_by_shard, split.num_tokens, packing, split.where)
    if keep is None:
        records: Records = np.empty(counts.pieces, dtype=PIECE)
        table = arrange(split.ends_by_shard, packing, classes, records)
        return plan_of(
            packing, split.num_tokens, counted(counts, table, packing), table, records=records, documents=split.documents_in
        )
    path, key = keep
    with _written(path.with_name(path.name + ".npy")) as partial:
        records = np.lib.format.open_memmap(partial, mode="w+", dtype=PIECE, shape=(counts.pieces,))
        _take_room(partial)
        table = arrange(split.ends_by_shard, packing, classes, records)
        records.flush()
        sums = _sums(records)
        del records
    counts = counted(counts, table, packing)
    lengths = np.flatnonzero(table.classes)
    arrays = {"lengths": lengths, "many": table.classes[lengths]}
    if table.first is not None:
        arrays["first"] = table.first
    if table.patterns is not None:
        arrays |= {f"patterns_{name}": getattr(table.patterns, name) for name in ("rows", "first", "length", "times")}
    told = json.dumps({"key": key, "counts": counts.to_dict(), "crc32": sums})
    buffer = io.BytesIO()
    np.savez(buffer, allow_pickle=False, told=np.frombuffer(told.encode(), dtype=np.uint8), **arrays)
    with _written(path.with_name(path.name + ".npz")) as partial:
        partial.write_bytes(buffer.getvalue())
    return _read(split, packing, path, key)


def _read(split: Split, packing: Packing, path: Path, key: dict[str, Any]) -> Packs:
    """The plan in these files. Raises ValueError where they are not of this split and packing, or not whole."""
    with open(path.with_name(path.name + ".npz"), "rb") as file, np.load(file, allow_pickle=False) as found:
        told = json.loads(found["told"].tobytes())
        if told["key"] != key:
            raise ValueError("it is of another corpus or packing")
        patterns = None
        if packing.policy == "best_fit":
            patterns = Patterns(*(found[f"patterns_{name}"] for name in ("rows", "first", "length", "times")))
        classes = np.zeros(packing.row_length + 1, dtype=np.int64)
        classes[found["lengths"]] = found["many"]
        table = Table(classes, patterns, found["first"] if packing.policy == "sequential" else None)
    counts = PackCounts(**told["counts"])
    records = np.load(path.with_name(path.name + ".npy"), mmap_mode="r", allow_pickle=False)
    if records.dtype != PIECE or records.shape != (counts.pieces,):
        raise ValueError(f"expected {counts.pieces} pieces, found {records.dtype} of shape {records.shape}")
    if _sums(records) != told["crc32"]:
        raise ValueError("the pieces' checksum differs")
    return plan_of(packing, split.num_tokens, counts, table, records=records, documents=split.documents_in)


def _sums(records: Records) -> int:
    """CRC-32 of all pieces."""
    content, found = records.view(np.uint8).reshape(-1).data, 0
    for low in range(0, len(content), CHUNK):
        found = zlib.crc32(content[low : low + CHUNK], found)
    return found


def _take_room(path: Path) -> None:
    """Take the disk's blocks before anything is written through a map: a full disk is then an error, not a bus error."""
    with open(path, "r+b") as file:
        os.posix_fallocate(file.fileno(), 0, path.stat().st_size)


@contextmanager
def _written(path: Path) -> Iterator[Path]:
    """A file to write that takes the place of `path` when it is whole, and is gone when it is not."""
    partial = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        yield partial
        with open(partial, "rb") as file:
            os.fsync(file.fileno())
        partial.replace(path)
    finally:
        partial.unlink(missing_ok=True)


@contextmanager
def _turn(path: Path) -> Iterator[None]:
    """One process at a time; the others wait until it has the plan, or is gone."""
    with open(path, "ab") as file:
        until = time.monotonic() + PATIENCE_SECONDS
        while not _taken(file):
            if time.monotonic() > until:
                warnings.warn(f"{path}: another process makes this plan of packs; waiting for it", stacklevel=7)
                fcntl.flock(file, fcntl.LOCK_EX)
                break
            time.sleep(0.02)
        yield


def _taken(file: BinaryIO) -> bool:
    """Whether the lock is ours now."""
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _places(split: Split, cache: str | os.PathLike[str] | None) -> Iterator[Path]:
    """Where a plan may be kept, the best first."""
    if cache is not None:
        yield Path(cache)
        return
    yield Path(str(split.folder)) / "packs"
    with suppress(OSError):
        private = Path(tempfile.gettempdir()) / f"ladle-packs-{os.getuid()}"
        private.mkdir(mode=0o700, exist_ok=True)
        found = private.lstat()
        if stat.S_ISDIR(found.st_mode) and found.st_uid == os.getuid() and not found.st_mode & 0o077:  # nobody else's
            yield private
