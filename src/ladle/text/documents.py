"""Files and folders to documents. In this version every source, a file, is one document."""

from __future__ import annotations

import errno
import os
import re
import stat
from collections import Counter
from collections.abc import Collection, Iterable
from dataclasses import dataclass, replace
from pathlib import Path, PurePosixPath

from ladle.errors import TextError
from ladle.text.pieces import PIECE_BYTES, Pieces
from ladle.text.suffixes import SKIPPED_FOLDERS, TEXT_SUFFIXES

PathLike = str | os.PathLike[str]
_LOOKS_LIKE_BYTE = re.compile(r"\\(?=x[0-9a-f]{2})")


@dataclass(frozen=True, slots=True)
class Source:
    """A file of text that was found, and not yet read.

    path: where it is. name: what provenance calls it: its path within the folder given, or its own name, with forward
    slashes on every system. num_bytes: its size when it was found.
    """

    path: Path
    name: str
    num_bytes: int

    def pieces(self, *, piece_bytes: int = PIECE_BYTES, encoding_errors: str = "strict") -> Pieces:
        """Open it and read its text piece by piece (see Pieces)."""
        return Pieces(self.path, self.num_bytes, piece_bytes=piece_bytes, encoding_errors=encoding_errors)


class Sources(list[Source]):
    """The sources found, and what was passed over.

    num_others: files in the folders that have another suffix, or that are no regular files.
    num_repeats: files reached a second time, by an overlap of the inputs or by a symbolic link, and taken once.
    """

    num_others: int = 0
    num_repeats: int = 0


def find(inputs: PathLike | Iterable[PathLike], *, suffixes: Collection[str] = TEXT_SUFFIXES) -> Sources:
    """The sources of files and folders, in the order they will be read.

    inputs: one path or several, in their order. A file is taken whatever its suffix. A folder is searched to the bottom,
    through symbolic links; its files with one of the suffixes, in any case of letters, are taken in the order of their
    relative paths' bytes. Hidden files and folders, and SKIPPED_FOLDERS, are passed over inside it.
    Two sources of the same name get as much of their paths before it as tells them apart.
    TextError: a path that does not exist, is neither file nor folder, or cannot be read; a folder without text.
    """
    found = Sources()
    taken: set[str] = set()
    for path in map(_path, [inputs] if isinstance(inputs, (str, os.PathLike)) else inputs):
        for name in _walk(path, found, suffixes) if _is_folder(path) else [""]:
            file = path / name
            real = os.path.realpath(file)
            if real in taken:
                found.num_repeats += 1
            else:
                taken.add(real)
                found.append(Source(file, _shown(name or path.name), _size(file)))
    if not found:
        raise TextError("inputs: expected at least one file or folder, found none")
    _tell_apart(found)
    return found


def _path(given: object) -> Path:
    """An input's path. An empty one, of a variable that was not set, would name the current folder."""
    if not isinstance(given, str | os.PathLike):
        raise TextError(f"inputs: expected paths, found {given!r}")
    if not os.fspath(given):
        raise TextError("inputs: expected a path, found an empty one; the current folder is '.'")
    return Path(given)


def _walk(top: Path, found: Sources, suffixes: Collection[str]) -> list[str]:
    """The text files under a folder, by their names relative to it, in order; `found` counts the others."""
    names, folders, seen = [], [""], {os.path.realpath(top)}
    while folders:
        folder = folders.pop()
        for entry in _entries(top / folder):
            name = f"{folder}/{entry}" if folder else entry
            if entry.startswith("."):
                continue
            mode = _mode(top / name)
            if stat.S_ISDIR(mode):
                real = os.path.realpath(top / name)
                if entry not in SKIPPED_FOLDERS and real not in seen:  # a loop of links ends here
                    seen.add(real)
                    folders.append(name)
            elif stat.S_ISREG(mode) and PurePosixPath(entry).suffix.lower() in suffixes:
                names.append(name)
            else:
                found.num_others += 1
    if not names:
        shown = ".txt, .md or .py" if suffixes is TEXT_SUFFIXES else ", ".join(sorted(suffixes))
        raise TextError(
            f"{top}: expected a folder with text, found no file with a suffix such as {shown} among "
            f"{found.num_others}; a file that is named itself is taken whatever its suffix"
        )
    return sorted(names, key=os.fsencode)


def _entries(folder: Path) -> list[str]:
    try:
        return sorted((entry.name for entry in folder.iterdir()), key=os.fsencode)
    except OSError as error:
        raise TextError(f"{folder}: expected a folder that can be read, found: {error.strerror}") from None


def _mode(path: Path) -> int:
    """What a link or an entry of a folder leads to; 0 for a link that leads nowhere."""
    try:
        return path.stat().st_mode
    except OSError as error:
        if error.errno in (errno.ENOENT, errno.ELOOP):
            return 0
        raise TextError(f"{path}: expected a file or a folder that can be read, found: {error.strerror}") from None


def _is_folder(path: Path) -> bool:
    try:
        mode = path.stat().st_mode
    except (OSError, ValueError) as error:  # ValueError: a NUL in the path
        reason = error.strerror if isinstance(error, OSError) else error
        raise TextError(f"{path}: expected a file or a folder, found: {reason}") from None
    if not stat.S_ISDIR(mode) and not stat.S_ISREG(mode):
        raise TextError(f"{path}: expected a file or a folder, found a pipe, a socket or a device; save its text to a file")
    return stat.S_ISDIR(mode)


def _size(file: Path) -> int:
    if not os.access(file, os.R_OK):
        raise TextError(f"{file}: expected a file that can be read, found: permission denied")
    return file.stat().st_size


def _shown(name: str) -> str:
    r"""A name that any manifest can hold, whatever the locale: its bytes read as UTF-8, others written as \xNN.

    A backslash that would look like the beginning of one is written \x5c: different names stay different.
    """
    if "\\" in name:
        name = _LOOKS_LIKE_BYTE.sub(r"\\x5c", name)
    return os.fsencode(name).decode("utf-8", errors="backslashreplace")


def _tell_apart(sources: Sources) -> None:
    while clashes := {name for name, times in Counter(source.name for source in sources).items() if times > 1}:
        for place, source in enumerate(sources):
            if source.name in clashes:
                parts = Path(os.path.realpath(source.path)).parts
                longer = PurePosixPath(*parts[-source.name.count("/") - 2 :])
                sources[place] = replace(source, name=_shown(str(longer)))
