"""Arrays side by side as a dataset: mapped from .npy files, or in memory."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Self

import numpy as np
import torch
from numpy.typing import NDArray
from torch.utils.data import Dataset

from ladle.batching.files import tensor
from ladle.batching.table import place
from ladle.errors import ClosedError, ConfigError, FormatError

DTYPES = (None, "float16", "float32", "float64")
NAMED_LABELS = ("label", "labels", "target", "y")


class Arrays(Dataset[Any]):
    """`dataset[i]` is the i-th entry of each array: a tuple, a dict where a dict was given, or the entry itself of a single one.

        Arrays("x.npy", "y.npy")            # mapped, never loaded
        Arrays({"image": images, "label": labels})

    arrays: paths of .npy files, or arrays, of one length. dtype: what floating-point entries become (None: as they are); integers
    stay. Entries are the caller's own copies. A dataset of files pickles as their paths and maps them anew where it arrives.
    `labels` is the array of a dict's "label", "labels", "target" or "y", else the last one, where it is one integer a sample.
    Has close() and works in `with`.
    Raises ConfigError where lengths differ, naming them; FormatError for a file that is no array, or holds objects.
    """

    in_memory = True
    seed_samples = False

    def __init__(self, *arrays: Any, dtype: str | None = "float32") -> None:
        given: Any = arrays[0] if len(arrays) == 1 and isinstance(arrays[0], Mapping) else arrays
        if not given:
            raise ConfigError("arrays: expected at least one, found none")
        if dtype not in DTYPES:
            raise ConfigError(f"dtype: expected one of {', '.join(map(str, DTYPES))}, found {dtype!r}")
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
        row = place(index, self._size)
        return self._joined([self._entries(np.array(array[row : row + 1]))[0] for array in self._open()])

    def __getitems__(self, indices: Sequence[int]) -> list[Any]:
        """Several samples with one read of each array."""
        rows = np.array([place(index, self._size) for index in indices], dtype=np.int64)
        columns = [self._entries(array[rows]) for array in self._open()]
        return [self._joined(list(entries)) for entries in zip(*columns, strict=True)]

    def _entries(self, values: NDArray[Any]) -> Sequence[Any]:
        """An array's entries, one's own: ints where they are whole numbers, else tensors."""
        if values.ndim == 1 and values.dtype.kind in "iub":
            return list(map(int, values.tolist()))
        return tensor(values, self._dtype).unbind()

    def _joined(self, entries: list[Any]) -> Any:
        if self._names is not None:
            return dict(zip(self._names, entries, strict=True))
        return entries[0] if self._alone else tuple(entries)

    @property
    def labels(self) -> NDArray[Any] | None:
        """The label of each sample, where an array holds one integer a sample for it."""
        arrays, place = self._open(), -1
        if self._names is not None:
            place = next((self._names.index(name) for name in NAMED_LABELS if name in self._names), -1)
        found = arrays[place]
        return np.asarray(found) if found.ndim == 1 and found.dtype.kind in "iub" and len(arrays) > 1 else None

    def __str__(self) -> str:
        held = [f"{self._told(number)}: {array.dtype} {array.shape}" for number, array in enumerate(self._open())]
        return f"{self._size:,} samples of {'; '.join(held)}"

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
    found = _mapped(one) if isinstance(one, str | os.PathLike) else _held(one)
    if found.ndim == 0 or found.dtype.kind not in "iufb":
        raise ConfigError(f"arrays: expected numbers, one entry a sample, found {found.dtype} of shape {found.shape}")
    return found


def _mapped(path: str | os.PathLike[str]) -> NDArray[Any]:
    place = Path(path)
    if not place.is_file():
        raise ConfigError(f"arrays: expected an .npy file, found {'a folder' if place.is_dir() else 'none'} at {place}")
    try:
        found: Any = np.load(path, mmap_mode="r", allow_pickle=False)
    except (ValueError, EOFError) as error:
        raise FormatError(path, None, "array", "an .npy file of numbers", str(error).split("\n", 1)[0]) from error
    if not isinstance(found, np.ndarray):
        found.close()
        raise FormatError(path, None, "array", "one array (.npy)", "an archive of several (.npz)")
    return found


def _held(one: Any) -> NDArray[Any]:
    if isinstance(one, np.ndarray):
        return one
    try:
        return one.detach().cpu().numpy() if isinstance(one, torch.Tensor) else np.asarray(one)
    except (TypeError, ValueError) as error:
        raise ConfigError(f"arrays: expected numbers, one entry a sample, found {type(one).__name__}: {error}") from error
