"""What a dataset is, as far as it can be told without making a sample of it."""

from __future__ import annotations

import functools
import hashlib
from typing import Any

import numpy as np
from torch.utils.data import ConcatDataset, Subset, TensorDataset

FUNCTIONS = ("transform", "target_transform", "load", "loader")  # attributes by which a dataset says what it does to its samples


def kind(dataset: Any) -> str:
    """Its class, and the names of the functions that make its samples; of what it wraps too."""
    inner = [kind(one) for one in _inside(dataset)]
    inner += [f"{name}={named(found)}" for name in FUNCTIONS if (found := getattr(dataset, name, None)) is not None]
    return type(dataset).__qualname__ + (f"({', '.join(dict.fromkeys(inner))})" if inner else "")


def listing(dataset: Any) -> str:
    """A hash of what it lists, where it has one: its `fingerprint`, or that of what it wraps with the indices taken of it."""
    if (told := getattr(dataset, "fingerprint", None)) is not None:
        return str(told)
    hashed = hashlib.blake2b(digest_size=16)
    if isinstance(dataset, Subset):
        hashed.update(np.asarray(dataset.indices, dtype=np.int64).tobytes())
    elif isinstance(dataset, TensorDataset):
        for tensor in dataset.tensors:
            hashed.update(f"{tensor.dtype}:{tuple(tensor.shape)}:{tensor[:: max(len(tensor) // 16, 1)].tolist()}".encode())
    elif not isinstance(dataset, ConcatDataset):
        return ""
    for one in _inside(dataset):
        hashed.update(f"{len(one)}:{listing(one)}".encode())
    return hashed.hexdigest()


def named(function: Any) -> str:
    """A function by its name, a partial one with its arguments; an object by how it shows itself, where that is no address."""
    if isinstance(function, functools.partial):
        given = [*map(named, function.args), *(f"{key}={named(value)}" for key, value in sorted(function.keywords.items()))]
        return f"{named(function.func)}({', '.join(given)})"
    if (name := getattr(function, "__qualname__", None)) is not None:
        return str(name)
    shown = repr(function)
    return type(function).__qualname__ if " at 0x" in shown else shown


def _inside(dataset: Any) -> list[Any]:
    if isinstance(dataset, Subset):
        return [dataset.dataset]
    return list(dataset.datasets) if isinstance(dataset, ConcatDataset) else []
