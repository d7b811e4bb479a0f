"""Nested batches to devices: plainly on the CPU, by a ring of pinned buffers on CUDA.

This machine may have no GPU. The ring is then driven with a lane whose copies happen late, as a device's do: a buffer written
too early, or a tensor read before its copy, shows as wrong numbers.
"""

from collections import OrderedDict, UserDict, deque
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import pytest
import torch
from torch.utils.data import Dataset, TensorDataset

from ladle.batching import loader, to_device
from ladle.batching.device import Mover, Ring
from ladle.errors import ConfigError

needs_cuda = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device: none is visible here")


class Pair(NamedTuple):
    x: torch.Tensor
    y: torch.Tensor


@dataclass(frozen=True)
class Record:
    x: torch.Tensor
    name: str


class LateEvent:
    def __init__(self, lane, number):
        self.lane, self.number = lane, number

    def synchronize(self):
        self.lane.waits.append(self.number)
        self.lane.run_until(self.number)


class LateLane:
    """A stream whose copies are done only when somebody waits for them: the latest moment a device may take."""

    def __init__(self):
        self.pending, self.waits, self.pinned_bytes, self.arrived, self.begun = deque(), [], [], [], 0

    def pinned(self, num_bytes):
        self.pinned_bytes.append(num_bytes)
        return torch.full((num_bytes,), 0xAA, dtype=torch.uint8)

    def copy(self, hosts):
        tensors = [torch.zeros_like(host) for host in hosts]
        number, self.begun = self.begun, self.begun + 1
        self.pending.append((number, hosts, tensors))
        return tensors, LateEvent(self, number)

    def arrive(self, tensors, event):
        self.arrived.append(event.number)
        self.run_until(event.number)
        return tensors

    def run_until(self, number):
        while self.pending and self.pending[0][0] <= number:
            _, hosts, tensors = self.pending.popleft()
            for host, tensor in zip(hosts, tensors, strict=True):
                tensor.copy_(host)


def late_mover():
    """A mover whose device is not the CPU's, so that every tensor takes the way of a device."""
    lane = LateLane()
    mover = Mover("cpu", lane=lane)
    mover.device = torch.device("meta")
    return mover, lane


def nest(first):
    tensor = torch.arange(6, dtype=torch.float32).reshape(2, 3) + first
    return {
        "pair": Pair(tensor, torch.tensor([first], dtype=torch.int64)),
        "list": [tensor.half(), (tensor > 3, "text")],
        "record": Record(tensor.double(), "a"),
        "array": np.zeros(2),
        "none": None,
    }


def check(batch, first):
    expected = nest(first)
    assert isinstance(batch["pair"], Pair)
    assert isinstance(batch["record"], Record)
    for found, wanted in [
        (batch["pair"].x, expected["pair"].x),
        (batch["pair"].y, expected["pair"].y),
        (batch["list"][0], expected["list"][0]),
        (batch["list"][1][0], expected["list"][1][0]),
        (batch["record"].x, expected["record"].x),
    ]:
        assert found.dtype == wanted.dtype
        assert torch.equal(found, wanted)
    assert batch["list"][1][1] == "text"
    assert batch["record"].name == "a"


# --- the CPU ---


def test_on_the_cpu_a_batch_is_itself():
    """Silently: a warning would fail this test (CASES A5-01)."""
    batch = nest(0)
    assert Mover("cpu").send(batch)() is batch
    for moved in to_device([batch], "cpu"):
        assert moved is batch
    assert len(to_device([batch], "cpu")) == 1


def test_a_loader_with_device_cpu_pins_nothing():
    batches = loader(TensorDataset(torch.arange(6)), batch_size=2, device="cpu", pin_memory=True, verbose=False)
    assert [batch[0].tolist() for batch in batches] == [[0, 1], [2, 3], [4, 5]]
    assert "pinning     none" in batches.banner()


def test_pin_memory_without_cuda_is_silent():
    if torch.cuda.is_available():
        pytest.skip("this machine has CUDA")
    for workers in (0, 1):
        with loader(Numbers(), batch_size=2, pin_memory=True, workers=workers, verbose=False) as batches:
            assert len(list(batches)) == 5


@pytest.mark.skipif(torch.cuda.is_available(), reason="this machine has CUDA")
def test_cuda_asked_for_and_absent_says_so():
    for make in (lambda: loader([1], device="cuda"), lambda: to_device([1], "cuda:1")):
        with pytest.raises(ConfigError, match=r"^device: expected CUDA for 'cuda(:1)?', found none: .* use device='cpu'"):
            make()


def test_a_device_that_is_none_is_named():
    with pytest.raises(ConfigError, match=r"^device: expected one that this machine and torch .* found 'nonesuch'"):
        loader([1], device="nonesuch")


# --- the ring ---


def test_nested_batches_arrive_whole_whenever_they_are_taken():
    mover, lane = late_mover()
    arrivals = [mover.send(nest(10 * number)) for number in range(8)]
    assert lane.waits == list(range(5))  # batch n waits for the buffer that batch n - 3 had
    for number, arrival in enumerate(arrivals):
        check(arrival(), 10 * number)
    assert len(lane.pinned_bytes) == 3
    assert lane.arrived == list(range(8))


