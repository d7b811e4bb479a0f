"""find_batch_size and estimate_batch_size on real models in real, memory-limited processes."""

from __future__ import annotations

import gc
import os
import random
import resource
import signal
import socket
import subprocess
import sys
import time
import weakref
from collections.abc import Mapping
from functools import partial
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import ladle
from ladle.errors import ConfigError
from ladle.train import estimate_batch_size, find_batch_size, usual_loss
from ladle.train.memory import MIB, ResidentMemory

SMALL = nn.Sequential(nn.Linear(4, 3))
sized = partial(torch.zeros, 4)


@pytest.fixture(autouse=True)
def threads():
    """One thread: the other core is somebody else's."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


class Limited:
    """A step that fails above a limit, and counts, across processes too, at which sizes it ran to its end."""

    def __init__(self, limit: int, error: type[Exception] = torch.OutOfMemoryError) -> None:
        self.limit, self.error = limit, error
        self.full = get_context("fork").Array("i", 4096)

    def __call__(self, batch: Tensor) -> None:
        if len(batch) > self.limit:
            raise self.error("CUDA out of memory. Tried to allocate" if self.error is not ValueError else "wrong shape")
        self.full[len(batch)] += 1

    def ran(self) -> list[int]:
        return [size for size, times in enumerate(self.full) if times]


# --- fake limits: the search as it is really called ---


@pytest.mark.parametrize(("limit", "start", "isolate"), [(3, 64, "fork"), (3, 64, "none"), (100, 128, "none"), (100, 1, "none")])
def test_limits_from_anywhere(limit: int, start: int, isolate: str) -> None:
    step = Limited(limit)
    found = find_batch_size(step, sized(), start=start, isolate=isolate, precision=0.0, max_batch_size=4000)
    assert found.largest == limit
    assert found.reason == f"{limit + 1} did not fit"
    ran = [trial.batch_size for trial in found.trials if trial.fits]
    assert {limit, found.fastest} <= set(ran)
    assert set(ran) <= set(step.ran()), "what is said to fit ran, at its own size"
    assert all(step.full[size] >= 2 for size in ran), "at least two full steps a trial"
    assert all("CUDA out of memory" in trial.why for trial in found.trials if not trial.fits)


def test_where_not_even_one_fits() -> None:
    with pytest.raises(
        ConfigError, match=r"batch size 1: expected a step within .* MiB of resident memory, found out of memory: CUDA"
    ):
        find_batch_size(Limited(0), sized(), start=64)


def test_never_failing_is_capped() -> None:
    found = find_batch_size(Limited(10**6), sized(), max_batch_size=1000, isolate="none")
    assert (found.largest, found.reason) == (1000, "max_batch_size is 1000")
    found = find_batch_size(Limited(10**6), sized(), num_samples=37, isolate="none")
    assert (found.largest, found.reason) == (37, "the dataset has 37 samples")
    assert found.trials[-1].batch_size == 37


@pytest.mark.parametrize("isolate", ["fork", pytest.param("spawn", marks=pytest.mark.slow), "none"])
def test_another_error_is_raised_as_itself(isolate: str) -> None:
    with pytest.raises(ZeroDivisionError, match="not about memory") as caught:
        find_batch_size(divides_by_zero, sized(), isolate=isolate)
    if isolate != "none":
        assert "in divides_by_zero" in "".join(caught.value.__notes__), "with the place where it was raised"


def divides_by_zero(batch: Tensor) -> None:
    raise ZeroDivisionError("not about memory")


class Odd(Exception):  # noqa: N818
    def __init__(self, one: int, two: int) -> None:
        super().__init__("cannot be unpickled")


def test_an_error_that_does_not_pickle_comes_as_its_words() -> None:
    def step(batch: Tensor) -> None:
        raise Odd(1, 2)

    with pytest.raises(RuntimeError, match="Odd: cannot be unpickled"):
        find_batch_size(step, sized())


def test_out_of_memory_by_any_name() -> None:
    for error in (MemoryError("host"), RuntimeError("MPS backend out of memory"), OSError(12, "Cannot allocate memory")):

        def step(batch: Tensor, error: Exception = error) -> None:
            if len(batch) > 2:
                raise error

        assert find_batch_size(step, sized(), isolate="none", max_batch_size=8).largest == 2

        def wrapped(batch: Tensor, error: Exception = error) -> None:
            try:
                step(batch, error)
            except Exception as inner:
                raise ValueError("in layer 3") from inner

        assert find_batch_size(wrapped, sized(), isolate="none", max_batch_size=8).largest == 2
    with pytest.raises(RuntimeError, match="shapes do not fit"):
        find_batch_size(raises_runtime_error, sized(), isolate="none")


def raises_runtime_error(batch: Tensor) -> None:
    raise RuntimeError("shapes do not fit")


def test_a_killed_process_did_not_fit_and_a_crash_is_an_error() -> None:
    def killed(batch: Tensor) -> None:
        if len(batch) > 5:
            os.kill(os.getpid(), 9)

    found = find_batch_size(killed, sized(), precision=0.0)
    assert found.largest == 5
    assert found.trial(6).why == "killed, as the system does when memory runs out"

    def crashes(batch: Tensor) -> None:
        os.kill(os.getpid(), 15)

    with pytest.raises(ConfigError, match="batch size 1: the trial's process ended by SIGTERM; run the step once by itself"):
        find_batch_size(crashes, sized())

    def leaves(batch: Tensor) -> None:
        os._exit(7)

    with pytest.raises(ConfigError, match="the trial's process ended by exit code 7"):
        find_batch_size(leaves, sized())


def children() -> list[str]:
    return Path(f"/proc/self/task/{os.getpid()}/children").read_text().split()


@pytest.mark.slow
def test_a_step_that_hangs_ends_and_no_process_is_left() -> None:
    def hangs(batch: Tensor) -> None:
        if len(batch) > 2:
            time.sleep(60)

    before, start = children(), time.monotonic()
    found = find_batch_size(hangs, sized(), timeout_s=1.5, max_batch_size=4, candidates=[1, 2, 4])
    assert found.largest == 2
    assert found.trial(4).why == "not done in 1.5 s"
    assert time.monotonic() - start < 20
    assert children() == before


# --- nothing changes here ---


def batch_norm_net() -> nn.Module:
    torch.manual_seed(5)
    return nn.Sequential(
        nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Dropout(0.5), nn.Flatten(), nn.Linear(4 * 36, 10)
    ).eval()


def everything(model: nn.Module, optimizer: torch.optim.Optimizer) -> list[Any]:
    state = optimizer.state_dict()
    return [
        [t.clone() for t in (*model.parameters(), *model.buffers())],
        [None if p.grad is None else p.grad.clone() for p in model.parameters()],
        [{k: torch.as_tensor(v).clone() for k, v in slots.items()} for slots in state["state"].values()],
        [{k: v for k, v in group.items() if k != "params"} for group in state["param_groups"]],
        [m.training for m in model.modules()],
        [torch.get_rng_state(), random.getstate(), np.random.get_state()],
    ]


def same(a: Any, b: Any) -> bool:
    if isinstance(a, Tensor):
        return torch.equal(a, b)
    if isinstance(a, np.ndarray):
        return bool((a == b).all())
    if isinstance(a, Mapping):
        return a.keys() == b.keys() and all(same(a[k], b[k]) for k in a)
    if isinstance(a, list | tuple):
        return len(a) == len(b) and all(same(x, y) for x, y in zip(a, b, strict=True))
    return bool(a == b)


@pytest.mark.parametrize("trained", [False, True])
@pytest.mark.parametrize("isolate", ["fork", "none"])
def test_model_optimizer_buffers_and_random_states_are_left_alone(isolate: str, trained: bool) -> None:
    model = batch_norm_net()
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)
    gradients = [p.grad for p in model.parameters()]
    if trained:
        model(torch.randn(4, 3, 8, 8)).square().mean().backward()
        optimizer.step()
        gradients = [p.grad for p in model.parameters()]
    before = everything(model, optimizer)

    def loss(model: nn.Module, batch: Any) -> Tensor:
        random.random()
        np.random.rand()
        return usual_loss(model, batch)

    sample = (torch.randn(3, 8, 8), 3)
    before[-1] = [torch.get_rng_state(), random.getstate(), np.random.get_state()]
    found = find_batch_size(model, sample, loss=loss, optimizer=optimizer, isolate=isolate, max_batch_size=8)
    assert found.largest == 8
    assert same(everything(model, optimizer), before)
    assert all(a is b.grad for a, b in zip(gradients, model.parameters(), strict=True))


def test_what_keep_names_is_put_back_around_a_step_of_ones_own() -> None:
    model = batch_norm_net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1)
    before = everything(model, optimizer), scheduler.state_dict()

    def step(batch: Tensor) -> None:
        model.train()
        optimizer.zero_grad()
        model(batch).square().mean().backward()
        optimizer.step()
        scheduler.step()

    sample = torch.zeros(3, 8, 8)
    find_batch_size(step, sample, isolate="none", keep=[model, optimizer, scheduler], max_batch_size=4)
    assert same(everything(model, optimizer), before[0])
    assert scheduler.state_dict() == before[1]
    find_batch_size(step, sample, isolate="none", max_batch_size=4)
    assert not same(everything(model, optimizer), before[0]), "what nobody named is not"


def test_a_failed_steps_tensors_are_gone_before_the_next() -> None:
    """Cleaned up outside the except: its traceback holds the frame that holds the tensor."""
    last: list[weakref.ref[Tensor]] = []

    def step(batch: Tensor) -> None:
        assert not last or last.pop()() is None
        held = torch.zeros(1000)
        if len(batch) > 3:
            last.append(weakref.ref(held))
            raise torch.OutOfMemoryError("out of memory")

    gc.disable()
    try:
        assert find_batch_size(step, sized(), start=64, isolate="none").largest == 3
    finally:
        gc.enable()


def test_put_back_also_after_an_error() -> None:
    model = batch_norm_net()
    before = [t.clone() for t in model.state_dict().values()]

    def loss(model: nn.Module, batch: Any) -> Tensor:
        if len(batch[0]) > 1:
            raise KeyError("found late")
        return usual_loss(model, batch)

    with pytest.raises(KeyError, match="found late"):
        find_batch_size(model, (torch.zeros(3, 8, 8), 1), loss=loss, isolate="none")
    assert same(list(model.state_dict().values()), before)
    assert not model.training


# --- samples ---


class Tokens(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.table, self.head = nn.Embedding(11, 8), nn.Linear(8, 11)

    def forward(self, input_ids: Tensor, labels: Tensor | None = None) -> Any:
        logits = self.head(self.table(input_ids))
        if labels is None:
            return logits
        return {"loss": nn.functional.cross_entropy(logits.flatten(0, 1), labels.flatten()), "logits": logits}


@pytest.mark.parametrize(
    ("model", "sample"),
    [
        (batch_norm_net(), (np.zeros((3, 8, 8), np.float32), 3)),
        (batch_norm_net(), [torch.zeros(3, 8, 8), torch.zeros(10)]),
        (Tokens(), (torch.zeros(5, dtype=torch.long), torch.zeros(5, dtype=torch.long))),
        (Tokens(), {"input_ids": np.zeros(5, np.int64), "labels": torch.zeros(5, dtype=torch.long)}),
        (SMALL, torch.zeros(4)),
        (SMALL, (torch.zeros(4),)),
        (nn.Sequential(nn.Linear(4, 1)), (torch.zeros(4), 0.5)),
        (nn.Conv2d(3, 2, 1), (torch.zeros(3, 4, 4), torch.zeros(4, 4, dtype=torch.long))),
        (SMALL, lambda size: (torch.zeros(size, 4), torch.zeros(size, dtype=torch.int32))),
    ],
)
def test_images_tokens_dicts(model: nn.Module, sample: Any) -> None:
    found = find_batch_size(model, sample, max_batch_size=4)
    assert found.largest == 4
    assert found.line is not None
    assert all(trial.predicted for trial in found.trials)


def test_what_is_no_array_becomes_a_list() -> None:
    seen = []
    find_batch_size(seen.append, {"x": torch.zeros(2), "name": "a", "n": 3}, isolate="none", max_batch_size=2)
    assert seen[-1]["name"] == ["a", "a"]
    assert torch.equal(seen[-1]["n"], torch.tensor([3, 3]))
    assert seen[-1]["x"].shape == (2, 2)


# --- what is said ---


def test_the_accumulation_that_keeps_the_global_batch(tmp_path: Path) -> None:
    found = find_batch_size(Limited(100), sized(), global_batch=512, precision=0.0, isolate="none")
    assert found.micro_batch_size is not None
    assert found.accumulation is not None
    assert found.micro_batch_size * found.accumulation == 512
    assert found.trial(found.micro_batch_size).fits
    assert str(found).splitlines()[-1] == (
        f"global batch 512 = {found.micro_batch_size} a pass x {found.accumulation} passes x 1 ranks"
    )
    found = find_batch_size(Limited(100), sized(), global_batch=74, isolate="none", start=100)
    assert (found.largest, found.reason) == (74, "a rank's part of the global batch is 74")
    pytest.importorskip("matplotlib")
    assert "</svg>" in found.draw(tmp_path / "sizes.svg").read_text("utf-8")


def test_a_divisor_is_tried_before_it_is_named() -> None:
    step = Limited(10)
    found = find_batch_size(step, sized(), global_batch=3 * 7 * 11, candidates=[10], isolate="none")
    assert found.largest == 10
    assert found.micro_batch_size == 7
    assert found.accumulation == 33
    assert 7 in step.ran()


def test_the_fastest_may_not_be_the_largest() -> None:
    def step(batch: Tensor) -> None:
        time.sleep(0.01 if len(batch) <= 8 else 0.08)

    found = find_batch_size(step, sized(), max_batch_size=32, isolate="none")
    assert (found.fastest, found.largest) == (8, 32)
    table = str(found)
    assert table.splitlines()[0].split() == ["batch", "size", "peak", "MiB", "predicted", "ms", "a", "step", "samples/s"]
    assert "  fastest\n" in table
    assert "  largest\n" in table
    assert table.endswith("max_batch_size is 32")
    with pytest.raises(ConfigError, match=r"batch_size: expected one that was tried \(1, 2, 4, 8, 16, 32\), found 5"):
        found.trial(5)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"isolate": "thread"}, "isolate: expected one of auto, fork, spawn, none, found 'thread'"),
        ({"max_memory": 0}, "max_memory: expected a whole number >= 1, found 0"),
        ({"max_batch_size": 2.0}, r"max_batch_size: expected a whole number >= 1, found 2\.0"),
        ({"num_samples": 0}, "num_samples: expected a whole number >= 1, found 0"),
        ({"start": 0}, "start: expected a whole number >= 1, found 0"),
        ({"precision": 1.0}, r"precision: expected a share from 0 to 1, found 1\.0"),
        ({"candidates": [64], "max_batch_size": 8}, r"candidates: expected a size of at most 8, found \[64\]"),
        ({"device": "meta"}, "device: expected cpu or cuda, whose memory can be measured, found meta"),
        ({"sample": "text"}, "sample: expected tensors, arrays or numbers, .* found str"),
        ({"step": 3}, "step: expected a model or a function of a batch, found int"),
        ({"sample": {"input": torch.zeros(4)}, "step": nn.Identity()}, "optimizer got an empty parameter list"),
    ],
)
def test_what_cannot_be(options: dict[str, Any], message: str) -> None:
    given = {"step": Limited(9), "sample": sized()} | options
    with pytest.raises(ValueError, match=message):
        find_batch_size(**given)


def test_a_model_without_a_loss() -> None:
    model = nn.Linear(4, 2)
    with pytest.raises(ConfigError, match=r"loss: expected model\(\*\*batch\) to give a 'loss', found Tensor; give loss"):
        find_batch_size(model, {"input": torch.zeros(4)})


def test_spawn_names_what_does_not_pickle() -> None:
    with pytest.raises(ConfigError, match=r"isolate: expected what pickle can send .* found .*<lambda>.*; define it at the top"):
        find_batch_size(lambda batch: None, sized(), isolate="spawn")


# --- real memory ---


class Hungry(nn.Module):
    """Keeps 20 MiB a sample for the backward pass; from 8 samples on each tensor is mapped and unmapped by itself."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.ones(5))

    def forward(self, x: Tensor) -> Tensor:
        x = x.unsqueeze(-1).expand(-1, -1, 1 << 18)
        for scale in self.scale:
            x = torch.tanh(x * scale)
        return x.mean((1, 2))


