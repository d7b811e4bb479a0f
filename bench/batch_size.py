"""The batch size that finders return, against the true limit of a process that may hold so much memory and no more.

    python -m bench.batch_size [--extra 600] [--record]

Each finder runs in a process of its own whose private memory the kernel bounds (RLIMIT_DATA): `--extra` MiB above what it holds
once the model stands there. The true limit is found by brute force: for each size a fresh process makes three full steps of
AdamW, from the finders' neighbourhood outwards, until the largest that runs is known. "runs" says whether three full steps
at the answer end well in such a process; what a finder returns without having run it may not.

Peers: accelerate's find_executable_batch_size (multiplies by 0.9 until nothing fails; here from 1 024), and Lightning's
Tuner.scale_batch_size (power: doubles; binsearch: then halves the gap, and takes 5 % off). Neither bounds memory itself: on the
CPU, without the bound given here, they would go on until the kernel kills them. Ladle is given the bound as max_memory.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
import warnings
from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from torch.nn.functional import cross_entropy

from bench import results
from ladle.train.memory import MIB, ResidentMemory

CLASSES = 10
LONGEST_S = 90


def perceptron() -> tuple[nn.Module, tuple[int, ...]]:
    """Six layers over each of 64 positions of 256 numbers, then one over all."""
    layers: list[nn.Module] = []
    for _ in range(6):
        layers += [nn.Linear(256, 256), nn.ReLU()]
    return nn.Sequential(*layers, nn.Flatten(), nn.Linear(64 * 256, CLASSES)), (64, 256)


def convolution() -> tuple[nn.Module, tuple[int, ...]]:
    """Images of 64 x 64."""
    return nn.Sequential(
        nn.Conv2d(3, 32, 3, padding=1),
        nn.BatchNorm2d(32),
        nn.ReLU(),
        nn.Conv2d(32, 32, 3, padding=1),
        nn.ReLU(),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(32, CLASSES),
    ), (3, 64, 64)


MODELS = {"perceptron": perceptron, "convolution": convolution}


def steps(model: nn.Module, shape: tuple[int, ...], size: int, times: int) -> None:
    """Full steps of AdamW."""
    optimizer = torch.optim.AdamW(model.parameters())
    x, y = torch.zeros(size, *shape), torch.zeros(size, dtype=torch.long)
    for _ in range(times):
        optimizer.zero_grad()
        cross_entropy(model(x), y).backward()
        optimizer.step()


# --- in a bounded process of its own ---


def brute(model: nn.Module, shape: tuple[int, ...], bound: int, size: int) -> int:
    """Does this size run?"""
    gauge = ResidentMemory()
    with gauge.bounded(bound):
        steps(model, shape, size, 3)
    return int(gauge.peak() <= bound)


def ladle(model: nn.Module, shape: tuple[int, ...], bound: int, size: int) -> int:
    """Ours, to the sample."""
    from ladle.train import find_batch_size

    sample = (torch.zeros(shape), 0)
    return find_batch_size(model, sample, max_memory=bound, precision=0.0).largest


def accelerate(model: nn.Module, shape: tuple[int, ...], bound: int, size: int) -> int:
    """Its decorator calls a function with smaller and smaller sizes."""
    from accelerate.utils import find_executable_batch_size

    @find_executable_batch_size(starting_batch_size=1024)
    def train(batch_size: int) -> int:
        steps(model, shape, batch_size, 3)
        return batch_size

    with ResidentMemory().bounded(bound):
        return train()


def lightning(mode: str) -> Callable[[nn.Module, tuple[int, ...], int, int], int]:
    """Its tuner."""

    def find(model: nn.Module, shape: tuple[int, ...], bound: int, size: int) -> int:
        import logging
        import tempfile

        import lightning.pytorch as pl
        from lightning.pytorch.tuner import Tuner

        class Module(pl.LightningModule):
            def __init__(self) -> None:
                super().__init__()
                self.model, self.batch_size = model, 2

            def training_step(self, batch: Any, _: int) -> torch.Tensor:
                return cross_entropy(self.model(batch[0]), batch[1])

            def configure_optimizers(self) -> torch.optim.Optimizer:
                return torch.optim.AdamW(self.parameters())

            def train_dataloader(self) -> Any:
                one = (torch.zeros(shape), torch.tensor(0))
                return torch.utils.data.DataLoader([one] * 8192, batch_size=self.batch_size)  # type: ignore[arg-type]

        logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
        with tempfile.TemporaryDirectory() as folder:
            trainer = pl.Trainer(
                accelerator="cpu", logger=False, enable_progress_bar=False, enable_model_summary=False, default_root_dir=folder
            )
            gauge = ResidentMemory()
            # What Lightning itself holds is not charged to it.
            with gauge.bounded(max(bound, gauge.held() + bound - int(os.environ["BENCH_HELD"]))):
                return int(Tuner(trainer).scale_batch_size(Module(), mode=mode) or 0)

    return find


FINDERS: dict[str, Callable[[nn.Module, tuple[int, ...], int, int], int]] = {
    "brute": brute,
    "Ladle": ladle,
    "accelerate": accelerate,
    "Lightning, power": lightning("power"),
    "Lightning, binsearch": lightning("binsearch"),
}


def alone(name: str, finder: str, extra: int, size: int) -> None:
    """The child's side: prints {"answer", "seconds", "held"} as JSON."""
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    torch.manual_seed(0)
    model, shape = MODELS[name]()
    steps(model, shape, 1, 1)
    model.zero_grad()
    held = ResidentMemory().held()
    os.environ["BENCH_HELD"] = str(held)
    begin = time.perf_counter()
    answer = FINDERS[finder](model, shape, held + extra * MIB, size)
    print(json.dumps({"answer": answer, "seconds": time.perf_counter() - begin, "held": held}))


