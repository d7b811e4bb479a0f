"""A corpus of random ids, in Ladle's format: one shard, so that every contender can map the same file."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from ladle.corpus import format
from ladle.corpus.split import Split
from ladle.corpus.write import ShardWriter, write_file

VOCAB = 50257  # GPT-2's
SHORTEST = 8  # tokens that every document has
PIECE = 1 << 22  # tokens made at once, about
TOUCHED = 1 << 22  # tokens read at once


def make(folder: Path, num_tokens: int, *, document: int = 1000, seed: int = 0) -> Path:
    """Write a corpus of one split, "train", into a new folder and return its one .bin file.

    The ids are uniform, so that eight of them stand at one place only; the documents' lengths are geometric, as random
    borders make them, `document` tokens on average. Raises OSError naming the file.
    """
    folder.mkdir(parents=True)
    rng = np.random.default_rng(seed)
    writer = ShardWriter(folder, "train-00000", VOCAB)
    try:
        while (left := num_tokens - writer.num_tokens) > 0:
            lengths = SHORTEST + rng.geometric(1 / (document - SHORTEST), PIECE // document)
            lengths = lengths[: int(np.searchsorted(np.cumsum(lengths), left)) + 1]
            lengths[-1] -= max(0, int(lengths.sum()) - left)
            for ids in np.split(rng.integers(0, VOCAB, int(lengths.sum()), dtype=np.uint16), np.cumsum(lengths)[:-1]):
                writer.write(ids)
                writer.end_document(source=0, flags=0, byte=0, line=1)
        shard = {**writer.finish(), "inputs": {"first": [0, 0], "end": [1, 0]}}
    finally:
        writer.close()
    count, digest = write_file(folder / format.SOURCES, [format.canonical({"name": "random", "bytes": 0}) + b"\n"])
    sources = {"count": 1, "bytes": count, "sha256": digest}
    manifest = format.manifest({"train": [shard]}, vocab_size=VOCAB, sources=sources)
    write_file(folder / format.MANIFEST, [format.readable(manifest)])
    return folder / "train-00000.bin"


def touch(split: Split) -> None:
    """Read a split once: its pages are then in the page cache and this process's page table, its blocks verified."""
    for start in range(0, split.num_tokens, TOUCHED):
        split.read(start, min(TOUCHED, split.num_tokens - start))
