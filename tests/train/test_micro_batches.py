"""Micro-batches of anybody's loop: grouped, cut, counted, accumulated, alone and under DistributedDataParallel."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from ladle.errors import ConfigError
from ladle.train import (
    accumulate,
    accumulation_steps,
    count_samples,
    count_targets,
    cut,
    effective_batch,
    grouped,
    scale_lr,
    steps_per_epoch,
)


def classifier() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 3)).double()


def gradient(model: nn.Module) -> Tensor:
    return torch.cat([p.grad.flatten() for p in model.parameters() if p.grad is not None])


def rows(n: int) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(n)
    return torch.randn(n, 6, generator=generator).double(), torch.randint(0, 3, (n,), generator=generator)


def summed(model: nn.Module) -> Any:
    return lambda x, y: cross_entropy(model(x), y, reduction="sum")


@pytest.mark.parametrize("passes", [1, 2, 8])
def test_the_gradient_of_one_large_batch(passes: int) -> None:
    x, y = rows(8)
    whole, parts = classifier(), classifier()
    cross_entropy(whole(x), y).backward()
    loss = accumulate(summed(parts), cut((x, y), 8 // passes))
    assert (gradient(whole) - gradient(parts)).abs().max() < 1e-15
    assert loss.item() == pytest.approx(cross_entropy(whole(x), y).item(), rel=1e-12)


def test_targets_are_counted_here() -> None:
    """2 labels of loss 4 and 6 of loss 1: 1.75."""
    weight = nn.Parameter(torch.ones(()))
    first = (torch.full((4,), 4.0), torch.tensor([1, 1, -100, -100]))
    second = (torch.ones(8), torch.tensor([1] * 6 + [-100] * 2))
    loss = accumulate(lambda x, y: (weight * x)[y != -100].sum(), [first, second])
    assert loss.item() == weight.grad.item() == 1.75  # type: ignore[union-attr]


def test_samples_may_weigh_the_same_instead() -> None:
    weight = nn.Parameter(torch.ones(()))
    batches = [{"ids": torch.ones(2, 5)}, {"ids": torch.ones(1, 5)}]
    loss = accumulate(lambda batch: (weight * batch["ids"]).mean(1).sum(), batches, count=count_samples)
    assert loss.item() == pytest.approx(1.0)


@pytest.mark.parametrize(("batches", "sizes"), [(3, [3]), (7, [4, 3]), (8, [4, 4]), (0, [])])
def test_the_last_group_is_an_update_of_its_own_size(batches: int, sizes: list[int]) -> None:
    model = classifier()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
    data = [rows(2 + number) for number in range(batches)]
    steps = 0
    for group in grouped(data, 4):
        assert len(group) == sizes[steps]
        accumulate(summed(model), group)
        alone = classifier()
        cross_entropy(alone(torch.cat([x for x, _ in group])), torch.cat([y for _, y in group])).backward()
        assert (gradient(alone) - gradient(model)).abs().max() < 1e-15, "the real divisor, and nothing left of the group before"
        optimizer.step()
        optimizer.zero_grad()
        steps += 1
    assert steps == len(sizes) == steps_per_epoch(batches, 4)
    assert all(p.grad is None for p in model.parameters())


def test_a_batch_in_four_pieces_is_one_update() -> None:
    x, y = rows(10)
    pieces = cut({"x": x, "labels": y, "name": "last"}, 3)
    assert [len(piece["x"]) for piece in pieces] == [3, 3, 3, 1]
    assert torch.equal(torch.cat([piece["labels"] for piece in pieces]), y)
    assert pieces[1]["x"].data_ptr() == x[3:].data_ptr(), "a view"
    assert {piece["name"] for piece in pieces} == {"last"}
    model = classifier()
    accumulate(lambda batch: summed(model)(batch["x"], batch["labels"]), pieces)
    whole = classifier()
    cross_entropy(whole(x), y).backward()
    assert (gradient(whole) - gradient(model)).abs().max() < 1e-15


@pytest.mark.slow
def test_the_peak_does_not_grow_with_accumulation() -> None:
    """Resident memory of processes of their own that pass 2 and 16 micro-batches of about 60 MB of activations."""

    def peak(passes: int) -> int:
        code = f"""
