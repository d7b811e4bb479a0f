"""Rows of a table: numeric columns of a CSV file, a small network, and a run that is killed and resumed mid-epoch.

    python examples/tabular.py --out runs/tabular

The loader's state is one small dict. Loaded into a fresh loader (another process, another number of workers) it goes on with
the very next batch, and nothing is replayed.
"""

from __future__ import annotations

import argparse
import csv
import json
import math
from pathlib import Path

import numpy as np
import torch
from torch import nn

from ladle.batching import Table, pair

ROWS, COLUMNS = 20_003, ("size", "rooms", "age", "distance")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path("runs/tabular"))
    parser.add_argument("--steps", type=int, default=600)
    parser.add_argument("--workers", type=int, default=0)
    options = parser.parse_args()
    out = options.out
    out.mkdir(parents=True, exist_ok=True)
    for name, rows, seed in (("train", ROWS, 1), ("val", 2_000, 2)):
        if not (out / f"{name}.csv").exists():
            make(out / f"{name}.csv", rows, np.random.default_rng(seed))

    torch.manual_seed(0)
    torch.set_num_threads(1)
    train = Table(out / "train.csv", features=COLUMNS, label="price")
    val = Table(out / "val.csv", features=COLUMNS, label="price")
    batches, held_out = pair(train, val, batch_size=100, seed=1, workers=options.workers)
    model = nn.Sequential(nn.Linear(len(COLUMNS), 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 1))
    optimizer = torch.optim.Adam(model.parameters(), lr=2e-3)
    step = 0
    if (out / "checkpoint.pt").exists():
        saved = torch.load(out / "checkpoint.pt", weights_only=True)
        model.load_state_dict(saved["model"])
        optimizer.load_state_dict(saved["optimizer"])
        batches.load_state_dict(saved["loader"])
        step = saved["step"]

    with open(out / "log.jsonl", "a", encoding="utf-8") as log:
        while step < options.steps:
            for x, y in batches:  # to the epoch's end; the next `for` is the next epoch, in another order
                loss = nn.functional.mse_loss(model(x).squeeze(1), y.float())
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
                step += 1
                print(json.dumps({"step": step, "loss": loss.item(), "sum": x.double().sum().item()}), file=log, flush=True)
                if step % 10 == 0:
                    state = {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "step": step}
                    torch.save(state | {"loader": batches.state_dict()}, out / "checkpoint.tmp")
                    (out / "checkpoint.tmp").replace(out / "checkpoint.pt")  # whole, or not at all
                if step == options.steps:
                    break

    with torch.no_grad():
        errors = torch.cat([model(x).squeeze(1) - y for x, y in held_out])
        spread = torch.cat([y for _, y in held_out]).float().std().item()
    error = math.sqrt(errors.double().square().mean().item())
    print(f"After {step} steps the price of {len(errors)} unseen houses is off by {error:.3f} (they spread by {spread:.3f}).")
    (out / "result.json").write_text(json.dumps({"error": error, "spread": spread}))


def make(path: Path, rows: int, rng: np.random.Generator) -> None:
    """Houses whose price is a bent function of four numbers, and some noise."""
    x = rng.random((rows, len(COLUMNS)))
    price = 2 * x[:, 0] + np.sin(3 * x[:, 1]) - x[:, 2] * x[:, 3] + 0.05 * rng.standard_normal(rows)
    partial = path.with_suffix(".tmp")
    with open(partial, "w", encoding="utf-8", newline="") as file:
        writer = csv.writer(file)
        writer.writerow([*COLUMNS, "price"])
        writer.writerows(np.column_stack([x, price]).round(6).tolist())
    partial.replace(path)


if __name__ == "__main__":
    main()
