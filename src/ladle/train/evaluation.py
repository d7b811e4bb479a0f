"""The exact loss over a split: the mean over every target, not over a sample of batches."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from ladle.corpus.split import Split
from ladle.feed.feed import Feed
from ladle.train.ranks import Ranks


@torch.no_grad()
def evaluate(
    loss_sum: Callable[[Tensor, Tensor], Tensor],
    split: Split,
    *,
    block_size: int,
    batch_size: int = 64,
    device: torch.device | str = "cpu",
    ranks: Ranks | None = None,
) -> float:
    """Mean loss over all N - 1 targets of a split, each in exactly one row of block_size (a shorter split is padded).

    batch_size: rows at once, over all ranks. device: the model's. ranks: None is this process alone.
    loss_sum(x, y): the sum of the losses of one batch's targets (those that are not -100). The sum over batches is kept
    in float64 on the host's side of one wait, at the end. Put the model into eval mode first.
    """
    ranks = ranks or Ranks()
    parts: list[Tensor] = []
    num_targets = 0
    with Feed(
        split,
        batch_size=max(batch_size, ranks.world_size),
        block_size=block_size,
        order="sequential",
        tail="cover" if split.num_tokens > block_size else "pad",
        epochs=1,
        rank=ranks.rank,
        world_size=ranks.world_size,
        device=device,
    ) as feed:
        for batch in feed:
            parts.append(loss_sum(batch.x, batch.y))
            num_targets += batch.num_targets
        total = torch.stack(parts).cpu().double().sum()
    if ranks.world_size > 1:
        shared = total.to(device)
        ranks.add_up(shared)
        total = shared.cpu()
    return float(total) / num_targets
