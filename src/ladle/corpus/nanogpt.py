"""A nanoGPT folder: train.bin and val.bin of bare uint16 ids, and for characters a meta.pkl."""

from __future__ import annotations

import hashlib
import io
import os
import pickle
import pickletools
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from ladle.corpus import format
from ladle.corpus.corpus import Corpus
from ladle.corpus.manifest import regular_size
from ladle.corpus.shard import FileShard, Pool
from ladle.corpus.split import Split
from ladle.errors import FormatError, LadleError

if TYPE_CHECKING:
    from ladle.tokens import Tokenizer

DTYPE = np.dtype("<u2")
SPLITS = ("train", "val")
META = "meta.pkl"
SAMPLED_BLOCKS = 64
PLAINLY = "plain dicts of str and int"
WITHOUT = "remove the file to read the ids without their characters"
MOST_META_BYTES = 1 << 22  # that of 65 536 characters takes 2 MB
# The opcodes that a dict of str and int needs, in pickle protocols 0 to 5; none can name, build or call anything.
PLAIN = frozenset({
    *("PROTO", "FRAME", "MARK", "STOP", "POP"),
    *("INT", "LONG", "LONG1", "BININT", "BININT1", "BININT2", "UNICODE", "BINUNICODE", "SHORT_BINUNICODE"),
    *("DICT", "EMPTY_DICT", "SETITEM", "SETITEMS"),
    *("MEMOIZE", "PUT", "BINPUT", "LONG_BINPUT", "GET", "BINGET", "LONG_BINGET"),
})  # fmt: skip


def is_one(folder: Path) -> bool:
    """Whether a folder looks like one."""
    return any((folder / f"{name}.bin").is_file() for name in SPLITS)


def open(folder: Path) -> Corpus:
    """Open one. A broken val.bin is an error only when val is asked for; a broken train.bin is one at once."""
    chars = meta(folder / META) if (folder / META).exists() else None
    tokenizer = cache(lambda: _tokenizer(chars))
    pool = Pool()
    splits: dict[str, Split] = {}
    broken: dict[str, LadleError] = {}
    for name in SPLITS:
        try:
            splits[name] = _split(folder, name, pool, None if chars is None else len(chars), tokenizer)
        except FormatError as error:
            if name == "train" and (folder / "train.bin").exists():
                raise
            broken[name] = FormatError(*error.args)  # anew: a traceback would keep this frame, and with it the splits

    @cache
    def fingerprint() -> str:
        return "sampled:" + hashlib.sha256(format.canonical({n: s.fingerprint for n, s in splits.items()})).hexdigest()

    shown: dict[str, Any] = {"format": "nanogpt", "dtype": "uint16", "vocab_size": None if chars is None else len(chars)}
    shown["splits"] = {name: {"tokens": split.num_tokens} for name, split in splits.items()}
    return Corpus(path=folder, manifest=shown, splits=splits, fingerprint=fingerprint, tokenizer=tokenizer, broken=broken)


def meta(path: Path) -> list[str]:
    """The characters of a meta.pkl, in the order of their ids.

    The file is a pickle, which could run anything: it is read only if every opcode in it belongs to plain dicts,
    strings and integers, by an unpickler that admits no global. Raises FormatError.
    """
    if (size := regular_size(path, path.parent)) > MOST_META_BYTES:
        raise FormatError(path, None, "size", f"at most {MOST_META_BYTES} bytes", f"{size} bytes")
    content = path.read_bytes()
    try:
        _refuse_unplain(path, content)
        found = _Plain(io.BytesIO(content)).load()
    except LadleError:
        raise
    except Exception as error:  # noqa: BLE001  an unpickler may raise anything on a broken file
        raise FormatError(path, None, "pickle", PLAINLY, f"{type(error).__name__}: {error}"[:200], WITHOUT) from None
    return _characters(path, found)


