"""A feed as torch's IterableDataset, for the loaders and trainers that ask for one."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import Any, Literal, Self

from ladle.errors import ConfigError, MissingExtra, StateError
from ladle.feed.batch import Batch
from ladle.feed.feed import Feed

try:
    import torch
    from torch.utils.data import IterableDataset, get_worker_info
    from torch.utils.data._utils.worker import WorkerInfo

    from ladle.feed.turns import Turns
except ModuleNotFoundError as error:
    raise MissingExtra("FeedDataset", "torch", "torch") from error

IGNORED = -100  # the label that Hugging Face's losses leave out

Form = Literal["batch", "huggingface"]


class FeedDataset(IterableDataset[Any]):
    """The batches of a feed, for `DataLoader(dataset, batch_size=None)`, and for trainers that take any iterable.

        dataset = ladle.FeedDataset(ladle.Feed(corpus["train"], batch_size=64, block_size=1024))
        for batch in DataLoader(dataset, batch_size=None, num_workers=2):
            x, y = batch

    feed: delivers torch tensors; it stays the caller's to close, and from now on the dataset moves it.
    form: "batch": items are the feed's own `Batch`es (`x, y = batch`, `batch.state`). "huggingface": items are dicts of
    "input_ids" and "labels" as Transformers' models take them, see `Rows`.
    attention: of "huggingface" items, where the feed keeps documents apart: see `ladle.feed.masks.for_transformers`.
    An iteration runs to the next epoch's border, the last batch completed by masked rows, and the next iteration is the
    next epoch, in its own order, without being told. A feed without epochs runs to its end, or for ever. `len` is the
    number of batches of a whole epoch, or of a finite feed.

    Without workers the feed is walked in this process (its thread works ahead; worker processes are slower), a loop left
    early continues where it stopped, and `state_dict` is what has been received.
    With n workers, worker w makes batches w, w + n, ... of the iteration: the same batches in the same order for any n.
    The main process cannot know what has been received then, so `state_dict` raises: save `batch.state`, which any
    number of workers resumes from, or the state_dict of torchdata's StatefulDataLoader. A loop left early has ended its
    epoch: the next iteration is the next epoch, unless a state is loaded.
    Ranks are the feed's business: neither shard nor dispatch its batches again.

    A class of its own and not a method of Feed, since loaders, trainers and readers of types look for an IterableDataset.
    Raises ConfigError for a feed of another framework, for "huggingface" with another ignore_index than -100, and in a
    worker for a feed with a device other than the CPU.
    """

    def __init__(self, feed: Feed, *, form: Form = "batch", attention: str = "sdpa") -> None:
        if not isinstance(feed, Feed):
            raise ConfigError(f"feed: expected a ladle.Feed, found {type(feed).__name__}")
        framework, ignore_index = feed.arguments["framework"], feed.arguments["ignore_index"]
        if framework != "torch":
            raise ConfigError(f"feed: expected one with framework='torch', found {framework!r}")
        if form not in {"batch", "huggingface"}:
            raise ConfigError(f"form: expected 'batch' or 'huggingface', found {form!r}")
        if form == "huggingface" and ignore_index != IGNORED:
            raise ConfigError(
                f"feed: expected ignore_index={IGNORED} with form='huggingface', whose losses leave it out, found {ignore_index}"
            )
        self.feed, self.form, self.attention = feed, form, attention
        self._turns = Turns()
        # In a worker: where its iteration began, how many batches of it this worker has made, and a state to begin from.
        self._start, self._made = feed.position, 0
        self._loaded: tuple[int, int] | None = None

    def __iter__(self) -> Iterator[Any]:
        shape: Callable[[Batch], Any] = partial(Rows.of, attention=self.attention) if self.form == "huggingface" else _as_it_is
        if (worker := get_worker_info()) is not None:
            return map(shape, self._share(worker))
        if (last := self._turns.last()) is not None:  # workers have been at it: go on where they would
            self.feed.load_state_dict(self.feed.state_at(self._following(last)))
        self._turns.reset()
        return map(shape, self.feed.iteration())

    def __len__(self) -> int:
        """Batches of a whole epoch, or of a finite feed if that is less. Raises TypeError where there is no end."""
        if self.feed.stream.units_per_epoch is None:
            return len(self.feed)
        arguments, whole = self.feed.arguments, self.feed.batches_per_epoch
        endless = arguments["epochs"] is None and arguments["total_tokens"] is None
        return whole if endless else min(whole, len(self.feed))

    def _share(self, worker: WorkerInfo) -> Iterator[Batch]:
        """This worker's batches. The iteration is noted now, the batches are made as they are asked for."""
        _check_host(self.feed)
        loader = worker.seed - worker.id  # one number for all workers that were started together
        if self._loaded is None:
            self._start, self._made = self._turns.begin(worker.id, loader, self.feed.position, self._following), 0
        else:
            self._start, self._made = self._loaded
            self._turns.note(worker.id, loader, self._start)
            self._loaded = None
        first = worker.id + self._made * worker.num_workers
        return self._counted(self.feed.share(self._start, first, worker.num_workers), worker.id, loader)

    def _counted(self, batches: Iterator[Batch], worker: int, loader: int) -> Iterator[Batch]:
        for batch in batches:
            if not self._turns.holds(worker, loader):
                raise StateError("state: a state was loaded while workers were at work: begin a new iteration of the loader")
            self._made += 1
            yield batch

    def _following(self, start: int) -> int:
        """Where the iteration after the one that began at `start` begins."""
        end = self.feed.iteration_end(start)
        return start if end is None else end

    # --- state ---

    def state_dict(self) -> dict[str, object]:
        """The feed's state; in a DataLoader's worker that worker's own, for torchdata's StatefulDataLoader.

        Raises StateError in the main process once workers have begun: see the class.
        """
        if (worker := get_worker_info()) is not None:
            mine = {"workers": worker.num_workers, "worker": worker.id, "made": self._made}
            return {**self.feed.state_at(self._start), **mine}
        if self._turns.last() is not None:
            raise StateError(
                "state: the main process does not know what it has received from DataLoader's workers: "
                "save batch.state, or the state_dict of torchdata's StatefulDataLoader"
            )
        return self.feed.state_dict()

    def load_state_dict(self, state: Mapping[str, object]) -> None:
        """Continue from a feed's state (`feed.state_dict()`, `batch.state`), with any number of workers, or none.

        Takes effect at the next iteration; workers that are at work raise StateError. Also loads, in a worker, what
        `state_dict` gave there. Raises StateError if it belongs to another stream, or to another number of workers.
        """
        if "made" in state:
            self._load_share(state)
        else:
            self.feed.load_state_dict(state)
            self._loaded = None
            self._turns.reset(self.feed.position)

    def _load_share(self, state: Mapping[str, object]) -> None:
        worker = get_worker_info()
        mine = (0, 0) if worker is None else (worker.num_workers, worker.id)
        saved, made = (state.get("workers"), state.get("worker")), state["made"]
        if saved != mine:
            raise StateError(
                f"state: (workers, worker): expected {mine}, found {saved}: it was saved by one of several workers; "
                f"batch.state resumes with any number of them"
            )
        if type(made) is not int or made < 0:
            raise StateError(f"state: made: expected a number of batches, found {made!r}")
        self.feed.load_state_dict(state)
        self._loaded = self.feed.position, made

    def __getstate__(self) -> dict[str, Any]:
        """Raises ConfigError for a feed with a device, which another process must not touch."""
        _check_host(self.feed)
        return dict(self.__dict__)


