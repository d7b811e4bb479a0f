"""How listed files become samples, and what happens to those that cannot."""

from __future__ import annotations

import errno
import functools
from collections.abc import Callable
from typing import Any, Literal

import torch
from torch.utils.data import ConcatDataset, Subset

from ladle.batching.files import OURS, Load, loader_of
from ladle.errors import ConfigError, FormatError, MissingExtra

NOT_THE_FILE = {errno.EMFILE, errno.ENFILE, errno.ENOMEM}  # the process lacks something: leaving files out would hide it


class Reading:
    """Loads files, and remembers those left out: one byte a sample, shared by all processes, so that counting twice changes
    nothing."""

    def __init__(self, load: Load | Literal["auto"], on_error: Literal["stop", "skip"], samples: int) -> None:
        if on_error not in ("stop", "skip"):
            raise ConfigError(f"on_error: expected 'stop' or 'skip', found {on_error!r}")
        self.load = loader_of(load)
        self._left_out = torch.zeros(samples, dtype=torch.uint8).share_memory_() if on_error == "skip" else None  # type: ignore[no-untyped-call]

    @property
    def ours(self) -> bool:
        """Whether the files are loaded by functions of ours, which draw no random numbers."""
        load: Any = self.load
        while isinstance(load, functools.partial):
            load = load.func
        return load in OURS

    def sample(self, index: int, path: str, where: Callable[[], str]) -> Any:
        """What the file holds, or None where it is left out. where: what names the sample in an error.

        Raises FormatError naming sample and file, from what its loading raised; MissingExtra and ConfigError as they are, since
        no file is at fault there, and none is left out for them.
        """
        try:
            return self.load(path)
        except (MissingExtra, ConfigError):
            raise
        except Exception as error:
            system = isinstance(error, MemoryError) or (isinstance(error, OSError) and error.errno in NOT_THE_FILE)
            if self._left_out is None or system:
                reason = str(error).split("\n", 1)[0]
                told = f"{type(error).__name__}: {reason}" if reason else type(error).__name__
                raise FormatError(path, None, where(), "a file that can be loaded", told) from error
            self._left_out[index] = 1
            return None

    @property
    def left_out(self) -> list[int]:
        """The samples that could not be loaded so far, in any process."""
        return [] if self._left_out is None else torch.nonzero(self._left_out).flatten().tolist()


def leaves_out(dataset: Any) -> bool:
    """Whether a dataset, or one that it wraps, gives None for a file that cannot be loaded."""
    if isinstance(dataset, Subset):
        return leaves_out(dataset.dataset)
    if isinstance(dataset, ConcatDataset):
        return any(map(leaves_out, dataset.datasets))
    return getattr(dataset, "on_error", "stop") == "skip"


def drop_missing(samples: list[Any]) -> list[Any]:
    """The samples that are there: on_error="skip" gives None for a file that cannot be loaded.

    `ladle.batching.loader` does it by itself. For torch's own DataLoader:
    `DataLoader(table, batch_size=32, collate_fn=lambda samples: default_collate(drop_missing(samples)))`.
    Raises ConfigError where none is left, for no batch can be made of nothing.
    """
    found = [sample for sample in samples if sample is not None]
    if not found:
        raise ConfigError(f"batch: expected a sample that can be loaded, found none among {len(samples)}")
    return found
