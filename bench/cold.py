"""The feed, cold: a corpus on disk that is dropped from the page cache before each turn, against nanoGPT's algorithm.

    python -m bench.cold [--tokens 1000000000] [--rounds 8] [--scratch FOLDER] [--record]

Tokens a second, and bytes read from the disk for each byte wanted, at B = 12, T = 1024 (24 600 bytes a batch). A turn
opens its contender anew, since the kernel drops no page that a process has mapped; opening is not timed, the first
batch is.
"""

from __future__ import annotations

import argparse
import os
import statistics
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import ladle
from bench import results
from ladle.bench import contenders, table
from ladle.bench.corpus import make
from ladle.bench.rounds import Contender, compare
from ladle.corpus.split import Split

B, T = 12, 1024
WANTED = B * (T + 1) * 2  # bytes a batch
RATIO, MOST_READ = 20, 4  # issue 2, section 6
NANOGPT_BATCHES, OUR_BATCHES = 20, 400  # a turn: each touches some 5 % of the corpus's pages


class StillCached(RuntimeError):  # noqa: N818  it names what is wrong
    """The kernel kept pages that it was asked to drop: the figure would not be a cold one."""


def drop(path: Path, split: Split) -> None:
    """Drop the corpus's files from the page cache. split: this process's own map of it. Raises StillCached."""
    for shard in split.shards:
        shard.drop()
    for file in path.parent.iterdir():
        descriptor = os.open(file, os.O_RDONLY)
        try:
            os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
        finally:
            os.close(descriptor)
    if (kept := cached(path)) > 0.01:
        raise StillCached(f"{path.name}: expected at most 1 % of its blocks in the page cache, found {kept:.0%}")


def cached(path: Path, samples: int = 1000) -> float:
    """The share of the file that the page cache holds, by samples that cause no read."""
    descriptor, size, buffer, held = os.open(path, os.O_RDONLY), path.stat().st_size, bytearray(1), 0
    try:
        for i in range(samples):
            try:
                held += os.preadv(descriptor, [buffer], size * i // samples, os.RWF_NOWAIT)
            except BlockingIOError:
                continue
    finally:
        os.close(descriptor)
    return held / samples


def read_ahead(folder: str) -> str:
    """How far the kernel reads on by itself on this folder's disk: what a plain map pays for each fault."""
    device = os.stat(folder).st_dev
    try:
        return Path(f"/sys/class/bdi/{os.major(device)}:{os.minor(device)}/read_ahead_kb").read_text("ascii").strip() + " KiB"
    except OSError:
        return "unknown"


def afresh(folder: Path, order: Any, prefetch: int | None) -> Contender:
    """next(feed) over a corpus that is opened for the turn."""

    def inner(split: Split) -> Contender:
        return contenders.ladle_feed(split, order, prefetch)

    @contextmanager
    def opened(batch_size: int, block_size: int) -> Iterator[Any]:
        with ladle.open(folder) as corpus, inner(corpus["train"]).open(batch_size, block_size) as draw:
            yield draw

    with ladle.open(folder) as corpus:
        return Contender(name=inner(corpus["train"]).name, open=opened, afresh=True)


def main() -> None:
    """Measure, print, and with --record keep the result."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tokens", type=int, default=1_000_000_000, help="size of the made corpus (uint16)")
    parser.add_argument("--rounds", type=int, default=8)
    parser.add_argument("--scratch", type=Path, help="a folder on the disk to be measured (default: a temporary one)")
    parser.add_argument("--record", action="store_true", help="append to bench/results")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=args.scratch) as folder:
        path, ahead = make(Path(folder) / "corpus", args.tokens), read_ahead(folder)
        ours = [afresh(path.parent, order, prefetch) for order in ("random", "shuffled") for prefetch in (0, None)]
        with ladle.open(path.parent) as corpus:
            split = corpus["train"]
            everyone = [contenders.nanogpt(path, split.dtype), *ours]
            timings = compare(
                everyone,
                split,
                batch_size=B,
                block_size=T,
                rounds=args.rounds,
                batches={c.name: OUR_BATCHES for c in ours} | {contenders.NANOGPT: NANOGPT_BATCHES},
                settle=0,
                before=lambda: drop(path, split),
            )
    rows = table.rows(timings, contenders.NANOGPT, {c.name: RATIO for c in ours})
    reads = [
        {
            "name": timing.name,
            "bytes read / bytes wanted": round(statistics.median(timing.bytes_read) / WANTED, 2),
            "target": "" if timing.name == contenders.NANOGPT else f"at most {MOST_READ}",
        }
        for timing in timings
    ]
    print(f"{table.markdown(rows)}\n\n{results.plain(reads)}")
    tables = [{"title": f"B = {B}, T = {T}", "rows": rows}, {"title": "Read from the disk", "rows": reads}]
    facts = {"corpus": f"{args.tokens} uniform ids, uint16, one file, dropped from the page cache before each turn"}
    print(f"read-ahead of the disk: {ahead}")
    result = results.run("cold", tables, **facts, read_ahead=ahead)
    if args.record:
        print(f"recorded in {results.append(result)}")


if __name__ == "__main__":
    main()