class Rows(dict[str, Any]):
    """A batch as Transformers' causal models take it: `model(**rows)`.

    "input_ids": int64 (rows, T + 1), a row's inputs and its last target. "labels": int64 (rows, T + 1), the same ids, not
    shifted, since the model shifts them inside; -100 at the first, which is no target of this row, and wherever a target
    does not count. So the model's T predictions meet exactly the T targets of `batch.y`, and none is lost.
    Where the last target does not count, the last id is the one before it: nothing is predicted from it.
    Where documents are kept apart, it is what `batch.for_transformers(attention)` says: rows of T, with position_ids and mask.
    batch: the `Batch` it was made from, with `state`, `position` and `digest`; a dict that a trainer makes of it has none.
    """

    batch: Batch
    attention: str

    @classmethod
    def of(cls, batch: Batch, attention: str = "sdpa") -> Self:
        """The rows of a batch."""
        rows = cls(batch.for_transformers(attention)) if batch.apart else cls.whole(batch)
        rows.batch, rows.attention = batch, attention
        return rows

    @classmethod
    def whole(cls, batch: Batch) -> Self:
        """Of plain windows: T + 1 ids a row."""
        x, y = batch
        last = torch.where(y[:, -1:] == IGNORED, x[:, -1:], y[:, -1:])
        return cls(input_ids=torch.cat([x, last], dim=1), labels=torch.nn.functional.pad(y, (1, 0), value=IGNORED))

    @property
    def state(self) -> dict[str, object]:
        """The feed's state once these rows have been received."""
        return self.batch.state

    def to(self, device: Any, non_blocking: bool = False) -> Rows:
        """The rows on another torch device."""
        return Rows.of(self.batch.to(device, non_blocking), self.attention)

    def __copy__(self) -> Self:
        return self  # torch's convert function copies a mapping, to put back into it what it has just taken out

    def __reduce__(self) -> tuple[Callable[[Batch, str], Rows], tuple[Batch, str]]:
        return Rows.of, (self.batch, self.attention)


def _as_it_is(batch: Batch) -> Batch:
    return batch


def _check_host(feed: Feed) -> None:
    device = feed.arguments["device"]
    if device is not None and torch.device(device).type != "cpu":
        raise ConfigError(
            f"feed: expected no device under DataLoader's workers, found {str(device)!r}: a worker must not touch it; "
            f"move the batches where they are used, as in batch.to({str(device)!r}), or use num_workers=0"
        )
