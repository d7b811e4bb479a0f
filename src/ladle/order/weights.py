"""Weighted draws: which sample is drawn at which place of an epoch, as a function of the seed and the place. Arrays only.

With replacement a draw is a number between 0 and the sum of the weights, looked up in their running sum (float64: 2**53
steps, where float32 stands still at 2**24). Without, an epoch is the samples in the order of -log(u) / weight (Efraimidis and
Spirakis, "Weighted random sampling with a reservoir", 2006): drawing one after another, each by its share of what is left.
"""

from __future__ import annotations

import hashlib
from functools import cached_property

import numpy as np
from numpy.typing import ArrayLike, NDArray

from ladle.errors import ConfigError
from ladle.order.permutation import I64, LARGEST, counter_hash, hash_key

F64 = NDArray[np.float64]


class Weighted:
    """Draws among n weighted samples, for every epoch. A sample of weight 0 is never drawn.

    Holds the weights and their running sum (8 bytes a sample each), or without replacement the order last used.
    May be shared between threads: what it remembers it replaces whole.
    """

    def __init__(
        self,
        weights: ArrayLike,
        seed: int,
        *,
        replacement: bool = True,
        num_draws: int | None = None,
        num_samples: int | None = None,
    ) -> None:
        """weights: [n], finite, none negative, some above 0; only their proportions count. seed: any integer.

        num_draws: draws an epoch; None: n with replacement, without it as many as there are weights above 0.
        num_samples: how many samples there are, where that is known: n must be it.
        Raises ConfigError for weights that cannot be right, naming the first, and for more draws than there are.
        """
        given = _checked(weights, num_samples)
        self.seed, self.replacement, self.num_samples = seed, replacement, given.size
        self.num_nonzero = int(np.count_nonzero(given))
        most = LARGEST if replacement else self.num_nonzero
        self.num_draws = min(self.num_samples, most) if num_draws is None else num_draws
        if not 1 <= self.num_draws <= most:
            told = "" if replacement else f" without replacement (so many of {self.num_samples} weights are above 0)"
            raise ConfigError(f"num_draws: expected 1 to {most}{told}, found {num_draws}")
        self._weights = given
        self._order: tuple[int | None, I64] = None, np.empty(0, dtype=np.int64)  # (epoch, order) last used without replacement

    def draws(self, epoch: int, first: int, count: int) -> I64:
        """The samples drawn at places [first, first + count) of an epoch: int64 [count], freshly owned.

        With replacement a draw costs the same wherever it stands; without, an epoch's first draw orders the epoch.
        """
        if not 0 <= first <= first + count <= self.num_draws:
            raise ConfigError(f"first, count: expected places in 0 to {self.num_draws}, found {first} to {first + count}")
        if not self.replacement:
            return self._ordered(epoch)[first : first + count].copy()
        places = np.arange(first, first + count, dtype=np.int64)
        words = counter_hash(places, hash_key("weighted", self.seed, epoch))
        return self.at((words >> np.uint64(11)).astype(np.float64) * 2.0**-53)

    def at(self, u: F64) -> I64:
        """The sample at each u in [0, 1) of the running sum. float64 [k] to int64 [k]."""
        wanted = u * self._sums[-1]  # below the sum for every u below 1: see the test
        ascending = np.argsort(wanted)  # neighbours share what they touch: several times faster than as they come
        found = np.empty(wanted.size, dtype=np.int64)
        found[ascending] = np.searchsorted(self._sums, wanted[ascending], side="right")
        return found

    @cached_property
    def _sums(self) -> F64:
        return np.cumsum(self._shares())

    def _shares(self) -> F64:
        """The weights in parts of the largest: so no sum overflows, and no product is lost near 0."""
        shares: F64 = self._weights / self._weights.max()
        return shares

    def _ordered(self, epoch: int) -> I64:
        """All samples above 0 in the order of an epoch without replacement. Read-only by custom.

        Machines whose logarithms differ in the last bit may, once in many epochs, exchange two neighbours.
        """
        known, order = self._order
        if known != epoch:
            samples = np.flatnonzero(self._weights)
            words = counter_hash(samples, hash_key("weighted order", self.seed, epoch))
            u = ((words >> np.uint64(12)) + 0.5) * 2.0**-52  # never 0, never 1
            order = samples[
                np.argsort(np.log(-np.log(u)) - np.log(self._weights[samples]))
            ]  # of the key's logarithm: no overflow
            self._order = epoch, order
        return order

    @cached_property
    def expected_distinct(self) -> float:
        """How many different samples an epoch is expected to hold: the sum of 1 - (1 - p)**num_draws."""
        if not self.replacement:
            return float(self.num_draws)
        with np.errstate(divide="ignore"):  # one sample alone: p = 1, log(0)
            return float(-np.expm1(self.num_draws * np.log1p(-self._shares() / self._sums[-1])).sum())

    @cached_property
    def fingerprint(self) -> str:
        """32 hexadecimal digits of the weights' proportions, for a recipe."""
        return hashlib.blake2b(self._shares().astype("<f8", copy=False).data, digest_size=16).hexdigest()

    def __str__(self) -> str:
        said = "with" if self.replacement else "without"
        return (
            f"an epoch is {self.num_draws:,} draws {said} replacement, about {round(self.expected_distinct):,} distinct samples"
        )


def class_weights(labels: ArrayLike) -> F64:
    """A weight for each sample, 1 / (samples of its label), so that every label that is there is drawn equally often.

    labels: [n] of anything that can be ordered: integers, texts. Returns float64 [n]. Raises ConfigError for none, for labels
    that are not one a sample, and for floating-point labels that are not numbers.
    """
    array = np.asarray(labels)
    if array.ndim != 1 or not array.size:
        raise ConfigError(f"labels: expected one label a sample, found an array of shape {array.shape}")
    if array.dtype.kind == "f" and np.isnan(array).any():
        raise ConfigError(f"labels: expected a label for every sample, found nan for sample {int(np.isnan(array).argmax())}")
    if array.dtype.kind in "iub" and 0 <= int(array.min()) <= int(array.max()) < 2 * array.size + 2**16:
        which = array.astype(np.int64)  # small numbers are counted, not sorted
    else:
        try:
            which = np.unique(array, return_inverse=True)[1]
        except TypeError as error:
            raise ConfigError(f"labels: expected labels of one kind, found a mixture ({error})") from None
    counts: F64 = np.bincount(which).astype(np.float64)
    return 1.0 / counts[which]


def _checked(weights: ArrayLike, num_samples: int | None) -> F64:
    try:
        array = np.array(weights, dtype=np.float64)  # a copy of our own
    except (TypeError, ValueError):
        raise ConfigError(f"weights: expected numbers, found {type(weights).__name__} of something else") from None
    if array.ndim != 1 or not array.size:
        raise ConfigError(f"weights: expected one weight a sample, found an array of shape {array.shape}")
    if num_samples is not None and array.size != num_samples:
        raise ConfigError(f"weights: expected one for each of {num_samples} samples, found {array.size}")
    wrong = ~(np.isfinite(array) & (array >= 0))
    if wrong.any():
        at = int(wrong.argmax())
        raise ConfigError(f"weights: expected finite numbers from 0, found {array[at]} for sample {at}")
    if not array.any():
        raise ConfigError(f"weights: expected some above 0, found {array.size} of 0")
    return array
