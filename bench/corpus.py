"""A corpus of random ids for the benchmarks, in Ladle's format: one shard a split, so that every peer can map the same file."""

from __future__ import annotations

import hashlib
from pathlib import Path

import numpy as np

from ladle.corpus import format

VOCAB = 50257  # GPT-2's
DOCUMENT = 1000  # tokens, on average
PIECE = 1 << 24  # tokens written at once; whole checksum blocks


def make(folder: Path, num_tokens: int, seed: int = 0) -> Path:
    """Write the corpus and return its one .bin file. Uniform ids, so that nearly every row is found at one place only."""
    folder.mkdir(parents=True)
    rng = np.random.default_rng(seed)
    name, digest, sums, max_id = "train-00000", hashlib.sha256(), [], 0
    with open(folder / f"{name}.bin", "wb") as file:
        for start in range(0, num_tokens, PIECE):
            ids = rng.integers(0, VOCAB, min(PIECE, num_tokens - start), dtype=np.uint16)
            file.write(ids)
            digest.update(ids)
            sums.append(format.block_sums(ids.data))
            max_id = max(max_id, int(ids.max()))
    ends = np.unique(np.append(np.sort(rng.integers(1, num_tokens, num_tokens // DOCUMENT)), num_tokens)).astype(
        format.ENDS_DTYPE
    )
    origins = np.zeros(ends.size, format.FROM_DTYPE)
    docs = format.npy_header("docs", ends.size) + ends.tobytes()
    froms = format.npy_header("from", ends.size) + origins.tobytes()
    sums += [format.block_sums(docs), format.block_sums(froms)]
    whole = np.concatenate(sums)
    contents = {"docs": docs, "from": froms, "sums": format.npy_header("sums", whole.size) + whole.tobytes()}
    files = {"bin": {"bytes": num_tokens * 2, "sha256": digest.hexdigest()}}
    for kind, content in contents.items():
        (folder / (name + format.SUFFIXES[kind])).write_bytes(content)
        files[kind] = {"bytes": len(content), "sha256": hashlib.sha256(content).hexdigest()}
    shard = {"name": name, "tokens": num_tokens, "documents": int(ends.size), "max_id": max_id, "files": files}
    totals = {"tokens": num_tokens, "documents": int(ends.size), "max_id": max_id}
    fingerprint = format.fingerprint(tokenizer_hash=None, dtype="uint16", splits={"train": [shard]})
    manifest = {
        "format": format.FORMAT,
        "version": format.VERSION,
        "byte_order": "little",
        "checksum": {"algorithm": "crc32", "block_bytes": format.BLOCK_BYTES},
        "vocab_size": VOCAB,
        "dtype": "uint16",
        "end_of_text": None,
        "tokenizer": None,
        "splits": {"train": {"shards": [shard], **totals}},
        "generations": [{"fingerprint": fingerprint, "shards": {"train": 1}}],
    }
    (folder / format.SOURCES).write_bytes(b"")
    (folder / format.MANIFEST).write_bytes(format.readable(manifest))
    return folder / f"{name}.bin"
