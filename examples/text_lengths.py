"""Sentences of unequal length: batches of alike lengths under a budget of tokens, beside batches padded as they come.

    python examples/text_lengths.py --out runs/lengths

A small network learns to tell which of two kinds of bracket a string opens more often. Both runs see each string once an
epoch; the second pads far less, so that an epoch takes less time.
"""

from __future__ import annotations

import argparse
import json
import time
from pathlib import Path

import numpy as np
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

from ladle.batching import loader, pad

STRINGS, LETTERS, PAD = 3_000, 20, 0


class Strings(Dataset):
    """Strings of ids, of log-normal lengths, and which of ids 1 and 2 is the more frequent."""

    def __init__(self, count: int, seed: int) -> None:
        rng = np.random.default_rng(seed)
        self.lengths = np.clip(rng.lognormal(3.3, 0.8, count), 4, 400).astype(np.int64)
        self.ends = np.cumsum(self.lengths)
        self.ids = rng.integers(1, LETTERS, self.ends[-1])

    def __len__(self) -> int:
        return len(self.lengths)

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        ids = self.ids[self.ends[index] - self.lengths[index] : self.ends[index]]
        return torch.from_numpy(ids), int((ids == 1).sum() > (ids == 2).sum())


class Network(nn.Module):
    """A convolution over the string, the mean over its real places, a decision."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(LETTERS, 48, padding_idx=PAD)
        self.mix = nn.Conv1d(48, 96, 5, padding=2)
        self.decide = nn.Linear(96, 2)

    def forward(self, ids: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        hidden = torch.relu(self.mix(self.embed(ids).transpose(1, 2)))
        return self.decide((hidden * mask[:, None]).sum(dim=2) / mask.sum(dim=1, keepdim=True))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path("runs/lengths"))
    parser.add_argument("--epochs", type=int, default=4)
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    data, held_out = Strings(STRINGS, 1), Strings(1_000, 2)
    by_length = {"lengths": data.lengths, "batch_tokens": 2_000}
    runs = {
        "as they come": train(data, held_out, options.epochs, {"batch_size": 64}),
        "of alike lengths": train(data, held_out, options.epochs, by_length),
    }
    for name, run in runs.items():
        print(f"{name:17} {100 * run['padding']:4.1f} % padding, {run['seconds']:4.1f} s, {100 * run['right']:.1f} % right")
    times = runs["as they come"]["seconds"] / runs["of alike lengths"]["seconds"]
    print(f"Batches of alike lengths: {times:.1f} times as fast for the same strings.")
    (options.out / "result.json").write_text(json.dumps(runs))


def train(data: Strings, held_out: Strings, epochs: int, how: dict[str, object]) -> dict[str, float]:
    torch.manual_seed(0)
    torch.set_num_threads(1)
    model = Network()
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
    batches = loader(data, shuffle=True, seed=1, collate=pad(PAD), workers=0, **how)
    places = real = 0
    began = time.perf_counter()
    for _ in range(epochs):
        for text, y in batches:
            loss = nn.functional.cross_entropy(model(text.values, text.mask), y)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            places, real = places + text.values.numel(), real + int(text.lengths.sum())
    seconds = time.perf_counter() - began
    right = 0
    with torch.no_grad():
        for text, y in DataLoader(held_out, batch_size=100, collate_fn=pad(PAD)):  # it works under torch's own loader as well
            right += int((model(text.values, text.mask).argmax(dim=1) == y).sum())
    return {"padding": 1 - real / places, "seconds": seconds, "right": right / len(held_out)}


if __name__ == "__main__":
    main()
