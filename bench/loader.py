"""Loaders of any dataset side by side: is a resume exact, what do ten million samples cost, who waits at an epoch's start.

    python -m bench.loader [--samples 10000000] [--rounds 5] [--record]

Each question is put to each contender in fresh processes, which know nothing of each other but a saved state. Samples have a
random number in them, as augmentations do. Contenders: Ladle's loader, torch's DataLoader alone (there is nothing to save: it
begins anew), torchdata's StatefulDataLoader, and accelerate's skip_first_batches; who is not installed is named.

Before anything is timed every epoch must hold each sample once; what does not is refused. Imports are done before the clock
runs and before memory is read. The peers' workers persist only where waiting is measured, as is their default: persistent ones
draw no seed between epochs, and the order of their second epoch would differ from that of no workers.
"""

from __future__ import annotations

import argparse
import importlib
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
WORKERS, AS_TWO = (0, 1, 2, 4), "0, 1, 2 again, 4 workers as 2"
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


def imported(name: str) -> None:
    """What a contender needs, before a clock runs."""
    modules = {LADLE: "ladle.batching.dataloader", STATEFUL: "torchdata.stateful_dataloader", ACCELERATE: "accelerate"}
    importlib.import_module(modules.get(name, "torch"))


def make(name: str, dataset: Dataset[Any], batch_size: int, workers: int, *, persistent: bool = False) -> Any:
    """A shuffled loader; persistent: the peers' workers, Ladle's always do."""
    if name == LADLE:
        from ladle.batching import loader

        return loader(dataset, batch_size=batch_size, shuffle=True, seed=SEED, workers=workers, verbose=False)
    kind: Any = DataLoader
    if name == STATEFUL:
        from torchdata.stateful_dataloader import StatefulDataLoader as kind  # noqa: N813
    torch.manual_seed(SEED)
    generator = torch.Generator().manual_seed(SEED)
    return kind(
        dataset, batch_size=batch_size, shuffle=True, num_workers=workers, generator=generator, persistent_workers=persistent
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
    """The batches of two epochs, each sample once in each."""
    batches = make(name, Noise(SAMPLES), BATCH, workers)
    epochs = [[told(batch) for batch in batches] for _ in range(2)]
    for epoch in epochs:
        once([index for batch in epoch for index in batch[0]], SAMPLES)
    return epochs


def once(indices: list[int], samples: int) -> None:
    """Refuse an epoch that is not every sample once."""
    if sorted(indices) != list(range(samples)):
        raise RuntimeError(f"expected each of {samples} samples once, found {len(indices)}, {len(set(indices))} of them distinct")


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


def start(name: str, samples: int, path: Path) -> dict[str, float]:
    """Seconds and MiB to the first batch; then on to the middle of the epoch, where the state is saved, and its size."""
    imported(name)
    dataset = Plain(samples)
    Path("/proc/self/clear_refs").write_text("5")  # the peak begins here
    before, begin = _resident("VmRSS"), time.perf_counter()
    batches = make(name, dataset, 64, 0)
    walk = iter(batches)
    batch = next(walk)
    first = time.perf_counter() - begin
    held, peak = _resident("VmRSS") - before, _resident("VmHWM") - before
    done, seen = len(batches) // 2, np.zeros(samples, bool)
    seen[batch.numpy()] = True
    for _ in range(done - 1):
        seen[next(walk).numpy()] = True
    state = batches.state_dict() if name in {LADLE, STATEFUL} else None
    following = next(walk).tolist()
    seen[following] = True
    if seen.sum() != 64 * (done + 1):
        raise RuntimeError(f"{name}: expected {64 * (done + 1)} distinct samples, found {seen.sum()}")
    path.write_bytes(pickle.dumps((state, done, following)))
    size = 0 if state is None else len(json.dumps(state)) if name == LADLE else len(pickle.dumps(state))
    return {"first": first, "held": held, "peak": peak, "state": size}


def again(name: str, samples: int, path: Path) -> dict[str, float]:
    """Seconds from making a loader to the batch after the saved state, and whether it is the right one."""
    imported(name)
    state, done, following = pickle.loads(path.read_bytes())
    dataset = Plain(samples)
    begin = time.perf_counter()
    found = next(iter(resumed(name, make(name, dataset, 64, 0), state, done)))
    return {"resume": time.perf_counter() - begin, "right": found.tolist() == following}


def waits(name: str) -> dict[str, float]:
    """Seconds from the first epoch's last step to the second's first batch and, in the median, for a batch and its step."""
    batches = make(name, Noise(EPOCH * BATCH, wait=0.0004), BATCH, 2, persistent=True)
    firsts: list[float] = []
    steps: list[float] = []
    epochs: list[list[int]] = [[], []]
    begin = time.perf_counter()
    for indices in epochs:
        for number, batch in enumerate(batches):
            if number == 0:
                firsts.append(time.perf_counter() - begin)
            time.sleep(STEP)
            steps.append(time.perf_counter() - begin)
            indices += batch[0].tolist()
            begin = time.perf_counter()
    for indices in epochs:
        once(indices, EPOCH * BATCH)
    return {"first": firsts[1], "step": float(np.median(steps))}


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
    if question == "waits":
        return waits(name)
    return (start if question == "start" else again)(name, int(words[0]), Path(words[1]))


def exactness(name: str, folder: Path) -> dict[str, object]:
    """Whether the rest of an epoch is what it would have been."""
    whole = alone("whole", name, 2)
    alone("stop", name, folder / "state")
    rest, after = alone("go on", name, folder / "state")
    others = [alone("whole", name, workers) for workers in WORKERS]

    def indices(batches: list[Any]) -> list[Any]:
        return [batch[0] for batch in batches]

    alike = [[indices(epoch) for epoch in other] == [indices(epoch) for epoch in whole] for other in others]
    return {
        "": name,
        "the rest of the epoch": _yes(indices(rest) == indices(whole[0][STOP:])),
        "its random numbers": _yes(rest == whole[0][STOP:]),
        "the next epoch": _yes(indices(after) == indices(whole[1])),
        "a new order each epoch": _yes(indices(whole[0]) != indices(whole[1])),
        f"{AS_TWO}: samples": ", ".join(map(_yes, alike)),
        "and random numbers": ", ".join(_yes(other == whole) for other in others),
    }


def _yes(held: bool) -> str:
    return "yes" if held else "no"


def _spread(values: list[float], unit: float, digits: int = 1) -> str:
    return f"{np.median(values) * unit:,.{digits}f} ({min(values) * unit:,.{digits}f} to {max(values) * unit:,.{digits}f})"


def compare(samples: int, rounds: int, folder: Path) -> tuple[list[dict[str, object]], str]:
    """(the tables, who is missing)."""
    names = [name for name, package in NEEDS.items() if importlib.util.find_spec(package) is not None]
    missing = ", ".join(f"{name}: {NEEDS[name]} is not installed" for name in NEEDS if name not in names) or "no peer"
    exact = [exactness(name, folder) for name in names]
    starts: dict[str, list[Any]] = {name: [] for name in names}
    times: dict[str, list[Any]] = {name: [] for name in names if name != ACCELERATE}
    for _ in range(rounds):
        for name, found in starts.items():
            found.append(alone("start", name, samples, folder / "state") | alone("again", name, samples, folder / "state"))
        for name, found in times.items():
            found.append(alone("waits", name))
    (folder / "state").unlink()
    began = [
        {
            "": name,
            "to the first batch, ms": _spread([one["first"] for one in found], 1e3),
            "memory then, MiB": _spread([one["held"] for one in found], 1, 0),
            "at its peak": _spread([one["peak"] for one in found], 1, 0),
            "state, bytes": f"{found[0]['state']:,.0f}" if found[0]["state"] else "none",
            "to a batch in mid-epoch, ms": _spread([one["resume"] for one in found], 1e3),
            "the right batch": _yes(all(one["right"] for one in found)),
        }
        for name, found in starts.items()
    ]
    waited = []
    for name, found in times.items():
        ratios = [one["first"] / one["step"] for one in found]
        waited.append(
            {
                "": name,
                "waited for epoch 2's first batch, ms": _spread([one["first"] for one in found], 1e3),
                "a batch and its step, ms": _spread([one["step"] for one in found], 1e3),
                "times": _spread(ratios, 1, 2),
                "at most 2": _yes(float(np.median(ratios)) <= 2),
            }
        )
    return [
        {
            "title": "Stopped in mid-epoch with 2 workers, gone on in another process: equal to the uninterrupted run?",
            "rows": exact,
        },
        {"title": f"{samples:,} samples, shuffled, batches of 64, no workers; median (range) of {rounds}", "rows": began},
        {
            "title": f"2 persistent workers, a step of {STEP * 1e3:.0f} ms, epochs of {EPOCH} batches; "
            f"median (range) of {rounds}; accelerate's loader is then torch's",
            "rows": waited,
        },
    ], missing


def main() -> None:
    """Measure, print, and with --record keep the result."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--samples", type=int, default=10_000_000)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--scratch", type=Path, default=Path("runs"), help="folder for a saved state")
    parser.add_argument("--record", action="store_true", help="append to bench/results")
    parser.add_argument("--alone", nargs="+", help=argparse.SUPPRESS)
    args = parser.parse_args()
    torch.set_num_threads(1)
    if args.alone:
        print(json.dumps(answer(*args.alone)))
        return
    args.scratch.mkdir(parents=True, exist_ok=True)
    load = f"{os.getloadavg()[0]:.1f} before"
    tables, missing = compare(args.samples, args.rounds, args.scratch)
    for table in tables:
        print(f"\n{table['title']}")
        print(results.plain(table["rows"]))  # type: ignore[arg-type]
    print(f"missing: {missing}")
    load += f", {os.getloadavg()[0]:.1f} after, this benchmark's own included"
    print(f"load: {load}")
    if args.record:
        print(f"recorded in {results.append(results.run('loader', tables, missing=missing, load=load))}")


if __name__ == "__main__":
    main()
