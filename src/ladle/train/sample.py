"""One sample, as a Dataset gives it, made into a batch of any size."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ladle.errors import ConfigError


def batch_maker(sample: Any, device: torch.device) -> Callable[[int], Any]:
    """size -> a batch on the device.

    sample: what `dataset[i]` gives, without a batch's dimension: tensors, arrays and numbers in tuples, lists or dicts, each
    of which becomes a tensor (size, ...), everything else a list; or a function size -> batch. Raises ConfigError where
    nothing can be stacked.
    """
    if callable(sample) and not isinstance(sample, Tensor):
        return Maker(sample, device)
    if not _stackable(sample):
        raise ConfigError(
            f"sample: expected tensors, arrays or numbers, alone or in tuples, lists or dicts, found {type(sample).__name__}; "
            "or give a function: size -> batch"
        )
    return Copies(sample, device)


class Copies:
    """The sample, `size` times."""

    stacked = True

    def __init__(self, sample: Any, device: torch.device) -> None:
        self.sample, self.device = sample, device

    def __call__(self, size: int) -> Any:
        return _map(self.sample, lambda leaf: self._copies(leaf, size))

    def _copies(self, leaf: Any, size: int) -> Any:
        if not _is_array(leaf):
            return [leaf] * size
        tensor = torch.as_tensor(leaf).detach()
        return tensor.to(self.device).expand(size, *tensor.shape).clone(memory_format=torch.contiguous_format)


class Maker:
    """The caller's function."""

    stacked = False

    def __init__(self, make: Callable[[int], Any], device: torch.device) -> None:
        self.make, self.device = make, device

    def __call__(self, size: int) -> Any:
        return _map(self.make(size), lambda leaf: leaf.to(self.device) if isinstance(leaf, Tensor) else leaf)


def _is_array(leaf: Any) -> bool:
    return isinstance(leaf, Tensor | np.ndarray | np.generic | int | float)


def _stackable(sample: Any) -> bool:
    if isinstance(sample, Mapping):
        return any(map(_stackable, sample.values()))
    if isinstance(sample, tuple | list):
        return any(map(_stackable, sample))
    return _is_array(sample)


def _map(sample: Any, change: Callable[[Any], Any]) -> Any:
    if isinstance(sample, Mapping):
        return {key: _map(value, change) for key, value in sample.items()}
    if isinstance(sample, tuple) and hasattr(sample, "_fields"):
        return type(sample)(*(_map(value, change) for value in sample))
    if isinstance(sample, tuple | list):
        return type(sample)(_map(value, change) for value in sample)
    return change(sample)
