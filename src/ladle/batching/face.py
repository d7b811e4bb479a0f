"""The face that torch's world sees: a DataLoader whose iteration is one endless walk, cut at the epochs' borders."""

from __future__ import annotations

import sys
import weakref
from collections import deque
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple, Self

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import DataLoader, IterableDataset, Sampler

from ladle.batching.banner import Banner
from ladle.batching.course import Arguments, course, stream_cut
from ladle.batching.device import Arrival, Mover
from ladle.batching.engine import Crew, Engine, Here
from ladle.batching.maker import Collate, Maker
from ladle.batching.nested import leaves, replaced
from ladle.batching.notices import ClassWatch, batch_norm
from ladle.batching.order import Sequential
from ladle.batching.state import LoaderState
from ladle.batching.stream import StreamCourse, StreamMaker, StreamWalk
from ladle.batching.tail import Cut
from ladle.batching.walk import Asked, Course, Paths, Place, Sliced, Walk
from ladle.errors import ConfigError, StateError
from ladle.order.permutation import I64


class _Item(NamedTuple):
    """A batch on its way to the consumer: what is known of it, and how to get it; an error; or an epoch's end (no arrival)."""

    asked: Asked | None
    arrival: Arrival | None
    error: Exception | None = None


class Loader(DataLoader[Any]):
    """What `loader` returns. A torch DataLoader: `for batch in loader`, `len(loader)` (batches of an epoch, on this rank).

    One iteration at a time: an older one raises StateError once another has begun. Its workers stay until `close`, the end of
    a `with`, or of the loader; a loop after that starts new ones.
    weight: of the batch last received, its samples over a full batch's. position: samples received, all ranks together.
    """

    weight: float = 1.0

    def __init__(
        self,
        dataset: Any,
        arguments: Arguments,
        *,
        rank: int,
        collate: Collate,
        seed_samples: bool,
        num_workers: int,
        why: str,
        device: str | torch.device | None,
        model: torch.nn.Module | None,
        verbose: bool,
        torchs: dict[str, Any],
    ) -> None:
        """See `loader`, which makes it."""
        iterable = isinstance(dataset, IterableDataset)
        self._arguments, self._rank, self._world_size = arguments, rank, arguments.world_size
        self._cut: Cut = stream_cut(arguments) if iterable else arguments.cut
        self._lengths: I64 | None = None
        if iterable:
            self._course: Course = StreamCourse(dataset, self._cut)
        else:
            self._course, self._lengths = course(dataset, arguments)
        self._num_samples = None if iterable else len(dataset)
        self._paths = Paths(
            course=self._course,
            rank=rank,
            world_size=self._world_size,
            rows=arguments.rows,
            lengths=self._lengths,
            repeat=not arguments.is_training,
        )
        pin, self._persists = torchs.pop("pin_memory"), torchs.pop("persistent_workers")
        super().__init__(
            dataset,
            num_workers=num_workers,
            collate_fn=collate,
            persistent_workers=self._persists and num_workers > 0,
            batch_sampler=None if iterable else EpochBatches(self._paths),
            **torchs,
        )
        for name, value in (("batch_size", arguments.rows), ("drop_last", self._cut.tail == "drop")):
            object.__setattr__(self, name, value)  # torch knows neither of a batch sampler's
        self._mover = Mover("cpu" if device is None else device)
        self._pins = pin and device is None and torch.cuda.is_available()
        self._maker = self._make_maker(collate, seed_samples=seed_samples)
        self._engine = self._make_engine(torchs)
        # Found in a cycle of garbage, torch's queues would be closed before the workers are told: hold on to them until then.
        weakref.finalize(self, self._engine.close).atexit = False
        told = getattr(dataset, "fingerprint", None)
        self._state = LoaderState(
            self._course,
            seed=arguments.seed,
            num_samples=self._num_samples,
            fingerprint=told if isinstance(told, str) else None,
        )
        self._loaded = False
        self._started, self._waiting, self._served = False, deque[_Item](), self._mover
        self._walk: Walk | StreamWalk | None = None
        self._iteration: weakref.ref[Iteration] | None = None
        self._verbose = verbose and rank == 0
        self._watch = self._make_watch()
        self._banner = self._make_banner(why, self._pins)
        if model is not None and arguments.is_training and isinstance(self._course, Sliced):
            size = self._course.size(0)
            rest = size % self._cut.batch
            smallest = self._cut.batch if self._cut.dropped(size, size) or self._cut.tail == "even" or not rest else rest
            batch_norm(model, -(-smallest // self._world_size), arguments.rows or 1)

    # --- iteration ---

    def __iter__(self) -> Iteration:  # type: ignore[override]
        return self.iterate_on(self._mover)

    def iterate_on(self, mover: Mover) -> Iteration:
        """Iterate with another mover than the loader's own: what `to_device` does."""
        self._check_dataset()
        if not self._arguments.is_training and not self._loaded and self._place != Place():
            self._move(Place())
        if mover is not self._served:
            self._served = mover
            self._move(self._place)
        iteration = Iteration(self)
        self._iteration = weakref.ref(iteration)
        return iteration

    def __len__(self) -> int:
        """Batches of a whole epoch on this rank. Raises TypeError for an iterable dataset without a length."""
        return len(self._paths)

    def receive(self, iteration: Iteration) -> Any:
        """The iteration's next batch. Raises StopIteration at an epoch's end."""
        while True:
            if self._iteration is None or iteration is not self._iteration():
                raise StateError("loader: expected its latest iteration, found an older one: a loader has one at a time")
            if not self._started:
                self._start()
            while len(self._waiting) <= self._served.ahead and not (self._waiting and self._waiting[-1].error):
                self._waiting.append(self._fetch())
            item = self._waiting.popleft()
            if item.error is not None or item.asked is None:
                self.close()
                raise item.error or StateError("loader: its walk has ended")
            if item.arrival is not None:
                batch = item.arrival()
                self._place, self.weight, iteration.ended = item.asked.after, item.asked.weight, item.asked.last
                self._look_at(batch)
                return batch
            if not self._place.offset:
                self.close()
                raise ConfigError(f"dataset: expected at least one batch of rows in epoch {item.asked.epoch}, found none")
            self._place = item.asked.after
            if iteration.received:  # else the state was saved at the very end: go on with the next epoch
                raise StopIteration

    def _fetch(self) -> _Item:
        """The next item; what goes wrong is raised only when the consumer gets there."""
        try:
            while True:
                parcel = self._engine.next()
                asked = None if self._walk is None else self._walk.received(parcel.number, parcel.total)
                if asked is None:
                    continue
                if parcel.total == 0:
                    return _Item(asked, None)
                batch = replaced(parcel.content, Tensor, Tensor.pin_memory) if self._pins else parcel.content
                return _Item(asked, self._served.send(batch))
        except Exception as error:  # noqa: BLE001  raised when its turn comes
            return _Item(None, None, error)
        except BaseException:
            self.close()
            raise

    def _start(self) -> None:
        """Let the engine walk from where the consumer stands."""
        self._loaded = False
        if isinstance(self._course, StreamCourse):
            self._walk = StreamWalk(self._place, batch=self._cut.batch, repeat=not self._arguments.is_training)
        else:
            self._walk = self._paths.walk(self._place)
        try:
            self._engine.start(self._walk)
        except BaseException:
            self.close()
            raise
        self._started = True

    def _move(self, place: Place) -> None:
        self._place, self._started = place, False
        self._waiting.clear()

    @property
    def _place(self) -> Place:
        """Where the consumer stands."""
        return self._paths.place

    @_place.setter
    def _place(self, place: Place) -> None:
        self._paths.place = place

    # --- state ---

    @property
    def position(self) -> int:
        """Samples received since the start, all ranks together, those a dropped tail leaves out included."""
        return self._place.position

    @property
    def epoch(self) -> int:
        """The epoch of the next batch."""
        return self._place.epoch

    def state_dict(self) -> dict[str, Any]:
        """What has been received, as plain JSON values, the same on every rank. Taken at any step, also with workers ahead."""
        return self._state.to_dict(self._place)

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue from there: with the next batch, also of an iteration under way. No batch is made again.

        Any number of workers and ranks, and where batches are cut from an order of samples any batch size, goes on exactly.
        With a torch Sampler, or an iterable dataset, what came before is drawn, or read, again.
        Raises StateError if it belongs to another order, seed or dataset, naming both values.
        """
        self._move(self._state.place(state))
        self._loaded = True

    # --- what it is ---

    def banner(self) -> str:
        """What this loader does and why, in a few lines; bytes are known with the first batch."""
        return str(self._banner)

    def close(self) -> None:
        """End the workers and wait for their end. A loop after that starts new ones where this one stood."""
        self._started = False
        self._waiting.clear()
        self._engine.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def check_worker_number_rationality(self) -> None:
        """torch's warning: the banner says how many CPUs there are."""

    def _check_dataset(self) -> None:
        if self._num_samples is not None and (now := len(self.dataset)) != self._num_samples:  # type: ignore[arg-type]
            raise StateError(
                f"dataset: expected {self._num_samples} samples, as when this loader was made, found {now}; make a new loader"
            )

    def _look_at(self, batch: Any) -> None:
        if self._banner.bytes_a_sample is None:
            samples = max(round(self.weight * self._paths.batch / self._world_size), 1)
            self._banner.bytes_a_sample = sum(leaf.nbytes for leaf in leaves(batch, (Tensor, np.ndarray))) // samples
            if self._verbose:
                print(self.banner(), file=sys.stderr)
        if self._watch is not None and self._watch.looks and (self._arguments.is_training or torch.is_grad_enabled()):
            self._watch.see(batch)

    # --- how it is made ---

    def _make_maker(self, collate: Collate, *, seed_samples: bool) -> Maker:
        seed = self._arguments.seed
        if isinstance(self._course, StreamCourse):
            return StreamMaker(
                self.dataset,
                collate,
                seed=seed,
                everywhere=seed_samples,
                cut=self._cut,
                rank=self._rank,
                world_size=self._world_size,
            )
        return Maker(self.dataset, collate, seed=seed, everywhere=seed_samples)

    def _make_engine(self, torchs: dict[str, Any]) -> Engine:
        maker = self._maker
        if not self.num_workers:
            return Here(maker.read if isinstance(maker, StreamMaker) else lambda request: (maker.make(request), None))
        return Crew(maker, num_workers=self.num_workers, **torchs)

    def _make_watch(self) -> ClassWatch | None:
        plain = isinstance(self._course, Sliced) and isinstance(self._course.order, Sequential)
        return ClassWatch(self.dataset) if plain and self._arguments.training is not False else None

    def _make_banner(self, why: str, pins: bool) -> Banner:
        stream = isinstance(self._course, StreamCourse)
        ring = self._mover.device.type == "cuda"
        return Banner(
            course=None if stream else self._course,
            cut=self._cut,
            num_samples=self._num_samples,
            batch_size=self._arguments.rows,
            world_size=self._world_size,
            seed=self._arguments.seed,
            training=self._arguments.is_training,
            workers=f"{self.num_workers}: {why}",
            pinning=f"a few buffers, used again, on the way to {self._mover.device}" if ring else "batches" if pins else "none",
            resume=REPLAYS[type(self._course).__name__] if self._course.replayed else "",
        )


REPLAYS = {
    "Sliced": "resumed by drawing the sampler's epochs again",
    "Given": "resumed by drawing the batch sampler's epochs again",
    "StreamCourse": "resumed by reading the epoch's rows again",
}


class Iteration:
    """One `for` over a loader: to the next epoch's border."""

    def __init__(self, of: Loader) -> None:
        self._loader = of
        self.ended, self.received = False, 0

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> Any:
        if not self.ended:
            try:
                batch = self._loader.receive(self)
            except StopIteration:
                self.ended = True
            else:
                self.received += 1
                return batch
        if not self._loader._persists:
            self._loader.close()
        raise StopIteration

    def __len__(self) -> int:
        return len(self._loader)


class EpochBatches(Sampler[list[int]]):
    """What a loader has as its `batch_sampler`: the indices of this rank's batches, to the epoch's end, and then the next's.

    The loader itself does not use it. It is for those who take a DataLoader apart and iterate its parts: it begins where the
    loader stands, and as long as that stands still, each iteration of a training loader's goes on after the one before.
    """

    def __init__(self, paths: Paths) -> None:
        self._paths = paths
        self._seen = self._place = paths.place

    def __iter__(self) -> Iterator[list[int]]:
        if self._seen != self._paths.place or self._paths.repeat:
            self._seen = self._place = self._paths.place
        walk = self._paths.walk(self._place)
        for request in walk:
            asked = walk.received(request.number, None)
            yield request.samples.tolist()
            self._place = asked.after
            if asked.last:
                return

    def __len__(self) -> int:
        return len(self._paths)
