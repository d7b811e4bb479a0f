"""A Parquet file's columns, whole or by row group; needs pyarrow."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ladle.batching.columns import Numbers, complete, single
from ladle.batching.frame import plain, word
from ladle.batching.strings import Coded, Strings
from ladle.errors import FormatError, MissingExtra

FOOTER = 2**16  # bytes at the end that tell a file from another: they hold where its pages are, and their extremes


class Parquet:
    """Source of every method: columns.Columns. The file is open only while it is read, so that it may be sent to workers."""

    def __init__(self, path: Path) -> None:
        self.path, self.where = path, str(path)
        with self._open() as file:
            self.names = list(file.schema_arrow.names)
            self.group_rows = [file.metadata.row_group(group).num_rows for group in range(file.num_row_groups)]
        if doubled := sorted({name for name in self.names if self.names.count(name) > 1}):
            raise FormatError(path, None, "columns", "different names", f"{doubled[0]!r} more than once")

    @contextmanager
    def _open(self) -> Iterator[Any]:
        """pyarrow's file. Raises MissingExtra, or FormatError for what is none, or is damaged where it is read."""
        try:
            import pyarrow as pa
            import pyarrow.parquet as pq
        except ModuleNotFoundError as error:
            raise MissingExtra("a Parquet table", "pyarrow", "parquet") from error
        try:
            with pq.ParquetFile(self.path, memory_map=True, page_checksum_verification=True) as file:
                yield file
        except (pa.ArrowException, OSError) as error:
            if isinstance(error, OSError) and error.errno is not None:  # the system's word, not Parquet's
                raise
            raise FormatError(self.path, None, "file", "a Parquet file", str(error).split("\n", 1)[0]) from error

    def _column(self, name: str) -> Iterator[Any]:
        with self._open() as file:
            for batch in file.iter_batches(columns=[name]):
                yield from batch.column(0).to_pylist()

    def strings(self, name: str) -> Strings:
        return Strings.of(map(word, self._column(name)))

    def words(self, name: str) -> Coded:
        return Coded.of(map(word, self._column(name)))

    def values(self, name: str) -> NDArray[Any] | Coded:
        with self._open() as file:
            kind = file.schema_arrow.field(name).type
            column = file.read(columns=[name]).column(0) if _numeric(kind) else None
        return self.words(name) if column is None else plain(column.to_numpy())

    def numbers(self, names: Sequence[str], fill: float | None) -> Numbers:
        with self._open() as file:
            parts = [self._numbers(file, group, names, fill) for group in range(len(self.group_rows))]
        return np.concatenate(parts) if parts else np.empty((0, len(names)), dtype=np.float32)

    def group(self, group: int, names: Sequence[str], fill: float | None) -> Numbers:
        """The numbers of one row group, float32 [its rows, columns]."""
        with self._open() as file:
            return self._numbers(file, group, names, fill)

    def _numbers(self, file: Any, group: int, names: Sequence[str], fill: float | None) -> Numbers:
        found = file.read_row_group(group, columns=list(names))
        rows = np.empty((found.num_rows, len(names)), dtype=np.float32)
        for number, name in enumerate(names):
            column = found.column(name)
            values = plain(column.to_numpy()) if _numeric(column.type) else None
            if values is None or isinstance(values, Coded):
                raise FormatError(self.path, None, f"column {name!r}", "numbers", column.type)
            rows[:, number] = single(values)
        return complete(rows, names, fill, self.where, sum(self.group_rows[:group]))

    @property
    def fingerprint(self) -> str:
        """A hash of the file's size and footer."""
        size = self.path.stat().st_size
        with open(self.path, "rb") as file:
            file.seek(max(size - FOOTER, 0))
            return hashlib.blake2b(file.read(), digest_size=16, key=str(size).encode()).hexdigest()


def _numeric(kind: Any) -> bool:
    import pyarrow as pa

    told: bool = (
        pa.types.is_integer(kind)
        or pa.types.is_floating(kind)
        or pa.types.is_boolean(kind)
        or pa.types.is_decimal(kind)
        or pa.types.is_null(kind)
    )
    return told
