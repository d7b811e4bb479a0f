"""A table's columns as arrays: what CSV, Parquet and DataFrames have in common."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from ladle.batching.strings import Coded, Strings
from ladle.errors import ConfigError

Numbers = NDArray[np.float32]


class Columns(Protocol):
    """What a table is read from. where: a name for messages. names: of its columns."""

    where: str
    names: list[str]

    def strings(self, name: str) -> Strings:
        """A column as text; a missing value is no text."""

    def values(self, name: str) -> NDArray[Any] | Coded:
        """A column as integers or floating-point numbers where it holds them, else as words, a missing one being ""."""

    def words(self, name: str) -> Coded:
        """A column as words, numbers too."""

    def numbers(self, names: Sequence[str], fill: float | None) -> Numbers:
        """Numeric columns side by side, float32 [rows, columns]. fill: in place of a missing value; None refuses one."""


def single(numbers: NDArray[Any]) -> Numbers:
    """The numbers in float32: what is too large for it becomes infinite, which `complete` refuses."""
    with np.errstate(over="ignore", invalid="ignore"):
        return numbers.astype(np.float32)


def complete(numbers: Numbers, names: Sequence[str], fill: float | None, where: str, first_row: int = 0) -> Numbers:
    """The numbers with `fill` where one is missing (NaN). Raises ConfigError naming the first that is missing or infinite."""
    if np.isfinite(numbers).all():
        return numbers
    missing = np.isnan(numbers)
    for wrong, found, advice in (
        (np.isinf(numbers), "an infinite one, or one too large for float32", ""),
        (missing if fill is None else np.zeros(1), "none", "; pass fill= a number to take in its place"),
    ):
        if wrong.any():
            row, column = np.argwhere(wrong)[0].tolist()
            raise ConfigError(
                f"{where}: row {first_row + row}, column {names[column]!r}: expected a number, found {found}{advice}"
            )
    numbers[missing] = fill
    return numbers
