"""A DataFrame's columns: of pandas, Polars, Arrow, or anything that has columns which NumPy takes."""

from __future__ import annotations

import math
import numbers
from collections.abc import Sequence
from decimal import Decimal
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ladle.batching.columns import Numbers, complete, single
from ladle.batching.strings import Coded, Strings
from ladle.errors import ConfigError

NAN = float("nan")


class Frame:
    """Source of every method: columns.Columns. The frame is not held once its columns are read."""

    def __init__(self, frame: Any) -> None:
        self._frame, self.where = frame, f"this {type(frame).__name__}"
        keys = list(frame.column_names if hasattr(frame, "column_names") else frame.columns)
        self.names = [str(key) for key in keys]
        self._keys = dict(zip(self.names, keys, strict=True))
        if len(self._keys) < len(keys):
            doubled = next(name for name in self.names if self.names.count(name) > 1)
            raise ConfigError(f"{self.where}: columns: expected different names, found {doubled!r} more than once")

    def _column(self, name: str) -> NDArray[Any]:
        return np.asarray(self._frame[self._keys[name]])

    def strings(self, name: str) -> Strings:
        return Strings.of(map(word, listed(self._column(name))))

    def words(self, name: str) -> Coded:
        return Coded.of(map(word, listed(self._column(name))))

    def values(self, name: str) -> NDArray[Any] | Coded:
        return plain(self._column(name))

    def numbers(self, names: Sequence[str], fill: float | None) -> Numbers:
        parts = []
        for name in names:
            found = plain(self._column(name))
            if isinstance(found, Coded):
                raise self._no_number(name, found)
            parts.append(single(found))
        return complete(np.stack(parts, axis=1), names, fill, self.where)

    def _no_number(self, name: str, column: Coded) -> ConfigError:
        wrong = min((code for code, one in enumerate(column.words) if one), key=lambda code: _is_number(column.words[code]))
        row = int(np.flatnonzero(column.codes == wrong)[0])
        return ConfigError(
            f"{self.where}: row {row}, column {name!r}: expected a number, found {column.words[wrong]!r}; make the column numeric"
        )


def plain(column: NDArray[Any]) -> NDArray[Any] | Coded:
    """Integers, or floating-point numbers with NaN for a missing one, where all of it are numbers; else words."""
    if column.dtype.kind in "iufb":
        return column
    values = listed(column)
    present = [value for value in values if not missing(value)]
    if not all(isinstance(value, numbers.Real | Decimal) for value in present):
        return Coded.of(map(word, values))
    whole = len(present) == len(values) and all(isinstance(value, numbers.Integral) for value in present)
    return np.array([NAN if missing(value) else value for value in values], dtype=np.int64 if whole else np.float64)


def listed(column: NDArray[Any]) -> list[Any]:
    """The values of a column of objects, times as text."""
    if column.dtype.kind not in "mM":
        return list(column.tolist())
    return [None if text == "NaT" else text for text in column.astype(str).tolist()]


def missing(value: Any) -> bool:
    """None, NaN, and what pandas has for them."""
    return value is None or (isinstance(value, float) and math.isnan(value)) or type(value).__name__ in {"NAType", "NaTType"}


def word(value: Any) -> str:
    """A value as text, a missing one as none."""
    if missing(value):
        return ""
    return value.decode("utf-8", "surrogateescape") if isinstance(value, bytes) else str(value)


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True
