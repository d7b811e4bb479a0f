"""What the order costs beside the gather, and what a mixture costs: rows planned, and batches from 2 sources and from 300.

    python -m bench.mixture [--rounds 60] [--tokens 90000000] [--scratch FOLDER] [--record]

B = 64, T = 1024. Rows are planned as a feed plans them, block after block, fresh each time; batches come from `next(feed)`,
in turns, from corpora of equal size in all, once with every block verified (as from the second epoch on) and once afresh.
The targets are held against processor time, since where others use the machine the clock tells more of them.
"""

from __future__ import annotations

import argparse
import os
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import partial
from itertools import count
from pathlib import Path

import numpy as np

import ladle
from bench import results
from ladle.bench.corpus import make, touch
from ladle.corpus.split import Split
from ladle.feed.gather import gather
from ladle.feed.plan import AHEAD
from ladle.order.mixture import Stages, integer_weights
from ladle.order.stream import Order
from ladle.rows.stream import MixedStream, Stream, WindowStream
from ladle.rows.windows import Windows

B, T = 64, 1024
SHARE = 10.0  # per cent of the gather's time that the order of one corpus may take
ROW = 0.4  # microseconds a row of any mixture
BATCH = 25.0  # per cent that a batch from 300 sources may take more than one from 2


@dataclass(slots=True)
class Contender:
    """call: makes `items` of them. us, cpu_us: microseconds an item, one value a turn."""

    name: str
    items: int
    call: Callable[[], object]
    us: list[float] = field(default_factory=list)
    cpu_us: list[float] = field(default_factory=list)

    def turn(self, seconds: float) -> None:
        """One observation: so many calls as fill this time."""
        calls, cpu, begin = 0, time.thread_time(), time.perf_counter()
        while time.perf_counter() - begin < seconds or not calls:
            self.call()
            calls += 1
        self.cpu_us.append((time.thread_time() - cpu) / calls / self.items * 1e6)
        self.us.append((time.perf_counter() - begin) / calls / self.items * 1e6)

    def row(self, what: str) -> dict[str, object]:
        """Medians and quartiles."""
        low, mid, high = np.percentile(self.us, [25, 50, 75])
        return {
            "": self.name,
            f"us {what}": f"{mid:.3g}",
            "quartiles": f"{low:.3g} to {high:.3g}",
            "processor us": f"{self.cpu:.3g}",
        }

    @property
    def cpu(self) -> float:
        """The median."""
        return float(np.median(self.cpu_us))


def measured(contenders: Sequence[Contender], rounds: int, seconds: float = 4e-3) -> None:
    """Turn by turn."""
    for contender in contenders:
        contender.call()
    for _ in range(rounds):
        for contender in contenders:
            contender.turn(seconds)


def verdict(value: float, target: float, unit: str) -> str:
    """Whether the target was met."""
    return f"{target:g} {unit}: {'met' if value <= target else 'MISSED'}"


def walking(name: str, stream: Stream, first: int = 10**6) -> Contender:
    """Blocks of rows one after the other, as a feed's plan asks for them."""
    place = count(first, AHEAD)
    return Contender(name, AHEAD, lambda: stream.spans(next(place), AHEAD))


def one_corpus(split: Split, rounds: int) -> dict[str, object]:
    """Order and rows for a batch of 64 rows, amortised over a block, beside the batch's gather."""
    starts = [np.random.default_rng(i).integers(0, split.num_tokens - T, B) for i in range(200)]
    turn = iter(count())
    reading = Contender("the gather of (64, 1024), every block verified", 1, lambda: gather(split, starts[next(turn) % 200], T))
    orders = []
    for n in (1000, 10**6, 10**9):
        for offset in (False, True):
            cut = Windows(num_tokens=n * T + 1, window=T, epoch_offset=offset)
            stream = WindowStream(Order(kind="shuffled", n=cut.count, seed=1), cut)
            orders.append(walking(f"order and rows, {n:,} windows" + (", epoch_offset" if offset else ""), stream))
    measured([reading, *orders], rounds)
    rows = [reading.row("a batch") | {"of the gather": "", "at most": ""}]
    for order in orders:
        order.us, order.cpu_us = [B * us for us in order.us], [B * us for us in order.cpu_us]
        share = 100 * order.cpu / reading.cpu
        rows.append(order.row("a batch") | {"of the gather": f"{share:.1f} %", "at most": verdict(share, SHARE, "%")})
    return {"title": "One corpus: order and rows for a batch of 64 rows, 4,096 planned at a time", "rows": rows}


