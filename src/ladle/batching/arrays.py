"""Arrays side by side as a dataset: mapped from .npy files, or in memory."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Mapping, Sequence
from typing import Any, Self

import numpy as np
import torch
from numpy.typing import NDArray
from torch.utils.data import Dataset

from ladle.batching.files import tensor
from ladle.batching.table import place
from ladle.errors import ClosedError, ConfigError, FormatError


class Arrays(Dataset[Any]):
    """`dataset[i]` is the i-th entry of each array: a tuple, a dict where a dict was given, or the entry itself of a single one.

        Arrays("x.npy", "y.npy")            # mapped, never loaded
        Arrays({"image": images, "label": labels})

    arrays: paths of .npy files, or arrays, of one length. dtype: what floating-point entries become (None: as they are); integers
    stay. Entries are the caller's own copies. A dataset of files pickles as their paths and maps them anew where it arrives.
    `labels` is the last array where it is one integer a sample. Has close() and works in `with`.
    Raises ConfigError where lengths differ, naming them; FormatError for a file that is no array, or holds objects.
    """

    in_memory = True
    seed_samples = False

    def __init__(self, *arrays: Any, dtype: str | None = "float32") -> None:
        given: Any = arrays[0] if len(arrays) == 1 and isinstance(arrays[0], Mapping) else arrays
        if not given:
            raise ConfigError("arrays: expected at least one, found none")
        self._names = list(given) if isinstance(given, Mapping) else None
        self._given: list[Any] = list(given.values()) if isinstance(given, Mapping) else list(given)
        self._alone, self._dtype = len(arrays) == 1 and self._names is None, dtype
        self._arrays: list[NDArray[Any]] | None = [_opened(one) for one in self._given]
        lengths = {self._told(number): len(array) for number, array in enumerate(self._arrays)}
        if len(set(lengths.values())) > 1:
            raise ConfigError(
                f"arrays: expected one length, found {', '.join(f'{size} of {name}' for name, size in lengths.items())}"
            )
        self._size = len(self._arrays[0])
        if not self._size:
            raise ConfigError("arrays: expected at least one sample, found none")

    def _told(self, number: int) -> str:
        if self._names is not None:
            return repr(self._names[number])
        one = self._given[number]
        return os.fspath(one) if isinstance(one, str | os.PathLike) else f"array {number}"

    def __len__(self) -> int:
        return self._size

    def __getitem__(self, index: int) -> Any:
        return self._joined([self._entry(array[place(index, self._size)]) for array in self._open()])

    def __getitems__(self, indices: Sequence[int]) -> list[Any]:
        """Several samples with one read of each array."""
        rows = np.array([place(index, self._size) for index in indices], dtype=np.int64)
        columns = [array[rows] for array in self._open()]
        return [self._joined([self._entry(column[i]) for column in columns]) for i in range(rows.size)]

    def _entry(self, value: Any) -> Any:
        if np.ndim(value) == 0 and np.asarray(value).dtype.kind in "iub":
            return int(value)
        return (
            tensor(value, self._dtype) if np.ndim(value) else torch.tensor(value.item(), dtype=_torch_float(value, self._dtype))
        )

    def _joined(self, entries: list[Any]) -> Any:
        if self._names is not None:
            return dict(zip(self._names, entries, strict=True))
        return entries[0] if self._alone else tuple(entries)

    @property
    def labels(self) -> NDArray[Any] | None:
        """The last array, where it holds one integer a sample."""
        last = self._open()[-1]
        fits: bool = last.ndim == 1 and last.dtype.kind in "iub" and len(self._open()) > 1
        return np.asarray(last) if fits else None

    @property
    def fingerprint(self) -> str:
        """A hash of names, shapes, and of a few entries' bytes."""
        hashed = hashlib.blake2b(digest_size=16)
        for number, array in enumerate(self._open()):
            hashed.update(f"{self._told(number)}:{array.dtype}:{array.shape}".encode())
            hashed.update(np.ascontiguousarray(array[:: max(len(array) // 16, 1)]).tobytes())
        return hashed.hexdigest()

    def _open(self) -> list[NDArray[Any]]:
        if self._arrays is None:
            raise ClosedError("these arrays are closed")
        return self._arrays

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_arrays": None if self._arrays is None else ()}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        if self._arrays is not None:
            self._arrays = [_opened(one) for one in self._given]

    def close(self) -> None:
        """Let go of the files. Reading afterwards raises ClosedError. Safe to call twice."""
        self._arrays = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _opened(one: Any) -> NDArray[Any]:
    if isinstance(one, str | os.PathLike):
        try:
            found = np.load(one, mmap_mode="r", allow_pickle=False)
        except (ValueError, EOFError) as error:
            raise FormatError(one, None, "array", "an .npy file of numbers", str(error).split("\n", 1)[0]) from error
        if not isinstance(found, np.ndarray):
            found.close()
            raise FormatError(one, None, "array", "one array (.npy)", "an archive of several (.npz)")
    else:
        found = one if isinstance(one, np.ndarray) else np.asarray(one)
    if found.ndim == 0 or found.dtype.kind not in "iufb":
        raise ConfigError(f"arrays: expected numbers, one entry a sample, found {found.dtype} of shape {found.shape}")
    array: NDArray[Any] = found
    return array


def _torch_float(value: Any, dtype: str | None) -> torch.dtype:
    found: torch.dtype = getattr(torch, str(np.asarray(value).dtype) if dtype is None else dtype)
    return found