def test_the_source_may_be_written_again_once_it_is_sent():
    mover, _ = late_mover()
    batch = nest(5)
    arrival = mover.send(batch)
    batch["pair"].x.zero_()
    check(arrival(), 5)


def test_the_consumer_waits_for_its_own_batch_only():
    """CASES A5-04: arrival is what makes the consumer's stream wait."""
    mover, lane = late_mover()
    first, _second = mover.send(nest(0)), mover.send(nest(1))
    assert not lane.arrived
    first()
    assert [number for number, _, _ in lane.pending] == [1]


def test_empty_tensors_and_no_tensors_pass():
    mover, lane = late_mover()
    assert mover.send({"a": 1})() == {"a": 1}
    assert mover.send([torch.zeros(0, 3)])()[0].shape == (0, 3)
    assert lane.begun == 1


def test_a_ring_grows_for_a_larger_batch_after_the_old_buffer_is_read():
    lane = LateLane()
    ring = Ring(lane, 1)
    taken = [ring.send([torch.full((size,), size)])() for size in (1, 100, 2)]
    assert lane.pinned_bytes == [64, 832]
    assert [tensor.tolist() for (tensor,) in taken] == [[1], [100] * 100, [2, 2]]


def test_closing_waits_for_what_is_under_way():
    mover, lane = late_mover()
    arrival = mover.send(nest(3))
    mover.close()
    assert not lane.pending
    check(arrival(), 3)


@pytest.mark.parametrize("kind", [OrderedDict, UserDict, dict])
def test_mappings_keep_their_kind(kind):
    mover, _ = late_mover()
    moved = mover.send(kind(a=torch.tensor([1]), b="c"))()
    assert type(moved) is kind
    assert moved["a"].tolist() == [1]
    assert moved["b"] == "c"


# --- copied ahead, and the state of what was received ---


class Numbers(Dataset):
    def __len__(self):
        return 10

    def __init__(self, broken=False):
        self.broken = broken

    def __getitem__(self, index):
        if self.broken and index == 7:
            raise ValueError("seven")
        return index


@pytest.mark.parametrize("way", ["device", "to_device"])
@pytest.mark.parametrize("workers", [0, 1])
def test_the_next_batch_is_under_way_while_one_is_used(way, workers):
    mover, lane = late_mover()
    batches = loader(Numbers(), batch_size=2, shuffle=True, seed=1, workers=workers, verbose=False)
    plain = [batch.tolist() for batch in loader(Numbers(), batch_size=2, shuffle=True, seed=1, workers=0, verbose=False)]
    if way == "device":
        batches._mover = batches._served = mover
        walk = batches
    else:
        walk = to_device(batches, "cpu")
        walk.mover = mover
    it = iter(walk)
    taken = [next(it).tolist()]
    assert lane.begun == 2
    assert batches.state_dict()["position"] == 2
    taken += [batch.tolist() for batch in it]
    assert taken == plain
    assert batches.state_dict()["position"] == 10
    assert lane.begun == 6  # the next epoch's first is already on its way
    batches.close()


def test_an_error_comes_when_its_batch_does_not_before():
    mover, _ = late_mover()
    batches = loader(Numbers(broken=True), batch_size=2, verbose=False, workers=0)
    batches._mover = batches._served = mover
    it = iter(batches)
    assert [next(it).tolist() for _ in range(3)] == [[0, 1], [2, 3], [4, 5]]
    with pytest.raises(ValueError, match="seven"):
        next(it)
    assert batches.state_dict()["position"] == 6


def test_any_iterable_of_batches_is_copied_ahead():
    mover, lane = late_mover()
    walk = to_device((torch.tensor([n]) for n in range(3)), "cpu")
    walk.mover = mover
    seen = [(batch.item(), lane.begun) for batch in walk]
    assert seen == [(0, 2), (1, 3), (2, 3)]


# --- a real device, where there is one ---


@needs_cuda
@pytest.mark.parametrize("workers", [0, 2])
def test_cuda_batches_arrive_whole_on_the_consumers_stream(workers):
    data = TensorDataset(torch.arange(4_000_000).reshape(1000, 4000), torch.arange(1000))
    stream = torch.cuda.Stream()
    with (
        loader(data, batch_size=10, shuffle=True, workers=workers, device="cuda", verbose=False) as batches,
        torch.cuda.stream(stream),
    ):
        sums = []
        for x, y in batches:
            assert x.device.type == y.device.type == "cuda"
            sums.append(((x.sum(dim=1) - 4000 * 4000 * y - 3999 * 2000) != 0).sum())
            del x, y
        assert int(torch.stack(sums).sum()) == 0


@needs_cuda
def test_pinned_memory_passes_through_on_request():
    batch = next(iter(loader(TensorDataset(torch.arange(4)), batch_size=2, pin_memory=True, verbose=False)))
    assert batch[0].is_pinned()
