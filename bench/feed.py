"""The feed, warm: nanoGPT's algorithm, DataLoader and every installed peer against Ladle, interleaved in one process.

python -m bench.feed [--tokens 500000000] [--rounds 30] [--held] [--record]
"""

from __future__ import annotations

import argparse
import os
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path

import torch
from bench.peers import peers

import ladle
from bench import results
from ladle.bench import contenders, table
from ladle.bench.corpus import make, touch
from ladle.bench.rounds import compare
from ladle.bench.side_by_side import SHAPES, parse

STEP_SHAPE, STEP_SECONDS, STEPS = (64, 1024), 5e-3, 10  # rows, one training step, steps a turn
# Least ratio to nanoGPT's algorithm, gather alone and next(feed): issue 2, section 6.
TARGETS = {(12, 1024): (15, 8), (64, 1024): (18, 12), (8, 8192): (8, 5), (512, 256): (50, 30)}


def step() -> Callable[[], object]:
    """Matrix products that take STEP_SECONDS on one thread and leave the interpreter free, as a model's do."""
    matrix = torch.rand(256, 256)
    product = torch.empty_like(matrix)
    begin, count = time.perf_counter(), 0
    while time.perf_counter() - begin < 20 * STEP_SECONDS:
        torch.mm(matrix, matrix, out=product)
        count += 1

    def work() -> None:
        for _ in range(max(1, count // 20)):
            torch.mm(matrix, matrix, out=product)

    return work


def main() -> None:
    """Measure, print, and with --record keep the result."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tokens", type=int, default=500_000_000, help="size of the made corpus (uint16)")
    parser.add_argument("--rounds", type=int, default=30)
    parser.add_argument("--shapes", default=SHAPES)
    parser.add_argument("--scratch", type=Path, help="where the corpus is made and removed (default: a temporary folder)")
    parser.add_argument("--held", action="store_true", help="keep each batch until the next has come, as a training loop does")
    parser.add_argument("--record", action="store_true", help="append to bench/results")
    args = parser.parse_args()
    torch.set_num_threads(1)  # the best for every contender: torch's threads fight over rows this short, and spin after them
    tables = []
    with tempfile.TemporaryDirectory(dir=args.scratch) as folder:
        with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as apart:  # which keeps this process's heap as a user's is
            path = apart.submit(make, Path(folder) / "corpus", args.tokens).result()
        os.sync()  # else the kernel writes the corpus out while it is being read
        with ladle.open(path.parent) as corpus:
            split = corpus["train"]
            touch(split)
            found, missing = peers(path, split, Path(folder))
            gather = contenders.ladle_gather(split)
            fed = [contenders.ladle_feed(split, order, prefetch) for order in ("random", "shuffled") for prefetch in (0, None)]
            everyone = [contenders.nanogpt(path, split.dtype), contenders.dataloader(path, split.dtype), *found, gather, *fed]
            for B, T in parse(args.shapes):
                timings = compare(everyone, split, batch_size=B, block_size=T, rounds=args.rounds, hold=args.held)
                least = TARGETS.get((B, T), (0, 0))
                targets = {gather.name: least[0], **{contender.name: least[1] for contender in fed}} if any(least) else {}
                rows = table.rows(timings, contenders.NANOGPT, targets)
                tables.append({"title": f"B = {B}, T = {T}", "rows": rows})
                print(f"\nB = {B}, T = {T}\n{table.markdown(rows)}", flush=True)
            B, T = STEP_SHAPE
            timings = compare(
                everyone,
                split,
                batch_size=B,
                block_size=T,
                rounds=args.rounds,
                batches=dict.fromkeys([c.name for c in everyone], STEPS),
                hold=True,
                work=step(),
            )
            rows = table.rows(timings, contenders.NANOGPT)
            title = f"What is added to a training step of {STEP_SECONDS * 1e3:g} ms, B = {B}, T = {T}"
            tables.append({"title": title, "rows": rows})
            print(f"\n{title}\n{table.markdown(rows)}", flush=True)
    for name, why in missing.items():
        print(f"{name}: {why}")
    facts = {
        "corpus": f"{args.tokens} uniform ids, uint16, one file, page cache warm, every page mapped and every block verified",
        "batches": "each held until the next has come" if args.held else "each let go before the next is made",
        "torch_threads": 1,
    }
    result = results.run("feed", tables, **facts, missing=missing or "no peer")
    if args.record:
        print(f"recorded in {results.append(result)}")


if __name__ == "__main__":
    main()
