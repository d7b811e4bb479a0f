"""Warnings about batches that train badly: those of a single class, and those too small for BatchNorm."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from ladle.batching.keyed import put_back
from ladle.errors import ConfigError

LOOK = 3  # batches
NAMES = ("label", "labels", "target", "targets", "y")


class ClassWatch:
    """Looks at the first batches of an unshuffled loader, and warns if they hold one class and the last sample another."""

    def __init__(self, dataset: Any) -> None:
        self._dataset = dataset
        self._left, self._known, self._seen = LOOK, set[Any](), 0

    @property
    def looks(self) -> bool:
        """Whether it still does."""
        return self._left > 0

    def see(self, batch: Any) -> None:
        """The next batch."""
        self._left -= 1
        labels = classes(batch)
        self._known.update(labels)
        self._seen += len(labels)
        if not labels or len(self._known) > 1:
            self._left = 0
        elif not self._left and self._seen >= 2 * LOOK and self._others():
            warnings.warn(
                f"ladle: the first {LOOK} batches hold the single class {next(iter(self._known))!r} ({self._seen} samples), but "
                f"the dataset has others: it seems sorted by label; train with shuffle=True",
                UserWarning,
                stacklevel=5,
            )

    def _others(self) -> bool:
        try:
            with put_back():
                last = self._dataset[len(self._dataset) - 1]
        except Exception:  # noqa: BLE001  it is the consumer who will be told
            return False
        found = classes(last)
        return len(found) == 1 and found[0] not in self._known


def classes(batch: Any) -> list[Any]:
    """The labels of a batch, or of a sample: a field of that name, or the last of several, if they are one a sample."""
    if isinstance(batch, Mapping):
        field = next((batch[name] for name in NAMES if name in batch), None)
    else:
        field = batch[-1] if isinstance(batch, tuple | list) and len(batch) > 1 else None
    if isinstance(field, Tensor):
        whole = field.ndim <= 1 and not field.is_floating_point() and not field.is_complex() and field.device.type == "cpu"
        return field.reshape(-1).tolist() if whole else []
    if isinstance(field, int | str | np.integer) and not isinstance(field, bool):
        return [field]
    return list(field) if isinstance(field, list | tuple) and all(isinstance(one, str) for one in field) else []


def batch_norm(model: Any, smallest: int, batch_size: int) -> None:
    """Warn where the smallest batch has less than a quarter of the samples that BatchNorm's statistics are made for."""
    if not isinstance(model, nn.Module):
        raise ConfigError(f"model: expected a torch.nn.Module, found {type(model).__name__}")
    names = [name for name, part in model.named_modules() if isinstance(part, torch.nn.modules.batchnorm._BatchNorm)]
    if names and 4 * smallest < batch_size:
        warnings.warn(
            f"ladle: the last batch has {smallest} of {batch_size} samples, too few for the statistics of BatchNorm "
            f"({names[0]}{f' and {len(names) - 1} more' if len(names) > 1 else ''}); use drop_last=True or tail='even'",
            UserWarning,
            stacklevel=4,
        )
