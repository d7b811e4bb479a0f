"""An IterableDataset in batches: read by one process, row after row, and by every rank, which keeps its share of each batch."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from contextlib import nullcontext
from typing import Any, NamedTuple

import numpy as np
from torch.utils.data import get_worker_info

from ladle.batching.keyed import Keys, put_back
from ladle.batching.maker import Collate, Maker, raise_noted
from ladle.batching.parcel import Parcel, portable
from ladle.batching.tail import Cut
from ladle.batching.walk import Asked, Place
from ladle.errors import ConfigError
from ladle.order.permutation import hash_key


class Span(NamedTuple):
    """A request: the global batch whose first row is row `first` of its epoch. start: rows of all epochs before it."""

    number: int
    epoch: int
    first: int
    start: int


class StreamMaker(Maker):
    """Makes the batches of an IterableDataset. What it remembers, where its reader stands, saves reading again and no more."""

    def __init__(
        self, dataset: Any, collate: Collate, *, seed: int, everywhere: bool, cut: Cut, rank: int, world_size: int
    ) -> None:
        super().__init__(dataset, collate, seed=seed, everywhere=everywhere)
        self.cut, self.rank, self.world_size = cut, rank, world_size
        self._rows: Iterator[Any] = iter(())
        self._epoch, self._first, self._ended = -1, 0, False  # the epoch read, and the first row of those read ahead
        self._ahead: deque[Any] = deque()

    def read(self, span: Span) -> tuple[Any, int]:
        """(this rank's batch, samples of all ranks in it): (None, 0) where the epoch has no such batch."""
        with put_back() if self.everywhere and get_worker_info() is None else nullcontext():
            self._seek(span)
            return self._batch(span)

    def __getitem__(self, span: Span) -> bytes:  # type: ignore[override]
        """The batch, or what went wrong, as a worker sends it."""
        try:
            parcel = Parcel(span.number, *self.read(span))
        except Exception as error:  # noqa: BLE001  it is raised again where the batch was asked for
            parcel = Parcel(span.number, portable(error))
        return parcel.packed(1, fresh=self.fresh)

    def _batch(self, span: Span) -> tuple[Any, int]:
        most = self.cut.batch + self.cut.ranks  # from so many on, the coming batch is full whatever follows
        self._read_ahead(span, most)
        left = len(self._ahead)
        if self._ended and self.cut.too_few(left, left):
            raise ConfigError(f"dataset: expected a row for each of {self.cut.ranks} ranks, found {left} left of the epoch")
        total = self.cut.first(left, left) if self._ended else self.cut.batch
        if not total:
            return None, 0
        rows = [self._ahead.popleft() for _ in range(total)]
        self._first += total
        low, high = (total * edge // self.world_size for edge in (self.rank, self.rank + 1))
        try:
            return self.collate(rows[low:high]), total
        except Exception as error:  # noqa: BLE001  raised again
            raise_noted(error, f"collating rows {span.first + low} to {span.first + high - 1} of epoch {span.epoch}")

    def _seek(self, span: Span) -> None:
        """Stand before the span's first row: where the last one ended, or from the epoch's beginning."""
        if span.epoch != self._epoch or span.first < self._first:
            with Keys(hash_key("stream", self.seed), np.array([span.epoch]), everywhere=self.everywhere) as keys:
                keys.begin(0)
                self._rows = iter(self.dataset)
            self._epoch, self._first, self._ended = span.epoch, 0, False
            self._ahead.clear()
        while self._first < span.first:
            if not self._ahead:
                self._read_ahead(span, min(self.cut.batch, span.first - self._first))
            if not self._ahead:
                return  # the epoch ends before
            self._ahead.popleft()
            self._first += 1

    def _read_ahead(self, span: Span, count: int) -> None:
        """Have `count` rows at hand, or all that are left."""
        missing = 0 if self._ended else count - len(self._ahead)
        if missing <= 0:
            return
        first = self._first + len(self._ahead)
        numbers = span.start + np.arange(first, first + missing, dtype=np.int64)
        with Keys(self.seed, numbers, everywhere=self.everywhere) as keys:
            for number in range(missing):
                keys.begin(number)
                try:
                    self._ahead.append(next(self._rows))
                except StopIteration:
                    self._ended = True
                    return
                except Exception as error:  # noqa: BLE001  raised again
                    self._epoch = -1  # an iterator that raised is over
                    raise_noted(error, f"row {first + number} of epoch {span.epoch}")


class StreamCourse:
    """What is known of an iterable dataset's course: hardly anything."""

    replayed = True

    def __init__(self, dataset: Any, cut: Cut) -> None:
        self._dataset, self._cut = dataset, cut

    def step(self, place: Place) -> None:  # noqa: ARG002  a Course's
        """Nobody knows."""
        return

    def size(self, epoch: int) -> int:  # noqa: ARG002
        """What the dataset says of itself. Raises TypeError if nothing."""
        return len(self._dataset)

    def batches(self, epoch: int) -> int:  # noqa: ARG002
        """What that makes."""
        size = len(self._dataset)
        return self._cut.batches(size, size)

    def recipe(self) -> dict[str, object]:
        """The dataset is known by its type: what it gives cannot be compared."""
        return {"kind": "iterable", "dataset": type(self._dataset).__qualname__}

    def refuse(self, place: Place) -> str:  # noqa: ARG002
        """Any place can be read up to."""
        return ""


class StreamWalk:
    """Iterating gives one span after another, for ever; nobody knows where an epoch ends until a worker has read so far."""

    def __init__(self, place: Place, *, batch: int, repeat: bool) -> None:
        self._place, self._batch, self._repeat = place, batch, repeat
        self._number = 0
        self._asked: dict[int, Place] = {}

    def __iter__(self) -> Iterator[Span]:
        return self

    def __next__(self) -> Span:
        place, number = self._place, self._number
        self._asked[number] = place
        self._place = Place(place.epoch, place.start, place.offset + self._batch)
        self._number += 1
        return Span(number, place.epoch, place.offset, place.start)

    def received(self, number: int, total: int | None) -> Asked | None:
        """What is known of the batch now that it is here; None for one asked for after its epoch's end."""
        place, total = self._asked.pop(number), total or 0
        if place.epoch < self._place.epoch or place.offset >= self._place.offset:
            return None
        after = Place(place.epoch, place.start, place.offset + total)
        if total != self._batch:  # none, a short one, or one with a few more: nothing follows it
            follows = Place() if self._repeat else Place(place.epoch + 1, after.position, 0)
            self._place = after = follows
        return Asked(place.epoch, after, total != self._batch, total / self._batch)
