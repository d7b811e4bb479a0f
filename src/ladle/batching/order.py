"""Which sample stands at which place of an epoch: the orders that a loader can follow. Integers only; no torch.

An order of samples (`SampleOrder`) says what stands at each place, and the loader cuts batches from it; an order of batches
(`BatchOrder`) is cut already. Both are functions of the epoch and the place: they remember, but nothing depends on it.

`repeats`: whether a sample may come more than once in an epoch. `replayed`: whether epochs may differ in size and have to be
replayed from the first; the state of such an order names its epoch.
"""

# ruff: noqa: ARG002  orders of one size take an epoch all the same

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

import numpy as np

from ladle.errors import ConfigError
from ladle.order.permutation import I64, epoch_key, permute
from ladle.order.weights import Weighted
from ladle.rows.buckets import Buckets


class SampleOrder(Protocol):
    """Samples one by one."""

    repeats: bool
    replayed: bool

    def size(self, epoch: int) -> int:
        """Places of an epoch."""

    def indices(self, epoch: int, first: int, count: int) -> I64:
        """The samples at places [first, first + count) of an epoch: int64 [count], freshly owned."""

    def recipe(self) -> dict[str, object]:
        """What decides the order, as plain JSON values, "kind" among them. No batch size, no ranks."""


class BatchOrder(Protocol):
    """Batches of all ranks together, each of its own size."""

    repeats: bool
    replayed: bool

    def size(self, epoch: int) -> int:
        """Places of an epoch, those of samples that are left out included."""

    def num_batches(self, epoch: int) -> int:
        """Batches of an epoch."""

    def batch(self, epoch: int, number: int) -> I64:
        """The samples of a batch: int64 [its size], freshly owned."""

    def samples_before(self, epoch: int, number: int) -> int:
        """Samples in the batches before that one; number may be num_batches."""

    def batch_at(self, epoch: int, samples: int) -> int:
        """The inverse: the batch that holds sample number `samples` of an epoch; num_batches where all are before it."""

    def recipe(self) -> dict[str, object]:
        """As SampleOrder's; the batch's size belongs to it."""


class Sequential:
    """The samples as they lie."""

    repeats, replayed = False, False

    def __init__(self, num_samples: int) -> None:
        self._num_samples = num_samples

    def size(self, epoch: int) -> int:
        """Places of an epoch: the samples."""
        return self._num_samples

    def indices(self, epoch: int, first: int, count: int) -> I64:
        """The places themselves."""
        return np.arange(first, first + count, dtype=np.int64)

    def recipe(self) -> dict[str, object]:
        """See SampleOrder."""
        return {"kind": "sequential"}


class Shuffled:
    """Every sample once an epoch, in a fresh order each time. No memory grows with their number."""

    repeats, replayed = False, False

    def __init__(self, num_samples: int, seed: int) -> None:
        self._num_samples, self._seed = num_samples, seed

    def size(self, epoch: int) -> int:
        """Places of an epoch: the samples."""
        return self._num_samples

    def indices(self, epoch: int, first: int, count: int) -> I64:
        """See SampleOrder. Source: SPEC.md section 4."""
        return permute(np.arange(first, first + count, dtype=np.int64), self._num_samples, epoch_key(self._seed, epoch))

    def recipe(self) -> dict[str, object]:
        """See SampleOrder."""
        return {"kind": "shuffled", "seed": self._seed}


class Drawn:
    """Weighted draws."""

    replayed = False

    def __init__(self, weighted: Weighted) -> None:
        self.weighted, self.repeats = weighted, weighted.replacement

    def size(self, epoch: int) -> int:
        """Draws of an epoch."""
        return self.weighted.num_draws

    def indices(self, epoch: int, first: int, count: int) -> I64:
        """See Weighted.draws."""
        return self.weighted.draws(epoch, first, count)

    def recipe(self) -> dict[str, object]:
        """See SampleOrder."""
        told = self.weighted
        return {
            "kind": "weighted",
            "seed": told.seed,
            "weights": told.fingerprint,
            "draws": told.num_draws,
            "replacement": told.replacement,
        }


class Function:
    """A user's function (seed, epoch, position) -> sample, asked once for each place."""

    repeats, replayed = True, False

    def __init__(self, function: Callable[[int, int, int], int], num_samples: int, seed: int) -> None:
        self._function, self._num_samples, self._seed = function, num_samples, seed

    def size(self, epoch: int) -> int:
        """Places of an epoch: as many as there are samples."""
        return self._num_samples

    def indices(self, epoch: int, first: int, count: int) -> I64:
        """What the function says. Raises ConfigError for what is no sample."""
        found = [self._function(self._seed, epoch, place) for place in range(first, first + count)]
        return checked(found, self._num_samples, f"sampler: of epoch {epoch}, from position {first} on")

    def recipe(self) -> dict[str, object]:
        """The function is known by its name: what it does cannot be compared."""
        return {"kind": "function", "seed": self._seed, "function": getattr(self._function, "__qualname__", "")}


class Bucketed:
    """Batches of samples of like length."""

    repeats, replayed = False, False

    def __init__(self, buckets: Buckets) -> None:
        self.buckets = buckets

    def size(self, epoch: int) -> int:
        """The samples."""
        return int(self.buckets.lengths.size)

    def num_batches(self, epoch: int) -> int:
        """See BatchOrder."""
        return self.buckets.num_batches

    def batch(self, epoch: int, number: int) -> I64:
        """See Buckets.batch."""
        return self.buckets.batch(epoch, number)

    def samples_before(self, epoch: int, number: int) -> int:
        """See Buckets.samples_before."""
        return self.buckets.samples_before(epoch, number)

    def batch_at(self, epoch: int, samples: int) -> int:
        """See Buckets.batch_at."""
        return self.buckets.batch_at(epoch, samples)

    def recipe(self) -> dict[str, object]:
        """See BatchOrder. The sizes are those of all ranks together."""
        told = self.buckets
        settings = ("seed", "shuffle", "longest_first", "tail", "batch_size", "batch_tokens", "multiple_of")
        return {"kind": "buckets", "lengths": told.fingerprint, **{name: getattr(told, name) for name in settings}}


def checked(found: object, num_samples: int, where: str) -> I64:
    """Somebody else's indices as int64 [k]. Raises ConfigError naming the first that is no sample."""
    try:
        array = np.asarray(found)
    except ValueError:  # of unequal lengths
        array = np.empty((0, 0))
    if array.ndim != 1 or (array.size and array.dtype.kind not in "iu"):
        raise ConfigError(f"{where}: expected integers, one a sample, found {found!r:.80}")
    indices = array.astype(np.int64)
    wrong = (indices < 0) | (indices >= num_samples)
    if wrong.any():
        at = int(wrong.argmax())
        raise ConfigError(f"{where}: expected samples from 0 to {num_samples - 1}, found {indices[at]} as number {at}")
    return indices
