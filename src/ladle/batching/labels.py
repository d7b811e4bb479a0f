"""A column of labels: whole numbers as they are, words as classes, other numbers for regression."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from ladle.errors import ConfigError


class Labels:
    """values: int64 [n] of classes or whole numbers, or float32 [n]. classes: the words' sorted list, or None."""

    def __init__(self, values: NDArray[Any], where: str) -> None:
        """values: a column. Raises ConfigError for a label that is missing."""
        self.classes: list[str] | None = None
        if values.dtype.kind == "f":
            if (missing := np.flatnonzero(np.isnan(values))).size:
                raise ConfigError(f"{where}: row {missing[0]}: expected a label, found none (NaN)")
            whole = values == np.floor(values)
            self.values = (
                values.astype(np.int64) if whole.all() and np.abs(values).max(initial=0) < 2**53 else values.astype(np.float32)
            )
            if values.size and not whole.all():
                return
        elif values.dtype.kind in "iub":
            self.values = values.astype(np.int64)
        else:
            if (missing := np.flatnonzero(values == "")).size:
                raise ConfigError(f"{where}: row {missing[0]}: expected a label, found an empty one")
            words, self.values = np.unique(values, return_inverse=True)
            self.values, self.classes = self.values.astype(np.int64), words.tolist()

    def __getitem__(self, index: int) -> Any:
        """An int, or a float32 tensor of no dimension."""
        value = self.values[index]
        return torch.tensor(value.item(), dtype=torch.float32) if self.values.dtype.kind == "f" else int(value)
