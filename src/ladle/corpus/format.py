"""The bytes of a corpus, as docs/format.md specifies them: names, dtypes, headers, checksums, hashes.

Changing anything here that a written file depends on means a new VERSION, never an edit: what was written is
readable for ever.
"""

from __future__ import annotations

import hashlib
import json
import zlib
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

FORMAT = "ladle-corpus"
VERSION = 1
MANIFEST = "corpus.json"
SOURCES = "sources.jsonl"

BLOCK_BYTES = 4096
BLOCK_SHIFT = 12

TOKEN_DTYPES: dict[str, np.dtype[Any]] = {"uint16": np.dtype("<u2"), "uint32": np.dtype("<u4")}
ENDS_DTYPE = np.dtype("<u8")
FROM_DTYPE = np.dtype([("source", "<u4"), ("flags", "<u4"), ("byte", "<u8"), ("line", "<u8")])
SUMS_DTYPE = np.dtype("<u4")

BEGINS_ELSEWHERE = 1  # flag: the document's beginning lies in another split
ENDS_ELSEWHERE = 2  # flag: the document's end lies in another split
RECORD = 8  # flag: the document is a field of a JSON record, whose bytes begin at `byte`; those of its tokens are not known
REPLACED = 4  # flag: bytes of the source that are no UTF-8 were read as U+FFFD, so bytes cannot be counted from tokens

MASK_DTYPE = np.dtype("|u1")

# The files of a shard: the key in the manifest, and what follows the shard's name on disk. Not every shard has a mask.
SUFFIXES = {"bin": ".bin", "docs": ".docs.npy", "from": ".from.npy", "mask": ".mask.npy", "sums": ".sums.npy"}
# The header's length of each .npy file, fixed so that a file's size follows from its count.
HEADER_BYTES = {"bin": 0, "docs": 128, "from": 192, "mask": 128, "sums": 128}


def dtype_name(vocab_size: int) -> str:
    """The dtype of a vocabulary of that size: "uint16" up to 65 536 ids, else "uint32"."""
    return "uint16" if vocab_size <= 1 << 16 else "uint32"


