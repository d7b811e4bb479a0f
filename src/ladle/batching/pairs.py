"""The two loaders of a training script."""

from __future__ import annotations

from typing import Any

from ladle.batching.dataloader import loader
from ladle.batching.face import Loader
from ladle.errors import ConfigError

TRAIN_ONLY = ("weights", "balance", "replacement", "num_draws", "lengths", "batch_tokens", "longest_first", "sampler", "model")


def pair(
    train: Any, val: Any, *, batch_size: int | None = None, val_batch_size: int | None = None, **options: Any
) -> tuple[Loader, Loader]:
    """(a loader for training: shuffled or weighted, dropping what fills no batch; one for evaluation: in order, complete).

    val_batch_size: batch_size by default. options: `loader`'s; what orders the samples goes to training alone, all else to both.
    Raises ConfigError for shuffle, drop_last, tail and training, which this decides.
    """
    for name in ("shuffle", "drop_last", "tail", "training", "batch_sampler"):
        if name in options:
            raise ConfigError(f"{name}: expected none, which pair decides, found {options[name]!r}; make two loaders instead")
    both = {name: value for name, value in options.items() if name not in TRAIN_ONLY}
    ordered = any(options.get(name) is not None for name in ("weights", "balance", "sampler"))
    size = batch_size if val_batch_size is None else val_batch_size
    return (
        loader(train, batch_size, not ordered, training=True, **options),
        loader(val, size, training=False, **both),
    )
