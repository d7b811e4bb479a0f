"""Batches to a trained model: schedule, accumulation, checkpoints, the loop. Needs torch (`pip install 'ladle[train]'`)."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

from ladle.errors import MissingExtra

if TYPE_CHECKING:
    from ladle.train.config import PRESETS as PRESETS
    from ladle.train.config import TrainConfig as TrainConfig
    from ladle.train.difference import compare as compare
    from ladle.train.evaluation import evaluate as evaluate
    from ladle.train.gradient import accumulate as accumulate
    from ladle.train.loop import train as train
    from ladle.train.optimizer import decay_groups as decay_groups
    from ladle.train.ranks import Ranks as Ranks
    from ladle.train.ranks import joined as joined
    from ladle.train.report import Report as Report
    from ladle.train.schedule import learning_rate as learning_rate
    from ladle.train.schedule import scaled_rate as scaled_rate

_WHERE = {
    "PRESETS": "config",
    "Ranks": "ranks",
    "Report": "report",
    "TrainConfig": "config",
    "accumulate": "gradient",
    "compare": "difference",
    "decay_groups": "optimizer",
    "evaluate": "evaluation",
    "joined": "ranks",
    "learning_rate": "schedule",
    "scaled_rate": "schedule",
    "train": "loop",
}

__all__ = [
    "PRESETS",
    "Ranks",
    "Report",
    "TrainConfig",
    "accumulate",
    "compare",
    "decay_groups",
    "evaluate",
    "joined",
    "learning_rate",
    "scaled_rate",
    "train",
]


def __getattr__(name: str) -> object:
    if name not in _WHERE:
        raise AttributeError(f"module 'ladle.train' has no attribute {name!r}")
    try:
        return getattr(importlib.import_module(f"ladle.train.{_WHERE[name]}"), name)
    except ModuleNotFoundError as error:
        if error.name not in ("torch", "safetensors"):
            raise
        raise MissingExtra(f"ladle.train.{name}", error.name, "train") from error


def __dir__() -> list[str]:
    return sorted(__all__)
