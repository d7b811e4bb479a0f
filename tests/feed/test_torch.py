"""Blocks to devices: no copy on the CPU, a ring of pinned buffers on CUDA.

This machine may have no GPU. The ring itself is then driven with a lane whose copies happen late, as a device's do: a
buffer written too early, or a tensor read before its copy, shows as wrong ids.
"""

import threading
from collections import deque

import numpy as np
import pytest
import torch

from ladle.errors import ClosedError, ConfigError
from ladle.feed.torch import Mover, Ring

needs_cuda = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device: none is visible here")


def block(first: int, shape=(2, 3, 4), dtype=np.int64) -> np.ndarray:
    return (np.arange(np.prod(shape)) + first).reshape(shape).astype(dtype)


# --- the CPU ---


def test_on_the_cpu_the_block_itself_becomes_the_tensor():
    source = block(7)
    with Mover("cpu") as mover:
        tensor = mover(source)
    assert tensor.dtype == torch.int64
    assert tensor.data_ptr() == source.ctypes.data
    np.testing.assert_array_equal(tensor.numpy(), block(7))
    x, y = tensor
    y.view(-1)
    x.zero_()
    np.testing.assert_array_equal(y.numpy(), block(7)[1])


@pytest.mark.parametrize("dtype", [np.uint16, np.int32, np.uint32])
def test_narrow_ids_widen(dtype):
    tensor = Mover()(block(40_000, dtype=dtype))
    assert tensor.dtype == torch.int64
    np.testing.assert_array_equal(tensor.numpy(), block(40_000))


def test_masked_targets_keep_their_sign():
    assert Mover()(np.array([[-100, 5]], dtype=np.int32)).tolist() == [[-100, 5]]


def test_the_cpu_is_silent_without_cuda():
    """A warning would fail this test: the suite turns them into errors."""
    with Mover(torch.device("cpu")) as mover:
        assert mover(block(0)).device == torch.device("cpu")


# --- devices that are not there ---


@pytest.mark.skipif(torch.cuda.is_available(), reason="this machine has CUDA")
@pytest.mark.parametrize("device", ["cuda", "cuda:1"])
def test_cuda_asked_for_and_absent_says_so(device):
    with pytest.raises(ConfigError) as caught:
        Mover(device)
    message = str(caught.value)
    assert message.startswith(f"device: expected CUDA for '{device}', found none: ")
    assert message.endswith("; use device='cpu', or a machine and a build of torch that have it")


@pytest.mark.parametrize("device", ["gpu", "cpu:x", 1.5, "mps" if not torch.backends.mps.is_available() else "nonesuch"])
def test_a_device_that_cannot_hold_a_tensor_is_named(device):
    with pytest.raises(ConfigError) as caught:
        Mover(device)
    message = str(caught.value)
    assert message.startswith("device: expected one that this machine and torch ")
    assert f"found {str(device)!r}: " in message
    assert "\n" not in message


def test_a_ring_needs_a_buffer():
    with pytest.raises(ConfigError, match=r"^ring: expected >= 1 buffers, found 0$"):
        Mover("cpu", ring=0)


def test_a_closed_mover_refuses():
    mover = Mover()
    mover.close()
    mover.close()
    with pytest.raises(ClosedError, match=r"^the mover to cpu is closed$"):
        mover(block(0))


# --- the ring, with a lane that copies late ---


class LateEvent:
    def __init__(self, lane: "LateLane", number: int) -> None:
        self.lane, self.number = lane, number

    def synchronize(self) -> None:
        self.lane.waits.append(self.number)
        self.lane.run_until(self.number)


class LateLane:
    """A stream whose copies are done only when somebody waits for them: the latest moment a device may take."""

    def __init__(self) -> None:
        self.pending: deque[tuple[int, torch.Tensor, torch.Tensor]] = deque()
        self.pinned_bytes: list[int] = []
        self.waits: list[int] = []
        self.arrived: list[tuple[int, str]] = []
        self.begun = 0

    def pinned(self, num_bytes: int) -> torch.Tensor:
        self.pinned_bytes.append(num_bytes)
        return torch.full((num_bytes,), 0xAA, dtype=torch.uint8)

    def copy(self, host: torch.Tensor) -> tuple[torch.Tensor, LateEvent]:
        tensor = torch.full(host.shape, -1, dtype=torch.int64)
        number, self.begun = self.begun, self.begun + 1
        self.pending.append((number, host, tensor))
        return tensor, LateEvent(self, number)

    def arrive(self, tensor: torch.Tensor, event: LateEvent) -> torch.Tensor:
        self.arrived.append((event.number, threading.current_thread().name))
        self.run_until(event.number)
        return tensor

    def run_until(self, number: int) -> None:
        while self.pending and self.pending[0][0] <= number:
            _, host, tensor = self.pending.popleft()
            tensor.copy_(host)


