"""One sample in a hundred is the one that matters: the recall of a rare class, with and without balanced draws.

    python examples/imbalanced.py --out runs/imbalanced

Both runs see the same number of batches of the same size. `balance="class"` draws each class equally often, so that the
rare one makes up half of what the model sees; the validation set stays as it is.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

import numpy as np
import torch
from torch import nn

from ladle.batching import Arrays, loader

SAMPLES, FEATURES, RARE = 20_000, 16, 0.01


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path("runs/imbalanced"))
    parser.add_argument("--epochs", type=int, default=5)
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    for name, seed in (("train", 1), ("val", 2)):
        make(options.out, name, np.random.default_rng(seed))

    found = {}
    for name, balance in (("as they come", None), ("balanced", "class")):
        recall, precision = train(options.out, options.epochs, balance)
        found[name] = {"recall": recall, "precision": precision}
        print(f"{name:12}  of the rare class: recall {recall:.2f}, precision {precision:.2f}\n")
    gain = found["balanced"]["recall"] - found["as they come"]["recall"]
    print(f"Balanced draws found {100 * gain:.0f} more of every 100 rare samples, in as many steps.")
    (options.out / "result.json").write_text(json.dumps(found))


def make(out: Path, name: str, rng: np.random.Generator) -> None:
    """Features of a normal distribution; the rare class lies a little to one side of the common one."""
    y = (rng.random(SAMPLES) < RARE).astype(np.int64)
    direction = np.linspace(-1, 1, FEATURES)
    x = rng.standard_normal((SAMPLES, FEATURES)) + 1.1 * y[:, None] * direction
    np.save(out / f"{name}-x.npy", x.astype(np.float32))
    np.save(out / f"{name}-y.npy", y)


def train(out: Path, epochs: int, balance: str | None) -> tuple[float, float]:
    """(recall, precision) of the rare class on the validation set."""
    torch.manual_seed(0)
    torch.set_num_threads(1)
    model = nn.Sequential(nn.Linear(FEATURES, 32), nn.ReLU(), nn.Linear(32, 2))
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
    data = Arrays(out / "train-x.npy", out / "train-y.npy")
    batches = loader(data, batch_size=100, shuffle=balance is None, balance=balance, seed=1)
    for _ in range(epochs):
        for x, y in batches:
            optimizer.zero_grad()
            nn.functional.cross_entropy(model(x), y).backward()
            optimizer.step()
    told, right = [], []
    with torch.no_grad():
        for x, y in loader(Arrays(out / "val-x.npy", out / "val-y.npy"), batch_size=1000):
            told.append(model(x).argmax(dim=1))
            right.append(y)
    told, right = torch.cat(told), torch.cat(right)
    hits = int(((told == 1) & (right == 1)).sum())
    return hits / int((right == 1).sum()), hits / max(int((told == 1).sum()), 1)


if __name__ == "__main__":
    main()
