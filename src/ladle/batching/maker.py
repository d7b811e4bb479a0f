"""A request -> a batch: the samples are made one by one, each under its own randomness, and collated. In any process."""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import nullcontext
from typing import Any, NoReturn

from torch.utils.data import default_collate, get_worker_info

from ladle.batching.collate import Pad, stack
from ladle.batching.keyed import Keys, put_back
from ladle.batching.parcel import Parcel, portable
from ladle.batching.reading import leaves_out
from ladle.batching.walk import Request
from ladle.errors import ConfigError

Collate = Callable[[list[Any]], Any]


class Maker:
    """Makes the batches of a map-style dataset. It is what a worker gets, so it must pickle under spawn.

    everywhere: seed the global generators before each sample, and put them back afterwards where it is not a worker's process.
    Without, a dataset's own `__getitems__` is used where it has one, and only `generator()` is keyed otherwise.
    """

    def __init__(self, dataset: Any, collate: Collate, *, seed: int, everywhere: bool) -> None:
        self.dataset, self.collate, self.seed, self.everywhere = dataset, collate, seed, everywhere
        self.fresh = isinstance(collate, Pad) or collate is stack or collate is default_collate  # their tensors are new

    def make(self, request: Request) -> Any:
        """The batch. An exception of the dataset's own gets a note that says which sample it was."""
        with put_back() if self.everywhere and get_worker_info() is None else nullcontext():
            samples = self._samples(request)
            if request.lengths is not None:
                self._check_lengths(samples, request.samples.tolist(), request.lengths.tolist())
            return self._collated(samples, request)

    def __getitem__(self, request: Request) -> bytes:
        """The batch, or what went wrong, as a worker sends it."""
        worker = get_worker_info()
        try:
            parcel = Parcel(request.number, self.make(request))
        except Exception as error:  # noqa: BLE001  it is raised again where the batch was asked for
            parcel = Parcel(request.number, portable(error))
        return parcel.packed(worker.num_workers if worker is not None else 1, fresh=self.fresh)

    def _samples(self, request: Request) -> list[Any]:
        indices = request.samples.tolist()
        if not self.everywhere and callable(whole := getattr(self.dataset, "__getitems__", None)):
            try:
                return list(whole(indices))
            except Exception as error:  # noqa: BLE001  raised again
                raise_noted(error, f"samples {_some(indices)} of epoch {request.epoch}")
        samples: list[Any] = []
        with Keys(self.seed, request.numbers, everywhere=self.everywhere) as keys:
            for number, index in enumerate(indices):
                keys.begin(number)
                try:
                    samples.append(self.dataset[index])
                except Exception as error:  # noqa: BLE001  raised again
                    raise_noted(error, f"sample {index}{described(self.dataset, index)} of epoch {request.epoch}")
        return samples

    def _collated(self, samples: list[Any], request: Request) -> Any:
        if leaves_out(self.dataset):
            samples = [sample for sample in samples if sample is not None]
            if not samples:
                raise ConfigError(
                    f"samples {_some(request.samples.tolist())}: expected one that can be loaded, found none in a batch"
                )
        try:
            return self.collate(samples)
        except Exception as error:  # noqa: BLE001  raised again
            raise_noted(error, f"collating samples {_some(request.samples.tolist())} of epoch {request.epoch}")

    def _check_lengths(self, samples: list[Any], indices: list[int], lengths: list[int]) -> None:
        """Refuse lengths that are not what the samples have, where the collate knows how to tell."""
        length = getattr(self.collate, "length", None)
        if length is None:
            return
        for sample, index, told in zip(samples, indices, lengths, strict=True):
            if sample is not None and (found := length(sample)) != told:  # None: left out, in a moment
                raise ConfigError(
                    f"lengths: expected {told} for sample {index}{described(self.dataset, index)}, found {found} in the sample"
                )


def described(dataset: Any, index: int) -> str:
    """What the dataset says of a sample (`describe(index)`), in brackets, or nothing."""
    describe = getattr(dataset, "describe", None)
    if not callable(describe):
        return ""
    try:
        return f" ({describe(index)})"
    except Exception:  # noqa: BLE001  it is said beside another error, which counts
        return ""


def raise_noted(error: Exception, where: str) -> NoReturn:
    """Raise the error with a note that says where; StopIteration, which would end the loop in silence, as a RuntimeError."""
    note = f"ladle: {where}{_process()}"
    if isinstance(error, StopIteration):
        stopped = RuntimeError(f"StopIteration: {error} (it would have ended the loop in silence)")
        stopped.add_note(note)
        raise stopped from error
    error.add_note(note)
    raise error


def _process() -> str:
    worker = get_worker_info()
    return "" if worker is None else f", in worker {worker.id} (process {os.getpid()})"


def _some(indices: list[int]) -> str:
    return ", ".join(map(str, indices[:8])) + (f" and {len(indices) - 8} more" if len(indices) > 8 else "")
