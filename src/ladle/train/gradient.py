"""One update's gradient: added up over micro-batches and ranks, weighted by targets, clipped."""

from __future__ import annotations

from collections.abc import Callable, Iterable

import torch
from torch import Tensor, nn

from ladle.train.ranks import Ranks


def accumulate(
    loss_sum: Callable[[Tensor, Tensor], Tensor], micro_batches: Iterable[tuple[Tensor, Tensor]], num_targets: int
) -> Tensor:
    """Add the gradient of the mean loss over num_targets to every parameter's .grad, one micro-batch at a time.

    loss_sum(x, y): the sum of the losses of one micro-batch's targets, a scalar. num_targets: the targets that count in
    ALL micro-batches of ALL ranks of the update. So every target weighs the same however the batch was cut: the mean of
    micro-batches' means would weigh targets in small ones more. A micro-batch without a target adds 0.
    Returns this rank's part of the mean loss, detached, on the device. No graph outlives its micro-batch.
    """
    total: Tensor | None = None
    for x, y in micro_batches:
        part = loss_sum(x, y) / max(num_targets, 1)
        part.backward()  # type: ignore[no-untyped-call]
        total = part.detach() if total is None else total + part.detach()
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