def really_fits(size: int, limit: int) -> bool:
    """Two steps in a forked process that may hold `limit` bytes, by nothing of Ladle's."""

    def of(field: str) -> int:
        lines = Path("/proc/self/status").read_text().splitlines()
        return next(int(line.split()[1]) << 10 for line in lines if line.startswith(field))

    held = of("VmRSS")
    pid = os.fork()
    if pid == 0:
        code = 9
        try:
            resource.setrlimit(resource.RLIMIT_DATA, (of("VmData") + limit - held, -1))
            model = Hungry()
            optimizer = torch.optim.AdamW(model.parameters())
            start = of("VmRSS")
            for _ in range(2):
                optimizer.zero_grad()
                model(torch.zeros(size, 4)).square().mean().backward()
                optimizer.step()
            code = 0 if of("VmHWM") - start <= limit - held else 1
        except RuntimeError as error:
            code = 1 if "allocate memory" in str(error) else 2
        finally:
            os._exit(code)
    code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    assert code in {0, 1}
    return code == 0


@pytest.mark.slow
def test_the_true_limit_by_brute_force() -> None:
    """Within one step of the search of the largest size that runs; the kernel refuses memory, nothing is killed."""
    limit = ResidentMemory().held() + 600 * MIB
    found = find_batch_size(Hungry(), torch.zeros(4), loss=mean_square, max_memory=limit, precision=0.0)
    assert 16 < found.largest < 25
    true = [size for size in range(found.largest - 4, found.largest + 6) if really_fits(size, limit)]
    assert true[0] == found.largest - 4
    assert abs(found.largest - true[-1]) <= 1, (found.largest, true)
    assert all(trial.peak is not None and trial.peak <= limit for trial in found.trials if trial.fits)
    assert any(not trial.fits for trial in found.trials)


