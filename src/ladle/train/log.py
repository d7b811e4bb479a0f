"""The log of a run: JSON lines, one object a step; it can be cut back to where a checkpoint stood."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any, Self

from ladle.errors import FormatError


class Log:
    """Appends objects to a file of JSON lines. Has close() and works in `with`.

    A process killed in the middle of a line leaves half of it; `cut` takes that away with everything else after the
    checkpoint, so that a resumed run's log is the uninterrupted run's.
    """

    def __init__(self, path: Path, *, size: int = 0) -> None:
        """Open for appending, cut back to `size` bytes (a value of `tell()`; 0: begin anew).

        Raises FormatError when the file is shorter than that or the place does not end a line.
        """
        self.path = path
        found = path.stat().st_size if path.exists() else 0
        if found < size:
            hint = "put the log back, or move the checkpoints away to train anew"
            raise FormatError(path, found, "size", f"at least {size} bytes, as the checkpoint says", found, hint)
        if size and (last := _byte(path, size - 1)) != b"\n":
            raise FormatError(path, size - 1, "log", "the end of a line, as the checkpoint says", last)
        self._file = path.open("ab")
        self._file.truncate(size)

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


def _byte(path: Path, offset: int) -> bytes:
    with path.open("rb") as file:
        file.seek(offset)
        return file.read(1)
