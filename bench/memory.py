"""Memory over 10 000 batches: anonymous memory stays flat, and mapped pages stay below the bound.

    python -m bench.memory [--tokens 1000000000] [--batches 10000] [--scratch FOLDER] [--record]

B = 64, T = 1024. Anonymous memory is RssAnon, mapped pages RssFile less what is resident before the first batch (the
libraries), both of /proc/self/status, looked at every 50 batches. Each feed runs in a process of its own.
"""

from __future__ import annotations

import argparse
import multiprocessing
import re
import tempfile
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any

import ladle
from bench import results
from ladle.bench.corpus import make

B, T = 64, 1024
EVERY = 50
SETTLED = 10  # looks, after which anonymous memory may not grow


def resident() -> tuple[float, float]:
    """(anonymous, file-backed) resident memory of this process, in MiB."""
    status = Path("/proc/self/status").read_text("ascii")
    return tuple(int(re.search(rf"{key}:\s+(\d+) kB", status)[1]) / 1024 for key in ("RssAnon", "RssFile"))  # type: ignore[index,return-value]


def watch(folder: Path, batches: int, options: dict[str, Any]) -> dict[str, object]:
    """Walk the feed and tell what memory did, as one row."""
    with ladle.open(folder) as corpus, ladle.Feed(corpus["train"], batch_size=B, block_size=T, **options) as feed:
        anonymous, mapped, floor = [], [], resident()[1]
        for step in range(batches):
            batch = next(feed)
            if step % EVERY == 0:
                now = resident()
                anonymous.append(now[0])
                mapped.append(now[1] - floor)
        del batch
    return {
        "feed": ", ".join(f"{key}={value}" for key, value in options.items()) or "defaults",
        f"anonymous MiB after {SETTLED * EVERY} batches": round(anonymous[SETTLED], 1),
        "at the end": round(anonymous[-1], 1),
        "most": round(max(anonymous[SETTLED:]), 1),
        "mapped MiB, most": round(max(mapped), 1),
        "mapped, at the end": round(mapped[-1], 1),
    }


def main() -> None:
    """Measure, print, and with --record keep the result."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tokens", type=int, default=1_000_000_000, help="size of the made corpus (uint16)")
    parser.add_argument("--batches", type=int, default=10_000)
    parser.add_argument("--scratch", type=Path)
    parser.add_argument("--record", action="store_true", help="append to bench/results")
    args = parser.parse_args()
    rows = []
    feeds = [{}, {"max_mapped": 256 << 20}, {"order": "random", "prefetch": 0, "max_mapped": 256 << 20}]
    with tempfile.TemporaryDirectory(dir=args.scratch) as folder:
        path = make(Path(folder) / "corpus", args.tokens)
        for options in feeds:
            with ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn")) as process:
                rows.append(process.submit(watch, path.parent, args.batches, options).result())
    print(results.plain(rows))
    facts = {"corpus": f"{args.tokens} uniform ids, uint16, one file", "batches": args.batches}
    result = results.run("memory", [{"title": f"B = {B}, T = {T}", "rows": rows}], **facts)
    if args.record:
        print(f"recorded in {results.append(result)}")


if __name__ == "__main__":
    main()