def _refuse_unplain(path: Path, content: bytes) -> None:
    """Raise FormatError for a pickle that holds anything but plain dicts, or a memo index meant to exhaust memory."""
    for opcode, argument, place in pickletools.genops(content):
        if opcode.name not in PLAIN:
            raise FormatError(path, place, "pickle", PLAINLY, f"the opcode {opcode.name}", f"refused unread; {WITHOUT}")
        if opcode.name.endswith("PUT") and not 0 <= int(argument or 0) <= len(content):
            raise FormatError(path, place, "pickle", f"a memo index up to {len(content)}", argument, WITHOUT)


class _Plain(pickle.Unpickler):
    """An unpickler that admits no global at all."""

    def find_class(self, module: str, name: str) -> Any:
        raise pickle.UnpicklingError(f"{module}.{name} is not admitted")


def _characters(path: Path, found: object) -> list[str]:
    """itos as a list. Raises FormatError unless it and stoi name the characters 0 to vocab_size - 1, each once."""
    if not isinstance(found, dict) or not isinstance(itos := found.get("itos"), dict):
        raise FormatError(path, None, "meta", "a dict with itos, stoi and vocab_size", type(found).__name__)
    chars = [itos.get(i) for i in range(len(itos))]
    size = found.get("vocab_size", len(chars))
    if (
        not chars
        or len(chars) > 1 << 16
        or not all(isinstance(c, str) and len(c) == 1 for c in chars)
        or len(set(chars)) != len(chars)
    ):
        raise FormatError(path, None, "itos", "a different character for each id from 0", f"{len(itos)} entries that are not")
    if size != len(chars):
        shown = size if isinstance(size, int | str) else f"a {type(size).__name__}"  # a dict's repr may be longer than memory
        raise FormatError(path, None, "vocab_size", len(chars), f"{shown}"[:80])
    if found.get("stoi") != {c: i for i, c in enumerate(chars)}:
        raise FormatError(path, None, "stoi", "the inverse of itos", "something else")
    return [str(c) for c in chars]


def _tokenizer(chars: list[str] | None) -> Tokenizer | None:
    if chars is None:
        return None
    from ladle.tokens import from_identity

    return from_identity({"kind": "chars", "characters": "".join(chars), "end_of_text": None})


def _split(folder: Path, name: str, pool: Pool, vocab_size: int | None, tokenizer: Any) -> Split:
    path = folder / f"{name}.bin"
    size = regular_size(path, folder)
    if size == 0:
        raise FormatError(path, None, "size", "at least one token", "0 bytes", f"the script that prepared {name} did not finish")
    if size % DTYPE.itemsize:
        raise FormatError(path, None, "size", "an even number of bytes (uint16 ids)", f"{size} bytes", "the file is cut off")
    shard = FileShard(path, DTYPE, size // DTYPE.itemsize, pool, None)
    fingerprint = cache(lambda: _sampled(shard))

    def remake() -> tuple[Callable[..., Split], tuple[Any, ...]]:
        from ladle.corpus.open import reopened_split

        return reopened_split, (folder.absolute(), None, name, fingerprint())

    return Split(
        name=name,
        where=str(path),
        shards=[shard],
        dtype=DTYPE,
        vocab_size=vocab_size,
        fingerprint=fingerprint,
        tokenizer=tokenizer,
        remake=remake,
    )


def _sampled(shard: FileShard) -> str:
    """A hash of the size and of 64 blocks evenly spread, the first and the last among them.

    They are read, not mapped: on a cold file each touch of a map would fetch megabytes around it.
    """
    blocks = format.num_blocks(shard.num_bytes)
    content = hashlib.sha256(f"{DTYPE.name}:{shard.num_tokens}:".encode())
    descriptor = os.open(shard.path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        for i in range(min(SAMPLED_BLOCKS, blocks)):
            block = i * (blocks - 1) // (SAMPLED_BLOCKS - 1) if blocks > SAMPLED_BLOCKS else i
            content.update(os.pread(descriptor, format.BLOCK_BYTES, block * format.BLOCK_BYTES))
    finally:
        os.close(descriptor)
    return "sampled:" + content.hexdigest()