@pytest.mark.slow
def test_a_spawned_process() -> None:
    found = find_batch_size(Hungry(), torch.zeros(4), loss=mean_square, isolate="spawn", candidates=[1, 2])
    assert found.largest == 2
    assert found.line is not None


def mean_square(model: nn.Module, batch: Tensor) -> Tensor:
    return model(batch).square().mean()  # type: ignore[no-any-return]


@pytest.mark.slow
def test_a_forked_child_is_bounded_too_and_this_process_is_not() -> None:
    limit = ResidentMemory().held() + 450 * MIB
    found = find_batch_size(Hungry(), torch.zeros(4), loss=mean_square, max_memory=limit)
    assert 12 <= found.largest <= 24, str(found)
    assert found.budget == limit
    failed = [trial for trial in found.trials if not trial.fits]
    assert failed
    assert all("allocate" in trial.why or "held" in trial.why for trial in failed)
    assert torch.zeros(200 * MIB).numel() == 200 * MIB, "800 MiB at once, here"


@pytest.mark.slow
def test_the_prediction_is_of_the_right_size() -> None:
    """Five outputs are kept and two tensors are alive beside them: 28 MiB a sample, said before any is made."""
    found = find_batch_size(Hungry(), torch.zeros(4), loss=mean_square, candidates=[10, 18])
    assert found.line is not None
    assert found.line.each == pytest.approx(28 * MIB, rel=1e-3)
    assert (found.trial(18).peak - found.trial(10).peak) / 8 == pytest.approx(28 * MIB, rel=0.1)  # type: ignore[operator]
    first = found.trial(10)
    assert first.predicted == pytest.approx(first.peak, rel=0.1), "before anything had run"
    assert found.trial(18).predicted == pytest.approx(found.trial(18).peak, rel=0.1)


