"""The schedule as a torch scheduler, for loops that step one."""

from __future__ import annotations

from typing import Any

from torch import Tensor
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler

from ladle.errors import StateError
from ladle.train.schedule import warmup_cosine


class WarmupCosine(LRScheduler):
    """Every group's rate, times `warmup_cosine` of the updates made so far.

    Made before the first update, it sets the first rate; call step() once after each optimizer.step(), never once a
    micro-batch or an epoch. The rate is a function of that count alone and of the rate each group was made with.

    optimizer: its groups' "lr" are the peaks. The rest as in `warmup_cosine`: steps, warmup_steps, decay_steps; or epochs,
    warmup_epochs, steps_per_epoch; floor as a share of the peak. state_dict() holds the count and the peaks, not the
    schedule: that is what this object was made with, so a resumed run may be longer. load_state_dict() sets the
    optimizer's rates too, whichever of the two is restored first. Raises ConfigError as `warmup_cosine` does, and StateError
    for a state of another number of groups.
    """

    def __init__(self, optimizer: Optimizer, **schedule: Any) -> None:
        warmup_cosine(0, **schedule)
        self._schedule = schedule
        super().__init__(optimizer)

    def get_lr(self) -> list[float | Tensor]:
        """The rates of the next update."""
        factor = warmup_cosine(self.last_epoch, **self._schedule)
        return [base * factor for base in self.base_lrs]

    def state_dict(self) -> dict[str, Any]:
        """Plain values: the updates made so far, and each group's peak."""
        return {"last_epoch": self.last_epoch, "base_lrs": [float(base) for base in self.base_lrs]}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Continue after that many updates."""
        peaks = state_dict["base_lrs"]
        if len(peaks) != len(self.optimizer.param_groups):
            raise StateError(f"base_lrs: expected {len(self.optimizer.param_groups)} groups, found {len(peaks)}")
        self.base_lrs, self.last_epoch = list(peaks), state_dict["last_epoch"]
        self._step_count = self.last_epoch + 1
        rates = self.get_lr()
        for group, rate in zip(self.optimizer.param_groups, rates, strict=True):
            if isinstance(group["lr"], Tensor):
                group["lr"].fill_(rate)
            else:
                group["lr"] = rate
        self._last_lr = rates