# --- the parent's ---


def child(name: str, finder: str, extra: int, size: int = 0) -> dict[str, Any] | str:
    """What it printed, or its last words."""
    words = [sys.executable, "-m", "bench.batch_size", "--alone", name, finder, "--extra", str(extra), "--size", str(size)]
    try:
        done = subprocess.run(words, capture_output=True, text=True, check=False, timeout=LONGEST_S)
    except subprocess.TimeoutExpired:
        return f"did not end in {LONGEST_S} s"
    if done.returncode:
        said = done.stderr.strip().splitlines()
        return said[-1][:160] if said else f"exit code {done.returncode}"
    return json.loads(done.stdout.strip().splitlines()[-1])  # type: ignore[no-any-return]


def runs(name: str, extra: int, size: int) -> bool:
    """Three full steps at that size, in a bounded process of its own."""
    found = child(name, "brute", extra, size)
    return isinstance(found, dict) and bool(found["answer"])


def true_limit(name: str, extra: int, near: int) -> int:
    """By doubling and halving around `near`, then every size for eight beyond the first that fails: memory may have humps."""
    low, high = (near, 2 * near) if runs(name, extra, near) else (0, near)
    while low and runs(name, extra, high):
        low, high = high, 2 * high
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if runs(name, extra, middle) else (low, middle)
    return max([low, *(size for size in range(high + 1, high + 9) if runs(name, extra, size))])


def table(name: str, extra: int, finders: list[str]) -> dict[str, object]:
    """One model, every finder."""
    found = {finder: child(name, finder, extra) for finder in finders}
    near = max([answer["answer"] for answer in found.values() if isinstance(answer, dict)] or [1])
    limit = true_limit(name, extra, max(1, near))
    rows = [{"": "true limit, by brute force", "answer": limit}]
    for finder, answer in found.items():
        if isinstance(answer, str):
            rows.append({"": finder, "answer": f"none: {answer}"})
            continue
        size = answer["answer"]
        rows.append(
            {
                "": finder,
                "answer": size,
                "of the true limit": f"{size / limit:.1%}" if limit else "",
                "runs": "yes" if runs(name, extra, size) else "NO",
                "seconds": f"{answer['seconds']:.1f}",
            }
        )
    keys = ("", "answer", "of the true limit", "runs", "seconds")
    return {
        "title": f"{name}, {extra} MiB above what the process holds",
        "rows": [{key: row.get(key, "") for key in keys} for row in rows],
    }


def main() -> None:
    """Measure, print, and with --record keep the result."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--extra", type=int, default=600, help="MiB a process may hold above what it holds at first")
    parser.add_argument("--models", default=",".join(MODELS))
    parser.add_argument(
        "--finders", default=";".join([name for name in FINDERS if name != "brute"]), help="with semicolons between"
    )
    parser.add_argument("--record", action="store_true", help="append to bench/results")
    parser.add_argument("--alone", nargs=2, help=argparse.SUPPRESS)
    parser.add_argument("--size", type=int, default=0, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.alone:
        alone(*args.alone, args.extra, args.size)
        return
    tables = [table(name, args.extra, args.finders.split(";")) for name in args.models.split(",")]
    for each in tables:
        print(f"\n{each['title']}\n{results.plain(each['rows'])}", flush=True)  # type: ignore[arg-type]
    if args.record:
        print(f"recorded in {results.append(results.run('batch_size', tables, threads='1'))}")


if __name__ == "__main__":
    main()