def test_it_works_after_threads_have_been_used_here() -> None:
    """OpenMP's threads do not survive a fork: a step in a plain child would hang."""
    torch.set_num_threads(2)
    model = nn.Linear(512, 512)
    model(torch.zeros(512, 512)).sum().backward()
    assert find_batch_size(model, torch.zeros(512), max_batch_size=1024, timeout_s=60).largest == 1024


def test_estimate(capsys: pytest.CaptureFixture[str]) -> None:
    model = Hungry()
    limit = ResidentMemory().held() / MIB + 330
    size = estimate_batch_size(model, torch.zeros(4), 0.5, max_memory_mb=limit)
    said = capsys.readouterr().out
    assert size == 8
    assert f"budget {limit:,.0f} MiB of resident memory" in said
    rows = [line.split() for line in said.splitlines()[1:-1]]
    assert [int(row[0]) for row in rows[:2]] == [8, 16]
    assert all(float(row[1].replace(",", "")) <= limit for row in rows if int(row[0]) <= size), "size and peak, within the limit"
    assert ladle.estimate_batch_size(SMALL, torch.zeros(4), 2, candidates=(4, 2)) == 4
    assert capsys.readouterr().out.endswith("4 is the last candidate\n")
    with pytest.raises(ConfigError, match=r"batch size 100: expected a step within .* MiB of resident memory, found .* held"):
        estimate_batch_size(model, torch.zeros(4), 0.5, max_memory_mb=ResidentMemory().held() / MIB + 50, candidates=(100, 200))


