"""The endless walk over an order's batches: what is asked for next, and where the consumer stands once it has it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple, Protocol

import numpy as np

from ladle.batching.order import BatchOrder, SampleOrder
from ladle.batching.tail import Cut
from ladle.errors import ConfigError
from ladle.order.permutation import I64

BLOCK = 4096  # places planned at once; a permutation's cost is per call below that


@dataclass(frozen=True, slots=True)
class Place:
    """Where one stands. epoch; start: samples of all epochs before it; offset: samples of it that are handed out."""

    epoch: int = 0
    start: int = 0
    offset: int = 0

    @property
    def position(self) -> int:
        """Samples since the start, all ranks together."""
        return self.start + self.offset


class Step(NamedTuple):
    """One global batch. samples: int64 [k], of all ranks. numbers: int64 [k], each used once in a run. after: where it leads."""

    epoch: int
    samples: I64
    numbers: I64
    after: Place
    last: bool


class Request(NamedTuple):
    """What a worker is told. samples, numbers: int64 [k], this rank's. lengths: int64 [k], what the caller said they are."""

    number: int
    epoch: int
    samples: I64
    numbers: I64
    lengths: I64 | None = None


class Asked(NamedTuple):
    """What is known of a batch that was asked for. weight: its samples on this rank over a full batch's."""

    epoch: int
    after: Place
    last: bool
    weight: float


class Course(Protocol):
    """An order, cut into global batches."""

    replayed: bool

    def step(self, place: Place) -> Step | None:
        """The batch that begins there, or None where the epoch has no more."""

    def size(self, epoch: int) -> int:
        """Places of an epoch."""

    def batches(self, epoch: int) -> int:
        """Batches of a whole epoch."""

    def recipe(self) -> dict[str, object]:
        """The order's."""

    def refuse(self, place: Place) -> str:
        """Why one cannot go on from there, or nothing."""


class Sliced:
    """A SampleOrder, cut as it goes. One walk at a time: it plans ahead."""

    def __init__(self, order: SampleOrder, cut: Cut) -> None:
        self.order, self.cut, self.replayed = order, cut, order.replayed
        self.size, self.recipe = order.size, order.recipe
        self._epoch, self._first, self._block = -1, 0, np.empty(0, dtype=np.int64)

    def step(self, place: Place) -> Step | None:
        """See Course."""
        size = self.size(place.epoch)
        count = self.cut.first(size - place.offset, size)
        if not count:
            return None
        samples = self._samples(place.epoch, place.offset, count, size)
        places = np.arange(place.offset, place.offset + count, dtype=np.int64)
        after = place.offset + count
        last = not self.cut.first(size - after, size)
        numbers = place.start + (places if self.order.repeats else samples)
        return Step(place.epoch, samples, numbers, _after(place, after, size if last else None), last)

    def batches(self, epoch: int) -> int:
        """See Course."""
        size = self.size(epoch)
        return self.cut.batches(size, size)

    def refuse(self, place: Place) -> str:
        """Samples that every rank needs one of, and there are fewer."""
        size = self.size(place.epoch)
        left = size - place.offset
        if not self.cut.too_few(left, size):
            return ""
        return f"{left} samples are left of epoch {place.epoch}, fewer than the {self.cut.ranks} ranks"

    def _samples(self, epoch: int, first: int, count: int, size: int) -> I64:
        begin, end = self._first, self._first + self._block.size
        follows = epoch == self._epoch and begin <= first <= end
        if not follows or first + count > end:  # the first block is one batch, for a fast start
            ahead = min(max(count, BLOCK), size - first) if follows else count
            self._epoch, self._first, self._block = epoch, first, self.order.indices(epoch, first, ahead)
        low = first - self._first
        return self._block[low : low + count]


