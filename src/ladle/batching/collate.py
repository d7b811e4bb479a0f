"""Samples -> a batch: stacked where their shapes are equal, padded to the batch's longest where they have lengths."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import reduce
from numbers import Number
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import default_collate
from torch.utils.data._utils.collate import collate, default_collate_fn_map

from ladle.errors import ConfigError

Path = tuple[Any, ...]  # the keys and places that lead to a field of a sample; () is the sample itself


class Padded(NamedTuple):
    """One field of a batch of B samples, padded to L; `values, lengths, mask = padded` unpacks.

    values: (B, L, ...) of the samples' dtype. lengths: int64 (B,). mask: bool (B, L), True where there is a sample's own value.
    """

    values: Tensor
    lengths: Tensor
    mask: Tensor

    def to(self, device: Any, non_blocking: bool = False) -> Padded:
        """The same on another torch device."""
        return Padded(*(part.to(device, non_blocking=non_blocking) for part in self))


def pad(value: Any = None, *, pad_to_multiple_of: int = 1) -> Pad:
    """A `collate` that pads to the batch's longest: `loader(..., collate=pad(0))`, or torch's `collate_fn=pad(0)`.

    value: what to pad with. A number, where a sample has one field with a length: the sample itself, or one field of a tuple or
    dict. Else one for each field, in the shape of a sample: `pad((0, -100))`, `pad({"ids": 0, "tags": -100})`; what is None, or
    not named, is stacked (one-hot labels, images). A field with a length is a tensor or an array whose first dimension it is,
    or a list of numbers; in the batch it is a `Padded`. All else comes as torch's own collate gives it, a tuple as a tuple.
    pad_to_multiple_of: the padded length is rounded up to such a multiple.
    Raises ConfigError for a value that is missing or cannot be right; batches raise it for samples that do not fit together.
    """
    if value is None:
        raise ConfigError(
            "pad: expected the value to pad with, found none: there is none that suits all; ids have a padding id, "
            "pad(0) or pad({'ids': 0, 'labels': -100})"
        )
    if isinstance(pad_to_multiple_of, bool) or not isinstance(pad_to_multiple_of, int) or pad_to_multiple_of < 1:
        raise ConfigError(f"pad_to_multiple_of: expected an integer from 1, found {pad_to_multiple_of!r}")
    return Pad(value, pad_to_multiple_of)


@dataclass(frozen=True, slots=True)
class Pad:
    """See `pad`. Pickles."""

    value: Any
    pad_to_multiple_of: int = 1

    def __call__(self, samples: Sequence[Any]) -> Any:
        """The batch of these samples."""
        return self._together(list(samples), (), self._told(samples[0]))

    def length(self, sample: Any) -> int:
        """What a length-aware order must call this sample's length: that of its longest padded field."""
        return max((len(_at(sample, path)) for path in self._told(sample)), default=0)

    def _told(self, sample: Any) -> dict[Path, Any]:
        """The fields that are padded, and with what."""
        if not isinstance(self.value, Number):
            return dict(_named(self.value, sample, ()))
        runs = list(_runs(sample, ()))
        if len(runs) != 1:
            found = " and ".join(map(_name, runs)) or f"none in a sample of {type(sample).__name__}"
            raise ConfigError(
                f"pad: expected one field with a length for the one value {self.value!r}, found {found}; give each its own, "
                f"in the shape of a sample, and None to what is stacked: pad((0, None)) or pad({{'ids': 0}})"
            )
        return {runs[0]: self.value}

    def _together(self, samples: list[Any], path: Path, told: Mapping[Path, Any]) -> Any:
        first = samples[0]
        if path in told:
            return _padded(samples, told[path], self.pad_to_multiple_of, path)
        if not any(one[: len(path)] == path for one in told):
            return stack(samples, path)
        if isinstance(first, Mapping):
            _same(path, "keys", [sorted(map(str, sample)) for sample in samples])
            return {key: self._together([sample[key] for sample in samples], (*path, key), told) for key in first}
        _same(path, "fields", [len(sample) for sample in samples])
        fields = (self._together(list(field), (*path, number), told) for number, field in enumerate(zip(*samples, strict=True)))
        return type(first)(*fields) if hasattr(first, "_fields") else tuple(fields)


def stack(samples: Sequence[Any], path: Path = ()) -> Any:
    """torch's own collate, whose errors name the field and the shapes. path: where in a sample these are."""
    try:
        return default_collate(list(samples))
    except (RuntimeError, ValueError, TypeError, KeyError) as error:
        if "shared memory" in str(error):  # in a worker torch stacks there; without room the batch takes another way
            return collate(list(samples), collate_fn_map={**default_collate_fn_map, Tensor: _in_own_memory})
        _refuse_mixed(list(samples), path)
        raise  # it was something else


def _in_own_memory(samples: Sequence[Tensor], *, collate_fn_map: Any = None) -> Tensor:  # noqa: ARG001  torch passes it
    return torch.stack(list(samples))


