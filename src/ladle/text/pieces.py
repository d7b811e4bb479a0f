"""A file's bytes to text, a piece at a time."""

from __future__ import annotations

import codecs
import hashlib
import os
import stat
from io import FileIO
from pathlib import Path
from types import TracebackType
from typing import Self

from ladle.errors import ClosedError, ConfigError, TextError

PIECE_BYTES = 1 << 20
_REPLACEMENT = "\ufffd"


class Pieces:
    """An iterator of str over a file, each from about `piece_bytes` bytes, in bounded memory.

    UTF-8 whatever the locale. A byte order mark at the start is left out; all else is kept as it is: CRLF, NUL, a later U+FEFF.
    What was read is known as it goes, and complete after the last piece:

    first_byte: where the text starts in the file: 3 after a byte order mark, else 0. Known from the start.
    num_bytes: bytes read so far, the byte order mark among them.
    digest: BLAKE2b (16 bytes, hexadecimal) of them from first_byte on: of the text, with or without a mark before it.
    num_replaced: U+FFFD put in place of bytes that are no UTF-8 (only with encoding_errors="replace").

    It closes its file after the last piece, after an error, on `close()`, and at the end of a `with`.
    TextError, on opening or reading: the file is gone, unreadable or no regular file; its bytes are not UTF-8 (with the
    offset of the first such byte); its size changed since it was found.
    """

    def __init__(self, path: Path, num_bytes: int, *, piece_bytes: int = PIECE_BYTES, encoding_errors: str = "strict") -> None:
        """num_bytes: the size the file is expected to have."""
        if encoding_errors not in ("strict", "replace"):
            raise ConfigError(f"encoding_errors: expected 'strict' or 'replace', found {encoding_errors!r}")
        if piece_bytes < 1:
            raise ConfigError(f"piece_bytes: expected >= 1, found {piece_bytes}")
        self.path = path
        self.num_bytes = 0
        self.num_replaced = 0
        self._size = num_bytes
        self._piece_bytes = piece_bytes
        self._errors = encoding_errors
        self._hash = hashlib.blake2b(digest_size=16)
        self._done = False
        self._file: FileIO | None = _open(path)
        try:
            self._held = self._read(3)
        except BaseException:
            self.close()
            raise
        self.first_byte = 3 if self._held == codecs.BOM_UTF8 else 0
        self._held = self._held[self.first_byte :]
        self._hash.update(self._held)

    @property
    def digest(self) -> str:
        return self._hash.hexdigest()

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> str:
        text = ""
        try:
            while not text and not self._done:
                text = self._piece()
        except BaseException:
            self.close()
            raise
        if self._done:
            self.close()
        if not text:
            raise StopIteration
        return text

    def _piece(self) -> str:
        block = self._read(self._piece_bytes)
        self._hash.update(block)
        contents = self._held + block
        start = self.num_bytes - len(contents)
        if not block:
            self._done = True
            if self.num_bytes != self._size:
                raise self._changed(f"its end after {self.num_bytes}")
        try:
            text, used = codecs.utf_8_decode(contents, self._errors, self._done)
        except UnicodeDecodeError as error:
            raise self._not_utf8(start + error.start, contents[error.start]) from None
        self._held = contents[used:]  # the beginning of a character whose end is in the next block
        if self._errors == "replace":
            self.num_replaced += text.count(_REPLACEMENT) - contents[:used].count(_REPLACEMENT.encode())
        return text

    def _read(self, num_bytes: int) -> bytes:
        if self._file is None:
            raise ClosedError(f"{self.path}: its pieces were closed after {self.num_bytes} bytes")
        try:
            block = self._file.read(num_bytes)
        except OSError as error:
            raise TextError(f"{self.path} @ byte {self.num_bytes}: expected text, found: {error.strerror}") from None
        self.num_bytes += len(block)
        if self.num_bytes > self._size:
            raise self._changed(f"at least {self.num_bytes}")
        return block

    def _changed(self, found: str) -> TextError:
        return TextError(
            f"{self.path}: size: expected {self._size} bytes as when it was found, found {found}; "
            f"prepare from files that nobody writes to"
        )

    def _not_utf8(self, offset: int, byte: int) -> TextError:
        return TextError(
            f"{self.path} @ byte {offset}: expected UTF-8 text, found the byte 0x{byte:02x}; convert the file, leave it out, or "
            f"read it with encoding_errors='replace', which puts U+FFFD for what is no UTF-8 and counts it"
        )

    def close(self) -> None:
        if self._file is not None:
            self._file.close()
            self._file = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()


def _open(path: Path) -> FileIO:
    """Open a regular file. A pipe that took its place is refused, not waited for."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    except OSError as error:
        raise TextError(f"{path}: expected a file that can be read, found: {error.strerror}") from None
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise TextError(f"{path}: expected a regular file, found something else")
    return os.fdopen(descriptor, "rb", buffering=0)
