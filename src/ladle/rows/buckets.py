"""Length buckets: batches of samples of like length, in an order that is a function of the place. Arrays only, no files.

The samples are sorted once by length, the longest first, and cut into buckets; a bucket's samples are dealt into its batches by
one keyed permutation, and all batches of an epoch follow each other by another. So lengths are random in the large, and alike
in a batch. A bucket ends where the length has fallen by one part in FALL, but holds LEAST batches or more, and what would be left
over for a smaller one goes into the last.
"""

from __future__ import annotations

import hashlib
from functools import cached_property
from typing import Literal, TypeVar

import numpy as np
from numpy.typing import ArrayLike

from ladle.errors import ConfigError
from ladle.order.permutation import I64, LARGEST, hash_key, permute

Padded = TypeVar("Padded", int, I64)
Tail = Literal["short", "even", "drop"]
TAILS: tuple[Tail, ...] = ("short", "even", "drop")
LEAST = 4  # batches of a bucket, so that which samples meet is random
FALL = 32  # a bucket's lengths lie within one part in so many, where LEAST batches do


class Buckets:
    """Batches of n samples by their lengths, for every epoch: each sample once.

    Holds the samples' lengths and order (16 bytes a sample) and, for the epochs last used, the order of the batches.
    May be shared between threads: what it remembers it replaces whole.
    """

    def __init__(
        self,
        lengths: ArrayLike,
        *,
        batch_size: int | None = None,
        batch_tokens: int | None = None,
        seed: int,
        shuffle: bool = True,
        longest_first: bool = False,
        multiple_of: int = 1,
        tail: Tail = "short",
        at_least: int = 1,
        num_samples: int | None = None,
    ) -> None:
        """lengths: integers [n], none negative. batch_size: samples a batch; batch_tokens: what a batch may hold once each
        sample is padded to its longest, rounded up to a multiple of `multiple_of`. One of the two, or both: the smaller counts.

        shuffle: False gives the batches from the longest to the shortest, the same in every epoch.
        longest_first: epoch 0 begins with the batch that holds the longest sample, so that too little memory shows at once.
        tail: what becomes of samples that fill no batch: a "short" one (one an epoch), batches of the last bucket made "even"
        (none larger than it would be), or "drop": left out, others each epoch.
        at_least: samples that every batch must have (one for each rank). num_samples: n, where it is known.
        Raises ConfigError for lengths that cannot be right, a sample longer than batch_tokens, and a batch below at_least.
        """
        self.lengths = _checked(lengths, num_samples)
        self.seed, self.shuffle, self.longest_first, self.tail = seed, shuffle, longest_first, tail
        self.batch_size, self.batch_tokens, self.multiple_of = batch_size, batch_tokens, multiple_of
        self._check()
        self._sorted = _longest_first(self.lengths)
        self._cut()
        self.require(at_least)
        self._epochs: tuple[tuple[int, I64, I64], ...] = ()  # (epoch, batch at each place, samples before each place)

    def require(self, at_least: int) -> None:
        """Raise ConfigError, naming what to set, where a batch has fewer samples."""
        sizes = np.diff(self._edges)
        if not sizes.size or int(sizes.min()) < at_least:
            self._refuse(at_least)

    # --- the batches ---

    def batch(self, epoch: int, number: int) -> I64:
        """The samples of batch `number` of an epoch: int64 [its size], freshly owned. 0 <= number < num_batches."""
        if not 0 <= number < self.num_batches:
            raise ConfigError(f"number: expected a batch from 0 to {self.num_batches - 1}, found {number}")
        return self._members(epoch, int(self._epoch(epoch)[0][number]))

    def samples_before(self, epoch: int, number: int) -> int:
        """Samples in the batches before batch `number` of an epoch; number may be num_batches."""
        return int(self._epoch(epoch)[1][number])

    def sizes(self, epoch: int) -> I64:
        """How many samples each batch of an epoch has, in their order: int64 [num_batches]."""
        return np.diff(self._epoch(epoch)[1])

    def batch_at(self, epoch: int, samples: int) -> int:
        """The inverse: the batch that holds sample number `samples` of an epoch; num_batches where all are before it."""
        return int(np.searchsorted(self._epoch(epoch)[1], samples, side="right")) - 1

    def places(self, epoch: int, samples: I64) -> I64:
        """The inverse of all: where in an epoch these samples stand, int64 [k]; those that it drops are left out."""
        order, before = self._epoch(epoch)
        slots = self._rank[samples]
        if self.shuffle:
            buckets = np.searchsorted(self._bounds, slots, side="right") - 1
            for bucket in np.unique(buckets).tolist():
                low, high = int(self._bounds[bucket]), int(self._bounds[bucket + 1])
                mine = buckets == bucket
                slots[mine] = low + permute(slots[mine] - low, high - low, self._key(epoch, bucket), inverse=True)
        slots = slots[slots < self._edges[-1]]
        batches = np.searchsorted(self._edges, slots, side="right") - 1
        number = np.empty_like(order)
        number[order] = np.arange(order.size)
        places: I64 = before[number[batches]] + slots - self._edges[batches]
        return places

    @cached_property
    def _rank(self) -> I64:
        """Where each sample stands in the sorted order."""
        rank = np.empty_like(self._sorted)
        rank[self._sorted] = np.arange(rank.size)
        return rank

    def _key(self, epoch: int, bucket: int) -> int:
        return hash_key("bucket", self.seed, epoch, bucket)

    def _epoch(self, epoch: int) -> tuple[I64, I64]:
        for known, order, before in self._epochs:
            if known == epoch:
                return order, before
        order = np.arange(self.num_batches, dtype=np.int64)
        if self.shuffle:
            order = permute(order, self.num_batches, hash_key("batches", self.seed, epoch))
        if self.longest_first and epoch == 0:
            longest = self._batch_of_longest(epoch)
            place = int(np.flatnonzero(order == longest)[0])
            order[place], order[0] = order[0], longest
        before = np.zeros(self.num_batches + 1, dtype=np.int64)
        np.cumsum(np.diff(self._edges)[order], out=before[1:])
        self._epochs = ((epoch, order, before), *self._epochs[:1])  # two: an epoch's border is asked for from both sides
        return order, before

    def _members(self, epoch: int, batch: int) -> I64:
        first, last = self._edges[batch], self._edges[batch + 1]
        places = np.arange(first, last, dtype=np.int64)
        if self.shuffle:
            bucket = int(np.searchsorted(self._first_batch, batch, side="right")) - 1
            low, high = int(self._bounds[bucket]), int(self._bounds[bucket + 1])
            places = low + permute(places - low, high - low, self._key(epoch, bucket))
        return self._sorted[places]

    def _batch_of_longest(self, epoch: int) -> int:
        slot = 0
        if self.shuffle:
            slot = int(permute(0, int(self._bounds[1]), self._key(epoch, 0), inverse=True))
        return min(int(np.searchsorted(self._edges, slot, side="right")) - 1, self.num_batches - 1)

    # --- what is known of them ---

    @property
    def num_batches(self) -> int:
        """Batches an epoch, the same in each."""
        return self._edges.size - 1

    @property
    def num_samples(self) -> int:
        """Samples an epoch hands out: n, or less with tail="drop"."""
        return int(self._edges[-1])

    @property
    def largest(self) -> int:
        """Samples of the largest batch."""
        return int(np.diff(self._edges).max())

    @property
    def num_buckets(self) -> int:
        """How many."""
        return self._bounds.size - 1

    def padded_lengths(self, epoch: int = 0) -> I64:
        """What each batch of an epoch is padded to, in their order: int64 [num_batches]."""
        found = np.empty(self.num_batches, dtype=np.int64)
        for bucket in range(self.num_buckets):
            first, last = int(self._first_batch[bucket]), int(self._first_batch[bucket + 1])
            edges = self._edges[first : last + 1] - self._bounds[bucket]
            lengths = self.lengths[self._dealt(epoch, bucket)[: edges[-1]]]
            found[first:last] = np.maximum.reduceat(lengths, edges[:-1])
        return self._padded(found[self._epoch(epoch)[0]])

    def padding_share(self, epoch: int = 0) -> float:
        """The share of an epoch's places, each sample padded to its batch's longest, that hold no token."""
        slots = int((self.padded_lengths(epoch) * self.sizes(epoch)).sum())
        dropped = self._dealt(epoch, self.num_buckets - 1)[self.num_samples - int(self._bounds[-2]) :]
        return 1 - int(self.lengths.sum() - self.lengths[dropped].sum()) / slots if slots else 0.0

    def _dealt(self, epoch: int, bucket: int) -> I64:
        """A bucket's samples in the order of an epoch."""
        low, high = int(self._bounds[bucket]), int(self._bounds[bucket + 1])
        places = np.arange(high - low, dtype=np.int64)
        if self.shuffle:
            places = permute(places, high - low, self._key(epoch, bucket))
        return self._sorted[low + places]

    @cached_property
    def fingerprint(self) -> str:
        """32 hexadecimal digits of the lengths, for a recipe."""
        return hashlib.blake2b(self.lengths.astype("<i8", copy=False).data, digest_size=16).hexdigest()

    # --- the cut ---

    def _cut(self) -> None:
        """_bounds: where in the sorted order buckets begin; _first_batch: their first batches; _edges: where batches begin.

        All end with what follows the last.
        """
        falling = self.lengths[self._sorted]
        n, rising = falling.size, falling[::-1].copy()
        bounds, edges, first_batch = [0], [np.zeros(1, dtype=np.int64)], [0]
        while (low := bounds[-1]) < n:
            size = self._batch_size(int(falling[low]))
            alike = n - int(np.searchsorted(rising, int(falling[low]) * (FALL - 1) // FALL, side="left")) - low
            many = max(-(-alike // size), LEAST)
            last = low + many * size
            if last >= n or n - last < LEAST * self._batch_size(int(falling[last])):
                last, (batches, borders) = n, self._batches_of_last(n - low, size)
            else:
                batches, borders = many, size * np.arange(1, many + 1, dtype=np.int64)
            edges.append(low + borders)
            bounds.append(last)
            first_batch.append(first_batch[-1] + batches)
        self._bounds, self._first_batch = np.array(bounds, dtype=np.int64), np.array(first_batch, dtype=np.int64)
        self._edges: I64 = np.concatenate(edges)

    def _batches_of_last(self, samples: int, size: int) -> tuple[int, I64]:
        """(batches of the last bucket, where they end)."""
        batches = samples // size if self.tail == "drop" else -(-samples // size)
        number = np.arange(1, batches + 1, dtype=np.int64)
        return batches, number * samples // batches if self.tail == "even" else np.minimum(number * size, samples)

    def _batch_size(self, longest: int) -> int:
        size = self.lengths.size if self.batch_size is None else self.batch_size
        return size if self.batch_tokens is None else min(size, self.batch_tokens // max(self._padded(longest), 1))

    def _padded(self, length: Padded) -> Padded:
        return -(-length // self.multiple_of) * self.multiple_of

    # --- refusals ---

    def _check(self) -> None:
        if self.batch_size is None and self.batch_tokens is None:
            raise ConfigError("batch_size, batch_tokens: expected one of them, or both, found neither")
        for name in ("batch_size", "batch_tokens", "multiple_of"):
            value = getattr(self, name)
            if value is not None and not 1 <= value <= LARGEST:
                raise ConfigError(f"{name}: expected 1 to 2**62, found {value}")
        if self.tail not in TAILS:
            raise ConfigError(f"tail: expected one of {', '.join(TAILS)}, found {self.tail!r}")
        at = int(self.lengths.argmax())
        longest = int(self.lengths[at])
        if self.batch_tokens is not None and self._batch_size(longest) < 1:
            told = "" if self.multiple_of == 1 else f", {self._padded(longest)} once padded to a multiple of {self.multiple_of}"
            raise ConfigError(
                f"batch_tokens: expected at least the longest sample's {longest}{told} (sample {at}), found {self.batch_tokens}"
            )

    def _refuse(self, at_least: int) -> None:
        """Say why a batch is smaller than at_least, and what to set."""
        sizes, n = np.diff(self._edges), self.lengths.size
        if not sizes.size:
            raise ConfigError(
                f"batch_size: expected at most {n} samples where the rest is dropped, found {self.batch_size or n + 1}"
            )
        batch = int(sizes.argmin())
        first = int(self._edges[batch])
        bucket = int(np.searchsorted(self._first_batch, batch, side="right")) - 1
        longest = int(self.lengths[self._sorted[self._bounds[bucket]]])
        size, short = self._batch_size(longest), f"a batch of {int(sizes[batch])}"
        needs = f"at least {at_least} samples a batch (one for each rank)"
        if size >= at_least:
            hint = "" if self.tail == "even" else f": what is left over ({n - first}); make the last ones even, or drop it"
            raise ConfigError(f"lengths: expected {needs}, found {short}{hint}")
        if self.batch_size is not None and self.batch_size < at_least:
            raise ConfigError(f"batch_size: expected {needs}, found {self.batch_size}")
        raise ConfigError(
            f"batch_tokens: expected {needs}: {at_least * self._padded(longest)} or more for samples of length {longest}, "
            f"found {self.batch_tokens} ({short})"
        )


def _checked(lengths: ArrayLike, num_samples: int | None) -> I64:
    array = np.asarray(lengths)
    if array.ndim != 1 or not array.size:
        raise ConfigError(f"lengths: expected one length a sample, found an array of shape {array.shape}")
    if array.dtype.kind not in "iu":
        raise ConfigError(f"lengths: expected integers, found {array.dtype}")
    if num_samples is not None and array.size != num_samples:
        raise ConfigError(f"lengths: expected one for each of {num_samples} samples, found {array.size}")
    at = int(array.argmin())
    if array[at] < 0 or int(array.max()) > LARGEST:
        raise ConfigError(f"lengths: expected 0 to 2**62, found {array.min()} to {array.max()}; the shortest is sample {at}")
    return array.astype(np.int64)


def _longest_first(lengths: I64) -> I64:
    """The samples by falling length; among equals as they lie."""
    behind = int(lengths.max()) - lengths
    return np.argsort(behind.astype(np.uint16) if int(behind.max()) < 2**16 else behind, kind="stable")  # 16 bits by radix