def mixtures() -> Iterator[Contender]:
    """Streams of 2, 10 and 300 sources, large and small, equal and skewed."""
    rng = np.random.default_rng(0)
    for S in (2, 10, 300):
        names = [f"{i:03}" for i in range(S)]
        weights = {"equal": np.ones(S), "skewed": np.exp(rng.normal(0, 2, S))}
        sizes = {
            "10^4 to 10^6 windows each": rng.integers(10**4, 10**6, S),
            "900 to 1,024 windows each": rng.integers(900, 1025, S),
            "1 to 60 windows each": rng.integers(1, 61, S),
        }
        for size, windows in sizes.items():
            for skew, weight in weights.items():
                for offset in (False, True) if skew == "skewed" else (False,):
                    told = integer_weights(dict(zip(names, weight.tolist(), strict=True)))
                    cuts = [Windows(num_tokens=int(n + 1) * T + 1, window=T, epoch_offset=offset) for n in windows]
                    stream = MixedStream(Stages(names, [(0, told)]), names, cuts, kind="shuffled", seed=1)
                    yield walking(f"{S} sources, {skew} weights, {size}" + (", epoch_offset" if offset else ""), stream)


def rows_of_mixtures(rounds: int) -> dict[str, object]:
    """Microseconds a row."""
    contenders = list(mixtures())
    measured(contenders, max(rounds // 4, 1), 8e-3)
    rows = [contender.row("a row") | {"at most": verdict(contender.cpu, ROW, "us")} for contender in contenders]
    return {"title": "Mixtures: a row, 4,096 planned at a time", "rows": rows}


def corpora(folder: Path, num_tokens: int) -> tuple[list[Path], list[Path]]:
    """(2 corpora, 300 corpora), each with so many tokens in all."""
    few, many = ([make(folder / f"{S}-{i:03}", num_tokens // S, seed=S + i).parent for i in range(S)] for S in (2, 300))
    return few, many


def walk(feed: ladle.Feed) -> None:
    """The batches of one planned block; each is let go before the next is made."""
    for _ in range(AHEAD // B):
        next(feed)


def batches(few: Sequence[Path], many: Sequence[Path], rounds: int, *, verified: bool) -> dict[str, object]:
    """A batch from 2 sources and one from 300, in turns."""
    with ExitStack() as stack:
        contenders = []
        for paths in (few, many):
            splits = {path.name: stack.enter_context(ladle.open(path))["train"] for path in paths}
            if verified:
                for split in splits.values():
                    touch(split)
            mixture = ladle.Mixture(splits, weights=dict.fromkeys(splits, 1.0))
            feed = stack.enter_context(ladle.Feed(mixture, batch_size=B, block_size=T, framework="numpy", prefetch=0))
            contenders.append(Contender(f"{len(splits)} sources", AHEAD // B, partial(walk, feed)))
        measured(contenders, rounds, 0.0)
    more = 100 * (contenders[1].cpu / contenders[0].cpu - 1)
    rows = [contenders[0].row("a batch") | {"more": "", "at most": ""}]
    rows.append(contenders[1].row("a batch") | {"more": f"{more:.0f} %", "at most": verdict(more, BATCH, "%")})
    how = "every block verified before" if verified else "the first epoch, each block verified when it is touched"
    return {"title": f"Batches of (64, 1024), {how}", "rows": rows}


def main() -> None:
    """Measure, print, and with --record keep the result."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=60)
    parser.add_argument("--tokens", type=int, default=90_000_000, help="of the 2 corpora together, and of the 300 (uint16)")
    parser.add_argument("--scratch", type=Path)
    parser.add_argument("--record", action="store_true", help="append to bench/results")
    args = parser.parse_args()
    load = f"{os.getloadavg()[0]:.1f}"
    with tempfile.TemporaryDirectory(dir=args.scratch) as folder:
        few, many = corpora(Path(folder), args.tokens)
        with ladle.open(few[0]) as corpus:
            touch(corpus["train"])
            tables = [one_corpus(corpus["train"], args.rounds)]
        tables.append(rows_of_mixtures(args.rounds))
        tables.append(batches(few, many, args.rounds, verified=True))
        epoch = args.tokens // (AHEAD * T)  # turns in it
        tables.append(batches(few, many, min(args.rounds, max(epoch - 2, 1)), verified=False))
    for table in tables:
        print(f"\n{table['title']}\n{results.plain(table['rows'])}", flush=True)  # type: ignore[arg-type]
    result = results.run("mixture", tables, threads="1", load_before=load)
    if args.record:
        print(f"recorded in {results.append(result)}")


if __name__ == "__main__":
    main()
