"""A table's columns, from CSV, Parquet or a DataFrame, as arrays."""

from __future__ import annotations

import csv
import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from ladle.batching.strings import Strings
from ladle.errors import ConfigError, FormatError, MissingExtra

Numbers = NDArray[np.float32]


class Columns(Protocol):
    """What a table is read from. where: a name for messages. names: of its columns."""

    where: str
    names: list[str]

    def strings(self, name: str) -> Strings:
        """A column as text."""

    def values(self, name: str) -> NDArray[Any]:
        """A column as an array: numbers where they are, else str."""

    def numbers(self, names: Sequence[str], fill: float | None) -> Numbers:
        """Numeric columns side by side, float32 [rows, columns]. fill: in place of a missing value; None refuses one."""


class CSV:
    """A file with a header and a separator. Read whenever a column is asked for, row by row. Source of every method: Columns."""

    def __init__(self, path: Path, delimiter: str) -> None:
        self.path, self.where, self._delimiter = path, str(path), delimiter
        header = next(self._lines(), (0, []))[1]
        if not header or not any(header):
            raise FormatError(path, 0, "header", "the columns' names", "an empty file" if not header else "an empty line")
        self.names = header
        if len(header) == 1:
            for other in (";", "\t", "|", ","):
                if other != delimiter and other in header[0]:
                    raise FormatError(
                        path, 0, "header", f"names separated by {delimiter!r}", header[0], f"pass delimiter={other!r}"
                    )
        if doubled := sorted({name for name in header if header.count(name) > 1}):
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
                raise FormatError(self.path, None, f"line {reader.line_num}", "a row of CSV", str(error)) from error
            except UnicodeDecodeError as error:
                raise FormatError(self.path, error.start, "text", "UTF-8", str(error.reason)) from error

    def rows(self, names: Sequence[str]) -> Iterator[tuple[int, list[str]]]:
        """(line number, the fields of these columns) of each row."""
        places, lines = [self.names.index(name) for name in names], self._lines()
        next(lines)
        for line, fields in lines:
            if len(fields) != len(self.names):
                raise FormatError(self.path, None, f"line {line}", f"{len(self.names)} fields", len(fields))
            yield line, [fields[place] for place in places]

    def strings(self, name: str) -> Strings:
        return Strings.of(fields[0] for _, fields in self.rows([name]))

    def values(self, name: str) -> NDArray[Any]:
        texts = np.array([fields[0] for _, fields in self.rows([name])], dtype=str)
        for kind in (np.int64, np.float64):
            try:
                return texts.astype(kind)
            except (ValueError, OverflowError):
                continue
        return texts

    def numbers(self, names: Sequence[str], fill: float | None) -> Numbers:
        found: list[NDArray[np.float32]] = []
        block: list[list[float]] = []
        for line, fields in self.rows(names):
            try:
                values = [float(text) if text.strip() else float("nan") for text in fields]
            except ValueError:
                name, text = next((n, t) for n, t in zip(names, fields, strict=True) if not _is_number(t))
                raise FormatError(self.path, None, f"line {line}, column {name!r}", "a number", repr(text)) from None
            block.append(values)
            if len(block) == 2**14:
                found.append(np.array(block, dtype=np.float32))
                block = []
        found.append(np.array(block, dtype=np.float32).reshape(-1, len(names)))
        return filled(np.concatenate(found), names, fill, self.where)


class Frame:
    """A DataFrame: anything with `columns`, and columns that NumPy takes. Source of every method: Columns."""

    def __init__(self, frame: Any) -> None:
        self._frame, self.where = frame, f"this {type(frame).__name__}"
        self.names = [str(name) for name in frame.columns]

    def strings(self, name: str) -> Strings:
        return Strings.of(str(value) for value in self.values(name).tolist())

    def values(self, name: str) -> NDArray[Any]:
        found = np.asarray(self._frame[name])
        return found if found.dtype.kind in "iufbU" else found.astype(str)

    def numbers(self, names: Sequence[str], fill: float | None) -> Numbers:
        parts = []
        for name in names:
            try:
                parts.append(np.asarray(self._frame[name]).astype(np.float32))
            except (TypeError, ValueError) as error:
                raise ConfigError(f"{self.where}: column {name!r}: expected numbers, found others: {error}") from error
        return filled(np.stack(parts, axis=1), names, fill, self.where)


