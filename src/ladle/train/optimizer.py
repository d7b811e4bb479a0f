"""AdamW, with decay for matrices alone."""

from __future__ import annotations

import torch
from torch import nn

from ladle.train.config import TrainConfig


def decay_groups(model: nn.Module, weight_decay: float) -> list[dict[str, object]]:
    """Two groups: parameters of two dimensions or more are decayed, biases and norms are not. A tied one stands once."""
    wanted = [p for p in model.parameters() if p.requires_grad]  # parameters() names a shared one once
    return [
        {"params": [p for p in wanted if p.dim() >= 2], "weight_decay": weight_decay},
        {"params": [p for p in wanted if p.dim() < 2], "weight_decay": 0.0},
    ]


def make(model: nn.Module, config: TrainConfig) -> torch.optim.AdamW:
    """The optimizer of a run. Its rate is set before every step from the schedule.

    Fused where torch has a fused kernel; each element's arithmetic is its own, so it repeats to the bit.
    """
    devices = {p.device.type for p in model.parameters()}
    groups = [group for group in decay_groups(model, config.weight_decay) if group["params"]]
    return torch.optim.AdamW(
        groups, lr=config.learning_rate, betas=(config.beta1, config.beta2), fused=devices <= {"cpu", "cuda"}
    )
