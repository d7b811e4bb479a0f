"""Loaders of any dataset side by side: is a resume exact, what do ten million samples cost, who waits at an epoch's start.

    python -m bench.loader [--samples 10000000] [--rounds 3] [--record]

Each question is put to each contender in fresh processes, which know nothing of each other but a saved state. Samples have a
random number in them, as augmentations do. Contenders: Ladle's loader, torch's DataLoader alone (there is nothing to save: it
begins anew), torchdata's StatefulDataLoader, and accelerate's skip_first_batches; who is not installed is named.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import pickle
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch.utils.data import DataLoader, Dataset

from bench import results

LADLE, TORCH, STATEFUL, ACCELERATE = "Ladle", "DataLoader", "StatefulDataLoader", "accelerate's skip_first_batches"
NEEDS = {LADLE: "ladle", TORCH: "torch", STATEFUL: "torchdata", ACCELERATE: "accelerate"}
SAMPLES, BATCH, SEED, STOP = 1920, 16, 7, 45  # of the exactness question: stop in mid-epoch, after so many batches
STEP, EPOCH = 0.005, 40  # seconds a step, batches an epoch, of the question who waits


class Noise(Dataset[Any]):
    """(index, a random number), as an augmentation would have one; wait: seconds a sample takes."""

    def __init__(self, samples: int, wait: float = 0.0) -> None:
        self.samples, self.wait = samples, wait

    def __len__(self) -> int:
        return self.samples

    def __getitem__(self, index: int) -> tuple[int, float]:
        if self.wait:
            time.sleep(self.wait)
        return index, float(torch.rand(()))


class Plain(Dataset[int]):
    """Its index, at no cost."""

    in_memory = True
    seed_samples = False

    def __init__(self, samples: int) -> None:
        self.samples = samples

    def __len__(self) -> int:
        return self.samples

    def __getitem__(self, index: int) -> int:
        return index


def make(name: str, dataset: Dataset[Any], batch_size: int, workers: int) -> Any:
    """A shuffled loader."""
    if name == LADLE:
        from ladle.batching import loader

        return loader(dataset, batch_size=batch_size, shuffle=True, seed=SEED, workers=workers, verbose=False)
    kind: Any = DataLoader
    if name == STATEFUL:
        from torchdata.stateful_dataloader import StatefulDataLoader as kind  # noqa: N813
    torch.manual_seed(SEED)
    generator = torch.Generator().manual_seed(SEED)
    return kind(
        dataset, batch_size=batch_size, shuffle=True, num_workers=workers, generator=generator, persistent_workers=workers > 0
    )


def resumed(name: str, batches: Any, state: Any, done: int) -> Any:
    """What goes on after `done` batches, for the first epoch; the state is what was saved."""
    if name in {LADLE, STATEFUL}:
        batches.load_state_dict(state)
        return batches
    if name == ACCELERATE:
        from accelerate import skip_first_batches

        return skip_first_batches(batches, done)
    return batches


def told(batch: Any) -> list[Any]:
    """A batch as plain values."""
    return [batch[0].tolist(), batch[1].tolist()]


def uninterrupted(name: str, workers: int) -> list[list[Any]]:
    """The batches of two epochs."""
    batches = make(name, Noise(SAMPLES), BATCH, workers)
    return [[told(batch) for batch in batches] for _ in range(2)]


def until_stop(name: str, path: Path) -> None:
    """Take some batches, and save what there is to save."""
    batches = make(name, Noise(SAMPLES), BATCH, 2)
    for number, _ in enumerate(batches, 1):
        if number == STOP:
            break
    path.write_bytes(pickle.dumps(batches.state_dict() if name in {LADLE, STATEFUL} else None))


def after_stop(name: str, path: Path) -> list[list[Any]]:
    """The rest of the epoch, and the next one, in a process that has the saved state alone."""
    batches = make(name, Noise(SAMPLES), BATCH, 2)
    rest = [told(batch) for batch in resumed(name, batches, pickle.loads(path.read_bytes()), STOP)]
    return [rest, [told(batch) for batch in batches]]


def start(name: str, samples: int) -> dict[str, float]:
    """Seconds and memory to the first batch, the state's size, and seconds to the first batch after a resume at batch 2 000."""
    dataset = Plain(samples)
    before, begin = _resident("VmRSS"), time.perf_counter()
    batches = make(name, dataset, 64, 0)
    walk = iter(batches)
    next(walk)
    first, memory = time.perf_counter() - begin, _resident("VmHWM") - before
    for _ in range(1999):
        next(walk)
    state = batches.state_dict() if name in {LADLE, STATEFUL} else None
    size = 0 if state is None else len(json.dumps(state)) if name == LADLE else len(pickle.dumps(state))
    wanted = next(walk).tolist()
    del walk
    fresh = make(name, dataset, 64, 0)
    begin = time.perf_counter()
    found = next(iter(resumed(name, fresh, state, 2000))).tolist()
    again = time.perf_counter() - begin
    return {"first": first, "memory": memory, "state": size, "resume": again, "right": found == wanted}


def waits(name: str, persistent: bool = True) -> dict[str, float]:
    """Seconds waited for the first batch of the second epoch and, in the median, for a batch and its step."""
    batches = make(name, Noise(EPOCH * BATCH, wait=0.0004), BATCH, 2)
    firsts, steps = [], []
    for epoch in range(4):
        begin = time.perf_counter()
        for number, _ in enumerate(batches):
            if number == 0 and epoch:
                firsts.append(time.perf_counter() - begin)
            time.sleep(STEP)
            steps.append(time.perf_counter() - begin)
            begin = time.perf_counter()
    return {"first": float(np.median(firsts)), "step": float(np.median(steps))}


