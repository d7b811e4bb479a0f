"""One update's gradient: added up over micro-batches and ranks, weighted by targets, clipped."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from ladle.errors import ConfigError
from ladle.train.micro_batches import count_targets
from ladle.train.ranks import Ranks


def accumulate(
    loss_sum: Callable[..., Tensor],
    micro_batches: Iterable[Any],
    num_targets: int | None = None,
    *,
    count: Callable[[Any], int] = count_targets,
    model: nn.Module | None = None,
) -> Tensor:
    """Add the gradient of the mean loss of one update to every parameter's .grad, one micro-batch at a time.

    loss_sum: the SUM of the losses of one micro-batch's targets, a scalar; called as loss_sum(x, y) for a tuple or a list,
    as loss_sum(batch) for anything else. num_targets: the targets that count in ALL micro-batches of ALL ranks of the update;
    None: they are counted by `count` (`count_targets`, or `count_samples` where every sample shall weigh the same), and added
    up over torch.distributed's ranks. So every target weighs the same however the batch was cut: the mean of
    micro-batches' means would weigh targets in small ones more. The divisor is that of the micro-batches given, so a last,
    shorter group is right by itself. A micro-batch without a target adds 0, and so does an update without any.

    model: a DistributedDataParallel that loss_sum calls. It then averages the gradient over the ranks once, in the last
    micro-batch's backward pass, and the others do not wait for it (no_sync); every rank must have at least one micro-batch.
    Any other model needs no mention: its .grad holds this rank's part, to be summed (not averaged) over the ranks.

    Without `model` and with num_targets micro-batches are taken one by one, each after the one before it is done; otherwise
    they are listed first. Returns this rank's part of the mean loss, detached, on the device. No graph outlives its
    micro-batch: 16 of them need the memory of one.

    BatchNorm sees micro-batches, not the batch: its statistics are of one micro-batch, its running averages move once a
    micro-batch. No divisor mends that. Use GroupNorm or LayerNorm, freeze it (eval), or keep the micro-batch large (32 or so).
    """
    if num_targets is None or model is not None:
        micro_batches = list(micro_batches)
    if num_targets is None:
        num_targets = Ranks.current().total(sum(count(batch) for batch in micro_batches))
    scale, quiet, last = 1.0, nullcontext, -1
    if isinstance(model, nn.parallel.DistributedDataParallel):
        scale, quiet, last = float(dist.get_world_size(model.process_group)), model.no_sync, len(micro_batches) - 1  # type: ignore[arg-type,assignment]
        if last < 0:
            raise ConfigError(
                "micro_batches: expected at least one on every rank, found none; the other ranks would wait for ever"
            )
    total: Tensor | None = None
    for number, batch in enumerate(micro_batches):
        context: AbstractContextManager[Any] = nullcontext() if number == last else quiet()
        with context:
            loss = loss_sum(*batch) if isinstance(batch, tuple | list) else loss_sum(batch)
            part = loss / max(num_targets, 1)
            (part if scale == 1.0 else part * scale).backward()  # type: ignore[no-untyped-call]
        total = part.detach() if total is None else total + part.detach()
        del loss, part
    return torch.zeros(()) if total is None else total


class Gradient:
    """Every parameter's .grad as a view of one flat vector, in the model's fixed order.

    One vector makes clearing, the norm, clipping and the sum over ranks one operation each, and that sum the same to the
    bit in every run with the same ranks (bucketed reductions are not). It holds one element more, for the loss.
    Do not set the gradients to None while it is in use.
    """

    def __init__(self, model: nn.Module) -> None:
        parameters = [p for p in model.parameters() if p.requires_grad]
        self._flat = torch.zeros(sum(p.numel() for p in parameters) + 1, dtype=parameters[0].dtype, device=parameters[0].device)
        first = 0
        for p in parameters:
            p.grad = self._flat[first : first + p.numel()].view_as(p)
            first += p.numel()
        self.vector = self._flat[:-1]

    def clear(self) -> None:
        """Zero, before an update's first micro-batch."""
        self._flat.zero_()

    def add_up(self, loss: Tensor, ranks: Ranks) -> Tensor:
        """The sum over all ranks, of the gradient in place and of the loss, which is returned: one collective."""
        if ranks.world_size == 1:
            return loss
        self._flat[-1] = loss
        ranks.add_up(self._flat)
        return self._flat[-1].clone()

    def clip(self, limit: float) -> Tensor:
        """Shorten the vector to `limit` where it is longer (0: never). Returns its norm before, on the device: no wait."""
        norm: Tensor = torch.linalg.vector_norm(self.vector)
        if limit > 0:
            self.vector.mul_((limit / (norm + 1e-6)).clamp(max=1.0))
        return norm
