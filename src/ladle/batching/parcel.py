"""A batch from a worker to the process that asked for it.

Small tensors travel through the pipe; large ones in shared memory, as torch passes them, but only while /dev/shm has room
(else a worker would die of a bus error), and no batch is kept there once file descriptors are getting few: torch holds one
for every tensor it received.
"""

from __future__ import annotations

import os
import pickle
import resource
import traceback
from dataclasses import dataclass
from multiprocessing.reduction import ForkingPickler
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ladle.batching.nested import leaves, replaced
from ladle.errors import ConfigError

PIPE = 65536  # bytes of a tensor up to which the pipe is the faster way
SHARED_MEMORY = "/dev/shm"  # noqa: S108  where torch keeps it; only its free space is asked


@dataclass(frozen=True, slots=True)
class Flat:
    """A tensor as bytes. data: uint8 [k]."""

    data: NDArray[np.uint8]
    dtype: torch.dtype
    shape: tuple[int, ...]

    def tensor(self) -> Tensor:
        return torch.from_numpy(self.data).view(self.dtype).reshape(self.shape)


@dataclass(frozen=True, slots=True)
class Parcel:
    """number: the request's. content: a batch, or an Exception. total: samples of all ranks, where only a worker knows it."""

    number: int
    content: Any
    total: int | None = None

    def packed(self, num_workers: int, *, fresh: bool) -> bytes:
        """What the worker sends: it pickles, whatever it holds.

        fresh: nobody else has its tensors. Others are copied first: the consumer's memory shall not be a dataset's.
        """
        try:
            sizes = [tensor.nbytes for tensor in leaves(self.content, Tensor) if _plain(tensor)]
            if _room() > 2 * num_workers * sum(sizes):
                try:
                    return self._bytes(roomy=True, fresh=fresh)
                except RuntimeError:  # somebody else took the room
                    pass
            return self._bytes(roomy=False, fresh=fresh)
        except Exception as error:  # noqa: BLE001  the queue's own thread would print it, and the consumer wait for ever
            if not isinstance(error, ConfigError):
                error = ConfigError(
                    f"batch: expected one that can be sent to another process, found one that cannot: {type(error).__name__}: "
                    f"{error}; leave it out of the samples, or use workers=0"
                )
            return bytes(ForkingPickler.dumps(Parcel(self.number, portable(error), self.total)))

    def _bytes(self, *, roomy: bool, fresh: bool) -> bytes:
        content = replaced(self.content, Tensor, lambda tensor: _lifted(tensor, roomy=roomy, fresh=fresh))
        return bytes(ForkingPickler.dumps(Parcel(self.number, content, self.total)))

    @staticmethod
    def opened(sent: bytes) -> Parcel:
        """The parcel, its tensors the consumer's own to keep."""
        parcel: Parcel = pickle.loads(sent)  # noqa: S301  from a process that we started
        content = parcel.content
        if _descriptors_are_few():
            content = replaced(content, Tensor, lambda tensor: tensor.clone() if tensor.is_shared() else tensor)
        return Parcel(parcel.number, replaced(content, Flat, Flat.tensor), parcel.total)


def portable(error: Exception) -> Exception:
    """The exception with its traceback as a note, if it can cross a process border; else a RuntimeError that names it."""
    error.add_note("In the worker:\n" + "".join(traceback.format_exception(error)).rstrip())
    try:
        again = pickle.loads(pickle.dumps(error))  # noqa: S301  made here
        if type(again) is type(error):
            return error
    except Exception:  # noqa: BLE001, S110  whatever its own __reduce__ does
        pass
    stand_in = RuntimeError(f"{type(error).__name__}: {error}")
    for note in error.__notes__:
        stand_in.add_note(note)
    return stand_in


def _plain(tensor: Tensor) -> bool:
    return type(tensor) is Tensor and tensor.layout is torch.strided and not tensor.is_nested and not tensor.is_quantized


def _lifted(tensor: Tensor, *, roomy: bool, fresh: bool) -> Tensor | Flat:
    """What stands for a tensor in the parcel."""
    if tensor.device.type != "cpu":
        raise ConfigError(
            f"batch: expected tensors on the CPU from a worker, found one on {tensor.device}: a worker must not touch another "
            f"device; move batches where they are used, by device= or ladle.batching.to_device, or use workers=0"
        )
    if not _plain(tensor):
        return tensor
    tensor = tensor.detach()
    if not fresh or tensor.untyped_storage().nbytes() != tensor.nbytes:  # a part would take the rest along
        tensor = tensor.clone(memory_format=torch.contiguous_format)
    if roomy and tensor.nbytes > PIPE:
        return tensor
    return Flat(tensor.contiguous().reshape(-1).view(torch.uint8).numpy(), tensor.dtype, tuple(tensor.shape))


def _room() -> int:
    try:
        told = os.statvfs(SHARED_MEMORY)
    except OSError:
        return 0
    return told.f_bavail * told.f_frsize


def _descriptors_are_few() -> bool:
    """Whether half of those this process may have are in use: the lowest free one says so."""
    limit = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    try:
        lowest = os.open(os.devnull, os.O_RDONLY)
    except OSError:
        return True
    os.close(lowest)
    return limit != resource.RLIM_INFINITY and lowest >= limit // 2
