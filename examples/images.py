"""Images listed in a table: decoded when they are wanted, then decoded once and for all.

    python examples/images.py --out runs/images

The first run reads every PNG again each epoch. `cache` writes the decoded images into one mapped file, and the second run
reads those: the same samples, so the same losses, in a fraction of the loader's time.
"""

from __future__ import annotations

import argparse
import csv
import json
import time
from pathlib import Path

import numpy as np
import torch
from PIL import Image, ImageDraw
from torch import nn
from torch.utils.data import Dataset

from ladle.batching import Table, cache, loader

SHAPES, SIZE, STORED = ("circle", "square", "triangle"), 32, 160


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path("runs/images"))
    parser.add_argument("--images", type=int, default=600)
    parser.add_argument("--epochs", type=int, default=5)
    options = parser.parse_args()
    out = options.out
    out.mkdir(parents=True, exist_ok=True)
    make(out, "train", options.images, np.random.default_rng(1))
    make(out, "val", 300, np.random.default_rng(2))

    decoded = {name: Table(out / f"{name}.csv", path="file_path", label="shape", load=small) for name in ("train", "val")}
    runs = {"decoded each time": train(decoded["train"], decoded["val"], options.epochs)}
    cached = {name: cache(dataset, out / f"{name}-cache") for name, dataset in decoded.items()}
    runs["from the cache"] = train(cached["train"], cached["val"], options.epochs)

    for name, run in runs.items():
        print(
            f"{name:18}  {run['seconds']:5.1f} s waited for data, {100 * run['right']:.1f} % right, last loss {run['loss']:.6f}"
        )
    times = runs["decoded each time"]["seconds"] / runs["from the cache"]["seconds"]
    equal = runs["decoded each time"]["loss"] == runs["from the cache"]["loss"]
    print(f"The cache took {times:.0f} times off the loading; the losses are {'equal to the bit' if equal else 'DIFFERENT'}.")
    (out / "result.json").write_text(json.dumps({"times": times, "equal": equal, "right": runs["from the cache"]["right"]}))


def small(path: str) -> torch.Tensor:
    """A stored image as float32 (3, SIZE, SIZE), 0 to 1."""
    with Image.open(path) as image:
        pixels = np.asarray(image.convert("RGB").resize((SIZE, SIZE), Image.Resampling.BILINEAR), dtype=np.float32)
    return torch.from_numpy(pixels / 255).permute(2, 0, 1).contiguous()


def train(data: Dataset, held_out: Dataset, epochs: int) -> dict[str, float]:
    """Train a small network, and say how long it waited for its batches."""
    torch.manual_seed(0)
    torch.set_num_threads(1)
    model = nn.Sequential(
        *(nn.Conv2d(3, 16, 5, stride=2, padding=2), nn.ReLU(), nn.Conv2d(16, 32, 5, stride=2, padding=2), nn.ReLU()),
        *(nn.Conv2d(32, 32, 3, stride=2, padding=1), nn.ReLU(), nn.Flatten(), nn.Linear(32 * 4 * 4, len(SHAPES))),
    )
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
    batches = loader(data, batch_size=20, shuffle=True, seed=1, workers=0)
    waited, began = 0.0, time.perf_counter()
    for _ in range(epochs):
        for x, y in batches:
            waited += time.perf_counter() - began
            loss = nn.functional.cross_entropy(model(x), y)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            began = time.perf_counter()
    right = total = 0
    with torch.no_grad():
        for x, y in loader(held_out, batch_size=100, workers=0):
            right += int((model(x).argmax(dim=1) == y).sum())
            total += len(y)
    return {"seconds": waited, "right": right / total, "loss": loss.item()}


def make(out: Path, name: str, count: int, rng: np.random.Generator) -> None:
    """One shape a picture, somewhere, in some size and colour, on a speckled ground; and the table that lists them."""
    folder = out / name
    folder.mkdir(exist_ok=True)
    rows = []
    for number in range(count):
        shape = SHAPES[number % len(SHAPES)]
        image = Image.fromarray(rng.integers(0, 60, (STORED, STORED, 3), dtype=np.uint8))
        radius = int(rng.integers(35, 60))
        x, y = (int(place) for place in rng.integers(radius, STORED - radius, 2))
        colour = tuple(int(value) for value in rng.integers(120, 256, 3))
        draw = ImageDraw.Draw(image)
        if shape == "circle":
            draw.ellipse((x - radius, y - radius, x + radius, y + radius), fill=colour)
        else:
            draw.regular_polygon(
                (x, y, radius), {"square": 4, "triangle": 3}[shape], rotation=int(rng.integers(360)), fill=colour
            )
        path = folder / f"{number:05}.png"
        image.save(path)
        rows.append((f"{name}/{path.name}", shape))
    with open(out / f"{name}.csv", "w", encoding="utf-8", newline="") as file:
        csv.writer(file).writerows([("file_path", "shape"), *rows])


if __name__ == "__main__":
    main()
