"""Weighted draws: Ladle's beside torch's WeightedRandomSampler: ready to draw, draws a second, and a draw late in the epoch.

    python -m bench.weights [--rounds 5] [--samples 10000000] [--record]

Ladle is asked for 4 096 draws in a call, as a loader asks for them. torch draws the whole epoch before it gives the first
(`iter`), with replacement at most 2**24 weights. A draw late in the epoch is what resuming costs. Before they are timed the
shares of both are counted: "off" is chi-square's distance from the weights in its own standard deviations (fair draws: about 0,
within 4), on weights of three classes, and for float32 on the 2**24 weights of which half a float32 sum never draws.
"""

from __future__ import annotations

import argparse
import math
import time
from collections.abc import Callable

import numpy as np
import torch
from torch.utils.data import WeightedRandomSampler

from bench import results
from ladle.order.weights import Weighted

BLOCK = 4096
TARGETS = {"ready": 1.0, "draws": 1e6}  # seconds for 10^7 weights, at most; draws a second, at least


def weights_of(n: int) -> np.ndarray:
    """Three classes: 90 %, 9 % and 1 % of the samples, each drawn equally often."""
    classes = np.random.default_rng(0).choice(3, n, p=[0.9, 0.09, 0.01])
    return (1 / np.bincount(classes, minlength=3))[classes]


def blocks(weighted: Weighted, count: int) -> np.ndarray:
    """The first draws of epoch 0, as a loader asks for them."""
    return np.concatenate([weighted.draws(0, low, min(BLOCK, count - low)) for low in range(0, count, BLOCK)])


def off(drawn: np.ndarray, weights: np.ndarray) -> float:
    """Chi-square of the draws over 64 groups of neighbouring samples and heavy against light, in its standard deviations."""
    group = np.arange(weights.size) * 64 // weights.size * 2 + (weights > np.median(weights))
    shares = np.bincount(group, weights, minlength=128) / weights.sum()
    counts, there = np.bincount(group[drawn], minlength=128), shares > 0
    expected = shares[there] * drawn.size
    degrees = there.sum() - 1
    return float((((counts[there] - expected) ** 2 / expected).sum() - degrees) / math.sqrt(2 * degrees))


def seconds(call: Callable[[], object], rounds: int) -> tuple[float, str]:
    """Median, and quartiles as text."""
    taken = []
    for _ in range(rounds):
        begin = time.perf_counter()
        call()
        taken.append(time.perf_counter() - begin)
    low, mid, high = np.percentile(taken, [25, 50, 75])
    return float(mid), f"{low:.3g} to {high:.3g}"


def ours(weights: np.ndarray, rounds: int, *, replacement: bool) -> dict[str, object]:
    """One row."""
    n = weights.size

    def ready() -> Weighted:
        weighted = Weighted(weights, 1, replacement=replacement)
        weighted.draws(0, 0, 1)
        return weighted

    made = ready()
    count = min(n, 10**6)
    begin, spread = seconds(ready, rounds)
    each, _ = seconds(lambda: blocks(made, count), rounds)
    late, _ = seconds(lambda: made.draws(0, made.num_draws - 1, 1), rounds)
    told = ""
    if replacement and n == 10**7:
        met = ["met" if good else "MISSED" for good in (begin < TARGETS["ready"], count / each >= TARGETS["draws"])]
        told = f"ready below {TARGETS['ready']:g}: {met[0]}; {TARGETS['draws']:g} draws: {met[1]}"
    return {
        "": "Ladle" + ("" if replacement else ", without replacement"),
        "s to the first draw": f"{begin:.3g}",
        "quartiles": spread,
        "10^6 draws a second": round(count / each / 1e6, 2) if replacement else "",
        "s to the epoch's last draw": f"{late if replacement else begin:.2g}",
        "off": round(off(blocks(made, count), weights), 1) if replacement else "",
        "targets": told,
    }


def torchs(weights: np.ndarray, rounds: int, *, replacement: bool) -> dict[str, object]:
    """One row, or its error."""
    n = weights.size
    tensor, found = (
        torch.from_numpy(weights),
        {"": "torch's WeightedRandomSampler" + ("" if replacement else ", without replacement")},
    )

    def first() -> int:
        return next(iter(WeightedRandomSampler(tensor, n, replacement)))

    try:
        first()
    except RuntimeError as error:
        return found | {"s to the first draw": f"{type(error).__name__}: {error}"}
    begin, spread = seconds(first, max(rounds // 2, 1))
    sampler = WeightedRandomSampler(tensor, n, replacement)
    whole, _ = seconds(lambda: list(sampler), 1)
    drawn = np.array(list(WeightedRandomSampler(tensor, min(n, 10**6), replacement)))
    return found | {
        "s to the first draw": f"{begin:.3g}",
        "quartiles": spread,
        "10^6 draws a second": round(n / whole / 1e6, 2),
        "s to the epoch's last draw": f"{whole:.2g}",
        "off": round(off(drawn, weights), 1) if replacement else "",
    }


def standstill(draws: int) -> dict[str, object]:
    """Weights 2 and 1, half each, whose running sum in float32 stands still at 2**24."""
    half = 2**23
    weights = np.repeat(np.float32([2, 1]), half)
    sums = np.cumsum(weights)
    u = np.random.default_rng(0).random(draws)
    light = [
        ("float32 running sum", np.searchsorted(sums, (u * sums[-1]).astype(np.float32), side="right") >= half),
        ("Ladle", blocks(Weighted(weights, 1), draws) >= half),
        ("torch's WeightedRandomSampler", np.array(list(WeightedRandomSampler(torch.from_numpy(weights), draws))) >= half),
    ]
    rows = [{"": name, "drawn from the light half": f"{100 * found.mean():.2f} %", "due": "33.33 %"} for name, found in light]
    return {"title": "2^24 weights, 2 then 1", "rows": rows}


def main() -> None:
    """Measure, print, and with --record keep the result."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--samples", type=int, default=10**7, help="the largest but one; the last is twice as many")
    parser.add_argument("--record", action="store_true", help="append to bench/results")
    args = parser.parse_args()
    torch.set_num_threads(1)
    tables = []
    for n in (args.samples // 100, args.samples, 2 * args.samples):
        weights = weights_of(n)
        rows = [
            ours(weights, args.rounds, replacement=True),
            torchs(weights, args.rounds, replacement=True),
            ours(weights, args.rounds, replacement=False),
            torchs(weights, args.rounds, replacement=False),
        ]
        tables.append({"title": f"n = {n:,}", "rows": rows})
    tables.append(standstill(min(args.samples, 500_000)))
    for table in tables:
        print(f"\n{table['title']}\n{results.plain(table['rows'])}", flush=True)  # type: ignore[arg-type]
    result = results.run("weights", tables, threads="1")
    if args.record:
        print(f"recorded in {results.append(result)}")


if __name__ == "__main__":
    main()
