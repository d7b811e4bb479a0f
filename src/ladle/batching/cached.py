"""A finished cache: a folder of mapped arrays, and the file that says what they are."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

from ladle.batching.arrays import Arrays
from ladle.errors import ConfigError, FormatError

FORMAT = 1
STATED = "cache.json"  # written last: without it a folder is no cache


class CachedSamples(Arrays):
    """What `cache` has written: samples as the dataset gave them, floating-point values as they were stored.

    Lists come as tuples, numbers as tensors of no dimension, but whole ones, which are ints.
    """

    def __init__(self, folder: str | os.PathLike[str], expected: dict[str, Any] | None = None) -> None:
        """folder: of a finished cache. expected: the dataset's identity, where it is known.

        Raises FormatError for what is no cache, or is damaged; ConfigError for the cache of another dataset.
        """
        self.folder = Path(folder)
        told = _stated(self.folder / STATED)
        if expected is not None:
            same(self.folder, told["of"], expected)
        self._shape = told["shape"]
        super().__init__(*(self.folder / f"{number:03}.npy" for number in range(told["arrays"])), dtype=None)
        if len(self) != told["of"]["samples"]:
            raise FormatError(self.folder / "000.npy", None, "samples", told["of"]["samples"], len(self), "write the cache again")

    def _joined(self, entries: list[Any]) -> Any:
        return built(self._shape, entries)


def same(folder: Path, found: dict[str, Any], expected: dict[str, Any]) -> None:
    """Raises ConfigError naming what differs."""
    for name, value in expected.items():
        if found.get(name) != value:
            raise ConfigError(
                f"{folder}: {name}: expected {value!r}, found {found.get(name)!r}: it is the cache of another dataset; name "
                f"another folder, or remove this one"
            )


def built(shape: Any, entries: list[Any]) -> Any:
    """The sample of this structure, whose entries are taken from the front."""
    if shape == "leaf":
        return entries.pop(0)
    if "dict" in shape:
        return {key: built(value, entries) for key, value in shape["dict"].items()}
    return tuple(built(value, entries) for value in shape["tuple"])


def read_json(path: Path) -> Any:
    """A file that a cache has written. Raises FormatError."""
    try:
        return json.loads(path.read_text("utf-8"))
    except (ValueError, OSError, RecursionError) as error:
        raise FormatError(path, None, "content", "JSON as a cache writes it", str(error), "remove the folder") from error


def _stated(path: Path) -> dict[str, Any]:
    told = read_json(path)
    if not isinstance(told, dict) or told.get("format") != FORMAT:
        found = told.get("format") if isinstance(told, dict) else type(told).__name__
        raise FormatError(path, None, "format", FORMAT, found, "it was written by another version of Ladle: remove the folder")
    of = told.get("of")
    if not isinstance(of, dict) or not isinstance(of.get("samples"), int):
        raise FormatError(path, None, "of", "the dataset that was cached", of, "remove the folder")
    if (leaves := _leaves(told.get("shape"))) is None or told.get("arrays") != leaves:
        raise FormatError(path, None, "arrays", f"{leaves} for this shape", told.get("arrays"), "remove the folder")
    return told


def _leaves(shape: Any) -> int | None:
    """How many arrays a sample of this structure has, or None for no structure."""
    if shape == "leaf":
        return 1
    if not isinstance(shape, dict) or len(shape) != 1:
        return None
    (inner,) = shape.values()
    if not isinstance(inner, dict if "dict" in shape else list if "tuple" in shape else ()):
        return None
    counts = [_leaves(one) for one in (inner.values() if isinstance(inner, dict) else inner)]
    return None if None in counts else sum(count for count in counts if count is not None)
