"""A table as a dataset: files listed in a column, or rows of numbers. Samples are made when they are asked for."""

from __future__ import annotations

import hashlib
import operator
import os
from collections import OrderedDict
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch.utils.data import Dataset

from ladle.batching.banner import memory
from ladle.batching.columns import Columns, Parquet, columns_of
from ladle.batching.files import OURS, Load, Skips, loader_of, unreadable
from ladle.batching.labels import Labels
from ladle.batching.strings import Strings
from ladle.errors import ConfigError

GROUPS_KEPT = 2  # row groups of a Parquet file that stay in memory


class Table(Dataset[Any]):
    """The samples that a table lists: `dataset[i]` is (sample, label), or the sample alone without a label.

        Table("train.csv", path="file_path", label="label")            # a file a row, read when it is asked for
        Table("train.parquet", features=["age", "height"], label="y")  # a float32 vector a row

    source: a .csv, .tsv or .parquet file (extra `parquet`), or a DataFrame. path: the column of files, relative to `root` (the
    table's own folder by default); or features: numeric columns. label: a column, or None; words become the numbers of the
    sorted `classes`, whole numbers stay, other numbers are float32. load: a function of a path, or "auto": .npy, images (extra
    `images`) and .txt by suffix. transform: applied to each sample. on_error: a file that cannot be loaded is an error that
    names row and path ("stop"), or is left out of its batch and counted in `skipped` ("skip": the dataset gives None for it).
    fill: what stands for a missing number (None: an error). delimiter: of CSV. memory_limit: bytes that features may take;
    a larger Parquet file is read by row group, two of which stay in memory (so read it in order, or `cache` it first).

    Only the listing is held, as arrays that forked workers share. `labels`, `classes`, `describe(index)`, `skipped`.
    Raises ConfigError naming the columns there are, FormatError naming line and column.
    """

    def __init__(
        self,
        source: Any,
        *,
        path: str | None = None,
        features: Sequence[str] | None = None,
        label: str | None = None,
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
        if on_error not in ("stop", "skip"):
            raise ConfigError(f"on_error: expected 'stop' or 'skip', found {on_error!r}")
        columns = columns_of(source, delimiter)
        self.where, self.transform, self.on_error = columns.where, transform, on_error
        for name in [path, label, *(features or ())]:
            if name is not None and name not in columns.names:
                raise ConfigError(f"{self.where}: column: expected one of {', '.join(columns.names)}, found {name!r}")
        self._load = loader_of(load)
        self._paths: Strings | None = None
        self._rows: _Rows | None = None
        if path is not None:
            self._paths, size = columns.strings(path), 0
            size = len(self._paths)
            home = Path(source).parent if isinstance(source, str | os.PathLike) else Path()
            self._root = os.fspath(home if root is None else root)
        else:
            self._rows = _Rows(columns, list(features or ()), fill, memory_limit)
            size = len(self._rows)
        self._labels = None if label is None else Labels(columns.values(label), f"{self.where}, column {label!r}")
        self.classes = None if self._labels is None else self._labels.classes
        self.labels: NDArray[Any] | None = None if self._labels is None else self._labels.values
        if size == 0:
            raise ConfigError(f"{self.where}: expected at least one row, found none")
        self._size = size
        self._skips = Skips(size) if on_error == "skip" else None
        self.in_memory = self._rows is not None and self._rows.whole
        self.seed_samples = transform is not None or (path is not None and self._load not in OURS)

    def __len__(self) -> int:
        return self._size

    def __getitem__(self, index: int) -> Any:
        row = place(index, self._size)
        sample = self._sample(row)
        if sample is None:
            return None
        if self.transform is not None:
            sample = self.transform(sample)
        return sample if self._labels is None else (sample, self._labels[row])

    def _sample(self, row: int) -> Any:
        if self._paths is None:
            return self._rows[row] if self._rows is not None else None
        path = os.path.join(self._root, self._paths[row])
        try:
            return self._load(path)
        except Exception as error:
            if self._skips is None:
                raise unreadable(path, f"row {row} of {self.where}", error) from error
            self._skips.note(row)
            return None

    @property
    def skipped(self) -> int:
        """How many different files could not be loaded so far, in all processes."""
        return 0 if self._skips is None else self._skips.count

    def describe(self, index: int) -> str:
        """What stands in a row, for messages."""
        row = place(index, self._size)
        return f"row {row} of {self.where}" if self._paths is None else os.path.join(self._root, self._paths[row])

    @property
    def fingerprint(self) -> str:
        """A hash of the listing (of files their names, not their contents)."""
        hashed = hashlib.blake2b(digest_size=16)
        if self._paths is not None:
            hashed.update(self._paths.content.data)
            hashed.update(self._paths.ends.data)
        if self._rows is not None:
            hashed.update(self._rows.told.encode())
        if self.labels is not None:
            hashed.update(np.ascontiguousarray(self.labels).data)
        return hashed.hexdigest()


class _Rows:
    """Numeric columns: one array where it fits, else the file's row groups as they are asked for."""

    def __init__(self, columns: Columns, names: list[str], fill: float | None, memory_limit: int | None) -> None:
        if not names:
            raise ConfigError("features: expected at least one column, found none")
        self._names, self._fill = names, fill
        limit = memory() // 2 if memory_limit is None else memory_limit
        self._file: Parquet | None = None
        self._numbers: NDArray[np.float32] | None = None
        self._groups: OrderedDict[int, NDArray[np.float32]] = OrderedDict()
        if isinstance(columns, Parquet):
            needed = sum(columns.group_rows) * len(names) * 4
            self._ends = np.cumsum(columns.group_rows, dtype=np.int64)
            if needed > limit:
                self._file = columns
        elif hasattr(columns, "path") and os.path.getsize(columns.path) > limit:
            raise ConfigError(
                f"{columns.where}: expected a table of at most {limit:,} bytes, found {os.path.getsize(columns.path):,}; CSV "
                f"cannot be read in parts: convert it to Parquet, or raise memory_limit"
            )
        if self._file is None:
            self._numbers = columns.numbers(names, fill)
        self.told = f"{columns.where}:{','.join(names)}:{len(self)}:{fill}"

    @property
    def whole(self) -> bool:
        """Whether all of it is in memory."""
        return self._numbers is not None

    def __len__(self) -> int:
        return int(self._ends[-1]) if self._numbers is None else len(self._numbers)

    def __getitem__(self, row: int) -> torch.Tensor:
        """float32 [features], one's own."""
        if self._numbers is not None:
            return torch.from_numpy(self._numbers[row].copy())
        group = int(np.searchsorted(self._ends, row, side="right"))
        if group not in self._groups:
            if self._file is None:
                raise IndexError(row)
            self._groups[group] = self._file.group(group, self._names, self._fill)
            while len(self._groups) > GROUPS_KEPT:
                self._groups.popitem(last=False)
        first = int(self._ends[group - 1]) if group else 0
        return torch.from_numpy(self._groups[group][row - first].copy())

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_groups": OrderedDict()}


def place(index: Any, size: int) -> int:
    """index as 0 <= int < size; negative ones from the end. Raises IndexError, so that a dataset ends where a list would."""
    number = operator.index(index)
    found = number + size if number < 0 else number
    if not 0 <= found < size:
        raise IndexError(f"index: expected {-size} to {size - 1}, found {number}")
    return found
