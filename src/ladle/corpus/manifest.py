"""corpus.json, read: every field is checked before anything is believed. docs/format.md is its specification."""

from __future__ import annotations

import json
import os
import re
import stat
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

from ladle.corpus import format
from ladle.errors import FormatError

MOST_BYTES = 1 << 28  # a manifest larger than this is refused unread
MOST_TOKENS = 1 << 62
HEXADECIMAL = re.compile(r"[0-9a-f]{32,128}")
SHA256 = re.compile(r"[0-9a-f]{64}")
SPLIT_NAME = re.compile(r"[a-z0-9_]{1,64}")


@dataclass(frozen=True, slots=True)
class ShardEntry:
    """One shard as the manifest lists it. first, end: its inputs, from and to (source, byte). raw: its JSON object."""

    name: str
    num_tokens: int
    num_documents: int
    max_id: int
    first: tuple[int, int]
    end: tuple[int, int]
    raw: Mapping[str, Any]

    @property
    def number(self) -> int:
        """That of the task which wrote it."""
        return int(self.name.rpartition("-")[2])

    @property
    def masked(self) -> bool:
        """Whether it has a loss mask."""
        files = self.raw.get("files")
        return isinstance(files, dict) and "mask" in files


@dataclass(frozen=True, slots=True, kw_only=True)
class Manifest:
    """A checked manifest. raw: the JSON object, as it was read."""

    path: Path
    raw: dict[str, Any]
    dtype: str
    vocab_size: int
    tokenizer: dict[str, Any] | None
    tokenizer_hash: str | None
    splits: dict[str, list[ShardEntry]]
    generations: list[tuple[str, dict[str, int]]]

    @property
    def itemsize(self) -> int:
        """Bytes a token."""
        return format.TOKEN_DTYPES[self.dtype].itemsize

    def fingerprint(self, splits: Mapping[str, int]) -> str:
        """The fingerprint of the first so many shards of each split, computed from the shards' hashes."""
        content = {name: [shard.raw for shard in self.splits[name][:count]] for name, count in splits.items()}
        return format.fingerprint(tokenizer_hash=self.tokenizer_hash, dtype=self.dtype, splits=content)


class _Object:
    """One JSON object of the manifest, and where it stands in it."""

    def __init__(self, path: Path, at: str, value: object) -> None:
        if not isinstance(value, dict):
            raise FormatError(path, None, at or "manifest", "a JSON object", _shown(value))
        self.path, self.at, self.value = path, at, value

    def fail(self, key: str, expected: object, found: object = None) -> FormatError:
        return FormatError(self.path, None, f"{self.at}{key}", expected, _shown(self.value.get(key)) if found is None else found)

    def count(self, key: str, low: int = 0, high: int = MOST_TOKENS) -> int:
        value = self.value.get(key)
        if type(value) is not int or not low <= value <= high:
            raise self.fail(key, f"an integer from {low} to {high}")
        return value

    def text(self, key: str, pattern: re.Pattern[str], expected: str) -> str:
        value = self.value.get(key)
        if not isinstance(value, str) or pattern.fullmatch(value) is None:
            raise self.fail(key, expected)
        return value

    def hash(self, key: str) -> str:
        return self.text(key, SHA256, "64 hexadecimal digits")

    def items(self, key: str) -> list[Any]:
        value = self.value.get(key)
        if not isinstance(value, list):
            raise self.fail(key, "a list")
        return value

    def pair(self, key: str) -> tuple[int, int]:
        value = self.value.get(key)
        if not isinstance(value, list) or len(value) != 2 or not all(type(v) is int and 0 <= v <= MOST_TOKENS for v in value):
            raise self.fail(key, "[source, byte]")
        return value[0], value[1]

    def within(self, key: str) -> _Object:
        return _Object(self.path, f"{self.at}{key}.", self.value.get(key))

    def same(self, key: str, expected: object, hint: str = "") -> None:
        if type(self.value.get(key)) is not type(expected) or self.value[key] != expected:
            raise FormatError(self.path, None, f"{self.at}{key}", expected, _shown(self.value.get(key)), hint)