class Given:
    """A BatchOrder, as it is."""

    def __init__(self, order: BatchOrder) -> None:
        self.order, self.replayed = order, order.replayed
        self.size, self.recipe, self.batches = order.size, order.recipe, order.num_batches

    def step(self, place: Place) -> Step | None:
        """See Course."""
        number = self.order.batch_at(place.epoch, place.offset)
        if number >= (batches := self.batches(place.epoch)):
            return None
        samples = self.order.batch(place.epoch, number)
        last = number + 1 == batches
        places = np.arange(place.offset, place.offset + samples.size, dtype=np.int64)
        numbers = place.start + (places if self.order.repeats else samples)
        after = place.offset + samples.size
        return Step(place.epoch, samples, numbers, _after(place, after, self.size(place.epoch) if last else None), last)

    def refuse(self, place: Place) -> str:
        """The middle of a batch."""
        number = self.order.batch_at(place.epoch, place.offset)
        begins = self.order.samples_before(place.epoch, number)
        whole = place.offset in {begins, self.size(place.epoch)}
        return "" if whole else f"it lies inside batch {number} of epoch {place.epoch}, which begins at sample {begins}"


class Walk:
    """Iterating gives the requests of one rank, for ever."""

    def __init__(
        self, course: Course, place: Place, *, rank: int, world_size: int, batch: float, lengths: I64 | None, repeat: bool
    ) -> None:
        """batch: samples of a full batch, all ranks together. repeat: epoch 0 again and again, for evaluation."""
        self._asked: dict[int, Asked] = {}
        self._course, self._place, self._repeat = course, place, repeat
        self._rank, self._world_size, self._batch, self._lengths = rank, world_size, batch, lengths
        self._number = 0

    def __iter__(self) -> Iterator[Request]:
        return self

    def __next__(self) -> Request:
        step = self._step()
        after = Place() if self._repeat and step.last else step.after
        self._place = after
        low, high = (step.samples.size * edge // self._world_size for edge in (self._rank, self._rank + 1))
        samples, number = step.samples[low:high], self._number
        self._number += 1
        weight = samples.size * self._world_size / self._batch
        self._asked[number] = Asked(step.epoch, after, step.last, weight)
        lengths = None if self._lengths is None else self._lengths[samples]
        return Request(number, step.epoch, samples, step.numbers[low:high], lengths)

    def received(self, number: int, total: int | None) -> Asked:  # noqa: ARG002  as StreamWalk's
        """What is known of a batch, now that it is here."""
        return self._asked.pop(number)

    def _step(self) -> Step:
        place = self._place
        if (step := self._course.step(place)) is not None:
            return step
        after = _after(place, place.offset, self._course.size(place.epoch))
        if (step := self._course.step(Place() if self._repeat else after)) is None:
            raise ConfigError(f"loader: expected at least one batch in epoch {after.epoch}, found none")
        return step


@dataclass(kw_only=True)
class Paths:
    """The walks of one rank over a course, from any place, and the place where the consumer stands.

    rows: samples of a full batch of one rank; None where batches vary. repeat: epoch 0 again and again, for evaluation.
    """

    course: Course
    rank: int
    world_size: int
    rows: int | None
    lengths: I64 | None
    repeat: bool
    place: Place = Place()

    def walk(self, place: Place) -> Walk:
        """One that begins there."""
        return Walk(
            self.course,
            place,
            rank=self.rank,
            world_size=self.world_size,
            batch=self.batch,
            lengths=self.lengths,
            repeat=self.repeat,
        )

    @property
    def batch(self) -> float:
        """Samples of a full batch, all ranks together; of an epoch's batches on average where they vary."""
        if self.rows is not None:
            return self.rows * self.world_size
        return self.course.size(0) / max(self.course.batches(0), 1)

    def __len__(self) -> int:
        """Batches of the epoch one stands in. Raises TypeError where nobody knows."""
        return self.course.batches(self.place.epoch if self.course.replayed else 0)


def _after(place: Place, offset: int, ended: int | None) -> Place:
    """The place at `offset` of the same epoch, or where the next begins if this one, of `ended` places, is over."""
    if ended is None:
        return Place(place.epoch, place.start, offset)
    return Place(place.epoch + 1, place.start + ended, 0)
