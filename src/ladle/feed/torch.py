"""NumPy blocks -> torch tensors on a device. Imported late, by whoever delivers to torch.

On the CPU a block becomes a tensor without a copy. On CUDA it is copied into a ring of pinned buffers that are made once
and used again, and from there by a stream of its own, beside the model's work. Elsewhere (MPS) the copy blocks.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, Protocol, Self

import numpy as np
import torch
from numpy.typing import NDArray

from ladle.errors import ClosedError, ConfigError

Ids = NDArray[Any]  # an integer dtype; int64 as a rule, narrower ids widen on the device
Arrival = Callable[[], torch.Tensor]


class Mover:
    """Takes blocks of ids to one device.

    device: "cpu", "cuda", "cuda:1", "mps" or a torch.device. ring: pinned buffers on CUDA, that is, copies under way at once.
    `mover(block)` is an int64 tensor of the block's shape on the device. On the CPU it shares the block's memory, which
    the caller must have given away. `send` does the same in two halves, for a thread that copies ahead of its consumer.
    Raises ConfigError for a device that this machine or this torch lacks. Has close() and works in `with`.
    """

    def __init__(self, device: str | torch.device = "cpu", *, ring: int = 3) -> None:
        if ring < 1:
            raise ConfigError(f"ring: expected >= 1 buffers, found {ring}")
        self.device = _usable(device)
        self._ring = Ring(CudaLane(self.device), ring) if self.device.type == "cuda" else None
        self._closed = False

    def __call__(self, block: Ids) -> torch.Tensor:
        """The block on the device, ready for the calling thread's current stream."""
        return self.send(block)()

    def send(self, block: Ids) -> Arrival:
        """Begin to move a block; one thread at a time. When this returns, a block bound for a device may be written again.

        The result, called in the thread that will use the tensor, makes that thread's current stream wait for the copy
        and gives the tensor; the host waits for nothing.
        """
        if self._closed:
            raise ClosedError(f"the mover to {self.device} is closed")
        if self._ring is not None:
            return self._ring.send(block)
        wide = torch.from_numpy(block.astype(np.int64, copy=False))
        # MPS: a copy that does not block may read its source after that is gone (pytorch/pytorch#139550).
        tensor = wide if self.device.type == "cpu" else wide.to(self.device)
        return lambda: tensor

    def close(self) -> None:
        """Wait for the copies under way and free the pinned buffers. Tensors already delivered stay. Safe to call twice."""
        self._closed = True
        if self._ring is not None:
            self._ring.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class Lane(Protocol):
    """A device's own way for copies: memory that it can read by itself, and an order of its own."""

    def pinned(self, num_bytes: int) -> torch.Tensor:
        """uint8 [num_bytes] on the host, page-locked."""

    def copy(self, host: torch.Tensor) -> tuple[torch.Tensor, Any]:
        """Begin the copy: (int64 tensor on the device, the event after which the device has read `host`)."""

    def arrive(self, tensor: torch.Tensor, event: Any) -> torch.Tensor:
        """Make the calling thread's current stream wait for the event, and keep the tensor's memory for that stream."""


class Ring:
    """Pinned buffers used in turn; one is written again only when the device has read what it held."""

    def __init__(self, lane: Lane, size: int) -> None:
        self._lane = lane
        self._buffers: list[torch.Tensor | None] = [None] * size
        self._events: list[Any] = [None] * size
        self._turn = 0

    def send(self, block: Ids) -> Arrival:
        turn, self._turn = self._turn, (self._turn + 1) % len(self._buffers)
        self._wait(turn)
        buffer = self._buffers[turn]
        if buffer is None or buffer.numel() < block.nbytes:
            buffer = self._buffers[turn] = self._lane.pinned(block.nbytes)
        host = buffer[: block.nbytes].view(torch.from_numpy(np.empty(0, block.dtype)).dtype).view(block.shape)
        np.copyto(host.numpy(), block)
        tensor, event = self._lane.copy(host)
        self._events[turn] = event
        return partial(self._lane.arrive, tensor, event)

    def _wait(self, turn: int) -> None:
        if (event := self._events[turn]) is not None:
            event.synchronize()
            self._events[turn] = None

    def close(self) -> None:
        for turn in range(len(self._buffers)):
            self._wait(turn)
            self._buffers[turn] = None


class CudaLane:
    """The Lane of one CUDA device."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._stream = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]

    def pinned(self, num_bytes: int) -> torch.Tensor:
        with torch.cuda.stream(self._stream):  # also selects the device, which a new thread has not done
            return torch.empty(num_bytes, dtype=torch.uint8, pin_memory=True)

    def copy(self, host: torch.Tensor) -> tuple[torch.Tensor, torch.cuda.Event]:
        with torch.cuda.stream(self._stream):
            tensor = host.to(self._device, non_blocking=True).to(torch.int64)
            event = torch.cuda.Event(blocking=True)  # type: ignore[no-untyped-call]  # a host that waits does not spin
            event.record(self._stream)
        return tensor, event

    def arrive(self, tensor: torch.Tensor, event: torch.cuda.Event) -> torch.Tensor:
        stream = torch.cuda.current_stream(self._device)
        stream.wait_event(event)
        tensor.record_stream(stream)
        return tensor


def _usable(device: str | torch.device) -> torch.device:
    """The device, with its index where it is CUDA. Raises ConfigError where it cannot hold a tensor."""
    try:
        known = torch.device(device)
        if known.type == "cuda" and not torch.cuda.is_available():
            why = "this torch is built without it" if torch.version.cuda is None else "no driver or no GPU is visible"
            raise ConfigError(
                f"device: expected CUDA for {str(device)!r}, found none: {why} (torch {torch.__version__}); "
                f"use device='cpu', or a machine and a build of torch that have it"
            )
        return torch.empty(0, device=known).device
    except (RuntimeError, AssertionError, NotImplementedError, TypeError) as error:
        reason = str(error).split("\n", 1)[0]
        raise ConfigError(
            f"device: expected one that this machine and torch {torch.__version__} have, found {str(device)!r}: {reason}"
        ) from error
