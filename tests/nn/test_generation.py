"""Text from a model: chance of its own, and a border it keeps."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from ladle.errors import ConfigError, TokenError
from ladle.nn import GPT, GPTConfig, generate

SMALL = GPTConfig(vocab_size=11, block_size=6, layers=1, heads=1, width=8)
START = torch.tensor([[1, 2], [3, 4]])


def seeded(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def test_continues_each_row_past_the_block_size() -> None:
    out = generate(GPT(SMALL), START, 10)
    assert out.shape == (2, 12)
    assert out.dtype == torch.int64
    assert torch.equal(out[:, :2], START)
    assert int(out.max()) < 11


def test_chance_is_the_generators() -> None:
    model, before = GPT(SMALL), torch.get_rng_state()
    one, same, other = (generate(model, START, 20, generator=seeded(s)) for s in (1, 1, 2))
    assert torch.equal(one, same)
    assert not torch.equal(one, other)
    assert torch.equal(generate(model, START, 20), generate(model, START, 20))
    assert torch.equal(torch.get_rng_state(), before)


def test_temperature_zero_and_one_of_top_one_take_the_likeliest() -> None:
    model = GPT(SMALL)
    likeliest = generate(model, START, 5, temperature=0)
    assert torch.equal(likeliest, generate(model, START, 5, top_k=1, generator=seeded(3)))
    first = model(START)[0][:, -1].argmax(-1)
    assert torch.equal(likeliest[:, 2], first)


def test_top_k_keeps_k() -> None:
    model = GPT(SMALL)
    best = set(model(START[:1])[0][0, -1].topk(3).indices.tolist())
    drawn = {int(generate(model, START[:1], 1, top_k=3, generator=seeded(s))[0, -1]) for s in range(60)}
    assert drawn == best
    assert generate(model, START, 1, top_k=500).shape == (2, 3)


def test_frequencies_follow_the_model() -> None:
    model = GPT(SMALL)
    with torch.no_grad():
        model.embed.wte.weight.mul_(40)
    want = (model(START[:1])[0][0, -1] / 0.7).softmax(-1)
    drawn = generate(model, START[:1].expand(20_000, 2), 1, temperature=0.7, generator=seeded(1))[:, -1]
    assert torch.allclose(drawn.bincount(minlength=11) / 20_000, want.detach(), atol=0.015)


def test_training_mode_comes_back_and_dropout_stays_off() -> None:
    model = GPT(replace(SMALL, dropout=0.5))
    assert torch.equal(generate(model, START, 4), generate(model, START, 4))
    assert model.training
    with pytest.raises(TokenError):
        generate(model, torch.tensor([[11]]), 1)
    assert model.training
    generate(model.eval(), START, 1)
    assert not model.training


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"temperature": -1.0}, "temperature: expected >= 0, found -1.0"),
        ({"temperature": float("nan")}, "temperature: expected >= 0, found nan"),
        ({"top_k": 0}, "top_k: expected >= 1, found 0"),
        ({"max_new_tokens": -1}, "max_new_tokens: expected >= 0, found -1"),
        ({"ids": torch.zeros(1, 0, dtype=torch.int64)}, r"ids: expected \(B, T\) with T >= 1, found shape \(1, 0\)"),
    ],
)
def test_errors(arguments: dict, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        generate(GPT(SMALL), **({"ids": START, "max_new_tokens": 1} | arguments))
