"""The inputs, read once before anything is decided: that they are text, how much, and which."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from ladle.corpus import format
from ladle.errors import TextError
from ladle.text import Source

DIGEST_BYTES = 16


@dataclass(frozen=True, slots=True, kw_only=True)
class Survey:
    """One number a source, of the file as it was read.

    digests: DIGEST_BYTES each, BLAKE2b of the text's bytes: the file without its byte-order mark.
    """

    sources: Sequence[Source]
    text_bytes: npt.NDArray[np.int64]  # [sources]
    first_bytes: npt.NDArray[np.uint8]  # [sources] where the text starts: 3 after a byte-order mark, else 0
    characters: npt.NDArray[np.int64]  # [sources]
    replaced: npt.NDArray[np.int64]  # [sources] U+FFFD put in place of bytes that are no UTF-8
    skipped: npt.NDArray[np.bool_]  # [sources] left out, being no UTF-8; every other number is then 0
    digests: bytes

    def digest(self, source: int) -> bytes:
        """One source's digest."""
        return self.digests[source * DIGEST_BYTES : (source + 1) * DIGEST_BYTES]

    def lines(self) -> Iterator[bytes]:
        """sources.jsonl, line by line (docs/format.md)."""
        for number, source in enumerate(self.sources):
            entry: dict[str, object] = {"name": source.name, "bytes": source.num_bytes}
            entry |= {"skipped": True} if self.skipped[number] else {"blake2b": self.digest(number).hex()}
            yield format.canonical(entry) + b"\n"

    def check_same(self, number: int, digest: str) -> None:
        """Raise TextError unless a source's text, read again, has the digest (hexadecimal) of the one that was surveyed."""
        if digest != self.digest(number).hex():
            raise TextError(
                f"{self.sources[number].path}: expected the text that preparing began with, found another; "
                "prepare again when nothing writes to it"
            )


def survey(
    sources: Sequence[Source], *, encoding_errors: str = "strict", progress: Callable[[int], None] = lambda _: None
) -> Survey:
    """Read every source once.

    encoding_errors: what to do about bytes that are no UTF-8: "strict" raises TextError naming the file and the byte,
    "replace" reads them as U+FFFD, "skip" leaves the whole file out. progress: called with the bytes read since its last call.
    Raises TextError for a file that cannot be read.
    """
    text_bytes, characters, replaced = (np.zeros(len(sources), np.int64) for _ in range(3))
    first_bytes, skipped, digests = np.zeros(len(sources), np.uint8), np.zeros(len(sources), bool), bytearray()
    for number, source in enumerate(sources):
        with source.pieces(encoding_errors="replace" if encoding_errors == "replace" else "strict") as pieces:
            done, length = 0, 0
            try:
                for piece in pieces:
                    length += len(piece)
                    progress(pieces.num_bytes - done)
                    done = pieces.num_bytes
            except TextError as error:
                if encoding_errors != "skip" or not isinstance(error.__context__, UnicodeDecodeError):
                    raise
                skipped[number] = True
        if skipped[number]:
            digests += bytes(DIGEST_BYTES)
            continue
        characters[number], replaced[number], first_bytes[number] = length, pieces.num_replaced, pieces.first_byte
        text_bytes[number] = pieces.num_bytes - pieces.first_byte
        digests += bytes.fromhex(pieces.digest)
    return Survey(
        sources=sources,
        text_bytes=text_bytes,
        first_bytes=first_bytes,
        characters=characters,
        replaced=replaced,
        skipped=skipped,
        digests=bytes(digests),
    )
