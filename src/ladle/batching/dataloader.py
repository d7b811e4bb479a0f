"""What people call: `loader(dataset, batch_size=64, shuffle=True)`, and what its arguments come to."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import ArrayLike
from torch import Tensor
from torch.utils.data import IterableDataset, Subset, TensorDataset

from ladle.batching.collate import stack
from ladle.batching.course import Arguments, Choice
from ladle.batching.face import Loader
from ladle.batching.maker import Collate
from ladle.batching.workers import automatic, usable_cpus
from ladle.errors import ConfigError
from ladle.feed.arguments import flag, integer
from ladle.feed.ranks import topology

PASSED = {  # torch's arguments that pass through, with what they are when they are not given
    "timeout": 0,
    "prefetch_factor": None,
    "worker_init_fn": None,
    "multiprocessing_context": None,
}


def loader(
    dataset: Any,
    batch_size: int | None = None,
    shuffle: bool = False,
    *,
    seed: int = 0,
    drop_last: bool | Choice = "auto",
    tail: Literal["even"] | None = None,
    weights: ArrayLike | None = None,
    balance: Any = None,
    replacement: bool = True,
    num_draws: int | None = None,
    lengths: ArrayLike | None = None,
    batch_tokens: int | None = None,
    longest_first: bool = False,
    collate: Collate | None = None,
    sampler: Any = None,
    batch_sampler: Any = None,
    workers: int | Choice = "auto",
    device: str | torch.device | None = None,
    rank: int | None = None,
    world_size: int | None = None,
    training: bool | None = None,
    seed_samples: bool | Choice = "auto",
    model: torch.nn.Module | None = None,
    verbose: bool = True,
    **torchs: Any,
) -> Loader:
    """Any dataset in batches: a torch DataLoader whose batches are a function of (seed, epoch, position).

        batches = loader(dataset, batch_size=64, shuffle=True, seed=1337)
        for epoch in range(10):
            for x, y in batches:        # a fresh order each epoch, by itself
                ...
                state = batches.state_dict()   # JSON; load_state_dict continues with the next batch, at any step, at once

    dataset: any torch Dataset, map-style or iterable, a list, an array. batch_size: samples of one process, 1 by default; a
    global batch is batch_size * world_size. rank, world_size: taken from torch.distributed where it is initialised.

    The order: shuffle=True, every sample once an epoch. weights (one a sample) or balance ("class", or labels): weighted draws,
    with replacement unless replacement=False, num_draws an epoch. lengths (one a sample): batches of like lengths, of batch_size
    samples, of batch_tokens once padded, or of both, longest_first once. sampler, batch_sampler: a torch Sampler, resumed by
    replay, or a function (seed, epoch, position) -> index, or -> a batch's indices (none ends the epoch).
    Else the samples come as they lie.
    training: whether this is a training loader; by default one whose order is not that of the dataset. A training loader
    continues: a loop that was left early goes on where it stopped, and a whole one is followed by the next epoch. Any other
    begins anew with each `for`, and each time with epoch 0: two evaluations see the same batches.
    drop_last: "auto" drops a batch that is not full when training, but keeps it where that would lose over 5 % of an epoch, and
    always keeps it otherwise. tail="even": 1003 samples make batches of 100 and 101. `loader.weight` is the last batch's n / B.

    collate: samples -> batch; torch's own by default, `pad(value)` for unequal lengths. seed_samples: whether the global
    generators of `random`, NumPy and torch are seeded for each sample by (seed, epoch, sample) and put back after; "auto": unless
    the dataset is tensors, arrays or a list, or has `seed_samples = False`. Without, `ladle.batching.generator()` is still
    keyed, and a dataset's `__getitems__` is used.
    workers: processes; "auto": 0 for samples in memory, else half of the CPUs that this process may use, at most 8. An iterable
    dataset is read by one. device: batches are copied there ahead; memory is pinned only then, and only with CUDA.
    model: warned about if it has BatchNorm and the last batch is too small. verbose: say what this is, once, on stderr, with
    the first batch (`loader.banner()` gives it at any time).
    torchs: torch's timeout, prefetch_factor, worker_init_fn, multiprocessing_context, pin_memory, persistent_workers,
    collate_fn, num_workers. `generator` and `in_order=False` are refused.
    Raises ConfigError for what cannot be right, with what was expected and found, and StateError for a foreign state.
    """
    collate = _one(torchs, "collate_fn", "collate", collate, None)
    workers = _one(torchs, "num_workers", "workers", workers, "auto")
    rank, world_size = topology(rank, world_size)
    arguments = Arguments(
        batch_size=batch_size,
        shuffle=shuffle,
        seed=seed,
        drop_last=drop_last,
        tail=tail,
        weights=weights,
        balance=balance,
        replacement=replacement,
        num_draws=num_draws,
        lengths=lengths,
        batch_tokens=batch_tokens,
        longest_first=longest_first,
        multiple_of=getattr(collate, "pad_to_multiple_of", 1),
        sampler=sampler,
        batch_sampler=batch_sampler,
        training=training,
        world_size=world_size,
    )
    crew, why = _workers(dataset, workers, world_size)
    return Loader(
        dataset,
        arguments,
        rank=rank,
        collate=stack if collate is None else collate,
        seed_samples=_seeds(dataset) if seed_samples == "auto" else flag("seed_samples", seed_samples),
        num_workers=crew,
        why=why,
        device=device,
        model=model,
        verbose=flag("verbose", verbose),
        torchs=_passed(torchs, crew, chosen=workers == "auto"),
    )


def _one(torchs: dict[str, Any], theirs: str, ours: str, value: Any, unset: Any) -> Any:
    """An argument under torch's name or ours."""
    if theirs not in torchs:
        return value
    if value is not unset and value != unset:
        raise ConfigError(f"{ours}: expected one of {ours}= and {theirs}=, found both")
    return torchs.pop(theirs)