def num_blocks(num_bytes: int) -> int:
    """Checksum blocks of a file of num_bytes; the last may be short."""
    return -(-num_bytes // BLOCK_BYTES)


def kinds(*, mask: bool) -> list[str]:
    """The keys of a shard's files, the sums last: they cover the others, in this order. mask: whether it has one."""
    return [kind for kind in SUFFIXES if kind != "mask" or mask]


def first_sum(kind: str, **counts: Any) -> int:
    """Where a file's checksums begin among a shard's. counts: as for file_bytes."""
    before = kinds(mask=True)[: kinds(mask=True).index(kind)]
    return sum(num_blocks(file_bytes(k, **counts)) for k in before)


def file_bytes(kind: str, *, num_tokens: int, num_documents: int, itemsize: int, mask: bool = False) -> int:
    """The exact size of one of a shard's files, in bytes. kind: a key of SUFFIXES. mask: whether the shard has one."""
    if kind == "bin":
        return num_tokens * itemsize
    if kind == "docs":
        return HEADER_BYTES["docs"] + num_documents * ENDS_DTYPE.itemsize
    if kind == "from":
        return HEADER_BYTES["from"] + num_documents * FROM_DTYPE.itemsize
    if kind == "mask":
        return HEADER_BYTES["mask"] + num_tokens
    sizes = [file_bytes(k, num_tokens=num_tokens, num_documents=num_documents, itemsize=itemsize) for k in kinds(mask=mask)[:-1]]
    return HEADER_BYTES["sums"] + SUMS_DTYPE.itemsize * sum(map(num_blocks, sizes))


def npy_header(kind: str, count: int) -> bytes:
    """The header of a one-dimensional .npy file (version 1.0), padded with spaces to HEADER_BYTES[kind]."""
    dtype = {"docs": ENDS_DTYPE, "from": FROM_DTYPE, "mask": MASK_DTYPE, "sums": SUMS_DTYPE}[kind]
    descr = repr(dtype.str) if dtype.names is None else repr(dtype.descr)
    text = f"{{'descr': {descr}, 'fortran_order': False, 'shape': ({count},), }}"
    length = HEADER_BYTES[kind] - 10
    return b"\x93NUMPY\x01\x00" + length.to_bytes(2, "little") + text.ljust(length - 1).encode("ascii") + b"\n"


def block_sums(content: bytes | memoryview) -> npt.NDArray[np.uint32]:
    """CRC-32 (zlib's) of each 4 KiB block of content, uint32 [num_blocks]; the last block may be short."""
    view = memoryview(content).cast("B")
    sums = (zlib.crc32(view[i : i + BLOCK_BYTES]) for i in range(0, len(view), BLOCK_BYTES))
    return np.fromiter(sums, SUMS_DTYPE, num_blocks(len(view)))


def canonical(value: object) -> bytes:
    """Canonical JSON, for hashing: keys sorted, no spaces, ASCII."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"), allow_nan=False).encode("ascii")


def readable(value: object) -> bytes:
    """The same JSON for people, as the manifest stores it: keys sorted, one blank of indentation, ASCII, a final newline."""
    return (json.dumps(value, sort_keys=True, indent=1, allow_nan=False) + "\n").encode("ascii")


def manifest(
    splits: Mapping[str, Sequence[Mapping[str, Any]]],
    *,
    vocab_size: int,
    sources: Mapping[str, object],
    end_of_text: int | None = None,
    tokenizer: Mapping[str, Any] | None = None,
    tokenizer_hash: str | None = None,
    **told: object,
) -> dict[str, Any]:
    """The content of corpus.json for new shards: one generation. splits: as for `fingerprint`. told: "made"."""
    dtype = dtype_name(vocab_size)
    return {
        "format": FORMAT,
        "version": VERSION,
        "byte_order": "little",
        "checksum": {"algorithm": "crc32", "block_bytes": BLOCK_BYTES},
        "dtype": dtype,
        "vocab_size": vocab_size,
        "end_of_text": end_of_text,
        "tokenizer": tokenizer,
        "tokenizer_hash": tokenizer_hash,
        "splits": {
            name: {
                "tokens": sum(shard["tokens"] for shard in listed),
                "documents": sum(shard["documents"] for shard in listed),
                "max_id": max((shard["max_id"] for shard in listed), default=0),
                "shards": listed,
            }
            for name, listed in splits.items()
        },
        "streams": {"mask": {"dtype": "uint8"}}
        if any("mask" in s["files"] for listed in splits.values() for s in listed)
        else {},
        "sources": sources,
        "generations": [
            {
                "fingerprint": fingerprint(tokenizer_hash=tokenizer_hash, dtype=dtype, splits=splits),
                "shards": {name: len(listed) for name, listed in splits.items()},
            }
        ],
        **told,
    }


def fingerprint(*, tokenizer_hash: str | None, dtype: str, splits: Mapping[str, Sequence[Mapping[str, Any]]]) -> str:
    """The SHA-256 (hex) of what a stream of tokens depends on: tokenizer, dtype, and the shards' contents, in order.

    splits: for each split its shards as the manifest lists them. Names of files, sources and provenance do not count.
    """
    content = {name: [shard_content(shard) for shard in shards] for name, shards in splits.items()}
    whole = {"format": FORMAT, "version": VERSION, "tokenizer": tokenizer_hash, "dtype": dtype, "splits": content}
    return hashlib.sha256(canonical(whole)).hexdigest()


def shard_content(shard: Mapping[str, Any]) -> list[int | str]:
    """What the fingerprint takes of one shard."""
    files = shard["files"]
    content = [shard["tokens"], shard["documents"], shard["max_id"], files["bin"]["sha256"], files["docs"]["sha256"]]
    return [*content, files["mask"]["sha256"]] if "mask" in files else content
