"""Nested batches to a device, copied ahead.

On CUDA a batch's tensors are laid into one of a few pinned buffers that are made once and used again, and from there a stream
of its own copies them, while the model works on the batch before. On the CPU nothing moves; elsewhere the copy blocks.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from typing import Any, Protocol

import torch
from torch import Tensor

from ladle.batching.nested import leaves, replaced
from ladle.feed.torch import CudaLane
from ladle.feed.torch import Mover as BlockMover

ALIGN = 64  # bytes: where a tensor may begin in a pinned buffer
Arrival = Callable[[], Any]


def to_device(batches: Iterable[Any], device: str | torch.device) -> OnDevice:
    """Any loader's batches on a device: `for batch in to_device(loader, "cuda")`.

    A batch may nest dicts, lists, tuples, named tuples and dataclasses; their tensors are moved, all else is left as it is.
    On CUDA the next batch is copied while the consumer works. `loader(...)`'s own loaders know what the consumer has received
    all the same: save `loader.state_dict()` as ever. Raises ConfigError for a device that is absent.
    """
    return OnDevice(batches, device)


class OnDevice:
    """What `to_device` gives. len() is the loader's."""

    def __init__(self, batches: Iterable[Any], device: str | torch.device) -> None:
        self.batches, self.mover = batches, Mover(device)

    def __iter__(self) -> Iterator[Any]:
        begin = getattr(self.batches, "iterate_on", None)
        return self._ahead() if begin is None else begin(self.mover)

    def __len__(self) -> int:
        return len(self.batches)  # type: ignore[arg-type]

    def _ahead(self) -> Iterator[Any]:
        waiting: deque[Arrival] = deque()
        for batch in self.batches:
            waiting.append(self.mover.send(batch))
            if len(waiting) > self.mover.ahead:
                yield waiting.popleft()()
        while waiting:
            yield waiting.popleft()()


class Lane(Protocol):
    """A device's own way for copies, see ladle.feed.torch.Lane; it copies several tensors at once."""

    def pinned(self, num_bytes: int) -> Tensor:
        """uint8 [num_bytes] on the host, page-locked."""

    def copy(self, hosts: list[Tensor]) -> tuple[list[Tensor], Any]:
        """Begin the copies: (tensors on the device, the event after which the device has read all of `hosts`)."""

    def arrive(self, tensors: list[Tensor], event: Any) -> list[Tensor]:
        """Make the calling thread's current stream wait for the event, and keep the tensors' memory for that stream."""


class Mover:
    """Takes nested batches to one device. ahead: how many batches to begin before one is handed out."""

    def __init__(self, device: str | torch.device, *, lane: Lane | None = None) -> None:
        """Raises ConfigError for a device that this machine or this torch lacks. lane: the device's own by default."""
        with BlockMover(device) as checked:
            self.device = checked.device
        if lane is None and self.device.type == "cuda":
            lane = BatchLane(self.device)
        self.ahead = 0 if lane is None else 1
        self._ring = None if lane is None else Ring(lane, self.ahead + 2)

    def send(self, batch: Any) -> Arrival:
        """Begin to move a batch. The result, called, is the batch on the device, ready for the current stream."""
        here = [tensor for tensor in leaves(batch, Tensor) if tensor.device != self.device]
        if not here:
            return lambda: batch
        plain = all(tensor.device.type == "cpu" and tensor.layout is torch.strided for tensor in here)
        if self._ring is None or not plain:
            moved = replaced(batch, Tensor, lambda tensor: tensor.to(self.device))
            return lambda: moved
        arrive = self._ring.send(here)
        return lambda: _put(batch, here, arrive())

    def close(self) -> None:
        """Wait for the copies under way and free the pinned buffers."""
        if self._ring is not None:
            self._ring.close()


def _put(batch: Any, sent: list[Tensor], arrived: list[Tensor]) -> Any:
    """The batch with the tensors that arrived in the places of those that were sent."""
    new = {id(old): tensor for old, tensor in zip(sent, arrived, strict=True)}
    return replaced(batch, Tensor, lambda tensor: new.get(id(tensor), tensor))


class Ring:
    """Pinned buffers used in turn, a batch in each; one is written again only when the device has read what it held."""

    def __init__(self, lane: Lane, size: int) -> None:
        self._lane = lane
        self._buffers: list[Tensor | None] = [None] * size
        self._events: list[Any] = [None] * size
        self._turn = 0

    def send(self, tensors: list[Tensor]) -> Callable[[], list[Tensor]]:
        turn, self._turn = self._turn, (self._turn + 1) % len(self._buffers)
        self._wait(turn)
        sizes = [-(-tensor.nbytes // ALIGN) * ALIGN for tensor in tensors]
        buffer = self._buffers[turn]
        if buffer is None or buffer.numel() < sum(sizes):
            buffer = self._buffers[turn] = self._lane.pinned(sum(sizes))
        hosts, begin = [], 0
        for tensor, size in zip(tensors, sizes, strict=True):
            host = buffer[begin : begin + tensor.nbytes].view(tensor.dtype).view(tensor.shape)
            hosts.append(host.copy_(tensor.detach()))
            begin += size
        moved, event = self._lane.copy(hosts)
        self._events[turn] = event
        return lambda: self._lane.arrive(moved, event)

    def _wait(self, turn: int) -> None:
        if (event := self._events[turn]) is not None:
            event.synchronize()
            self._events[turn] = None

    def close(self) -> None:
        for turn in range(len(self._buffers)):
            self._wait(turn)
            self._buffers[turn] = None


class BatchLane:
    """The Lane of one CUDA device."""

    def __init__(self, device: torch.device) -> None:
        self._device, self._lane = device, CudaLane(device)

    def pinned(self, num_bytes: int) -> Tensor:
        return self._lane.pinned(num_bytes)

    def copy(self, hosts: list[Tensor]) -> tuple[list[Tensor], torch.cuda.Event]:
        with torch.cuda.stream(self._lane._stream):
            tensors = [host.to(self._device, non_blocking=True) for host in hosts]
            event = torch.cuda.Event(blocking=True)  # type: ignore[no-untyped-call]
            event.record(self._lane._stream)
        return tensors, event

    def arrive(self, tensors: list[Tensor], event: torch.cuda.Event) -> list[Tensor]:
        stream = torch.cuda.current_stream(self._device)
        stream.wait_event(event)
        for tensor in tensors:
            tensor.record_stream(stream)
        return tensors
