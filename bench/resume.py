"""Starting over a billion windows, resuming at step 10^6 of 10^12 tokens, and resuming beside the peers.

    python -m bench.resume [--repeats 9] [--tokens 200000000] [--steps 100,10000] [--scratch FOLDER] [--record]

Ladle's own figures come from a process each, beyond imports and opening, on a sparse file. The peers resume in this
process from what each saves, at two steps; a peer is right if its next batch is the one that followed the saving.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import json
import logging
import os
import pickle
import subprocess
import sys
import tempfile
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

import ladle
from bench import peers, results
from ladle.bench.contenders import Windows
from ladle.bench.corpus import make, touch
from ladle.corpus.split import Split

B, T = 12, 1024

ALONE = """
import json, sys, time
from pathlib import Path
import ladle, numpy
import ladle.corpus.open, ladle.feed.feed

def memory():
    status = Path("/proc/self/status").read_text("ascii")
    return int(status.partition("RssAnon:")[2].split()[0]) / 1024

B, T, step, sources = map(int, sys.argv[2:])
with ladle.open(sys.argv[1]) as corpus:
    source = corpus["train"]
    if sources > 1:
        source = ladle.Mixture({f"{i:03}": source for i in range(sources)}, {f"{i:03}": i + 1 for i in range(sources)})
    before, begin = memory(), time.perf_counter()
    feed = ladle.Feed(source, batch_size=B, block_size=T, seed=1, prefetch=0, framework="numpy")
    made, loaded = time.perf_counter() - begin, 0.0
    if step:
        state = json.dumps(feed.state_at(step * B * T))
        begin = time.perf_counter()
        feed.load_state_dict(json.loads(state))
        loaded = time.perf_counter() - begin
    begin = time.perf_counter()
    feed.stream.spans(step * B, B)
    planned = time.perf_counter() - begin
    begin = time.perf_counter()
    assert next(feed).position == step * B * T
    print(made + loaded + time.perf_counter() - begin, loaded + planned, memory() - before, feed.stream.units_per_epoch or 0)
"""


def observe(*words: object) -> list[float]:
    """[seconds to a batch, of these to load the state and plan its rows, MiB more, windows], in a fresh interpreter."""
    done = subprocess.run([sys.executable, "-c", ALONE, *map(str, words)], capture_output=True, text=True, check=True)
    return list(map(float, done.stdout.split()))


def median(values: list[float], scale: float = 1e3) -> str:
    """Median and quartiles, in milliseconds."""
    low, mid, high = np.percentile(values, [25, 50, 75]) * scale
    return f"{mid:.3g} ({low:.3g} to {high:.3g})"


def verdict(value: float, target: float, unit: str) -> str:
    """Whether the target was met."""
    return f"{target:g} {unit}: {'met' if value < target else 'MISSED'}"


def alone(scratch: Path, repeats: int) -> list[dict[str, object]]:
    """Starting, and resuming beyond it."""
    (scratch / "sparse").mkdir()
    with open(scratch / "sparse" / "train.bin", "wb") as file:
        file.truncate(2 * 10**12)
    started, resumed = [], []
    cases = {f"T = {size}, one corpus": (size, 1) for size in (1000, 64)} | {"T = 1000, a mixture of 300 sources": (1000, 300)}
    for name, (block, sources) in cases.items():
        fresh, later = ([observe(scratch / "sparse", 64, block, step, sources) for _ in range(repeats)] for step in (0, 10**6))
        ready, memory = [seconds for seconds, *_ in fresh], float(np.median([more for _, _, more, _ in fresh]))
        started.append(
            {
                "10^12 tokens": name,
                "windows": f"{int(fresh[0][3]) or 300 * 10**12 // 1000:,}",
                "ms to the first batch": median(ready),
                "MiB": f"{memory:.1f}",
                "below": verdict(float(np.median(ready)) * 1e3, 50, "ms"),
                "memory below": verdict(memory, 20, "MiB"),
            }
        )
        arithmetic = [seconds for _, seconds, *_ in later]
        resumed.append(
            {
                "step 10^6 of 10^12 tokens": name,
                "ms to load the state and plan the batch": median(arithmetic),
                "below": verdict(float(np.median(arithmetic)) * 1e3, 1, "ms"),
                "ms to the batch, with its tokens": median([seconds for seconds, *_ in later]),
                "to the first batch of all": median(ready),
            }
        )
    return [
        {"title": "Starting: Feed(...) and its first batch of 64 rows", "rows": started},
        {"title": "Resuming: Feed(...), load_state_dict and the next batch of 64 rows", "rows": resumed},
    ]


@dataclass(slots=True)
class Run:
    """One opened loader. next: its next batch's inputs; state: what it saves, now; load: takes that in a fresh one."""

    next: Callable[[], Any]
    state: Callable[[], Any]
    load: Callable[[Any], None]