def read(path: Path) -> Manifest:
    """Read and check a manifest. Raises FormatError naming the field, what was expected and what was found."""
    top = _Object(path, "", _parse(path))
    top.same("format", format.FORMAT)
    top.same("version", format.VERSION, "a newer Ladle wrote it; upgrade this one")
    top.same("byte_order", "little")
    checksum = top.within("checksum")
    checksum.same("algorithm", "crc32")
    checksum.same("block_bytes", format.BLOCK_BYTES)
    vocab_size = top.count("vocab_size", 1, 1 << 32)
    dtype = top.text("dtype", re.compile("|".join(format.TOKEN_DTYPES)), "uint16 or uint32")
    if dtype == "uint16" and format.dtype_name(vocab_size) != dtype:
        raise top.fail("dtype", f"uint32 for a vocabulary of {vocab_size}")
    if top.value.get("end_of_text") is not None:
        top.count("end_of_text", 0, vocab_size - 1)
    tokenizer = None if top.value.get("tokenizer") is None else top.within("tokenizer").value
    tokenizer_hash = None if tokenizer is None else top.text("tokenizer_hash", HEXADECIMAL, "32 to 128 hexadecimal digits")
    splits = {name: _split(top.within("splits"), name, dtype, vocab_size) for name in sorted(top.within("splits").value)}
    if not splits:
        raise top.fail("splits", "at least one split")
    if any(shard.masked for shards in splits.values() for shard in shards):
        top.within("streams").within("mask").same("dtype", "uint8")
    sources = top.within("sources")
    sources.count("bytes")
    sources.hash("sha256")
    _check_inputs(top, splits, sources.count("count"))
    _check_made(top)
    manifest = Manifest(
        path=path,
        raw=top.value,
        dtype=dtype,
        vocab_size=vocab_size,
        tokenizer=tokenizer,
        tokenizer_hash=tokenizer_hash,
        splits=splits,
        generations=_generations(top, splits),
    )
    for number, (expected, counts) in enumerate(manifest.generations):
        if (found := manifest.fingerprint(counts)) != expected:
            raise FormatError(path, None, f"generations[{number}].fingerprint", expected, found, "the manifest was altered")
    return manifest


def check_files(folder: Path, manifest: Manifest) -> None:
    """Every file of every shard must be a regular file inside folder, of the size the manifest says. Raises FormatError."""
    for shards in manifest.splits.values():
        for shard in shards:
            for kind in format.kinds(mask=shard.masked):
                path = f"{folder}{os.sep}{shard.name}{format.SUFFIXES[kind]}"  # no Path: there may be 20 000 of them
                found, expected = regular_size(path, folder), shard.raw["files"][kind]["bytes"]
                if found != expected:
                    raise FormatError(
                        path, None, "size", f"{expected} bytes", f"{found} bytes", "the file is cut off or not the one prepared"
                    )


def regular_size(path: str | Path, folder: Path) -> int:
    """The size of a regular file, which a link may lead to only inside folder. Raises FormatError."""
    try:
        status = os.lstat(path)
        if stat.S_ISLNK(status.st_mode):
            target, inside = os.path.realpath(path), os.path.realpath(folder)
            if os.path.commonpath([target, inside]) != inside:
                raise FormatError(
                    path, None, "link", f"a target inside {folder}", target, "a corpus may not read outside its folder"
                )
            status = Path(path).stat()
    except FileNotFoundError:
        raise FormatError(path, None, "file", "a file", "none", "copy the whole folder, or prepare it again") from None
    if not stat.S_ISREG(status.st_mode):
        raise FormatError(path, None, "file", "a regular file", stat.filemode(status.st_mode))
    return status.st_size


def _parse(path: Path) -> object:
    if (size := regular_size(path, path.parent)) > MOST_BYTES:
        raise FormatError(path, None, "size", f"at most {MOST_BYTES} bytes", f"{size} bytes")

    def refuse(name: str) -> None:
        raise ValueError(f"{name} is no JSON")

    try:
        return json.loads(path.read_bytes().decode("utf-8"), parse_constant=refuse)
    except (ValueError, RecursionError) as error:
        raise FormatError(path, getattr(error, "pos", None), "manifest", "JSON in UTF-8", f"{error}"[:200]) from None