@pytest.mark.parametrize("size", [1, 2, 3])
def test_a_buffer_is_written_again_only_after_its_copy(size):
    """Ten blocks are begun before the first is taken: every one still arrives whole."""
    lane = LateLane()
    ring = Ring(lane, size)
    arrivals = [ring.send(block(100 * number)) for number in range(10)]
    assert lane.waits == list(range(10 - size))  # block n waits for block n - size, and for nothing else
    for number, arrival in enumerate(arrivals):
        np.testing.assert_array_equal(arrival().numpy(), block(100 * number))
    assert len(lane.pinned_bytes) == size


def test_the_block_may_be_written_again_once_it_is_sent():
    lane = LateLane()
    source = block(5)
    arrival = Ring(lane, 2).send(source)
    source[...] = 0
    np.testing.assert_array_equal(arrival().numpy(), block(5))


def test_the_consumer_waits_for_its_own_block_only_and_in_its_own_thread():
    lane = LateLane()
    ring = Ring(lane, 3)
    arrivals = []
    producer = threading.Thread(target=lambda: arrivals.extend(ring.send(block(n)) for n in (0, 50, 90)))
    producer.start()
    producer.join()
    assert lane.arrived == []
    assert len(lane.pending) == 3
    np.testing.assert_array_equal(arrivals[1]().numpy(), block(50))
    assert lane.arrived == [(1, threading.current_thread().name)]
    assert [number for number, _, _ in lane.pending] == [2]


def test_a_larger_block_gets_a_larger_buffer_after_the_old_one_is_read():
    lane = LateLane()
    ring = Ring(lane, 1)
    small, large, again = (ring.send(block(n, shape)) for n, shape in ((1, (2, 1, 4)), (2, (2, 5, 4)), (3, (2, 1, 4))))
    assert lane.pinned_bytes == [64, 320]  # the large buffer serves small blocks too
    for arrival, first, shape in ((small, 1, (2, 1, 4)), (large, 2, (2, 5, 4)), (again, 3, (2, 1, 4))):
        np.testing.assert_array_equal(arrival().numpy(), block(first, shape))


def test_narrow_ids_travel_narrow():
    lane = LateLane()
    arrival = Ring(lane, 2).send(block(60_000, dtype=np.uint16))
    assert lane.pinned_bytes == [48]
    np.testing.assert_array_equal(arrival().numpy(), block(60_000))


def test_closing_waits_for_every_copy_under_way():
    lane = LateLane()
    ring = Ring(lane, 3)
    arrivals = [ring.send(block(number)) for number in range(2)]
    ring.close()
    assert not lane.pending
    np.testing.assert_array_equal(arrivals[1]().numpy(), block(1))


# --- a real device, where there is one ---


@needs_cuda
def test_cuda_blocks_arrive_whole_on_a_stream_of_the_consumers_own():
    shape = (2, 64, 1024)
    consumer = torch.cuda.Stream()
    with Mover("cuda", ring=2) as mover, torch.cuda.stream(consumer):
        sums = []
        for number in range(200):
            tensor = mover(block(number, shape))
            assert tensor.device.type == "cuda"
            assert tensor.dtype == torch.int64
            sums.append(tensor.sum())
            del tensor
        consumer.synchronize()
        first = int(np.arange(np.prod(shape)).sum())
        assert [int(total) for total in sums] == [first + number * int(np.prod(shape)) for number in range(200)]


@needs_cuda
@pytest.mark.parametrize("dtype", [np.uint16, np.int32])
def test_cuda_widens_on_the_device(dtype):
    with Mover("cuda") as mover:
        np.testing.assert_array_equal(mover(block(40_000, dtype=dtype)).cpu().numpy(), block(40_000))


@needs_cuda
def test_cuda_sends_from_a_thread_and_arrives_in_another():
    with Mover("cuda") as mover:
        arrivals = []
        producer = threading.Thread(target=lambda: arrivals.extend(mover.send(block(n)) for n in range(20)))
        producer.start()
        producer.join()
        for number, arrival in enumerate(arrivals):
            np.testing.assert_array_equal(arrival().cpu().numpy(), block(number))
