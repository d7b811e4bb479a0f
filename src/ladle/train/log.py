"""The log of a run: JSON lines, one object a step; it can be cut back to where a checkpoint stood."""

from __future__ import annotations

import fcntl
import json
import os
from pathlib import Path
from typing import Any, BinaryIO, Self

from ladle.errors import ConfigError, FormatError


class Log:
    """Appends objects to a file of JSON lines. Has close() and works in `with`.

    A process killed in the middle of a line leaves half of it; `cut` takes that away with everything else after the
    checkpoint, so that a resumed run's log is the uninterrupted run's.
    """

    def __init__(self, path: Path, *, size: int = 0) -> None:
        """Open for appending, cut back to `size` bytes (a value of `tell()`; 0: begin anew).

        While it is open it is locked, so that no second process writes into the same run; a killed one holds no lock.
        Raises ConfigError when another process has it open, FormatError when the file is shorter than `size` or that
        place does not end a line; then it is left as it was.
        """
        self.path = path
        self._file = path.open("a+b")
        try:
            _lock(self._file, path)
            _check_end(self._file, path, size)
            self._file.truncate(size)
        except BaseException:
            self._file.close()
            raise

    def write(self, **values: Any) -> None:
        """One object, one line, handed to the system at once."""
        self._file.write((json.dumps(values) + "\n").encode())
        self._file.flush()

    def sync(self) -> int:
        """Put everything written on the disk; returns the size in bytes, for the checkpoint."""
        os.fsync(self._file.fileno())
        return os.fstat(self._file.fileno()).st_size

    def close(self) -> None:
        """Safe to call twice."""
        self._file.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def read(path: Path) -> list[dict[str, Any]]:
    """The objects of a log, a half-written last line left out. Raises FormatError for a line that is no JSON object."""
    content = path.read_bytes()
    lines, offset = [], 0
    for line in content[: content.rfind(b"\n") + 1].splitlines(keepends=True):
        try:
            value = json.loads(line)
        except ValueError as error:
            raise FormatError(path, offset, "line", "a JSON object", error) from error
        if not isinstance(value, dict):
            raise FormatError(path, offset, "line", "a JSON object", type(value).__name__)
        lines.append(value)
        offset += len(line)
    return lines


def _lock(file: BinaryIO, path: Path) -> None:
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        raise ConfigError(f"{path}: expected to be the only one writing, found another process training here") from None
    except OSError:
        return  # a file system that knows no locks


def _check_end(file: BinaryIO, path: Path, size: int) -> None:
    found = file.seek(0, os.SEEK_END)
    if found < size:
        hint = "put the log back, or move the checkpoints away to train anew"
        raise FormatError(path, found, "size", f"at least {size} bytes, as the checkpoint says", found, hint)
    if size:
        file.seek(size - 1)
        if (last := file.read(1)) != b"\n":
            raise FormatError(path, size - 1, "log", "the end of a line, as the checkpoint says", last)