class Parquet:
    """A Parquet file; needs pyarrow. Source of every method: Columns."""

    def __init__(self, path: Path) -> None:
        self.path, self.where = path, str(path)
        with self.open() as file:
            self.names = list(file.schema_arrow.names)
            self.group_rows = [file.metadata.row_group(group).num_rows for group in range(file.num_row_groups)]

    def open(self) -> Any:
        """pyarrow's file; the caller closes it. Raises MissingExtra, or FormatError for what is none."""
        try:
            import pyarrow as pa
            import pyarrow.parquet as pq
        except ModuleNotFoundError as error:
            raise MissingExtra("a Parquet table", "pyarrow", "parquet") from error
        try:
            return pq.ParquetFile(self.path, memory_map=True)
        except pa.ArrowException as error:
            raise FormatError(self.path, None, "file", "a Parquet file", str(error).split("\n", 1)[0]) from error

    def strings(self, name: str) -> Strings:
        with self.open() as file:
            return Strings.of(
                "" if text is None else str(text)
                for batch in file.iter_batches(columns=[name])
                for text in batch.column(0).to_pylist()
            )

    def values(self, name: str) -> NDArray[Any]:
        with self.open() as file:
            column = file.read(columns=[name]).column(0).combine_chunks()
        found = column.to_numpy(zero_copy_only=False)
        return found if found.dtype.kind in "iufb" else np.array(["" if text is None else str(text) for text in found.tolist()])

    def numbers(self, names: Sequence[str], fill: float | None) -> Numbers:
        with self.open() as file:
            parts = [self._numbers(file, group, names, fill) for group in range(file.num_row_groups)]
        return np.concatenate(parts) if parts else np.empty((0, len(names)), dtype=np.float32)

    def group(self, group: int, names: Sequence[str], fill: float | None) -> Numbers:
        """The numbers of one row group."""
        with self.open() as file:
            return self._numbers(file, group, names, fill)

    def _numbers(self, file: Any, group: int, names: Sequence[str], fill: float | None) -> Numbers:
        found = file.read_row_group(group, columns=list(names))
        parts = []
        for name in names:
            values = found.column(name).to_numpy()
            if values.dtype.kind not in "iufb":
                raise FormatError(self.path, None, f"column {name!r}", "numbers", found.column(name).type)
            parts.append(values.astype(np.float32))
        first = sum(self.group_rows[:group])
        return filled(np.stack(parts, axis=1), names, fill, self.where, first)


def columns_of(source: Any, delimiter: str) -> Columns:
    """The table that a path or a DataFrame is. Raises ConfigError for what is neither."""
    if hasattr(source, "columns") and hasattr(source, "__getitem__"):
        return Frame(source)
    if not isinstance(source, str | os.PathLike):
        raise ConfigError(f"table: expected a path (.csv, .tsv, .parquet) or a DataFrame, found {type(source).__name__}")
    path = Path(source)
    if not path.is_file():
        raise ConfigError(f"table: expected a file, found {'a folder' if path.is_dir() else 'none'} at {path}")
    if path.suffix.lower() in {".parquet", ".pq"}:
        return Parquet(path)
    return CSV(path, "\t" if path.suffix.lower() == ".tsv" and delimiter == "," else delimiter)


def filled(numbers: Numbers, names: Sequence[str], fill: float | None, where: str, first_row: int = 0) -> Numbers:
    """The numbers with `fill` where one is missing (NaN). Raises ConfigError naming the first where there is no fill."""
    missing = np.isnan(numbers)
    if not missing.any():
        return numbers
    if fill is None:
        row, column = np.argwhere(missing)[0].tolist()
        raise ConfigError(
            f"{where}: row {first_row + row}, column {names[column]!r}: expected a number, found none; pass fill= a number "
            f"to take in its place"
        )
    numbers[missing] = fill
    return numbers


def _is_number(text: str) -> bool:
    try:
        float(text or "nan")
    except ValueError:
        return False
    return True