Opener = Callable[[], contextlib.AbstractContextManager[Run]]


def openers(path: Path, split: Split, scratch: Path, stack: contextlib.ExitStack) -> dict[str, Opener]:
    """Ladle and the peers that are installed. stack: keeps what a peer wrote for itself, once."""
    found: dict[str, Opener] = {"Ladle": lambda: _ladle(split)}
    installed, _ = peers.peers(path, split, scratch)
    names = {contender.name.split()[0] for contender in installed}
    if "torchdata" in names:
        found["torchdata StatefulDataLoader"] = lambda: _torchdata(path, split)
    if "grain," in names:
        found["grain"] = lambda: _grain(path, split)
    for contender in installed:
        if contender.name.startswith("litdata"):
            written = stack.enter_context(contender.open(B, T))._loader.dataset.input_dir.path
            found["litdata"] = lambda folder=written: _litdata(folder)
        if contender.name.startswith("Megatron"):
            found["Megatron, indices built before"] = lambda c=contender: _megatron(c)
    return found


@contextlib.contextmanager
def _ladle(split: Split) -> Iterator[Run]:
    with ladle.Feed(split, batch_size=B, block_size=T, seed=1, prefetch=0) as feed:
        yield Run(lambda: next(feed).x, feed.state_dict, feed.load_state_dict)


@contextlib.contextmanager
def _torchdata(path: Path, split: Split) -> Iterator[Run]:
    from torchdata.stateful_dataloader import StatefulDataLoader

    loader = StatefulDataLoader(Windows(path, split.dtype, T), batch_size=B, shuffle=True, drop_last=True)
    batches: list[Iterator[Any]] = []

    def following() -> Any:
        if not batches:
            batches.append(iter(loader))  # a loaded state acts on the iterator made after it
        return next(batches[0])[0]

    yield Run(following, loader.state_dict, loader.load_state_dict)


@contextlib.contextmanager
def _grain(path: Path, split: Split) -> Iterator[Run]:
    import grain.python as grain

    windows = Windows(path, split.dtype, T)

    class Rows:
        def __len__(self) -> int:
            return len(windows)

        def __getitem__(self, index: int) -> tuple[np.ndarray, np.ndarray]:
            x, y = windows[index]
            return x.numpy(), y.numpy()

    dataset = grain.MapDataset.source(Rows()).shuffle(seed=1).repeat().batch(B)
    batches = iter(dataset.to_iter_dataset(grain.ReadOptions(num_threads=0, prefetch_buffer_size=0)))
    yield Run(lambda: next(batches)[0], batches.get_state, batches.set_state)


@contextlib.contextmanager
def _litdata(folder: str) -> Iterator[Run]:
    import litdata
    from litdata.streaming.item_loader import TokensLoader

    dataset = litdata.StreamingDataset(folder, item_loader=TokensLoader(block_size=T + 1), shuffle=True, seed=1)
    loader = litdata.StreamingDataLoader(dataset, batch_size=B, num_workers=0, drop_last=True)
    batches: list[Iterator[Any]] = []

    def following() -> Any:
        if not batches:
            batches.append(iter(loader))
        return next(batches[0])[:, :-1]

    yield Run(following, loader.state_dict, loader.load_state_dict)


