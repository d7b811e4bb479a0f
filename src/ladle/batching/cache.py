"""Samples made once, kept as mapped arrays: decode and resize before training, not in every epoch of it."""

from __future__ import annotations

import fcntl
import json
import os
import shutil
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, BinaryIO, Literal, TextIO

import numpy as np
import torch
from numpy.typing import NDArray

from ladle.batching.cached import FORMAT, STATED, CachedSamples, read_json, same
from ladle.batching.identity import kind, listing, named
from ladle.errors import ConfigError, FormatError

EACH = 64  # samples asked for at once
NOTED = 8  # such batches between two notes of how far it is
PROGRESS, SHAPE = "progress.json", "shape.json"  # of a cache that is being written
PATIENCE_SECONDS = 5  # before it is said that another process is waited for


def cache(
    dataset: Any,
    out: str | os.PathLike[str],
    *,
    transform: Callable[[Any], Any] | None = None,
    workers: int | Literal["auto"] = "auto",
    seed: int = 0,
    progress: TextIO | None = None,
) -> CachedSamples:
    """The dataset's samples, each made once and written to `out`; then, and whenever it is there already, read from it.

    dataset: map-style, of samples of one shape: tensors, arrays and numbers, in a tuple or a dict or alone. transform: applied to
    each sample first. Random numbers in either are keyed by (seed, sample), so that the bytes are the same for any number of
    `workers` and of kills: a run that is killed goes on where it was, in `out`.partial, which becomes `out` when it is whole.
    Another process that asks for the same cache meanwhile waits for it. progress: where to draw it.

    A dataset is known by its class, its length, the names of its functions, and its `fingerprint` where it has one, as Table,
    Folder and Arrays do (of files it covers the names, not the contents); a Subset by its indices too. Where you change what is
    inside a function, name another folder.

    Raises ConfigError for a sample of another shape (naming it and both shapes) and for a cache of another dataset (naming what
    differs); OSError for a full disk, before anything is written.
    """
    if not hasattr(dataset, "__len__") or not hasattr(dataset, "__getitem__"):
        raise ConfigError(f"cache: expected a dataset with __len__ and __getitem__, found {type(dataset).__name__}")
    place = Path(out)
    told = _identity(dataset, transform, seed)
    if (place / STATED).exists():
        return CachedSamples(place, told)
    if place.exists() and (not place.is_dir() or any(place.iterdir())):
        what = "other files in it" if place.is_dir() else "a file"
        raise ConfigError(f"{place}: expected a cache or an empty folder, found {what}; name another folder")
    partial = place.with_name(place.name + ".partial")
    partial.mkdir(parents=True, exist_ok=True)
    with _alone(partial.with_name(partial.name + ".lock")):
        if not (place / STATED).exists():  # another process may have finished it meanwhile
            if not (partial / STATED).exists():
                _fill(dataset, transform, partial, told, workers=workers, seed=seed, progress=progress)
            for note in (PROGRESS, SHAPE):
                (partial / note).unlink(missing_ok=True)
            if place.exists():
                place.rmdir()
            partial.replace(place)
            _sync(place.parent)
        else:
            with suppress(OSError):  # made before the wait, and empty
                partial.rmdir()
    return CachedSamples(place, told)


def _fill(
    dataset: Any,
    transform: Callable[[Any], Any] | None,
    folder: Path,
    told: dict[str, Any],
    *,
    workers: int | Literal["auto"],
    seed: int,
    progress: TextIO | None,
) -> None:
    """Write what is missing in a half-written cache, and its last word."""
    from ladle.batching.dataloader import loader
    from ladle.corpus.progress import Progress  # here: it brings tqdm, which reads the environment

    done, samples = _begun(folder, told), len(dataset)
    batches = loader(
        _Transformed(dataset, transform),
        batch_size=EACH,
        seed=seed,
        workers=workers,
        collate=_as_arrays,
        seed_samples=True,
        verbose=False,
        training=True,  # it goes on where a state says
        drop_last=False,
        rank=0,
        world_size=1,
    )
    arrays: list[np.memmap[Any, Any]] = []
    shape: Any = None
    if done:
        shape, arrays = read_json(folder / SHAPE), _mapped(folder)
        batches.load_state_dict({**batches.state_dict(), "position": done})
    with Progress("caching", samples, progress, unit="samples") as moved, batches:
        for turn, batch in enumerate(batches if done < samples else [], 1):
            for number, sample in enumerate(batch, done):
                leaves: list[NDArray[Any]] = []
                found = _flattened(sample, leaves, f"sample {number}")
                if shape is None:
                    shape, arrays = found, _created(folder, leaves, samples)
                    _write_json(folder / SHAPE, shape)
                _fits(number, found, shape, leaves, arrays)
                for array, leaf in zip(arrays, leaves, strict=True):
                    array[number] = leaf
            done += len(batch)
            moved(len(batch))
            if turn % NOTED == 0:
                for array in arrays:
                    array.flush()
                _write_json(folder / PROGRESS, {"of": told, "done": done})
    if done != samples:
        raise ConfigError(f"{folder}: expected {samples} samples, found {done}: the dataset has shrunk")
    for number in range(len(arrays)):
        with open(folder / f"{number:03}.npy", "rb") as file:
            os.fsync(file.fileno())
    _write_json(folder / STATED, {"format": FORMAT, "of": told, "arrays": len(arrays), "shape": shape})


