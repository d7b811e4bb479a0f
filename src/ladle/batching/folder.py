"""A folder with one folder a class, as a dataset."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Collection, Iterator, Sequence
from pathlib import Path
from typing import Any, Literal, NoReturn

import numpy as np
from torch.utils.data import Dataset

from ladle.batching.files import IMAGES, TEXTS, Load
from ladle.batching.labels import distinct
from ladle.batching.reading import Reading
from ladle.batching.strings import Strings
from ladle.batching.table import place
from ladle.errors import ConfigError

KNOWN = IMAGES | TEXTS | {".npy"}


class Folder(Dataset[Any]):
    """`dataset[i]` is (sample, class number): every file below root/CLASS/, classes and files sorted by name.

    suffixes: of the files that count (with load="auto" those that it knows; else all). classes: as a training folder's
    `.classes` are, so that another folder, which may lack some of them, numbers them alike. load, transform, on_error: as for
    Table. Hidden files and folders are left out. Links are followed, a folder that contains itself once.
    `classes`, `labels` (int64 [n]), `describe(index)`, `skipped`, `skipped_rows`.
    Raises ConfigError for a folder without classes, for a class without a file, and for one that is not among the classes given.
    """

    in_memory = False

    def __init__(
        self,
        root: str | os.PathLike[str],
        *,
        load: Load | Literal["auto"] = "auto",
        transform: Callable[[Any], Any] | None = None,
        suffixes: Collection[str] | None = None,
        classes: Sequence[str] | None = None,
        on_error: Literal["stop", "skip"] = "stop",
    ) -> None:
        self.root, self.transform, self.on_error = Path(root), transform, on_error
        if not self.root.is_dir():
            raise ConfigError(
                f"folder: expected one with a folder a class, found {'a file' if self.root.exists() else 'none'} at {root}"
            )
        wanted = _suffixes(suffixes) if suffixes is not None else KNOWN if load == "auto" else None
        with os.scandir(self.root) as entries:
            there = sorted(entry.name for entry in entries if entry.is_dir() and not entry.name.startswith("."))
        self.classes = there if classes is None else distinct(classes)
        if not there:
            raise ConfigError(f"{root}: expected a folder a class, found none in it")
        if other := sorted(set(there).difference(self.classes)):
            raise ConfigError(f"{self.root / other[0]}: expected one of the {len(self.classes)} classes given, found another")
        names, counts = list[str](), [0] * len(self.classes)
        for number, one in enumerate(self.classes):
            if one in there:
                found = sorted(_files(self.root, one, wanted))
                if not found:
                    raise ConfigError(f"{self.root / one}: expected a file of this class, found none{_of(wanted)}")
                names += found
                counts[number] = len(found)
        self._names = Strings.of(names)
        self.labels = np.repeat(np.arange(len(counts), dtype=np.int64), counts)
        self._reading = Reading(load, on_error, len(names))
        self.load = self._reading.load
        self.seed_samples = transform is not None or not self._reading.ours

    def __len__(self) -> int:
        return len(self._names)

    def __getitem__(self, index: int) -> Any:
        number = place(index, len(self))
        sample = self._reading.sample(number, self.describe(number), lambda: f"sample {number}")
        if sample is None:
            return None
        return (sample if self.transform is None else self.transform(sample)), int(self.labels[number])

    @property
    def skipped(self) -> int:
        """How many different files could not be loaded so far, in all processes."""
        return len(self.skipped_rows)

    @property
    def skipped_rows(self) -> list[int]:
        """The samples whose files could not be loaded so far, in any process."""
        return self._reading.left_out

    def describe(self, index: int) -> str:
        """The file's path."""
        return os.path.join(self.root, self._names[place(index, len(self))])

    def __str__(self) -> str:
        return f"{self.root}: {len(self):,} files of {len(self.classes):,} classes, read when they are asked for"

    @property
    def fingerprint(self) -> str:
        """A hash of the listing and the classes, not of the files' contents."""
        hashed = hashlib.blake2b("/".join(self.classes).encode("utf-8", "surrogateescape"), digest_size=16)
        hashed.update(self._names.content.data)
        hashed.update(self._names.ends.data)
        return hashed.hexdigest()


def _files(root: Path, folder: str, suffixes: Collection[str] | None) -> Iterator[str]:
    """Paths below root/folder, relative to root. Raises ConfigError for a folder that cannot be read."""
    seen = {_identity(root)}
    base = os.path.join(root, "")
    for here, folders, files in os.walk(os.path.join(root, folder), followlinks=True, onerror=_unread):
        if (identity := _identity(here)) in seen:  # a link has led back
            folders.clear()
            continue
        seen.add(identity)
        folders[:] = sorted(name for name in folders if not name.startswith("."))
        inside = here.removeprefix(base)
        for name in files:
            if not name.startswith(".") and (suffixes is None or os.path.splitext(name)[1].lower() in suffixes):
                yield f"{inside}/{name}"


def _identity(folder: str | Path) -> tuple[int, int]:
    status = os.stat(folder)
    return status.st_dev, status.st_ino


def _unread(error: OSError) -> NoReturn:
    raise ConfigError(f"{error.filename}: expected a folder that can be read, found: {error.strerror}") from error


def _suffixes(given: Collection[str]) -> set[str]:
    if isinstance(given, str) or not given:
        raise ConfigError(f"suffixes: expected several, as {{'.png', '.jpg'}}, found {given!r}")
    return {(suffix if suffix.startswith(".") else f".{suffix}").lower() for suffix in given}


def _of(suffixes: Collection[str] | None) -> str:
    return "" if suffixes is None else f" that ends in {', '.join(sorted(suffixes))}"