def _refuse_mixed(samples: list[Any], path: Path) -> None:
    first = samples[0]
    if isinstance(first, Mapping):
        _same(path, "keys", [sorted(map(str, sample)) for sample in samples])
        for key in first:
            _refuse_mixed([sample[key] for sample in samples], (*path, key))
    elif isinstance(first, Tensor | np.ndarray):
        _same(path, "shapes", [tuple(sample.shape) for sample in samples])
    elif isinstance(first, Sequence) and not isinstance(first, str | bytes):
        _same(path, "lengths", [len(sample) for sample in samples])
        for number, field in enumerate(zip(*samples, strict=True)):
            _refuse_mixed(list(field), (*path, number))


def _same(path: Path, what: str, found: list[Any]) -> None:
    """Refuse samples that differ in `found`."""
    other = next((number for number, one in enumerate(found) if one != found[0]), None)
    if other is not None:
        hint = "" if what == "keys" else "; to pad: collate=ladle.batching.pad(value), value being what to pad with"
        raise ConfigError(
            f"{_name(path)}: expected equal {what} in a batch, found {found[0]} in its sample 0 and {found[other]} in its "
            f"sample {other}{hint}"
        )


# --- fields with lengths ---


def _padded(samples: list[Any], value: Any, multiple: int, path: Path) -> Padded:
    runs = [_tensor(sample, number, path) for number, sample in enumerate(samples)]
    _same(path, "shapes after the first dimension", [tuple(run.shape[1:]) for run in runs])
    known = {run.dtype for run, sample in zip(runs, samples, strict=True) if len(run) or not isinstance(sample, list)}
    dtype = reduce(torch.promote_types, known) if known else torch.int64
    lengths = torch.tensor([len(run) for run in runs])
    longest = -(-int(lengths.max()) // multiple) * multiple
    if not _fits(value, dtype):
        raise ConfigError(f"pad: expected a value that {dtype} can hold for {_name(path)}, found {value!r}")
    values = torch.full((len(runs), longest, *runs[0].shape[1:]), value, dtype=dtype)
    for row, run in zip(values, runs, strict=True):
        row[: len(run)] = run
    return Padded(values, lengths, torch.arange(longest) < lengths[:, None])


def _fits(value: Any, dtype: torch.dtype) -> bool:
    if dtype.is_floating_point or dtype.is_complex:
        return True
    low, high = (0, 1) if dtype == torch.bool else (torch.iinfo(dtype).min, torch.iinfo(dtype).max)
    return bool(low <= value <= high and value == int(value))


def _tensor(sample: Any, number: int, path: Path) -> Tensor:
    if isinstance(sample, np.ndarray):
        tensor = torch.from_numpy(np.require(sample, requirements=["C", "W"]))  # of a mapped file a copy
    else:
        try:
            tensor = torch.as_tensor(sample)
        except (TypeError, ValueError, RuntimeError):
            raise ConfigError(f"{_name(path)}: expected numbers to pad, found {_kind(sample)} in sample {number}") from None
    if not tensor.ndim:
        raise ConfigError(f"{_name(path)}: expected something with a length to pad, found {_kind(sample)} in sample {number}")
    return tensor


def _runs(sample: Any, path: Path) -> Iterator[Path]:
    """The fields of a sample that have a length."""
    if isinstance(sample, Tensor | np.ndarray):
        if sample.ndim:
            yield path
    elif isinstance(sample, Mapping):
        for key, field in sample.items():
            yield from _runs(field, (*path, key))
    elif isinstance(sample, list) and all(isinstance(item, Number) for item in sample):
        yield path
    elif isinstance(sample, tuple | list):
        for number, field in enumerate(sample):
            yield from _runs(field, (*path, number))


def _named(value: Any, sample: Any, path: Path) -> Iterator[tuple[Path, Any]]:
    """(field, what it is padded with), from a value in the shape of a sample."""
    if value is None:
        return
    if isinstance(value, Number):
        yield path, value
        return
    here = value.items() if isinstance(value, Mapping) else enumerate(value) if isinstance(value, tuple | list) else None
    if here is None:
        raise ConfigError(f"pad: expected a number, or one for each field, found {value!r}")
    for key, part in here:
        try:
            field = sample[key]
        except (KeyError, IndexError, TypeError):
            raise ConfigError(f"pad: expected a field {key!r} in {_name(path)}, found {_kind(sample)} without it") from None
        yield from _named(part, field, (*path, key))


def _at(sample: Any, path: Path) -> Any:
    for key in path:
        sample = sample[key]
    return sample


def _kind(value: Any) -> str:
    return f"{type(value).__name__} {sorted(map(str, value))}" if isinstance(value, Mapping) else type(value).__name__


def _name(path: Path) -> str:
    return "sample" + "".join(f"[{key!r}]" for key in path)