import torch
from torch import nn
from ladle.train import accumulate
torch.set_num_threads(1)
model = nn.Sequential(*[m for _ in range(12) for m in (nn.Linear(256, 256), nn.Tanh())])
batches = [(torch.zeros(2400, 256), torch.zeros(2400, 256)) for _ in range(16)]
accumulate(lambda x, y: (model(x) - y).square().sum(), batches[:{passes}])
print(next(line.split()[1] for line in open("/proc/self/status") if line.startswith("VmHWM")))
"""
        done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=100)
        return int(done.stdout) * 1024

    two, sixteen = peak(2), peak(16)
    assert abs(sixteen - two) < 30e6, (two, sixteen)


def test_counting() -> None:
    y = torch.tensor([[1, -100], [-100, 2]])
    assert count_targets((y, y)) == count_targets({"labels": y}) == 2
    assert count_targets([y, torch.full((2, 3), -100.0)]) == 6
    assert count_samples((y, y)) == count_samples({"a": 1, "b": y}) == 2
    with pytest.raises(ConfigError, match=r"expected .x, y. or a dict with 'labels' to count the targets of, found Tensor"):
        count_targets(y)
    with pytest.raises(ConfigError, match="expected a tensor with rows, found int"):
        count_samples(3)


# --- arithmetic ---


def test_the_true_world_size() -> None:
    """2 nodes of 8, 512 rows an update, 4 a pass: 8 and not 16."""
    assert accumulation_steps(512, 4, world_size=2 * 8) == 8
    assert accumulation_steps(32, 4) == 8
    with pytest.raises(ConfigError, match="expected a multiple of 5 rows x 2 ranks, found 64; a micro_batch_size of 4 or 2 or 1"):
        accumulation_steps(64, 5, world_size=2)
    with pytest.raises(ConfigError, match="found 7; it is no multiple of 2"):
        accumulation_steps(7, 2, world_size=2)


def test_the_effective_batch_is_printed(capsys: pytest.CaptureFixture[str]) -> None:
    rows = effective_batch(4, 8, world_size=2)
    assert capsys.readouterr().out == "effective batch 64 = 4 a pass x 8 passes x 2 ranks\n"
    assert rows == 64
    assert scale_lr(1.0, 32, rows) == 2.0
    assert scale_lr(1.0, 32, rows, "sqrt") == pytest.approx(1.414, abs=1e-3)
    assert effective_batch(3, quiet=True) == 3
    assert not capsys.readouterr().out


def test_what_cannot_be() -> None:
    with pytest.raises(ConfigError, match="accumulation: expected a whole number >= 1, found 0"):
        grouped([], 0)
    with pytest.raises(ConfigError, match="num_batches: expected a whole number >= 0, found -1"):
        steps_per_epoch(-1)
    with pytest.raises(ConfigError, match=r"micro_batch_size: expected a whole number >= 1, found 1\.5"):
        cut(torch.zeros(3), 1.5)  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match=r"batch: expected tensors of one number of rows, found \[2, 3\]"):
        cut((torch.zeros(3), torch.zeros(2)), 1)
    with pytest.raises(ConfigError, match="world_size: expected a whole number >= 1, found 0"):
        effective_batch(1, 1, 0)


# --- ranks ---

RANK = """
import sys
import torch
import torch.distributed as dist
from torch import nn
from torch.nn import functional as F
from torch.nn.parallel import DistributedDataParallel
from ladle.errors import ConfigError
from ladle.train import accumulate, accumulation_steps, cut, effective_batch, joined

rank, port = int(sys.argv[1]), int(sys.argv[2])
torch.set_num_threads(1)
with joined(rank=rank, world_size=2, address="127.0.0.1", port=port, backend="gloo", timeout_s=60):
    torch.manual_seed(0)
    plain = nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 3)).double()
    model = DistributedDataParallel(plain)
    calls = []

    def reduce(state, bucket):
        calls.append(len(bucket.parameters()))
        future = dist.all_reduce(bucket.buffer().div_(2), async_op=True).get_future()
        return future.then(lambda done: done.value()[0])

    model.register_comm_hook(None, reduce)
    generator = torch.Generator().manual_seed(1)
    x = torch.randn(24, 6, generator=generator).double()
    y = torch.randint(0, 3, (24,), generator=generator)
    y[:9] = -100  # so that the ranks, and their micro-batches, have unequal numbers of targets
    mine = slice(0, 12) if rank == 0 else slice(12, 24)
    for passes in (1, 4):
        calls.clear()
        model.zero_grad()
        loss = accumulate(
            lambda x, y: F.cross_entropy(model(x), y, reduction="sum"), cut((x[mine], y[mine]), 12 // passes), model=model
        )
        dist.all_reduce(loss)
        torch.manual_seed(0)
        alone = nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 3)).double()
        expected = F.cross_entropy(alone(x), y)
        expected.backward()
        for a, b in zip(plain.parameters(), alone.parameters()):
            assert (a.grad - b.grad).abs().max() < 1e-14, (a.grad, b.grad)
        assert abs(loss - expected) < 1e-12
        assert sum(calls) == 4, calls  # each of the 4 parameters was reduced once
    assert accumulation_steps(64, 4) == 8
    assert effective_batch(4, 8, quiet=True) == 64
    try:
        accumulate(lambda x, y: model(x).sum(), [], 1, model=model)
    except ConfigError as error:
        assert "expected at least one on every rank, found none" in str(error)
    else:
        raise SystemExit("no error")
print("done")
"""


@pytest.mark.slow
def test_two_ranks_reduce_once_and_have_one_processs_gradient() -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    running = [
        subprocess.Popen(
            [sys.executable, "-c", RANK, str(rank), str(port)],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            env=environment,
        )
        for rank in range(2)
    ]
    said = [process.communicate(timeout=120)[0] for process in running]
    assert [process.returncode for process in running] == [0, 0], said
    assert all(text.endswith("done\n") for text in said)