# --- ranks ---

RANK = """
import sys, torch
from ladle.errors import ConfigError
from ladle.train import find_batch_size, joined

rank, port = int(sys.argv[1]), int(sys.argv[2])
torch.set_num_threads(1)


def limited(limit, error=torch.OutOfMemoryError):
    def step(batch):
        if len(batch) > limit:
            raise error("out of memory")
    return step


with joined(rank=rank, world_size=2, address="127.0.0.1", port=port, backend="gloo", timeout_s=60):
    found = find_batch_size(limited((25, 10)[rank]), torch.zeros(4), precision=0.0, global_batch=48)
    assert found.largest == 10, found
    assert found.trial(10).fits
    assert found.fastest <= 10
    assert found.trial(found.fastest).fits
    assert found.micro_batch_size in (1, 2, 3, 4, 6, 8), found
    assert found.micro_batch_size * found.accumulation * 2 == 48
    assert str(found).endswith("x 2 ranks")
    print(found.largest, found.fastest, found.micro_batch_size)
    try:
        find_batch_size(limited((25, 3)[rank], (torch.OutOfMemoryError, KeyError)[rank]), torch.zeros(4), max_batch_size=8)
    except KeyError:
        assert rank == 1
    except ConfigError as error:
        assert rank == 0
        assert "expected a batch size on every rank, found an error on another" in str(error)
    else:
        raise SystemExit("no error")
    try:
        find_batch_size(limited(9), torch.zeros(4), global_batch=7)
    except ConfigError as error:
        assert str(error) == "global_batch: expected a multiple of 2 ranks, found 7"
"""


@pytest.mark.slow
def test_the_smallest_over_the_ranks() -> None:
    """25 fit on one and 10 on the other: both say 10, having run it; an error on one ends both."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    running = [
        subprocess.Popen(
            [sys.executable, "-c", RANK, str(rank), str(port)], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
        )
        for rank in range(2)
    ]
    said = [process.communicate(timeout=200)[0] for process in running]
    assert [process.returncode for process in running] == [0, 0], said
    assert said[0] == said[1]


@pytest.mark.slow
def test_interrupted_no_process_is_left() -> None:
    code = """
import time, torch
from ladle.train import find_batch_size
def step(batch):
    print("begun", flush=True)
    time.sleep(60)
find_batch_size(step, torch.zeros(4))
"""
    running = subprocess.Popen(
        [sys.executable, "-c", code], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True
    )
    assert running.stdout is not None
    assert running.stdout.readline() == "begun\n"
    os.killpg(running.pid, signal.SIGINT)
    _, said = running.communicate(timeout=20)
    assert "KeyboardInterrupt" in said
    with pytest.raises(ProcessLookupError):
        os.killpg(running.pid, 0)
