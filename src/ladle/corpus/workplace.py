"""The hidden folder in which a corpus grows before it appears, whole, under its name."""

from __future__ import annotations

import fcntl
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from ladle.corpus.write import naming, sync_folder
from ladle.errors import ConfigError


def workplace_of(out: Path) -> Path:
    """Where a corpus for `out` is prepared: a hidden sibling, so that appearing is one rename in one file system."""
    return out.parent / f".{out.name}.preparing"


@contextmanager
def workplace(out: Path) -> Iterator[Path]:
    """An empty folder to fill, whose content no one else writes; after the block it appears as `out`, all at once.

    What an interrupted preparation left behind is removed first. An exception leaves nothing. A second call while the first
    holds the lock raises ConfigError; the lock goes with its process, however that ends.
    """
    place = workplace_of(out)
    with _locked(place / "lock"):
        folder = place / "corpus"
        shutil.rmtree(folder, ignore_errors=True)
        try:
            folder.mkdir()
            yield folder
            sync_folder(folder)
            folder.rename(out)
            sync_folder(out.parent)
        finally:
            shutil.rmtree(folder, ignore_errors=True)
            with suppress(OSError):  # the next preparation removes what could not be removed now
                (place / "lock").unlink()
                place.rmdir()


@contextmanager
def _locked(path: Path) -> Iterator[None]:
    """Hold an exclusive lock on a file, made with its folder. Raises ConfigError when another process holds it."""
    while True:
        path.parent.mkdir(parents=True, exist_ok=True)
        try:
            descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
        except FileNotFoundError:  # its owner finished and removed the folder between the two lines above
            continue
        try:
            with naming(path):
                try:
                    fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                except BlockingIOError:
                    raise ConfigError(
                        f"{path.parent}: another process is preparing this corpus; wait for it, or choose another folder"
                    ) from None
            if _is_still(path, descriptor):
                yield
                return
        finally:
            os.close(descriptor)


def _is_still(path: Path, descriptor: int) -> bool:
    """Whether the locked file is the one that path names now, not one that its former owner has removed."""
    try:
        return os.path.samestat(path.stat(), os.fstat(descriptor))
    except FileNotFoundError:
        return False
