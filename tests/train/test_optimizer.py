"""AdamW's groups."""

from __future__ import annotations

import torch
from torch import nn

from ladle.nn import GPT, GPTConfig
from ladle.train import TrainConfig, decay_groups
from ladle.train.optimizer import make

SHAPE = GPTConfig(vocab_size=13, block_size=8, layers=2, heads=2, width=16)


def test_matrices_are_decayed_and_nothing_else() -> None:
    model = GPT(SHAPE)
    decayed, rest = decay_groups(model, 0.1)
    assert (decayed["weight_decay"], rest["weight_decay"]) == (0.1, 0.0)
    names = {p: name for name, p in model.named_parameters()}
    assert all(
        names[p].endswith(("c_attn.weight", "c_proj.weight", "c_fc.weight", "wte.weight", "wpe.weight"))
        for p in decayed["params"]
    )
    assert all(names[p].endswith("bias") or ".ln_" in names[p] or names[p].startswith("ln_f") for p in rest["params"])
    assert len(decayed["params"]) + len(rest["params"]) == len(names)


def test_a_tied_parameter_stands_once_and_a_frozen_one_not_at_all() -> None:
    table = nn.Embedding(5, 3)
    head = nn.Linear(3, 5, bias=False)
    head.weight = table.weight
    frozen = nn.Linear(3, 3)
    frozen.requires_grad_(False)
    decayed, rest = decay_groups(nn.ModuleList([table, head, frozen]), 0.1)
    assert decayed["params"] == [table.weight]
    assert rest["params"] == []


def test_one_step_by_hand() -> None:
    """With a gradient of 1 everywhere the first AdamW step moves every value by the rate, decayed ones shrink first."""
    model = GPT(SHAPE)
    optimizer = make(model, TrainConfig(learning_rate=0.01, min_learning_rate=0.0, weight_decay=0.5))
    before = {name: p.detach().clone() for name, p in model.named_parameters()}
    for p in model.parameters():
        p.grad = torch.ones_like(p)
    optimizer.step()
    for name, p in model.named_parameters():
        shrunk = before[name] * (1 - 0.01 * 0.5) if p.dim() >= 2 else before[name]
        assert torch.allclose(p.detach(), shrunk - 0.01, atol=1e-6)


def test_all_matrices_or_none() -> None:
    assert len(make(nn.Linear(2, 2, bias=False), TrainConfig()).param_groups) == 1
