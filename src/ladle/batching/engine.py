"""Batches as they were asked for, in order: made here, or by torch's worker processes."""

from __future__ import annotations

import pickle
import signal
import time
from collections.abc import Callable, Iterator
from multiprocessing.reduction import ForkingPickler
from typing import Any, Protocol

import torch
from torch.utils.data import DataLoader, get_worker_info
from torch.utils.data._utils import signal_handling

from ladle.batching.parcel import Parcel
from ladle.errors import ConfigError

GRACE = 1.0  # seconds


class Engine(Protocol):
    """Something that walks. `start` begins anew, at another place or after `close`; `next` gives the next parcel."""

    def start(self, walk: Iterator[Any]) -> None: ...

    def next(self) -> Parcel: ...

    def close(self) -> None: ...


class Here:
    """Makes each batch when it is wanted, in the consumer's own thread. Holds nothing."""

    def __init__(self, make: Callable[[Any], tuple[Any, int | None]]) -> None:
        """make: from a request to (batch, samples of all ranks or None)."""
        self._make = make
        self._walk: Iterator[Any] = iter(())

    def start(self, walk: Iterator[Any]) -> None:
        """See Engine."""
        self._walk = walk

    def next(self) -> Parcel:
        """See Engine. What the dataset raises passes as it is."""
        request = next(self._walk)
        return Parcel(request.number, *self._make(request))

    def close(self) -> None:
        """See Engine."""


class Crew:
    """torch's own workers, which stay; a new walk begins once they have finished what they were asked for."""

    def __init__(self, maker: Any, worker_init_fn: Callable[[int], None] | None, **torchs: Any) -> None:
        """maker: makes bytes of requests. torchs: torch's own arguments (num_workers, prefetch_factor, timeout, ...)."""
        self._turn = _Turn()
        generator = torch.Generator().manual_seed(0)  # torch draws the workers' seeds from it, and leaves the global one alone
        self._loader = _Workers(
            maker,
            batch_size=None,
            sampler=self._turn,
            collate_fn=_as_it_is,
            worker_init_fn=_Welcome(worker_init_fn),
            generator=generator,
            persistent_workers=True,
            **torchs,
        )
        self._sent = {"dataset": maker.dataset, "collate": maker.collate, "worker_init_fn": worker_init_fn}
        self._received: Iterator[bytes] | None = None

    def start(self, walk: Iterator[Any]) -> None:
        """See Engine. Raises ConfigError for what cannot be sent to a worker that is not forked."""
        self._turn.walk = walk
        if self._received is None:
            self._check_pickles()
        self._received = iter(self._loader)

    def next(self) -> Parcel:
        """See Engine. Raises RuntimeError for a worker that was killed, or took longer than `timeout`."""
        if self._received is None:
            raise ConfigError("loader: expected its workers to be at work, found none started")
        try:
            sent = next(self._received)
        except RuntimeError as error:  # torch says how a worker ended where it was told by a signal, else only that it did
            if "exited unexpectedly" in str(error) and (lost := self._lost()):
                raise RuntimeError(lost) from error
            raise
        try:
            parcel = Parcel.opened(sent)
        except (OSError, EOFError) as error:  # a tensor is fetched from the worker that made it
            if lost := self._lost():
                raise RuntimeError(f"{lost}, before its batch could be fetched") from error
            raise
        if isinstance(parcel.content, Exception):
            raise parcel.content
        return parcel

    def _lost(self) -> str:
        """Which worker has ended, and how; nothing where all are there."""
        workers = getattr(self._loader._iterator, "_workers", ())
        for worker in workers:
            worker.join(0.1)
            if (code := worker.exitcode) is not None:
                how = f"is killed by signal: {signal.strsignal(-code)}" if code < 0 else f"has exited with code {code}"
                return f"DataLoader worker (pid {worker.pid}) {how}"
        return ""

    def close(self) -> None:
        """End the workers, and wait for their end: those that are in the middle of a sample get GRACE seconds."""
        self._received = None
        iterator, self._loader._iterator = self._loader._iterator, None
        if iterator is not None:
            _end(iterator)

    def _check_pickles(self) -> None:
        context = self._loader.multiprocessing_context or torch.multiprocessing
        if context.get_start_method() == "fork":
            return
        for name, part in self._sent.items():
            check_pickles(part, name, context.get_start_method())


def _end(iterator: Any) -> None:
    """End torch's workers; its own way waits 5 s for each of them that is busy."""
    iterator._workers_done_event.set()
    for queue in iterator._index_queues:
        queue.put(None)
    signal_handling._remove_worker_pids(id(iterator))  # type: ignore[attr-defined]  # from here on their end is no failure
    iterator._worker_pids_set = False
    until = time.monotonic() + GRACE
    for worker in iterator._workers:
        worker.join(max(until - time.monotonic(), 0))
        if worker.is_alive():
            worker.terminate()
    iterator._shutdown_workers()


def check_pickles(part: Any, name: str, method: str) -> None:
    """Raises ConfigError naming the attribute that does not pickle."""
    fault = _fault(part)
    while fault is not None:
        for attribute, value in _attributes(part):
            if (inner := _fault(value)) is not None:
                name, part, fault = f"{name}{attribute}", value, inner
                break
        else:
            raise ConfigError(
                f"{name}: expected what can be pickled, since workers are started by {method!r}, found {_kind(part)}: {fault}; "
                f"define it at a module's top level, or use workers=0"
            )


def _attributes(part: Any) -> list[tuple[str, Any]]:
    if isinstance(part, dict):
        return [(f"[{key!r}]", value) for key, value in part.items()]
    if isinstance(part, list | tuple):
        return [(f"[{number}]", value) for number, value in enumerate(part)]
    if callable(part) and hasattr(part, "__qualname__"):
        return []
    return [(f".{key}", value) for key, value in getattr(part, "__dict__", {}).items()]


def _fault(part: Any) -> Exception | None:
    try:
        ForkingPickler.dumps(part)
    except (pickle.PicklingError, TypeError, AttributeError, NotImplementedError, RuntimeError, ValueError) as error:
        return error
    return None


def _kind(part: Any) -> str:
    return f"{type(part).__name__} {getattr(part, '__qualname__', '')}".rstrip()


class _Workers(DataLoader[Any]):
    """torch's DataLoader, which is not asked whether the number of workers is wise: the banner says what they have."""

    def check_worker_number_rationality(self) -> None:
        pass


class _Turn:
    """Iterating it gives the walk that was set last."""

    walk: Iterator[Any] = iter(())

    def __iter__(self) -> Iterator[Any]:
        return self.walk


class _Welcome:
    """What runs first in a worker: Ctrl-C is left to the process that ends the workers, `get_worker_info().dataset` is the
    caller's own dataset, and then comes the caller's worker_init_fn.
    """

    def __init__(self, function: Callable[[int], None] | None) -> None:
        self.function = function

    def __call__(self, worker: int) -> None:
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        info = get_worker_info()
        if info is not None:
            object.__setattr__(info, "dataset", info.dataset.dataset)  # type: ignore[attr-defined]
        if self.function is not None:
            self.function(worker)


def _as_it_is(value: Any) -> Any:
    return value