class _Transformed:
    """The dataset with a transform behind it."""

    def __init__(self, dataset: Any, transform: Callable[[Any], Any] | None) -> None:
        self._dataset, self._transform = dataset, transform

    def __len__(self) -> int:
        return len(self._dataset)

    def __getitem__(self, index: int) -> Any:
        sample = self._dataset[index]
        if sample is None:
            raise ConfigError(
                f"cache: sample {index}: expected one, found none (it is left out by on_error='skip'); a cache holds all "
                f"samples: mend the file, or take its row out of the table"
            )
        return sample if self._transform is None else self._transform(sample)

    def describe(self, index: int) -> str:
        """What the dataset says."""
        describe = getattr(self._dataset, "describe", None)
        return str(describe(index)) if callable(describe) else f"sample {index}"

    @property
    def in_memory(self) -> bool:
        """Whether workers would gain nothing."""
        return bool(getattr(self._dataset, "in_memory", False)) and self._transform is None


def _as_arrays(samples: list[Any]) -> list[Any]:
    return samples


def _identity(dataset: Any, transform: Callable[[Any], Any] | None, seed: int) -> dict[str, Any]:
    """What must be the same for a cache to be of this dataset: all that can be known without making samples."""
    return {
        "dataset": kind(dataset),
        "samples": len(dataset),
        "listing": listing(dataset),
        "transform": None if transform is None else named(transform),
        "seed": seed,
    }


def _begun(folder: Path, told: dict[str, Any]) -> int:
    """How many samples are written already. Raises ConfigError where they are of another dataset."""
    path = folder / PROGRESS
    if not path.exists():
        for old in folder.iterdir():
            old.unlink()
        return 0
    found = read_json(path)
    if not isinstance(found, dict) or not isinstance(found.get("of"), dict) or not isinstance(found.get("done"), int):
        raise FormatError(path, None, "content", "how far a cache is", found, "remove the folder")
    same(folder, found["of"], told)
    return int(found["done"])


def _mapped(folder: Path) -> list[np.memmap[Any, Any]]:
    return [np.lib.format.open_memmap(path, mode="r+") for path in sorted(folder.glob("[0-9]*.npy"))]


def _created(folder: Path, leaves: list[NDArray[Any]], samples: int) -> list[np.memmap[Any, Any]]:
    """The arrays, whose blocks on the disk are taken at once: a full disk is then an error, and no bus error."""
    needed = sum(leaf.nbytes for leaf in leaves) * samples
    if (free := shutil.disk_usage(folder).free) < needed:
        raise OSError(28, f"No space left on device: the cache needs {needed:,} bytes, {free:,} are free", str(folder))
    arrays: list[np.memmap[Any, Any]] = []
    for number, leaf in enumerate(leaves):
        path = folder / f"{number:03}.npy"
        arrays.append(np.lib.format.open_memmap(path, mode="w+", dtype=leaf.dtype, shape=(samples, *leaf.shape)))
        with open(path, "r+b") as file:
            os.posix_fallocate(file.fileno(), 0, os.path.getsize(path))
    return arrays


def _flattened(sample: Any, leaves: list[NDArray[Any]], where: str) -> Any:
    """The sample's structure as JSON values, its arrays into `leaves`."""
    if isinstance(sample, dict):
        if other := [key for key in sample if not isinstance(key, str)]:
            raise ConfigError(f"cache: {where}: expected keys that are str, found {other[0]!r}")
        return {"dict": {key: _flattened(value, leaves, f"{where}, {key!r}") for key, value in sample.items()}}
    if isinstance(sample, tuple | list):
        return {"tuple": [_flattened(value, leaves, f"{where}, field {i}") for i, value in enumerate(sample)]}
    try:
        array = sample.detach().cpu().numpy() if isinstance(sample, torch.Tensor) else np.asarray(sample)
    except (TypeError, ValueError) as error:  # a torch.bfloat16, or a list of unlike ones
        raise ConfigError(f"cache: {where}: expected numbers as NumPy has them, found {error}") from error
    if array.dtype.kind not in "iufb":
        raise ConfigError(f"cache: {where}: expected numbers, found {type(sample).__name__}; a transform can make some of it")
    leaves.append(array)
    return "leaf"


def _fits(number: int, found: Any, shape: Any, leaves: list[NDArray[Any]], arrays: Sequence[NDArray[Any]]) -> None:
    if found != shape:
        raise ConfigError(f"cache: sample {number}: expected a sample built like sample 0, found another; a cache has one kind")
    for field, (array, leaf) in enumerate(zip(arrays, leaves, strict=True)):
        if leaf.shape != array.shape[1:] or leaf.dtype != array.dtype:
            raise ConfigError(
                f"cache: sample {number}, field {field}: expected {array.dtype} of shape {array.shape[1:]} as sample 0 has, "
                f"found {leaf.dtype} of shape {leaf.shape}; resize with transform="
            )


def _write_json(path: Path, value: Any) -> None:
    partial = path.with_suffix(".tmp")
    with open(partial, "w", encoding="utf-8") as file:
        json.dump(value, file)
        file.flush()
        os.fsync(file.fileno())
    partial.replace(path)


def _sync(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


@contextmanager
def _alone(path: Path) -> Iterator[None]:
    """One process at a time; the others wait until it has the cache, or is gone."""
    with open(path, "ab") as file:
        until = time.monotonic() + PATIENCE_SECONDS
        while not _taken(file):
            if time.monotonic() > until:
                warnings.warn(f"{path.with_suffix('')}: another process writes this cache; waiting for it", stacklevel=4)
                fcntl.flock(file, fcntl.LOCK_EX)
                break
            time.sleep(0.02)
        yield
        path.unlink(missing_ok=True)


def _taken(file: BinaryIO) -> bool:
    """Whether the lock is ours now."""
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True
