"""Orders that only their past explains: torch's samplers, and batches that a function or a batch sampler gives.

An epoch is drawn whole, under global generators seeded by (seed, epoch), so that a sampler without a generator of its own is a
function of the epoch. One with a state of its own is replayed from its beginning: that is what resuming it costs.
"""

from __future__ import annotations

import copy
import random
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import numpy as np
import torch

from ladle.batching.keyed import seeded
from ladle.batching.order import checked
from ladle.errors import ConfigError
from ladle.order.permutation import I64

BatchFunction = Callable[[int, int, int], Sequence[int] | None]


class Replay:
    """The samples of a torch Sampler, or of anything that can be iterated again and again. An epoch's indices are held."""

    repeats, replayed = True, True

    def __init__(self, sampler: Iterable[int], num_samples: int, seed: int) -> None:
        self._source, self._num_samples, self._seed = _Source(sampler, seed, "sampler"), num_samples, seed
        self._held: dict[int, I64] = {}

    def size(self, epoch: int) -> int:
        """As many as the sampler gave."""
        return int(self._epoch(epoch).size)

    def indices(self, epoch: int, first: int, count: int) -> I64:
        """See SampleOrder."""
        return self._epoch(epoch)[first : first + count].copy()

    def recipe(self) -> dict[str, object]:
        """The sampler is known by its type: what it does cannot be compared."""
        return {"kind": "sampler", "seed": self._seed, "sampler": self._source.name}

    def _epoch(self, epoch: int) -> I64:
        if epoch not in self._held:
            drawn = list(self._source.epoch(epoch))
            indices = checked(drawn, self._num_samples, f"sampler: in epoch {epoch}")
            if not indices.size:
                raise ConfigError(f"sampler: expected at least one index in every epoch, found none in epoch {epoch}")
            _hold(self._held, epoch, indices)
        return self._held[epoch]


class ReplayedBatches:
    """The batches of a batch sampler, or of a function (seed, epoch, number) -> indices; none, or None, ends its epoch.

    Such a batch is one of all ranks together.
    """

    repeats, replayed = True, True

    def __init__(self, batches: Iterable[Sequence[int]] | BatchFunction, num_samples: int, seed: int, at_least: int) -> None:
        """at_least: samples that every batch must have, one for each rank."""
        self._function: BatchFunction | None = None
        if isinstance(batches, Iterable):
            self._source = _Source(batches, seed, "batch_sampler")
        else:
            self._function, self._source = batches, _Source((), seed, "batch_sampler")
        self._num_samples, self._seed, self._at_least = num_samples, seed, at_least
        self._held: dict[int, tuple[I64, I64]] = {}  # (indices one after the other, where each batch begins and the last ends)

    def size(self, epoch: int) -> int:
        """Samples of all its batches."""
        return int(self._epoch(epoch)[1][-1])

    def num_batches(self, epoch: int) -> int:
        """See BatchOrder."""
        return int(self._epoch(epoch)[1].size) - 1

    def batch(self, epoch: int, number: int) -> I64:
        """See BatchOrder."""
        indices, edges = self._epoch(epoch)
        return indices[edges[number] : edges[number + 1]].copy()

    def samples_before(self, epoch: int, number: int) -> int:
        """See BatchOrder."""
        return int(self._epoch(epoch)[1][number])

    def batch_at(self, epoch: int, samples: int) -> int:
        """See BatchOrder."""
        return int(np.searchsorted(self._epoch(epoch)[1], samples, side="right")) - 1

    def recipe(self) -> dict[str, object]:
        """The source is known by its name: what it does cannot be compared."""
        name = getattr(self._function, "__qualname__", "") if self._function else self._source.name
        return {"kind": "batches", "seed": self._seed, "batch_sampler": name}

    def _epoch(self, epoch: int) -> tuple[I64, I64]:
        if epoch not in self._held:
            where = f"batch_sampler: in epoch {epoch}"
            batches = [checked(batch, self._num_samples, where) for batch in self._drawn(epoch)]
            if not batches:
                raise ConfigError(f"batch_sampler: expected at least one batch in every epoch, found none in epoch {epoch}")
            sizes = np.array([batch.size for batch in batches], dtype=np.int64)
            if int(sizes.min()) < self._at_least:
                raise ConfigError(
                    f"{where}: expected at least {self._at_least} samples a batch (one for each rank), "
                    f"found {sizes.min()} in batch {sizes.argmin()}"
                )
            _hold(self._held, epoch, (np.concatenate(batches), np.concatenate([np.zeros(1, dtype=np.int64), np.cumsum(sizes)])))
        return self._held[epoch]

    def _drawn(self, epoch: int) -> Iterable[Any]:
        if self._function is None:
            yield from self._source.epoch(epoch)
            return
        number = 0
        while (batch := self._function(self._seed, epoch, number)) is not None and len(batch):
            yield batch
            number += 1


class _Source:
    """Something that can be iterated once an epoch, and begun again from its first."""

    def __init__(self, source: Iterable[Any], seed: int, name: str) -> None:
        _refuse(source, name)
        self._seed, self.name = seed, type(source).__name__
        self._pristine = _twin(source)  # the caller's own is never moved
        self._source, self._next = _twin(self._pristine), 0

    def epoch(self, epoch: int) -> list[Any]:
        """All it gives in that epoch, after a replay of those between."""
        if epoch < self._next:
            self._source, self._next = _twin(self._pristine), 0
        while True:
            now, self._next = self._next, self._next + 1
            if hasattr(self._source, "set_epoch"):
                self._source.set_epoch(now)
            with seeded("sampler", self._seed, now):
                drawn = list(self._source)
            if now == epoch:
                return drawn


def _refuse(source: Any, name: str) -> None:
    if not isinstance(source, Iterable):
        raise ConfigError(
            f"{name}: expected a torch Sampler, or a function (seed, epoch, position) -> index, found {type(source).__name__}"
        )
    if (replicas := getattr(source, "num_replicas", 1)) > 1:
        raise ConfigError(
            f"{name}: expected the samples of all ranks together, found a {type(source).__name__} for one of "
            f"{replicas}: ranks are the loader's business (shuffle=True, or rank= and world_size=)"
        )


def _twin(source: Any) -> Any:
    """A copy with random generators of its own, and the same dataset. What holds other samplers gets twins of those."""
    if isinstance(source, Iterator):
        return source  # one epoch is all it has, and the next says so
    if not hasattr(source, "__dict__"):
        return source
    twin = copy.copy(source)
    for name, value in vars(source).items():
        if isinstance(value, torch.Generator):
            clone = torch.Generator()
            clone.set_state(value.get_state())
            vars(twin)[name] = clone
        elif isinstance(value, np.random.Generator | np.random.RandomState | random.Random):
            vars(twin)[name] = copy.deepcopy(value)
        elif isinstance(value, torch.utils.data.Sampler):
            vars(twin)[name] = _twin(value)
    return twin


def _hold(held: dict[int, Any], epoch: int, drawn: Any) -> None:
    """Keep the last two epochs: the next one's first batches are asked for before this one ends."""
    held[epoch] = drawn
    for old in sorted(held, key=lambda known: abs(known - epoch))[2:]:
        del held[old]
