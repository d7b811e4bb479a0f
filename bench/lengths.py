"""Samples of unequal length in batches: what is padding, what a small network makes of it in a second, and whether lengths cycle.

    python -m bench.lengths [--samples 1000,10000,200000] [--rounds 3] [--record]

Four ways on the same log-normal lengths (median 245, at most 4 096): all padded to the longest of all; batches as they come,
each padded to its longest; Hugging Face's group_by_length (transformers' own function where it is installed, else written anew
from its description: a random permutation in groups of 50 batches, each sorted by length, the longest first); Ladle's buckets, of
a batch size and of a budget of as many tokens as batches of that size hold on average. "cycle" is the largest autocorrelation of
the batches' longest lengths at lags of 1 to 200 batches, and in brackets what chance allows. Planning is one epoch's batches,
from the lengths. The network is an embedding, two convolutions and their backward pass, on one thread, in the processor's time;
rounds are interleaved, and of many batches only some are run: figures a tenth apart are then alike.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable

import numpy as np
import torch

from bench import results
from ladle.batching.collate import pad
from ladle.rows.buckets import Buckets

BATCH = 32
Batches = list[np.ndarray]


def lengths_of(n: int) -> np.ndarray:
    """Log-normal, as documents are."""
    return np.clip(np.random.default_rng(0).lognormal(5.5, 1.0, n), 1, 4096).astype(np.int64)


def as_they_come(lengths: np.ndarray) -> Batches:
    """A random permutation, cut."""
    order = torch.randperm(lengths.size, generator=torch.Generator().manual_seed(0)).numpy()
    return np.split(order, range(BATCH, lengths.size, BATCH))


def grouped(lengths: np.ndarray) -> Batches:
    """Hugging Face's group_by_length."""
    try:
        from transformers.trainer_pt_utils import get_length_grouped_indices
    except ImportError:
        get_length_grouped_indices = anew
    order = np.array(get_length_grouped_indices(lengths.tolist(), BATCH, generator=torch.Generator().manual_seed(0)))
    return np.split(order, range(BATCH, lengths.size, BATCH))


def anew(lengths: list[int], batch_size: int, generator: torch.Generator) -> list[int]:
    """The same from its description."""
    order = torch.randperm(len(lengths), generator=generator).tolist()
    group = batch_size * max(min(len(lengths) // (4 * batch_size), 50), 1)
    groups = [sorted(order[low : low + group], key=lambda i: -lengths[i]) for low in range(0, len(order), group)]
    longest = max(range(len(groups)), key=lambda number: lengths[groups[number][0]])
    groups[0][0], groups[longest][0] = groups[longest][0], groups[0][0]
    return [index for one in groups for index in one]


def bucketed(lengths: np.ndarray, **how: int) -> Batches:
    """Ladle's, epoch 0."""
    made = Buckets(lengths, seed=0, longest_first=True, **how)
    return [made.batch(0, number) for number in range(made.num_batches)]


def cycle(lengths: np.ndarray, batches: Batches) -> str:
    """The largest autocorrelation of the batches' longest lengths."""
    longest = np.array([lengths[batch].max() for batch in batches[1:]], dtype=float)
    if longest.size < 100:
        return "too few batches"
    longest -= longest.mean()
    lags = range(1, min(201, longest.size // 4))
    found = max(abs(float((longest[lag:] * longest[:-lag]).sum() / (longest**2).sum())) for lag in lags)
    return f"{found:.2f} ({3.5 / np.sqrt(longest.size):.2f})"


class Network(torch.nn.Module):
    """Small, and its cost is the number of places."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = torch.nn.Embedding(100, 32, padding_idx=0)
        self.layers = torch.nn.Sequential(
            torch.nn.Conv1d(32, 64, 3, padding=1), torch.nn.ReLU(), torch.nn.Conv1d(64, 64, 3, padding=1), torch.nn.ReLU()
        )

    def forward(self, ids: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        return (self.layers(self.embed(ids).transpose(1, 2)) * mask[:, None]).sum() / mask.sum()


def rate(lengths: np.ndarray, batches: Batches, to: int | None, some: int) -> float:
    """Real tokens a processor's second through the network: of some batches, spread over the epoch; padding them counts."""
    network, collate = Network(), pad(0, pad_to_multiple_of=to or 1)
    chosen = [batches[int(number)] for number in np.linspace(1, len(batches) - 1, some)]
    samples = [[np.ones(length, dtype=np.int64) for length in lengths[batch]] for batch in chosen]
    tokens = sum(int(lengths[batch].sum()) for batch in chosen)
    begin = time.process_time()
    for one in samples:
        batch = collate(one)
        network(batch.values, batch.mask).backward()
    return tokens / (time.process_time() - begin)


def table(n: int, rounds: int, some: int) -> dict[str, object]:
    """One number of samples, all ways."""
    lengths = lengths_of(n)
    mean = as_they_come(lengths)
    budget = max(int(BATCH * lengths.mean()), int(lengths.max()))
    ways: list[tuple[str, Callable[[], Batches], int | None]] = [
        ("padded to the longest of all", lambda: mean, int(lengths.max())),
        ("as they come", lambda: as_they_come(lengths), None),
        ("Hugging Face's group_by_length", lambda: grouped(lengths), None),
        (f"Ladle, batch_size={BATCH}", lambda: bucketed(lengths, batch_size=BATCH), None),
        (f"Ladle, batch_tokens={budget}", lambda: bucketed(lengths, batch_tokens=budget), None),
    ]
    planned, planning = {}, {}
    for name, plan, _ in ways:
        begin = time.perf_counter()
        planned[name] = plan()
        planning[name] = time.perf_counter() - begin
        everyone = np.concatenate(planned[name])
        np.testing.assert_array_equal(np.sort(everyone), np.arange(n))  # each sample once
    rates: dict[str, list[float]] = {name: [] for name, _, _ in ways}
    for _ in range(rounds):
        for name, _, to in ways:
            rates[name].append(rate(lengths, planned[name], to, some))
    first = float(np.median(rates[ways[1][0]]))
    rows = []
    for name, _, to in ways:
        batches = planned[name]
        places = sum(batch.size * (to or int(lengths[batch].max())) for batch in batches)
        mid = float(np.median(rates[name]))
        rows.append(
            {
                "": name,
                "padding": f"{100 * (1 - lengths.sum() / places):.1f} %",
                "real tokens a processor's second": f"{mid:,.0f}",
                "against as they come": f"{mid / first:.2f}",
                "batches": len(batches),
                "cycle": cycle(lengths, batches),
                "s to plan an epoch": "" if to else f"{planning[name]:.3g}",
            }
        )
    return {"title": f"{n:,} samples, {int(lengths.sum()):,} tokens", "rows": rows}


def main() -> None:
    """Measure, print, and with --record keep the result."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--samples", default="1000,10000,200000")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--batches", type=int, default=32, help="that go through the network in a round")
    parser.add_argument("--record", action="store_true", help="append to bench/results")
    args = parser.parse_args()
    torch.set_num_threads(1)
    tables = [table(int(n), args.rounds, args.batches) for n in args.samples.split(",")]
    for one in tables:
        print(f"\n{one['title']}\n{results.plain(one['rows'])}", flush=True)  # type: ignore[arg-type]
    result = results.run("lengths", tables, threads="1")
    if args.record:
        print(f"recorded in {results.append(result)}")


if __name__ == "__main__":
    main()
