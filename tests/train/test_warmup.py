"""Warm-up and cosine by steps or epochs, as a function and as a torch scheduler that resumes exactly."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from ladle.errors import ConfigError, StateError
from ladle.train import WarmupCosine, grouped, steps_per_epoch, warmup_cosine


def made(*peaks: float, **schedule: Any) -> tuple[torch.optim.Optimizer, WarmupCosine]:
    groups = [{"params": [nn.Parameter(torch.zeros(1))], "lr": peak} for peak in peaks]
    optimizer = torch.optim.SGD(groups)
    return optimizer, WarmupCosine(optimizer, **schedule)


def walk(optimizer: torch.optim.Optimizer, scheduler: WarmupCosine, steps: int) -> list[float]:
    rates = []
    for _ in range(steps):
        rates.append(optimizer.param_groups[0]["lr"])
        optimizer.step()
        scheduler.step()
    return rates


def test_the_first_of_four_has_a_quarter_and_the_fourth_all() -> None:
    assert [warmup_cosine(step, steps=100, warmup_steps=4) for step in range(4)] == [0.25, 0.5, 0.75, 1.0]
    assert warmup_cosine(99, steps=100, warmup_steps=4) == 0.0
    assert warmup_cosine(99, steps=100, warmup_steps=4, floor=0.1) == 0.1


def test_by_epochs() -> None:
    by_epochs = [warmup_cosine(step, epochs=30, warmup_epochs=5, steps_per_epoch=10) for step in range(300)]
    assert by_epochs == [warmup_cosine(step, steps=300, warmup_steps=50) for step in range(300)]
    assert (by_epochs[0], by_epochs[49]) == (0.02, 1.0)
    assert warmup_cosine(4, epochs=3, warmup_epochs=0.5, steps_per_epoch=10) == 1.0
    assert warmup_cosine(0, epochs=30, steps_per_epoch=10) == 0.02, "5 epochs by default"


@pytest.mark.parametrize(
    ("schedule", "rates"),
    [
        ({"steps": 5, "warmup_steps": 0}, [1.0, 0.5 + math.sqrt(2) / 4, 0.5, 0.5 - math.sqrt(2) / 4, 0.0]),
        ({"steps": 4, "warmup_steps": 100}, [0.25, 0.5, 0.75, 1.0]),
        ({"steps": 4, "warmup_steps": 2, "decay_steps": 0}, [0.5, 1.0, 1.0, 1.0]),
        ({"steps": 1}, [1.0]),
        ({"epochs": 2, "warmup_epochs": 5, "steps_per_epoch": 2}, [0.25, 0.5, 0.75, 1.0]),
    ],
)
def test_the_edges_are_defined(schedule: dict[str, Any], rates: list[float]) -> None:
    assert [warmup_cosine(step, **schedule) for step in range(len(rates))] == pytest.approx(rates, abs=1e-15)


@given(steps=st.integers(1, 200), warmup=st.integers(0, 300), floor=st.floats(0, 1))
def test_every_run_reaches_the_peak_and_never_jumps(steps: int, warmup: int, floor: float) -> None:
    got = [warmup_cosine(step, steps=steps, warmup_steps=warmup, floor=floor) for step in range(steps)]
    assert max(got) == 1.0
    top = got.index(1.0)
    assert got[: top + 1] == [(step + 1) / (top + 1) for step in range(top + 1)]
    room = max(steps - 1 - top, 1)
    assert all(-1e-12 <= a - b <= 2 / room for a, b in zip(got[top:], got[top + 1 :], strict=False))


def test_the_scheduler_is_the_function() -> None:
    optimizer, scheduler = made(0.4, 0.1, steps=20, warmup_steps=4, floor=0.1)
    rates = walk(optimizer, scheduler, 20)
    assert rates == [0.4 * warmup_cosine(step, steps=20, warmup_steps=4, floor=0.1) for step in range(20)]
    assert optimizer.param_groups[1]["lr"] == 0.1 * 0.1


@pytest.mark.parametrize("order", ["optimizer first", "scheduler first", "scheduler alone"])
def test_a_resumed_run_has_the_uninterrupted_rates(order: str) -> None:
    """Stopped after 1 000 steps, in epoch 1: it continues from the step, not from the epoch."""
    schedule: dict[str, Any] = {"epochs": 3, "warmup_epochs": 0.1, "steps_per_epoch": 900}
    whole = walk(*made(0.4, **schedule), 2700)
    optimizer, scheduler = made(0.4, **schedule)
    assert walk(optimizer, scheduler, 1000) == whole[:1000]
    saved = {"optimizer": optimizer.state_dict(), "scheduler": scheduler.state_dict()}
    assert saved["scheduler"] == {"last_epoch": 1000, "base_lrs": [0.4]}
    optimizer, scheduler = made(0.4, **schedule)
    if order == "optimizer first":
        optimizer.load_state_dict(saved["optimizer"])
    scheduler.load_state_dict(saved["scheduler"])
    if order == "scheduler first":
        optimizer.load_state_dict(saved["optimizer"])
    assert scheduler.get_last_lr() == [whole[1000]]
    assert walk(optimizer, scheduler, 1700) == whole[1000:]


def test_made_after_the_optimizers_state_was_loaded() -> None:
    """initial_lr stands in the loaded groups, so that the peak is not the rate of the moment of saving."""
    optimizer, scheduler = made(0.4, steps=10, warmup_steps=2)
    walk(optimizer, scheduler, 7)
    again = torch.optim.SGD([nn.Parameter(torch.zeros(1))], lr=9.0)
    again.load_state_dict(optimizer.state_dict())
    resumed = WarmupCosine(again, steps=10, warmup_steps=2)
    resumed.load_state_dict(scheduler.state_dict())
    assert walk(again, resumed, 3) == walk(optimizer, scheduler, 3)


def test_a_rate_held_as_a_tensor() -> None:
    optimizer = torch.optim.AdamW([nn.Parameter(torch.zeros(1))], lr=torch.tensor(0.5))
    scheduler = WarmupCosine(optimizer, steps=10, warmup_steps=2)
    held = optimizer.param_groups[0]["lr"]
    assert held.item() == 0.25
    scheduler.load_state_dict({"last_epoch": 1, "base_lrs": [0.5]})
    assert held.item() == 0.5
    assert optimizer.param_groups[0]["lr"] is held


def test_scheduler_steps_are_optimizer_steps() -> None:
    """7 batches by 4 for 3 epochs: 6 steps, and the last has the floor."""
    schedule: dict[str, Any] = {"epochs": 3, "warmup_epochs": 1, "steps_per_epoch": steps_per_epoch(7, 4)}
    optimizer, scheduler = made(1.0, **schedule)
    rates = [walk(optimizer, scheduler, 1)[0] for _ in range(3) for _ in grouped(range(7), 4)]
    assert len(rates) == 6 == scheduler.last_epoch
    assert rates[:2] == [0.5, 1.0]
    assert rates[-1] == 0.0


def test_a_state_of_other_groups() -> None:
    _, scheduler = made(1.0, steps=10)
    with pytest.raises(StateError, match="base_lrs: expected 1 groups, found 2"):
        scheduler.load_state_dict({"last_epoch": 3, "base_lrs": [1.0, 2.0]})


@pytest.mark.parametrize(
    ("given_", "message"),
    [
        ({}, "expected steps .* found steps=None, epochs=None"),
        ({"steps": 5, "epochs": 5, "steps_per_epoch": 3}, "expected steps .* found steps=5, epochs=5"),
        ({"epochs": 5}, "steps_per_epoch=None"),
        ({"steps": 5, "steps_per_epoch": 5}, "found steps=5, epochs=None, steps_per_epoch=5"),
        ({"steps": 0}, "steps: expected >= 1, found 0"),
        ({"steps": 5, "warmup_steps": -1}, "warmup_steps: expected >= 0, found -1"),
        ({"steps": 5, "floor": 1.5}, "floor: expected a share of the peak from 0 to 1, found 1.5"),
        ({"epochs": 0, "steps_per_epoch": 5}, "epochs: expected >= 1, found 0"),
    ],
)
def test_what_cannot_be_a_schedule(given_: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        warmup_cosine(0, **given_)
    with pytest.raises(ConfigError, match=message):
        made(1.0, **given_)


def test_a_negative_step() -> None:
    with pytest.raises(ConfigError, match="step: expected >= 0, found -1"):
        warmup_cosine(-1, steps=5)
