"""A table as a dataset: files listed in a column, or rows of numbers. Samples are made when they are asked for."""

from __future__ import annotations

import hashlib
import operator
import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray
from torch.utils.data import Dataset

from ladle.batching.columns import Columns
from ladle.batching.csv_table import CSV
from ladle.batching.files import Load
from ladle.batching.frame import Frame
from ladle.batching.labels import Labels
from ladle.batching.numeric import Rows
from ladle.batching.parquet import Parquet
from ladle.batching.reading import Reading
from ladle.batching.strings import Strings
from ladle.errors import ConfigError


class Table(Dataset[Any]):
    """The samples that a table lists: `dataset[i]` is (sample, label), or the sample alone without a label.

        Table("train.csv", path="file_path", label="label")            # a file a row, read when it is asked for
        Table("train.parquet", features=["age", "height"], label="y")  # a float32 vector a row

    source: a .csv, .tsv or .parquet file (extra `parquet`), or a DataFrame. path: the column of files, relative to `root` (the
    table's own folder by default); or features: numeric columns. label: a column, or None; words become the numbers of the
    sorted `classes`, whole numbers stay, other numbers are float32. classes: the words in the order of their numbers, as a
    training table's `.classes` has them, so that a validation table that lacks one numbers the others alike. load: a function of
    a path, or "auto": .npy, images (extra `images`) and .txt by suffix. transform: applied to each sample. on_error: a file that
    cannot be loaded is an error that names row and path ("stop"), or is left out of its batch and counted in `skipped` ("skip":
    the dataset gives None for it; see `drop_missing`). fill: what stands for a missing number (None: an error). delimiter: of a
    CSV file. memory_limit: bytes that features may take (half of the memory by default); a larger Parquet file is read by row
    group, the last used of which stay in memory (so read it in order, or `cache` it first). str(table) says which.

    Only the listing is held, as arrays that forked workers share. `labels`, `classes`, `describe(index)`, `skipped`,
    `skipped_rows`. Raises ConfigError naming the columns there are, FormatError naming line and column.
    """

    def __init__(
        self,
        source: Any,
        *,
        path: str | None = None,
        features: Sequence[str] | None = None,
        label: str | None = None,
        classes: Sequence[str] | None = None,
        load: Load | Literal["auto"] = "auto",
        root: str | os.PathLike[str] | None = None,
        transform: Callable[[Any], Any] | None = None,
        on_error: Literal["stop", "skip"] = "stop",
        fill: float | None = None,
        delimiter: str = ",",
        memory_limit: int | None = None,
    ) -> None:
        if (path is None) == (features is None):
            raise ConfigError(
                f"table: expected path= (a column of files) or features= (numeric columns), found {path=}, {features=}"
            )
        if classes is not None and label is None:
            raise ConfigError("classes: expected label= with it, the column whose words they are, found none")
        columns = columns_of(source, delimiter)
        self.where, self.transform, self.on_error = columns.where, transform, on_error
        asked = [name for name in (path, label) if name is not None] + ([] if isinstance(features, str) else list(features or ()))
        for name in asked:
            if name not in columns.names:
                raise ConfigError(f"{self.where}: column: expected one of {_listed(columns.names)}, found {name!r}")
        self._paths: Strings | None = None
        self._rows: Rows | None = None
        if path is not None:
            self._paths = columns.strings(path)
            self._size = len(self._paths)
            home = Path(source).parent if isinstance(source, str | os.PathLike) else Path()
            self._root = os.fspath(home if root is None else root)
            if on_error == "stop" and (row := self._paths.first_empty()) is not None:
                raise ConfigError(f"{self.where}: row {row}, column {path!r}: expected a file's path, found an empty one")
        else:
            self._rows = Rows(columns, features or (), fill, memory_limit)
            self._size = len(self._rows)
        if self._size == 0:
            raise ConfigError(f"{self.where}: expected at least one row, found none")
        self._labels: Labels | None = None
        if label is not None:
            column = columns.values(label) if classes is None else columns.words(label)
            self._labels = Labels(column, f"{self.where}, column {label!r}", classes)
        self.classes = None if self._labels is None else self._labels.classes
        self.labels: NDArray[Any] | None = None if self._labels is None else self._labels.values
        self._reading = Reading(load, on_error, self._size)
        self.in_memory = self._rows is not None and self._rows.whole
        self.seed_samples = transform is not None or (path is not None and not self._reading.ours)

    def __len__(self) -> int:
        return self._size

    def __getitem__(self, index: int) -> Any:
        row = place(index, self._size)
        if self._rows is not None:
            return self._whole(row, self._rows[row])
        sample = self._reading.sample(row, self.describe(row), lambda: f"row {row} of {self.where}")
        return None if sample is None else self._whole(row, sample)

    def __getitems__(self, indices: Sequence[int]) -> list[Any]:
        """Several samples; rows of numbers with one read of each row group."""
        if self._rows is None:
            return [self[index] for index in indices]
        rows = [place(index, self._size) for index in indices]
        return [self._whole(row, sample) for row, sample in zip(rows, self._rows.take(rows), strict=True)]

    def _whole(self, row: int, sample: Any) -> Any:
        if self.transform is not None:
            sample = self.transform(sample)
        return sample if self._labels is None else (sample, self._labels[row])

    @property
    def load(self) -> Load | None:
        """What loads a file; None for a table of numbers."""
        return None if self._paths is None else self._reading.load

    @property
    def skipped(self) -> int:
        """How many different files could not be loaded so far, in all processes."""
        return len(self.skipped_rows)

    @property
    def skipped_rows(self) -> list[int]:
        """The rows whose files could not be loaded so far, in any process."""
        return self._reading.left_out

    def describe(self, index: int) -> str:
        """What stands in a row, for messages: its file's path, or its number."""
        row = place(index, self._size)
        return f"row {row} of {self.where}" if self._paths is None else os.path.join(self._root, self._paths[row])

    def __str__(self) -> str:
        held = f"files below {self._root or '.'}, read when they are asked for" if self._rows is None else str(self._rows)
        return f"{self.where}: {self._size:,} rows; {held}"

    @property
    def fingerprint(self) -> str:
        """A hash of the listing (of files their names, not their contents) or of the numbers, and of the labels."""
        hashed = hashlib.blake2b(digest_size=16)
        if self._paths is not None:
            hashed.update(self._paths.content.data)
            hashed.update(self._paths.ends.data)
        if self._rows is not None:
            hashed.update(self._rows.fingerprint.encode())
        if self.labels is not None:
            hashed.update(np.ascontiguousarray(self.labels).data)
        return hashed.hexdigest()


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


def place(index: Any, size: int) -> int:
    """index as 0 <= int < size; negative ones from the end. Raises IndexError, so that a dataset ends where a list would."""
    number = operator.index(index)
    found = number + size if number < 0 else number
    if not 0 <= found < size:
        raise IndexError(f"index: expected {-size} to {size - 1}, found {number}")
    return found


def _listed(names: Sequence[str]) -> str:
    """The names; those that blanks surround in quotes, so that one sees it."""
    return ", ".join(name if name and name == name.strip() else repr(name) for name in names)
