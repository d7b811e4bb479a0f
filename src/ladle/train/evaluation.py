"""The exact loss over a split: the mean over every target, not over a sample of batches."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from ladle.corpus.split import Split
from ladle.errors import ConfigError
from ladle.feed.batch import Batch
from ladle.feed.feed import Feed
from ladle.rows.packs import Overlong, Policy
from ladle.train.ranks import Ranks


@torch.no_grad()
def evaluate(
    loss_sum: Callable[..., Tensor],
    split: Split,
    *,
    block_size: int,
    batch_size: int = 64,
    device: torch.device | str = "cpu",
    ranks: Ranks | None = None,
    pack: Policy | None = None,
    overlong: Overlong = "split",
    mask_documents: bool = False,
) -> float:
    """Mean loss over all N - 1 targets of a split, each in exactly one row of block_size (a shorter split is padded).

    With pack= or mask_documents=True, as for a Feed, over all targets that lie in their input's document.

    batch_size: rows at once, over all ranks. device: the model's. ranks: None is this process alone.
    loss_sum(x, y), or loss_sum(x, y, segments) where documents are kept apart: the sum of the losses of one batch's targets
    (those that are not -100). The sum over batches is kept
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
        tail="pad" if pack is None and split.num_tokens <= block_size else "cover",
        pack=pack,
        overlong=overlong,
        mask_documents=mask_documents,
        epochs=1,
        rank=ranks.rank,
        world_size=ranks.world_size,
        device=device,
    ) as feed:
        for batch in feed:
            parts.append(loss_sum(*inputs(batch)))
            num_targets += batch.num_targets
        total = torch.stack(parts).cpu().double().sum()
    if ranks.world_size > 1:
        shared = total.to(device)
        ranks.add_up(shared)
        total = shared.cpu()
    if not num_targets:
        raise ConfigError(f"{split.where}: expected a target to evaluate on, found none: its documents have one token each")
    return float(total) / num_targets


def inputs(batch: Batch) -> tuple[Tensor, ...]:
    """What a model is given of a batch: (x, y), and its segments where documents are kept apart."""
    return (batch.x, batch.y, batch.segments) if batch.apart else (batch.x, batch.y)