def _split(splits: _Object, name: str, dtype: str, vocab_size: int) -> list[ShardEntry]:
    if SPLIT_NAME.fullmatch(name) is None:
        raise FormatError(splits.path, None, "splits", "names of a to z, 0 to 9 and _", _shown(name))
    split = splits.within(name)
    itemsize = format.TOKEN_DTYPES[dtype].itemsize
    pattern = re.compile(rf"{name}-[0-9]{{5,12}}")
    shards = []
    for number, value in enumerate(split.items("shards")):
        shard = _Object(split.path, f"{split.at}shards[{number}].", value)
        entry = ShardEntry(
            name=shard.text("name", pattern, f"{name}- and a number of 5 digits or more"),
            num_tokens=shard.count("tokens", 1),
            num_documents=shard.count("documents", 1),
            max_id=shard.count("max_id", 0, vocab_size - 1),
            first=shard.within("inputs").pair("first"),
            end=shard.within("inputs").pair("end"),
            raw=shard.value,
        )
        files = shard.within("files")
        for kind in format.kinds(mask=entry.masked):
            file = files.within(kind)
            file.hash("sha256")
            counts = {"num_tokens": entry.num_tokens, "num_documents": entry.num_documents, "itemsize": itemsize}
            size = format.file_bytes(kind, **counts, mask=entry.masked)
            file.same("bytes", size)
        if entry.masked:
            shard.count("learned", 0, entry.num_tokens)
        shards.append(entry)
    if any(a.number >= b.number for a, b in pairwise(shards)):
        raise split.fail("shards", "names in ascending order", "another order")
    split.same("tokens", sum(shard.num_tokens for shard in shards))
    split.same("documents", sum(shard.num_documents for shard in shards))
    split.same("max_id", max((shard.max_id for shard in shards), default=0))
    return shards


def _check_inputs(top: _Object, splits: Mapping[str, list[ShardEntry]], num_sources: int) -> None:
    """Each task read its own inputs: ranges follow each other, within the sources, and are one task's in every split."""
    before: ShardEntry | None = None
    for shard in sorted((shard for shards in splits.values() for shard in shards), key=lambda shard: shard.number):
        expected, fits = f"inputs within {num_sources} sources", shard.first < shard.end <= (num_sources, 0)
        if before is not None and before.number == shard.number:
            expected, fits = f"the inputs of {before.name}, {before.first} to {before.end}", shard.end == before.end
            fits = fits and shard.first == before.first
        elif before is not None and before.end > shard.first:
            expected, fits = f"inputs after those of {before.name}, which end at {before.end}", False
        if not fits:
            raise FormatError(top.path, None, f"{shard.name}: inputs", expected, f"{shard.first} to {shard.end}")
        before = shard


def _check_made(top: _Object) -> None:
    """What is told to people of how the corpus was made, where anything is."""
    if top.value.get("made") is None:
        return
    made = top.within("made")
    made.text("tokenizer", re.compile(".*", re.DOTALL), "a name")
    made.within("options")
    for key in ("files", "bytes"):
        made.within("inputs").count(key)
    counts = made.within("counts")
    for key in ("documents", "empty_documents", "skipped_files", "replaced"):
        counts.count(key)
    markers = counts.within("markers")
    for marker in markers.value:
        markers.count(marker)


def _generations(top: _Object, splits: Mapping[str, list[ShardEntry]]) -> list[tuple[str, dict[str, int]]]:
    generations = []
    least = dict.fromkeys(splits, 0)
    for number, value in enumerate(top.items("generations")):
        generation = _Object(top.path, f"generations[{number}].", value)
        shards = generation.within("shards")
        if set(shards.value) != set(splits):
            raise generation.fail(
                "shards", f"a count for each of {', '.join(splits)}", ", ".join(map(_shown, shards.value)) or "none"
            )
        least = {name: shards.count(name, least[name], len(splits[name])) for name in splits}
        generations.append((generation.hash("fingerprint"), least))
    if not generations or least != {name: len(shards) for name, shards in splits.items()}:
        raise top.fail("generations", "a last one that covers every shard", "none")
    return generations


def _shown(value: object) -> str:
    """A value for a message: short, on one line."""
    text = "nothing" if value is None else repr(value)
    return text if len(text) <= 80 else text[:77] + "..."
