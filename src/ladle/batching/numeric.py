"""Rows of numeric columns: one array where it fits, else a Parquet file's row groups as they are asked for."""

from __future__ import annotations

import hashlib
import os
from collections import OrderedDict
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from ladle.batching.banner import memory
from ladle.batching.columns import Columns, Numbers
from ladle.batching.csv_table import CSV
from ladle.batching.parquet import Parquet
from ladle.errors import ConfigError

GROUPS_KEPT = 2  # row groups that stay in memory at least
SHARE = 8  # of the limit one process's row groups may take: each worker keeps its own


class Rows:
    """`rows[i]` is float32 [features], one's own. whole: whether all of them are in memory."""

    def __init__(self, columns: Columns, names: Sequence[str], fill: float | None, memory_limit: int | None) -> None:
        """memory_limit: bytes that they may take; None: half of what this process may have."""
        if isinstance(names, str) or not names:
            raise ConfigError(f"features: expected a list of at least one column, found {names!r}")
        self._names, self._fill = list(names), fill
        self._limit = memory() // 2 if memory_limit is None else memory_limit
        self._file: Parquet | None = None
        self._numbers: Numbers | None = None
        self._groups: OrderedDict[int, Numbers] = OrderedDict()
        if isinstance(columns, Parquet):
            self._ends = np.cumsum(columns.group_rows, dtype=np.int64)
            if self._bytes(sum(columns.group_rows)) > self._limit:
                self._file = columns
        elif isinstance(columns, CSV) and (size := os.path.getsize(columns.path)) > self._limit:
            raise ConfigError(
                f"{columns.where}: expected a table of at most {self._limit:,} bytes, found {size:,}; CSV cannot be read in "
                f"parts: convert it to Parquet, or raise memory_limit"
            )
        if self._file is None:
            self._numbers = columns.numbers(self._names, fill)

    @property
    def whole(self) -> bool:
        """Whether all of it is in memory."""
        return self._numbers is not None

    def __len__(self) -> int:
        if self._numbers is not None:
            return len(self._numbers)
        return int(self._ends[-1]) if self._ends.size else 0

    def __getitem__(self, row: int) -> torch.Tensor:
        return self.take([row])[0] if self._numbers is None else torch.from_numpy(self._numbers[row].copy())

    def take(self, rows: Sequence[int]) -> Sequence[torch.Tensor]:
        """Several rows; each row group is read once for all of them."""
        wanted = np.array(rows, dtype=np.int64)
        if self._numbers is not None:
            return torch.from_numpy(self._numbers[wanted]).unbind()
        found = np.empty((wanted.size, len(self._names)), dtype=np.float32)
        groups = np.searchsorted(self._ends, wanted, side="right")
        for group in np.unique(groups).tolist():
            here = groups == group
            first = self._ends[group - 1] if group else 0
            found[here] = self._group(group)[wanted[here] - first]
        return torch.from_numpy(found).unbind()

    def _group(self, group: int) -> Numbers:
        if (found := self._groups.pop(group, None)) is None:
            if self._file is None:
                raise IndexError(group)
            found = self._file.group(group, self._names, self._fill)
        self._groups[group] = found  # the last used is the last to go
        while len(self._groups) > max(GROUPS_KEPT, self._limit // SHARE // max(found.nbytes, 1)):
            self._groups.popitem(last=False)
        return found

    def __str__(self) -> str:
        size = self._bytes(len(self))
        told = f"{len(self._names)} numeric columns, {size:,} bytes as float32"
        if self._file is None:
            return f"{told}, in memory"
        largest = max(self._file.group_rows)
        return (
            f"{told}: more than {self._limit:,}, so read by row group, of {largest:,} rows ({self._bytes(largest):,} bytes) at "
            f"most; for samples in a shuffled order, cache() it first"
        )

    @property
    def fingerprint(self) -> str:
        """A hash of the numbers, or of the file they are read from."""
        hashed = hashlib.blake2b(f"{self._names}:{self._fill}:{len(self)}".encode(), digest_size=16)
        if self._numbers is not None:
            hashed.update(np.ascontiguousarray(self._numbers).data)
        elif self._file is not None:
            hashed.update(self._file.fingerprint.encode())
        return hashed.hexdigest()

    def _bytes(self, rows: int) -> int:
        return rows * len(self._names) * 4

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_groups": OrderedDict()}
