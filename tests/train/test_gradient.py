"""One update's gradient does not depend on how its batch was cut."""

from __future__ import annotations

import gc
import weakref
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from ladle.nn import GPT, GPTConfig
from ladle.train import Ranks, accumulate
from ladle.train.gradient import Gradient

SHAPE = GPTConfig(vocab_size=13, block_size=8, layers=2, heads=2, width=16)


def batch(rows: int = 8, masked: float = 0.4, seed: int = 1) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    x = torch.randint(0, 13, (rows, 8), generator=generator)
    y = torch.randint(0, 13, (rows, 8), generator=generator)
    return x, y.masked_fill(torch.rand(rows, 8, generator=generator) < masked, -100)


def summed(model: GPT) -> Any:
    return lambda x, y: model(x, y, reduction="sum")[1]


def counted(y: Tensor) -> int:
    return int((y != -100).sum())


def cut_gradient(x: Tensor, y: Tensor, cuts: list[int], dtype: torch.dtype) -> tuple[Tensor, float]:
    model = GPT(SHAPE, seed=3).to(dtype)
    gradient = Gradient(model)
    loss = accumulate(summed(model), zip(x.split(cuts), y.split(cuts), strict=True), counted(y))
    return gradient.vector.clone(), loss.item()


@pytest.mark.parametrize(("dtype", "within"), [(torch.float64, 1e-14), (torch.float32, 1e-6)])
@pytest.mark.parametrize("cuts", [[4, 4], [1] * 8, [5, 3], [1, 6, 1], [3, 3, 2]])
def test_any_cut_gives_the_whole_batchs_gradient(cuts: list[int], dtype: torch.dtype, within: float) -> None:
    x, y = batch()
    y[:2] = -100  # a micro-batch without any target among them
    whole, loss = cut_gradient(x, y, [8], dtype)
    parts, part_loss = cut_gradient(x, y, cuts, dtype)
    assert (whole - parts).abs().max().item() <= within
    assert whole.abs().max().item() > 1e-2
    assert part_loss == pytest.approx(loss, rel=1e-6)


@settings(deadline=None, max_examples=25)
@given(cuts=st.lists(st.integers(1, 4), min_size=1, max_size=5), masked=st.floats(0, 1), seed=st.integers(0, 99))
def test_any_cut_property(cuts: list[int], masked: float, seed: int) -> None:
    x, y = batch(sum(cuts), masked, seed)
    whole, loss = cut_gradient(x, y, [sum(cuts)], torch.float64)
    parts, part_loss = cut_gradient(x, y, cuts, torch.float64)
    assert (whole - parts).abs().max().item() <= 1e-13
    assert part_loss == pytest.approx(loss, abs=1e-6)


def test_the_mean_is_over_targets_not_over_micro_batches() -> None:
    """2 targets of loss 4 and 6 of loss 1: 1.75, and not 2.5."""
    weight = nn.Parameter(torch.ones(()))
    losses = accumulate(lambda x, _: (weight * x).sum(), [(torch.full((2,), 4.0),) * 2, (torch.ones(6),) * 2], 8)
    assert losses.item() == 1.75
    assert weight.grad is not None
    assert weight.grad.item() == 1.75


@pytest.mark.parametrize("passes", [1, 2, 8])
def test_normalised_once(passes: int) -> None:
    x, y = batch(8, masked=0.0)
    whole, _ = cut_gradient(x, y, [8], torch.float64)
    parts, _ = cut_gradient(x, y, [8 // passes] * passes, torch.float64)
    assert (whole - parts).abs().max().item() < 1e-14


def test_no_target_at_all_is_no_gradient_and_no_nan() -> None:
    model = GPT(SHAPE)
    gradient = Gradient(model)
    x, y = batch()
    loss = accumulate(summed(model), [(x, torch.full_like(y, -100))], 0)
    assert loss.item() == 0.0
    assert not gradient.vector.any()


def test_the_last_partial_group_is_an_update_of_its_own_size() -> None:
    """7 rows, 4 an update: 2 updates, the second divided by its 3 rows, with nothing left of the first."""
    x, y = batch(7, masked=0.2)
    model = GPT(SHAPE, seed=3).double()
    gradient = Gradient(model)
    for first in (0, 4):
        gradient.clear()
        rows = slice(first, first + 4)
        accumulate(summed(model), zip(x[rows].split(1), y[rows].split(1), strict=True), counted(y[rows]))
        alone, _ = cut_gradient(x[rows], y[rows], [len(x[rows])], torch.float64)
        assert (gradient.vector - alone).abs().max().item() < 1e-14


def peak_saved(passes: int) -> int:
    """The most tensors that autograd kept alive at once."""
    alive: weakref.WeakSet[Any] = weakref.WeakSet()
    peak = 0

    class Kept:
        def __init__(self, tensor: Tensor) -> None:
            self.tensor = tensor

    def keep(tensor: Tensor) -> Kept:
        nonlocal peak
        kept = Kept(tensor)
        alive.add(kept)
        peak = max(peak, len(alive))
        return kept

    model = GPT(SHAPE)
    Gradient(model)
    x, y = batch(passes)
    with torch.autograd.graph.saved_tensors_hooks(keep, lambda kept: kept.tensor):
        accumulate(summed(model), zip(x.split(1), y.split(1), strict=True), counted(y))
    gc.collect()
    assert not alive
    return peak


def test_no_graph_outlives_its_micro_batch() -> None:
    assert peak_saved(2) == peak_saved(16) > 0


def test_gradients_are_views_of_one_vector() -> None:
    model = GPT(SHAPE)
    gradient = Gradient(model)
    assert gradient.vector.numel() == model.num_parameters()
    x, y = batch()
    accumulate(summed(model), [(x, y)], counted(y))
    alone = torch.cat([p.grad.reshape(-1) for p in model.parameters() if p.grad is not None])
    assert torch.equal(alone, gradient.vector)
    gradient.clear()
    assert not any(p.grad.any() for p in model.parameters() if p.grad is not None)


@pytest.mark.parametrize("limit", [0.0, 1e-3, 1e3])
def test_clipping_equals_torchs(limit: float) -> None:
    x, y = batch()
    ours, theirs = GPT(SHAPE, seed=2), GPT(SHAPE, seed=2)
    gradient = Gradient(ours)
    for model in (ours, theirs):
        accumulate(summed(model), [(x, y)], counted(y))
    norm = gradient.clip(limit)
    expected = nn.utils.clip_grad_norm_(theirs.parameters(), limit or 1e30)
    assert norm.item() == pytest.approx(expected.item(), rel=1e-6)
    for a, b in zip(ours.parameters(), theirs.parameters(), strict=True):
        assert a.grad is not None
        assert b.grad is not None
        assert torch.allclose(a.grad, b.grad, rtol=1e-5, atol=1e-9)


def test_alone_there_is_no_collective() -> None:
    gradient = Gradient(GPT(SHAPE))
    loss = torch.tensor(3.0)
    assert gradient.add_up(loss, Ranks()) is loss
