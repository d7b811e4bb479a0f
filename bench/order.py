"""An epoch's order, ns an index: Ladle's permutation against torch.randperm, numpy's Generator.permutation and grain's shuffle.

    python -m bench.order [--rounds 15] [--record]

Ladle is asked for indices far apart in one call, as a plan asks for them, and holds nothing of size n; the others make
the whole epoch (grain one index a call, as its map dataset does). Each contender's turn comes once a round; medians and
quartiles are over the rounds. The target is held against the thread's processor time: where others use the machine, the
clock tells more of them. Before they are timed whole epochs are counted: "missing" is how many windows never come.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np
import torch

from bench import results
from ladle.order.permutation import epoch_key, permute
from ladle.order.stream import Order

WHOLE = [1000, 65_537, 262_145, 2**20, 10**7 + 19]  # sizes at which others make a whole epoch
BEYOND = [1025, 2**30, 10**12, 2**48]  # and where only arithmetic goes on
BLOCK = 4096  # rows that a feed plans at once
TARGET = 45.0  # ns an index in blocks


@dataclass(slots=True)
class Contender:
    """name; call: makes `indices` of them and returns them; bytes: what it holds for each window of the epoch."""

    name: str
    indices: int
    call: Callable[[], np.ndarray]
    bytes: float = 0
    target: float | None = None
    ns: list[float] = field(default_factory=list)
    cpu_ns: list[float] = field(default_factory=list)

    def turn(self) -> None:
        """One observation of at least 5 ms."""
        calls, cpu, begin = 0, time.process_time(), time.perf_counter()
        while time.perf_counter() - begin < 5e-3 or not calls:
            self.call()
            calls += 1
        each = 1e9 / calls / self.indices
        self.ns.append((time.perf_counter() - begin) * each)
        self.cpu_ns.append((time.process_time() - cpu) * each)

    def row(self, missing: object = "") -> dict[str, object]:
        """Median, quartiles, and whether the target was met."""
        low, mid, high = np.percentile(self.ns, [25, 50, 75])
        cpu = float(np.median(self.cpu_ns))
        met = "" if self.target is None else f"{self.target:g}: {'met' if cpu <= self.target else 'MISSED'}"
        held = f"{self.bytes:g}" if self.bytes else "none"
        return {
            "": self.name,
            "ns an index": round(mid, 1),
            "quartiles": f"{low:.1f} to {high:.1f}",
            "of the processor": round(cpu, 1),
            "bytes held a window": held,
            "missing": missing,
            "at most": met,
        }


def missing(order: np.ndarray, n: int) -> int:
    """Windows of [0, n) that a whole epoch never hands out."""
    return int(n - np.count_nonzero(np.bincount(order, minlength=n)))


def ladle_at(n: int, count: int) -> Contender:
    """Indices far apart in one call."""
    places = np.random.default_rng(0).integers(0, n, count)
    key = epoch_key(1, 0)
    target = TARGET if n > 1024 else None
    return Contender(f"Ladle, {count:,} in a call", count, lambda: permute(places, n, key), target=target)


def peers(n: int) -> list[Contender]:
    """Those that make the whole epoch, or one index at a time."""
    rng = np.random.default_rng(0)
    found = [
        Contender("torch.randperm, tolist", n, lambda: torch.randperm(n).tolist(), bytes=8 + 8 + 32),  # type: ignore[arg-type,return-value]
        Contender("torch.randperm", n, lambda: torch.randperm(n).numpy(), bytes=8),
        Contender("numpy Generator.permutation", n, lambda: rng.permutation(n), bytes=8),
    ]
    try:
        from grain.experimental import index_shuffle
    except ImportError:
        return found
    few = range(min(n, 2000))

    def grain() -> np.ndarray:
        return np.array([index_shuffle(i, max_index=n - 1, seed=1, rounds=4) for i in few])

    return [*found, Contender("grain, one index a call", len(few), grain)]


def grain_epoch(n: int) -> np.ndarray:
    """Its whole epoch, only to be counted."""
    from grain.experimental import index_shuffle

    return np.array([index_shuffle(i, max_index=n - 1, seed=1, rounds=4) for i in range(n)])


def measured(contenders: list[Contender], rounds: int) -> None:
    """Turn by turn."""
    for contender in contenders:
        contender.call()
    for _ in range(rounds):
        for contender in contenders:
            contender.turn()


def whole(n: int, rounds: int) -> dict[str, object]:
    """One size, everybody."""
    ours = [ladle_at(n, BLOCK), ladle_at(n, 2**20)]
    others = peers(n)
    holes = {contender.name: missing(permute(np.arange(n), n, epoch_key(1, 0)), n) for contender in ours}
    for contender in others:
        counted = grain_epoch if contender.name.startswith("grain") else lambda n, c=contender: np.asarray(c.call())
        holes[contender.name] = missing(counted(n), n) if n <= 2**20 else "not counted"
    measured(ours + others, rounds)
    return {"title": f"n = {n:,}", "rows": [contender.row(holes[contender.name]) for contender in ours + others]}


def beyond(rounds: int) -> dict[str, object]:
    """Sizes of which nobody keeps a list; and single indices, the inverse, sizes and keys of their own."""
    found = []
    for n in BEYOND:
        for count in (BLOCK, 2**20):
            contender = ladle_at(n, count)
            contender.name += f", n = {n:,}"
            found.append(contender)
    rng = np.random.default_rng(0)
    key = epoch_key(1, 0)
    places = rng.integers(0, 10**9, BLOCK)
    found.append(Contender("inverse, 4,096 in a call, n = 10^9", BLOCK, lambda: permute(places, 10**9, key, inverse=True)))
    found.append(Contender("64 in a call, n = 10^9", 64, lambda: permute(places[:64], 10**9, key)))
    found.append(Contender("1 in a call, n = 10^9", 1, lambda: permute(5, 10**9, key)))
    which = rng.integers(0, 300, BLOCK)
    keys = rng.integers(0, 2**64, 300, dtype=np.uint64)[which]
    for name, low, high in (("2,000 to 10^9", 2000, 10**9), ("1 to 1,024", 1, 1025)):
        sizes = rng.integers(low, high, 300)[which]
        inside = (rng.random(BLOCK) * sizes).astype(np.int64)
        found.append(
            Contender(f"4,096 in a call, of 300 orders with n from {name}", BLOCK, lambda i=inside, n=sizes: permute(i, n, keys))
        )
    measured(found, rounds)
    rows = [contender.row() for contender in found]
    return {
        "title": "beyond a list",
        "rows": [{k: v for k, v in row.items() if k not in {"bytes held a window", "missing"}} for row in rows],
    }


def streams(rounds: int) -> dict[str, object]:
    """Units as a plan asks for them: consecutive, 4 096 at a time, epochs' borders among them."""
    found = []
    for n in (1, 100, 2000, 10**6, 10**9):
        for size in (None, 64):
            order = Order(kind="shuffled", n=n, seed=1, shuffle_block=size)
            name = f"n = {n:,}" + ("" if size is None else f", shuffle_block = {size}")
            found.append(Contender(name, BLOCK, lambda order=order: order.windows(12_345, BLOCK)[1]))
    for kind in ("sequential", "random"):
        order = Order(kind=kind, n=10**9, seed=1)
        found.append(Contender(f"n = 1,000,000,000, {kind}", BLOCK, lambda order=order: order.windows(12_345, BLOCK)[1]))
    measured(found, rounds)
    rows = [contender.row() for contender in found]
    keep = ("", "ns an index", "quartiles", "of the processor")
    return {"title": "Order.windows, 4,096 units in a call", "rows": [{key: row[key] for key in keep} for row in rows]}


def main() -> None:
    """Measure, print, and with --record keep the result."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--record", action="store_true", help="append to bench/results")
    args = parser.parse_args()
    torch.set_num_threads(1)
    tables = [*(whole(n, args.rounds) for n in WHOLE), beyond(args.rounds), streams(args.rounds)]
    for table in tables:
        print(f"\n{table['title']}\n{results.plain(table['rows'])}", flush=True)  # type: ignore[arg-type]
    result = results.run("order", tables, threads="1")
    if args.record:
        print(f"recorded in {results.append(result)}")


if __name__ == "__main__":
    main()
