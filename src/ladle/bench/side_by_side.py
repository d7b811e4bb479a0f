"""`ladle bench feed`: the feed beside nanoGPT's algorithm and a DataLoader, on this machine and a corpus of one's own."""

from __future__ import annotations

import os
import re
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from ladle.bench import table
from ladle.bench.corpus import make, touch
from ladle.bench.machine import machine
from ladle.bench.rounds import compare
from ladle.corpus.open import open as open_corpus
from ladle.corpus.shard import FileShard
from ladle.corpus.split import Split
from ladle.errors import ConfigError, MissingExtra

SHAPES = "12x1024,64x1024,8x8192,512x256"
MADE_TOKENS = 100_000_000
MADE_DOCUMENT = 100_000  # long ones, so that making them leaves this process's heap as it was


def side_by_side(
    path: str | os.PathLike[str] | None, *, split: str = "train", shapes: str = SHAPES, rounds: int = 10, hold: bool = True
) -> Iterator[dict[str, Any]]:
    """Measure and yield one JSON object a shape: {"batch_size", "block_size", "rows"}, the first with "machine" and "corpus".

    path: a corpus folder, of which the split's largest shard is read, or None for one of 10^8 random ids in a temporary
    folder. shapes: "BxT,BxT". hold: as `rounds.compare` says. The page cache is warm: the shard is read once before.
    Raises ConfigError where the corpus is too small for a shape, or too large to stay in memory; MissingExtra without torch.
    """
    sizes = parse(shapes)
    if rounds < 1:
        raise ConfigError(f"rounds: expected >= 1, found {rounds}")
    try:
        from ladle.bench import contenders
    except ImportError as error:
        raise MissingExtra("a benchmark beside nanoGPT's algorithm and torch's DataLoader", "torch", "torch") from error
    with opened(path, split) as (shard, one):
        for B, T in sizes:
            if one.num_tokens < B * T + 1:
                raise ConfigError(f"{one.where}: expected at least {B * T + 1} tokens for {B}x{T}, found {one.num_tokens}")
        touch(one)
        peers = [contenders.nanogpt(shard.path, one.dtype), contenders.dataloader(shard.path, one.dtype)]
        ours = [
            contenders.ladle_gather(one),
            contenders.ladle_feed(one, "random", 0),
            contenders.ladle_feed(one, "shuffled", None),
        ]
        facts: dict[str, Any] = {
            "machine": machine(),
            "corpus": {"where": "random ids" if path is None else one.where, "tokens": one.num_tokens, "dtype": one.dtype.name},
        }
        for B, T in sizes:
            timings = compare([*peers, *ours], one, batch_size=B, block_size=T, rounds=rounds, hold=hold)
            yield {"batch_size": B, "block_size": T, "rows": table.rows(timings, contenders.NANOGPT), **facts}
            facts = {}


def parse(shapes: str) -> list[tuple[int, int]]:
    """ "12x1024,64x1024" -> [(12, 1024), (64, 1024)]. Raises ConfigError."""
    found = []
    for shape in shapes.split(","):
        if (match := re.fullmatch(r"\s*([1-9][0-9]{0,6})x([1-9][0-9]{0,6})\s*", shape)) is None:
            raise ConfigError(
                f"shapes: expected batch size x block size such as 12x1024, several joined by commas, found {shape!r}"
            )
        found.append((int(match[1]), int(match[2])))
    return found


@contextmanager
def opened(path: str | os.PathLike[str] | None, name: str) -> Iterator[tuple[FileShard, Split]]:
    """The largest shard of a corpus's split, and a split of that shard alone, so that everyone reads the same one file."""
    with tempfile.TemporaryDirectory(prefix="ladle-bench-") as folder:
        if path is None:
            path = make(Path(folder) / "random", MADE_TOKENS, document=MADE_DOCUMENT).parent
        with open_corpus(path) as corpus:
            split = corpus[name]
            shard = max(_files(split.shards), key=lambda file: file.num_tokens, default=None)
            if shard is None:
                raise ConfigError(f"{split.where}: expected a split with tokens, found none")
            if shard.num_bytes > (most := os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") // 2):
                raise ConfigError(
                    f"{shard.path}: expected at most half of this machine's memory, {most} bytes, found {shard.num_bytes}: "
                    f"the figures are for a file that stays in the page cache"
                )
            yield (
                shard,
                Split(
                    name=name,
                    where=shard.where,
                    shards=[shard],
                    dtype=split.dtype,
                    vocab_size=split.vocab_size,
                    max_id=split.max_id,
                    fingerprint=lambda: split.fingerprint,
                ),
            )


def _files(shards: Sequence[object]) -> list[FileShard]:
    return [shard for shard in shards if isinstance(shard, FileShard)]
