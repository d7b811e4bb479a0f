"""The exact loss: every target once."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from torch import Tensor

import ladle
from ladle.nn import GPT, GPTConfig
from ladle.train import evaluate

SHAPE = GPTConfig(vocab_size=13, block_size=8, layers=1, heads=2, width=16)


def split_of(tokens: int) -> ladle.corpus.split.Split:
    return ladle.from_ids(np.random.default_rng(tokens).integers(0, 13, tokens).astype(np.uint16), vocab_size=13)


@pytest.mark.parametrize("tokens", [2, 5, 9, 10, 17, 100, 129, 130])
@pytest.mark.parametrize("batch_size", [1, 3, 64])
def test_every_target_counts_once(tokens: int, batch_size: int) -> None:
    """Against a plain loop: rows of 8 targets from the start, the last one moved back, what it repeats left out."""
    split, model = split_of(tokens), GPT(SHAPE).double().eval()
    with torch.no_grad():
        model.embed.wte.weight.mul_(30)  # so that every target's loss is its own
    ids = torch.from_numpy(split.read(0, tokens).astype(np.int64))
    total, counted = 0.0, 0
    for first in range(0, tokens - 1, 8):
        start = max(0, min(first, tokens - 9))
        x, y = ids[start : start + 8][: tokens - 1 - start], ids[start + 1 : start + 9]
        losses = -model(x[None])[0][0].log_softmax(-1).gather(-1, y[:, None])[:, 0]
        fresh = losses[first - start :]
        total, counted = total + fresh.sum().item(), counted + len(fresh)
    assert counted == tokens - 1
    got = evaluate(lambda x, y: model(x, y, reduction="sum")[1], split, block_size=8, batch_size=batch_size)
    assert got == pytest.approx(total / counted, rel=1e-12)


def test_no_gradient_is_kept_and_sums_do_not_drift() -> None:
    """A million losses of 0.1 in float32, summed naively, would already be off in the third digit."""
    seen: list[Tensor] = []

    def tenth(x: Tensor, y: Tensor) -> Tensor:
        seen.append(y)
        assert not torch.is_grad_enabled()
        return (y != -100).sum() * torch.tensor(0.1)

    assert evaluate(tenth, split_of(200_001), block_size=8, batch_size=2) == pytest.approx(0.1, rel=1e-6)
    assert sum(int((y != -100).sum()) for y in seen) == 200_000


def test_a_uniform_model_scores_the_logarithm() -> None:
    uniform = lambda x, y: torch.tensor(math.log(13)) * (y != -100).sum()  # noqa: E731
    assert evaluate(uniform, split_of(77), block_size=8) == pytest.approx(math.log(13))
