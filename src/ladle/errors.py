"""Every error Ladle raises on purpose.

    LadleError
    ├── ConfigError   (ValueError)   an argument: name, expected, found
    ├── FormatError   (ValueError)   a file: path, byte offset, field, expected, found
    ├── StateError    (ValueError)   a saved state that does not belong to this stream
    ├── TextError     (ValueError)   a document: source, place, reason
    ├── TokenError    (ValueError)   an id or a character that a vocabulary does not hold
    ├── ClosedError   (RuntimeError) something used after it was closed
    └── MissingExtra  (ImportError)  an optional dependency, and the command that installs it

Each message is for people: where, what was expected, what was found, what to do. All of them pickle, so they
cross process borders unchanged; the command line prints them in one line and exits with 2.
"""

from __future__ import annotations

import os


class LadleError(Exception):
    """The parent of all of them."""


class ConfigError(LadleError, ValueError):
    """An argument that cannot be right."""


class StateError(LadleError, ValueError):
    """A saved state that belongs to another stream, or to a newer Ladle."""


class TextError(LadleError, ValueError):
    """A document that cannot be read as text."""


class TokenError(LadleError, ValueError):
    """An id or a character that the vocabulary does not hold."""


class ClosedError(LadleError, RuntimeError):
    """Used after close()."""


class FormatError(LadleError, ValueError):
    """A file that is not what it says it is."""

    def __init__(  # noqa: PLR0917  they are the error's args, in this order
        self,
        path: str | os.PathLike[str],
        offset: int | None = None,
        field: str = "",
        expected: object = "",
        found: object = "",
        hint: str = "",
    ) -> None:
        """path: the file. offset: bytes from its start, or None where no place can be named. hint: what to do.

        One argument alone is the whole message: so torch raises again what went wrong in a DataLoader's worker.
        """
        super().__init__(os.fspath(path), offset, field, str(expected), str(found), hint)

    def __str__(self) -> str:
        path, offset, field, expected, found, hint = self.args
        if not field:
            return str(path)
        place = path if offset is None else f"{path} @ byte {offset}"
        return f"{place}: {field}: expected {expected}, found {found}" + (f"; {hint}" if hint else "")


class MissingExtra(LadleError, ImportError):  # noqa: N818  it names what is missing
    """An optional dependency is absent."""

    def __init__(self, what: str, package: str, extra: str) -> None:
        """what: the feature asked for; package: the import that failed; extra: Ladle's extra that brings it."""
        super().__init__(what, package, extra)

    def __str__(self) -> str:
        what, package, extra = self.args
        return f"{what} needs the package {package!r}, which is not installed; pip install 'ladle[{extra}]'"