def _resident(name: str) -> float:
    """MiB of this process."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(name):
            return int(line.split()[1]) / 1024
    return 0.0


def alone(*words: object) -> Any:
    """Run one question in a fresh process; what it prints last is its answer."""
    command = [sys.executable, "-m", "bench.loader", "--alone", *map(str, words)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, env={**os.environ, "PYTHONWARNINGS": "ignore"})
    if done.returncode:
        raise RuntimeError(f"{words}: {done.stderr.strip().splitlines()[-1]}")
    return json.loads(done.stdout.strip().splitlines()[-1])


def answer(question: str, name: str, *words: str) -> Any:
    """One question, in this process."""
    if question == "whole":
        return uninterrupted(name, int(words[0]))
    if question == "stop":
        return until_stop(name, Path(words[0]))
    if question == "go on":
        return after_stop(name, Path(words[0]))
    return start(name, int(words[0])) if question == "start" else waits(name)


def exactness(name: str, folder: Path) -> dict[str, object]:
    """Whether the rest of an epoch is what it would have been."""
    whole = alone("whole", name, 2)
    alone("stop", name, folder / "state")
    rest, after = alone("go on", name, folder / "state")

    def indices(batches: list[Any]) -> list[Any]:
        return [batch[0] for batch in batches]

    same = [alone("whole", name, workers) == whole for workers in (0, 1, 4)]
    return {
        "": name,
        "the rest of the epoch": _yes(indices(rest) == indices(whole[0][STOP:])),
        "its random numbers": _yes(rest == whole[0][STOP:]),
        "the next epoch": _yes(indices(after) == indices(whole[1])),
        "a new order each epoch": _yes(indices(whole[0]) != indices(whole[1])),
        "0, 1, 4 workers as 2": ", ".join(map(_yes, same)),
    }


def _yes(held: bool) -> str:
    return "yes" if held else "no"


def _spread(values: list[float], unit: float, digits: int = 1) -> str:
    return f"{np.median(values) * unit:,.{digits}f} ({min(values) * unit:,.{digits}f} to {max(values) * unit:,.{digits}f})"


def compare(samples: int, rounds: int, folder: Path) -> tuple[list[dict[str, object]], str]:
    """(the tables, who is missing)."""
    names = [name for name, package in NEEDS.items() if importlib.util.find_spec(package) is not None]
    missing = ", ".join(f"{name}: not installed" for name in NEEDS if name not in names) or "no peer"
    exact = [exactness(name, folder) for name in names]
    starts: dict[str, list[Any]] = {name: [] for name in names}
    times: dict[str, list[Any]] = {name: [] for name in names if name != ACCELERATE}
    for _ in range(rounds):
        for name, found in starts.items():
            found.append(alone("start", name, samples))
        for name, found in times.items():
            found.append(alone("waits", name))
    began = [
        {
            "": name,
            "to the first batch, ms": _spread([one["first"] for one in found], 1e3),
            "memory, MiB": _spread([one["memory"] for one in found], 1, 0),
            "state, bytes": f"{found[0]['state']:,.0f}" if found[0]["state"] else "none",
            "resumed at batch 2,000, ms": _spread([one["resume"] for one in found], 1e3),
            "with the right batch": _yes(all(one["right"] for one in found)),
        }
        for name, found in starts.items()
    ]
    waited = [
        {
            "": name,
            "waited for an epoch's first batch, ms": _spread([one["first"] for one in found], 1e3),
            "a batch and its step, ms": _spread([one["step"] for one in found], 1e3),
            "times": f"{np.median([one['first'] / one['step'] for one in found]):.2f}",
        }
        for name, found in times.items()
    ]
    title = f"{samples:,} samples, shuffled, batches of 64, no workers"
    return [
        {
            "title": "Stopped in mid-epoch with 2 workers, gone on in another process: equal to the uninterrupted run?",
            "rows": exact,
        },
        {"title": title, "rows": began},
        {
            "title": f"2 persistent workers, a step of {STEP * 1e3:.0f} ms, epochs of {EPOCH} batches (wanted: at most 2)",
            "rows": waited,
        },
    ], missing


def main() -> None:
    """Measure, print, and with --record keep the result."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--samples", type=int, default=10_000_000)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--scratch", type=Path, default=Path("runs"), help="folder for a saved state")
    parser.add_argument("--record", action="store_true", help="append to bench/results")
    parser.add_argument("--alone", nargs="+", help=argparse.SUPPRESS)
    args = parser.parse_args()
    torch.set_num_threads(1)
    if args.alone:
        print(json.dumps(answer(*args.alone)))
        return
    args.scratch.mkdir(parents=True, exist_ok=True)
    load = os.getloadavg()[0]
    tables, missing = compare(args.samples, args.rounds, args.scratch)
    for table in tables:
        print(f"\n{table['title']}")
        print(results.plain(table["rows"]))  # type: ignore[arg-type]
    print(f"missing: {missing}")
    if args.record:
        print(f"recorded in {results.append(results.run('loader', tables, missing=missing, load_before=f'{load:.1f}'))}")


if __name__ == "__main__":
    main()