def _workers(dataset: Any, workers: int | Choice, world_size: int) -> tuple[int, str]:
    """(worker processes, why)."""
    if workers == "auto":
        return automatic(dataset, world_size)
    asked = integer("workers", workers, 0)
    why = f"as asked; {usable_cpus()[1]}"
    if asked > 1 and isinstance(dataset, IterableDataset):
        return 1, f"{asked} were asked, and an iterable dataset is read by one; {usable_cpus()[1]}"
    return asked, why


def _seeds(dataset: Any) -> bool:
    """Whether samples of this dataset may draw random numbers."""
    told = getattr(dataset, "seed_samples", None)
    if isinstance(told, bool):
        return told
    if isinstance(dataset, Subset):
        return _seeds(dataset.dataset)
    return not isinstance(dataset, TensorDataset | list | tuple | range | np.ndarray | Tensor)


def _passed(torchs: dict[str, Any], num_workers: int, *, chosen: bool) -> dict[str, Any]:
    """torch's own arguments, refused where they would undo what this loader is."""
    refused: dict[str, Callable[[Any], str]] = {
        "generator": lambda value: "" if value is None else "the order is a function of seed=, and no generator's state",
        "in_order": lambda value: "" if value is True else "batches come in their order: that is what makes a state exact",
        "pin_memory_device": lambda value: "" if not value else "device= says where batches go",
    }
    for name, why in refused.items():
        if name in torchs and (reason := why(value := torchs.pop(name))):
            raise ConfigError(f"{name}: expected torch's default, found {value!r}: {reason}")
    passed = {"pin_memory": torchs.pop("pin_memory", False), "persistent_workers": torchs.pop("persistent_workers", True)}
    for name, default in PASSED.items():
        value = torchs.pop(name, default)
        if num_workers or not chosen or name == "worker_init_fn":  # workers="auto" may choose 0, which none of them suits
            passed[name] = value
    if torchs:
        raise ConfigError(f"loader: expected arguments of its own or of torch's DataLoader, found {', '.join(sorted(torchs))}")
    return passed
