"""What starting costs: `import ladle`, and the first batch beyond imports, at 10^6 and at 10^12 tokens (a sparse file).

    python -m bench.start [--repeats 9] [--scratch FOLDER] [--record]

Each observation is a process of its own; medians and quartiles in milliseconds.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np

from bench import results

IMPORT = """
import time
begin = time.perf_counter()
import ladle
{use}
print((time.perf_counter() - begin) * 1e3)
"""
FIRST_BATCH = """
import sys, time
import ladle, numpy, torch
import ladle.corpus.open, ladle.feed.feed, ladle.feed.torch
torch.empty(1)
begin = time.perf_counter()
with ladle.open(sys.argv[1]) as corpus, ladle.Feed(corpus["train"], batch_size=12, block_size=1024, order=sys.argv[2]) as feed:
    x, y = next(feed)
    print((time.perf_counter() - begin) * 1e3)
"""


def observe(code: str, *words: str) -> float:
    """Milliseconds, as a fresh interpreter prints them."""
    return float(subprocess.run([sys.executable, "-c", code, *words], capture_output=True, text=True, check=True).stdout)


def row(what: str, observed: list[float], target: float | None = None) -> dict[str, object]:
    """Median and quartiles, and whether the median is below the target."""
    low, mid, high = np.percentile(observed, [25, 50, 75])
    met = "" if target is None else f"below {target:g}: {'met' if mid < target else 'MISSED'}"
    return {"": what, "ms, median": round(float(mid), 2), "quartiles": f"{low:.2f} to {high:.2f}", "target": met}


def main() -> None:
    """Measure, print, and with --record keep the result."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=9)
    parser.add_argument("--scratch", type=Path)
    parser.add_argument("--record", action="store_true", help="append to bench/results")
    args = parser.parse_args()
    rows = []

    def measure(what: str, target: float | None, code: str, *words: str) -> None:
        observe(code, *words)  # once for the page cache
        rows.append(row(what, [observe(code, *words) for _ in range(args.repeats)], target))

    measure("import ladle", 150, IMPORT.format(use=""))
    measure("import ladle, then ladle.Feed (which loads NumPy, not torch)", None, IMPORT.format(use="ladle.Feed"))
    measure("import numpy, alone", None, IMPORT.replace("import ladle", "import numpy").format(use=""))
    with tempfile.TemporaryDirectory(dir=args.scratch) as folder:
        for power in (6, 12):
            corpus = Path(folder) / f"e{power}"
            corpus.mkdir()
            with open(corpus / "train.bin", "wb") as file:
                file.truncate(2 * 10**power)
            for order in ("random", "shuffled", "sequential"):
                measure(f"first batch, 10^{power} tokens, {order}", 50, FIRST_BATCH, str(corpus), order)
    print(results.plain(rows))
    result = results.run("start", [{"title": "B = 12, T = 1024, beyond imports", "rows": rows}])
    if args.record:
        print(f"recorded in {results.append(result)}")


if __name__ == "__main__":
    main()
