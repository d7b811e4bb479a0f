"""A full step of training a model: forward, backward, the optimizer's."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, mse_loss

from ladle.errors import ConfigError

MakeOptimizer = Callable[[Any], torch.optim.Optimizer]


class FullStep:
    """step(batch), over a model, a loss and an optimizer.

    loss(model, batch): a scalar. optimizer: an optimizer of the model's parameters, or what makes one of them (a class of
    torch.optim, say).
    """

    def __init__(
        self, model: nn.Module, loss: Callable[[nn.Module, Any], Tensor], optimizer: torch.optim.Optimizer | MakeOptimizer
    ) -> None:
        if not isinstance(optimizer, torch.optim.Optimizer):
            optimizer = optimizer([p for p in model.parameters() if p.requires_grad])
        self.model, self.loss, self.optimizer = model, loss, optimizer

    def __call__(self, batch: Any) -> None:
        self.model.train()
        self.optimizer.zero_grad(set_to_none=True)
        self.loss(self.model, batch).backward()  # type: ignore[no-untyped-call]
        self.optimizer.step()


def usual_loss(model: nn.Module, batch: Any) -> Tensor:
    """What most models are trained with.

    A dict: model(**batch), whose "loss" it is. (x, y, ...): of model(x) the cross-entropy where y holds whole numbers (classes
    in the last dimension, or in the second, as torch has it), else the squared error. Anything else: the mean square of
    model(batch). Raises ConfigError where there is no such loss.
    """
    if isinstance(batch, Mapping):
        output = model(**batch)
        loss = output.get("loss") if isinstance(output, Mapping) else getattr(output, "loss", None)
        if not isinstance(loss, Tensor):
            raise ConfigError(
                f"loss: expected model(**batch) to give a 'loss', found {type(output).__name__}; "
                "give loss, a function of (model, batch)"
            )
        return loss
    if not isinstance(batch, tuple | list) or len(batch) < 2:
        output = _first(model(batch[0] if isinstance(batch, tuple | list) else batch))
        mean: Tensor = output.float().square().mean()
        return mean
    output, y = _first(model(batch[0])), batch[1]
    if y.is_floating_point():
        return mse_loss(output.reshape(y.shape) if output.numel() == y.numel() else output, y)
    if output.shape[:-1] == y.shape:
        return cross_entropy(output.flatten(0, -2), y.flatten().long())
    return cross_entropy(output, y.long())


def _first(output: Any) -> Any:
    return output[0] if isinstance(output, tuple | list) else output
