"""Batches to a trained model: schedule, accumulation, checkpoints, the loop. Needs torch (`pip install 'ladle[train]'`)."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

from ladle.errors import MissingExtra

if TYPE_CHECKING:
    from ladle.train.batch_size import BatchSizes as BatchSizes
    from ladle.train.batch_size import estimate_batch_size as estimate_batch_size
    from ladle.train.batch_size import find_batch_size as find_batch_size
    from ladle.train.config import PRESETS as PRESETS
    from ladle.train.config import TrainConfig as TrainConfig
    from ladle.train.difference import compare as compare
    from ladle.train.evaluation import evaluate as evaluate
    from ladle.train.full_step import usual_loss as usual_loss
    from ladle.train.gradient import accumulate as accumulate
    from ladle.train.loop import train as train
    from ladle.train.micro_batches import accumulation_steps as accumulation_steps
    from ladle.train.micro_batches import count_samples as count_samples
    from ladle.train.micro_batches import count_targets as count_targets
    from ladle.train.micro_batches import cut as cut
    from ladle.train.micro_batches import effective_batch as effective_batch
    from ladle.train.micro_batches import grouped as grouped
    from ladle.train.micro_batches import steps_per_epoch as steps_per_epoch
    from ladle.train.optimizer import decay_groups as decay_groups
    from ladle.train.ranks import Ranks as Ranks
    from ladle.train.ranks import joined as joined
    from ladle.train.report import Report as Report
    from ladle.train.schedule import learning_rate as learning_rate
    from ladle.train.schedule import scale_lr as scale_lr
    from ladle.train.schedule import warmup_cosine as warmup_cosine
    from ladle.train.seeds import set_seed as set_seed
    from ladle.train.warmup import WarmupCosine as WarmupCosine

_WHERE = {
    "BatchSizes": "batch_size",
    "PRESETS": "config",
    "Ranks": "ranks",
    "Report": "report",
    "TrainConfig": "config",
    "WarmupCosine": "warmup",
    "accumulate": "gradient",
    "accumulation_steps": "micro_batches",
    "compare": "difference",
    "count_samples": "micro_batches",
    "count_targets": "micro_batches",
    "cut": "micro_batches",
    "decay_groups": "optimizer",
    "effective_batch": "micro_batches",
    "estimate_batch_size": "batch_size",
    "evaluate": "evaluation",
    "find_batch_size": "batch_size",
    "grouped": "micro_batches",
    "joined": "ranks",
    "learning_rate": "schedule",
    "scale_lr": "schedule",
    "set_seed": "seeds",
    "steps_per_epoch": "micro_batches",
    "train": "loop",
    "usual_loss": "full_step",
    "warmup_cosine": "schedule",
}

__all__ = [
    "PRESETS",
    "BatchSizes",
    "Ranks",
    "Report",
    "TrainConfig",
    "WarmupCosine",
    "accumulate",
    "accumulation_steps",
    "compare",
    "count_samples",
    "count_targets",
    "cut",
    "decay_groups",
    "effective_batch",
    "estimate_batch_size",
    "evaluate",
    "find_batch_size",
    "grouped",
    "joined",
    "learning_rate",
    "scale_lr",
    "set_seed",
    "steps_per_epoch",
    "train",
    "usual_loss",
    "warmup_cosine",
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
