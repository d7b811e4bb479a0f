"""CSV: a header, and rows whose fields a character separates."""

from __future__ import annotations

import csv
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ladle.batching.columns import Numbers, complete, single
from ladle.batching.strings import Coded, Strings
from ladle.errors import ConfigError, FormatError

BLOCK = 2**14  # rows of numbers parsed before they become an array


class CSV:
    """Read from the file whenever a column is asked for, row by row. Source of every method: columns.Columns."""

    def __init__(self, path: Path, delimiter: str) -> None:
        if not isinstance(delimiter, str) or len(delimiter) != 1 or delimiter in '"\r\n':
            raise ConfigError(f"delimiter: expected one character, found {delimiter!r}")
        self.path, self.where, self._delimiter = path, str(path), delimiter
        header = next(self._lines(), (0, []))[1]
        if not any(header):
            raise FormatError(path, 0, "header", "the columns' names", "an empty line" if header else "an empty file")
        if len(header) == 1:
            for other in (";", "\t", "|", ","):
                if other != delimiter and other in header[0]:
                    raise FormatError(
                        path, 0, "header", f"names separated by {delimiter!r}", header[0], f"pass delimiter={other!r}"
                    )
        self.names = header
        if doubled := sorted({name for name in header if name and header.count(name) > 1}):
            raise FormatError(path, 0, "header", "different names", f"{doubled[0]!r} more than once")

    def _lines(self) -> Iterator[tuple[int, list[str]]]:
        """(line number, fields) of the header and of each row; empty lines are none."""
        with open(self.path, encoding="utf-8-sig", newline="") as file:
            reader = csv.reader(file, delimiter=self._delimiter, strict=True)
            try:
                for fields in reader:
                    if fields:
                        yield reader.line_num, fields
            except csv.Error as error:
                advice = "csv.field_size_limit() raises it" if "limit" in str(error) else ""
                raise FormatError(self.path, None, f"line {reader.line_num}", "a row of CSV", str(error), advice) from error
            except UnicodeDecodeError as error:
                raise _no_text(self.path) from error

    def _rows(self, names: Sequence[str]) -> Iterator[tuple[int, list[str]]]:
        """(line number, the fields of these columns) of each row."""
        places, lines = [self.names.index(name) for name in names], self._lines()
        next(lines)
        for line, fields in lines:
            if len(fields) != len(self.names):
                raise FormatError(self.path, None, f"line {line}", f"{len(self.names)} fields", len(fields))
            yield line, [fields[place] for place in places]

    def strings(self, name: str) -> Strings:
        return Strings.of(fields[0] for _, fields in self._rows([name]))

    def words(self, name: str) -> Coded:
        return Coded.of(fields[0] for _, fields in self._rows([name]))

    def values(self, name: str) -> NDArray[Any] | Coded:
        column = self.words(name)
        if any("_" in word for word in column.words):  # Python's numbers may have one, a table's are then words
            return column
        for kind, parse in ((np.int64, int), (np.float64, float)):
            try:
                return np.array([parse(word) for word in column.words], dtype=kind)[column.codes]
            except (ValueError, OverflowError):
                continue
        return column

    def numbers(self, names: Sequence[str], fill: float | None) -> Numbers:
        found: list[Numbers] = []
        block: list[list[float]] = []
        for line, fields in self._rows(names):
            try:
                block.append([_number(text) for text in fields])
            except ValueError:
                name, text = next((n, t) for n, t in zip(names, fields, strict=True) if not _is_number(t))
                raise FormatError(self.path, None, f"line {line}, column {name!r}", "a number", repr(text)) from None
            if len(block) == BLOCK:
                found.append(single(np.array(block)))
                block = []
        found.append(single(np.array(block, dtype=np.float64)).reshape(-1, len(names)))
        return complete(np.concatenate(found), names, fill, self.where)


def _number(text: str) -> float:
    """The number written there; NaN for blanks. Raises ValueError for anything else."""
    if "_" in text:
        raise ValueError(text)
    return float(text) if text.strip() else float("nan")


def _is_number(text: str) -> bool:
    try:
        _number(text)
    except ValueError:
        return False
    return True


def _no_text(path: Path) -> FormatError:
    """The error that names the first byte that is no UTF-8: a reader of blocks knows it only within its block."""
    offset = 0
    with open(path, "rb") as file:
        for line in file:  # a line's end is never a part of another character
            try:
                line.decode("utf-8")
            except UnicodeDecodeError as error:
                offset += error.start
                found = f"the byte {line[error.start]:#04x}"
                break
            offset += len(line)
        else:
            found = "another encoding"
    return FormatError(path, offset, "text", "UTF-8", found, "save the table as UTF-8")