@contextlib.contextmanager
def _megatron(contender: Any) -> Iterator[Run]:
    """Its sampler is a range from the samples consumed; the trainer keeps that number."""
    with contender.open(B, T) as loader:
        dataset = loader._loader.dataset
        consumed = [0]
        batches: list[Iterator[Any]] = []

        def following() -> Any:
            if not batches:
                rest = range(consumed[0], len(dataset))
                batches.append(iter(torch.utils.data.DataLoader(dataset, batch_size=B, sampler=rest, drop_last=True)))
            consumed[0] += B
            return next(batches[0])["tokens"]

        yield Run(following, lambda: consumed[0], lambda state: consumed.__setitem__(0, state))


def beside_the_peers(path: Path, split: Split, scratch: Path, repeats: int, steps: Sequence[int]) -> dict[str, object]:
    """For each: what it saves, how long a fresh one takes to its next batch from it, and whether that is the right one."""
    rows = []
    kept = contextlib.ExitStack()
    for name, opened in openers(path, split, scratch, kept).items():
        saved: list[tuple[int, Any, np.ndarray]] = []
        with opened() as run:
            for step in range(max(steps) + 1):
                if step in steps:
                    saved.append((step, pickle.loads(pickle.dumps(run.state())), np.asarray(run.next()).copy()))
                else:
                    run.next()
        row: dict[str, object] = {"": name}
        times: dict[object, list[float]] = {}
        right: dict[int, bool] = {}
        for _ in range(repeats):
            for step, state, expected in [(0, None, None), *saved]:
                with contextlib.ExitStack() as stack:
                    begin = time.perf_counter()
                    run = stack.enter_context(opened())
                    if state is not None:
                        run.load(state)
                    batch = np.asarray(run.next())
                    times.setdefault(step, []).append(time.perf_counter() - begin)
                    if expected is not None:
                        right[step] = right.get(step, True) and np.array_equal(batch, expected)
        row["bytes saved"] = ", ".join(f"{len(_told(state)):,}" for _, state, _ in saved)
        row["ms to a first batch"] = median(times[0])
        for step in steps:
            row[f"from step {step:,}"] = median(times[step])
            row[f"the right batch, {step:,}"] = "yes" if right[step] else "NO"
        rows.append(row)
    kept.close()
    return {"title": f"Resuming beside the peers, ({B}, {T}), each opened anew, its files and indices being there", "rows": rows}


def _told(state: Any) -> bytes:
    """As JSON where that is possible, else pickled."""
    if isinstance(state, bytes):
        return state
    try:
        return json.dumps(state).encode()
    except TypeError:
        return pickle.dumps(state)


def main() -> None:
    """Measure, print, and with --record keep the result."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=9)
    parser.add_argument("--tokens", type=int, default=200_000_000, help="of the made corpus that the peers read (uint16)")
    parser.add_argument("--steps", default="100,10000", help="where the peers save, within one epoch")
    parser.add_argument("--scratch", type=Path)
    parser.add_argument("--record", action="store_true", help="append to bench/results")
    args = parser.parse_args()
    logging.disable(logging.WARNING)
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    load = f"{os.getloadavg()[0]:.1f}"
    with tempfile.TemporaryDirectory(dir=args.scratch) as folder:
        tables = alone(Path(folder), args.repeats)
        path = make(Path(folder) / "corpus", args.tokens)
        (Path(folder) / "peers").mkdir()
        with ladle.open(path.parent) as corpus, contextlib.redirect_stderr(io.StringIO()):
            touch(corpus["train"])
            steps = list(map(int, args.steps.split(",")))
            tables.append(beside_the_peers(path, corpus["train"], Path(folder) / "peers", args.repeats, steps))
    for table in tables:
        print(f"\n{table['title']}\n{results.plain(table['rows'])}", flush=True)  # type: ignore[arg-type]
    result = results.run("resume", tables, load_before=load)
    if args.record:
        print(f"recorded in {results.append(result)}")


if __name__ == "__main__":
    main()
