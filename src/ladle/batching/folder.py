"""A folder with one folder a class, as a dataset."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Collection, Iterator
from pathlib import Path
from typing import Any, Literal

import numpy as np
from torch.utils.data import Dataset

from ladle.batching.files import IMAGES, OURS, TEXTS, Load, Skips, loader_of, unreadable
from ladle.batching.strings import Strings
from ladle.batching.table import place
from ladle.errors import ConfigError

KNOWN = IMAGES | TEXTS | {".npy"}


class Folder(Dataset[Any]):
    """`dataset[i]` is (sample, class number): every file below root/CLASS/, classes and files sorted by name.

    suffixes: of the files that count (with load="auto" those that it knows; else all). load, transform, on_error: as for Table.
    Links are followed, a folder that contains itself once. `classes`, `labels` (int64 [n]), `describe(index)`, `skipped`.
    Raises ConfigError for a folder without classes, and for a class without a file, naming it.
    """

    in_memory = False

    def __init__(
        self,
        root: str | os.PathLike[str],
        *,
        load: Load | Literal["auto"] = "auto",
        transform: Callable[[Any], Any] | None = None,
        suffixes: Collection[str] | None = None,
        on_error: Literal["stop", "skip"] = "stop",
    ) -> None:
        if on_error not in ("stop", "skip"):
            raise ConfigError(f"on_error: expected 'stop' or 'skip', found {on_error!r}")
        self.root, self.transform, self.on_error = Path(root), transform, on_error
        if not self.root.is_dir():
            raise ConfigError(
                f"folder: expected one with a folder a class, found {'a file' if self.root.exists() else 'none'} at {root}"
            )
        self._load = loader_of(load)
        wanted = suffixes if suffixes is not None else KNOWN if load == "auto" else None
        self.classes = sorted(entry.name for entry in os.scandir(self.root) if entry.is_dir())
        if not self.classes:
            raise ConfigError(f"{root}: expected a folder a class, found none in it")
        names, counts = list[str](), []
        for one in self.classes:
            found = sorted(_files(self.root / one, wanted))
            if not found:
                raise ConfigError(f"{self.root / one}: expected a file of this class, found none{_of(wanted)}")
            names += [os.path.join(one, name) for name in found]
            counts.append(len(found))
        self._names = Strings.of(names)
        self.labels = np.repeat(np.arange(len(counts), dtype=np.int64), counts)
        self._skips = Skips(len(names)) if on_error == "skip" else None
        self.seed_samples = transform is not None or self._load not in OURS

    def __len__(self) -> int:
        return len(self._names)

    def __getitem__(self, index: int) -> Any:
        number = place(index, len(self))
        path = self.describe(number)
        try:
            sample = self._load(path)
        except Exception as error:
            if self._skips is None:
                raise unreadable(path, f"sample {number}", error) from error
            self._skips.note(number)
            return None
        return (sample if self.transform is None else self.transform(sample)), int(self.labels[number])

    @property
    def skipped(self) -> int:
        """How many different files could not be loaded so far, in all processes."""
        return 0 if self._skips is None else self._skips.count

    def describe(self, index: int) -> str:
        """The file's path."""
        return os.path.join(self.root, self._names[place(index, len(self))])

    @property
    def fingerprint(self) -> str:
        """A hash of the listing, not of the files' contents."""
        return hashlib.blake2b(self._names.content.tobytes() + self._names.ends.tobytes(), digest_size=16).hexdigest()


def _files(folder: Path, suffixes: Collection[str] | None) -> Iterator[str]:
    """Paths below a folder, relative to it; hidden ones are left out."""
    seen = set()
    for here, folders, files in os.walk(folder, followlinks=True):
        status = os.stat(here)
        if (status.st_dev, status.st_ino) in seen:  # a link has led back
            folders.clear()
            continue
        seen.add((status.st_dev, status.st_ino))
        folders.sort()
        for name in files:
            if not name.startswith(".") and (suffixes is None or os.path.splitext(name)[1].lower() in suffixes):
                yield os.path.relpath(os.path.join(here, name), folder)


def _of(suffixes: Collection[str] | None) -> str:
    return "" if suffixes is None else f" that ends in {', '.join(sorted(suffixes))}"
