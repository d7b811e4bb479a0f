"""A column of labels: whole numbers as they are, words as classes, other numbers for regression."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from ladle.batching.strings import Coded
from ladle.errors import ConfigError

MISSING = ("", "nan", "NaN")  # words that stand where a label is missing; "NA" may be a country


class Labels:
    """values: int64 [n] of classes or whole numbers, or float32 [n]. classes: the words of the numbers, or None.

    The kind follows the column's own (whole numbers, other numbers, words), never the values that happen to stand in it.
    """

    def __init__(self, column: NDArray[Any] | Coded, where: str, classes: Sequence[str] | None = None) -> None:
        """classes: the words in the order of their numbers; by default those found, sorted. Raises ConfigError naming the row."""
        self.classes: list[str] | None = None
        if isinstance(column, Coded):
            self.values, self.classes = _numbered(column, where, classes)
        elif column.dtype.kind == "f":
            if (missing := np.flatnonzero(~np.isfinite(column))).size:
                found = column[missing[0]]
                raise ConfigError(
                    f"{where}: row {missing[0]}: expected a label, found {'none (NaN)' if np.isnan(found) else found}"
                )
            self.values = column.astype(np.float32)
        else:
            self.values = column.astype(np.int64)

    def __getitem__(self, index: int) -> Any:
        """An int, or a float32 tensor of no dimension."""
        value = self.values[index]
        return torch.tensor(value.item(), dtype=torch.float32) if self.values.dtype.kind == "f" else int(value)


def distinct(classes: Sequence[str]) -> list[str]:
    """The classes asked for. Raises ConfigError where they are no list of different words."""
    found = [] if isinstance(classes, str) else list(classes)
    if not found or len(set(found)) != len(found) or not all(isinstance(one, str) for one in found):
        raise ConfigError(f"classes: expected different words, as another dataset's .classes are, found {classes!r}")
    return found


def _numbered(column: Coded, where: str, classes: Sequence[str] | None) -> tuple[NDArray[Any], list[str]]:
    for code, word in enumerate(column.words):
        if word in MISSING:
            told = "an empty one" if not word else repr(word)
            raise ConfigError(f"{where}: row {_first(column, code)}: expected a label, found {told}")
    known = sorted(column.words) if classes is None else distinct(classes)
    numbers = {word: number for number, word in enumerate(known)}
    for code, word in enumerate(column.words):
        if word not in numbers:
            raise ConfigError(
                f"{where}: row {_first(column, code)}: expected one of the {len(known)} classes given, found {word!r}"
            )
    return np.array([numbers[word] for word in column.words], dtype=np.int64)[column.codes], known


def _first(column: Coded, code: int) -> int:
    return int(np.flatnonzero(column.codes == code)[0])
