"""What every tokenizer does."""

from __future__ import annotations

import hashlib
import json
import re
from abc import ABC, abstractmethod
from collections.abc import Collection, Iterable, Iterator, Mapping
from typing import Any

import numpy as np

from ladle.errors import ConfigError, TokenError
from ladle.tokens import cuts

_SURROGATES = re.compile("[\ud800-\udbff][\udc00-\udfff]|[\ud800-\udfff]")


class Tokenizer(ABC):
    """Text to ids and back. Immutable; safe to share between threads; pickled as its identity.

    name: for people. vocab_size: ids are 0 .. vocab_size - 1, the end of text included.
    end_of_text: the id that ends a document, or None. Nothing here ever appends it.
    special: the markers that `allowed_special` can make control ids, and those ids.
    byte_lossless: the bytes of a text's tokens, put together, are the text's UTF-8 bytes.
    """

    name: str
    vocab_size: int
    end_of_text: int | None
    special: Mapping[str, int]
    byte_lossless: bool

    # How a long text is cut on its way in (see cuts.py).
    _last_cut: cuts.LastCut = staticmethod(cuts.anywhere)
    _limit: int = cuts.LIMIT

    @abstractmethod
    def identity(self) -> dict[str, Any]:
        """All that is needed to rebuild this tokenizer (`ladle.tokens.from_identity`), as plain JSON values."""

    @abstractmethod
    def token_bytes(self, ids: Any) -> list[bytes]:
        """The bytes of each token; a multi-byte character may lie across several. TokenError: an id out of range."""

    @abstractmethod
    def _encode(self, text: str, start: int) -> np.ndarray:
        """The ids of a text without control ids, uint32, freshly owned. start: its place in the whole, for messages."""

    @property
    def hash(self) -> str:
        """BLAKE2b of the identity's canonical JSON, 32 hexadecimal digits; the same on every machine and in every run."""
        canonical = json.dumps(self.identity(), sort_keys=True, separators=(",", ":"), ensure_ascii=True)
        return hashlib.blake2b(canonical.encode("ascii"), digest_size=16).hexdigest()

    def encode(self, text: str, *, allowed_special: Collection[str] = (), errors: str = "strict") -> np.ndarray:
        """The ids of a text: uint32 (tokens,), owned by the caller. Nothing is appended.

        allowed_special: markers (see `special`) that become their control ids; all others, and those this tokenizer
        does not know, are ordinary text. errors: a lone surrogate is a TokenError ("strict") or U+FFFD ("replace").
        TokenError: a character that cannot be encoded, with its place in the text.
        """
        parts = list(self.encode_pieces([text], allowed_special=allowed_special, errors=errors))
        return parts[0] if len(parts) == 1 else np.concatenate([np.empty(0, np.uint32), *parts])

    def encode_pieces(
        self, pieces: Iterable[str], *, allowed_special: Collection[str] = (), errors: str = "strict"
    ) -> Iterator[np.ndarray]:
        """The ids of a text that arrives in pieces: arrays whose concatenation is `encode` of the joined text.

        The pieces may be cut anywhere, in the midst of a word or a marker. Memory: one piece and a chunk of bounded size.
        Arguments and errors as in `encode`; places are counted in characters from the start of the text.
        """
        if errors not in ("strict", "replace"):
            raise ConfigError(f"errors: expected 'strict' or 'replace', found {errors!r}")
        if isinstance(allowed_special, str):
            raise ConfigError(f"allowed_special: expected a collection of markers, found the text {allowed_special!r}")
        allowed = frozenset(allowed_special) & self.special.keys()
        if errors == "replace":
            pieces = _mended(pieces)
        markers = sorted(allowed, key=lambda marker: (-len(marker), marker))
        pattern = re.compile("|".join(map(re.escape, markers))) if markers else None
        for start, chunk in cuts.chunks(pieces, last_cut=self._last_cut, limit=self._limit, markers=markers):
            parts, after = [], 0
            for match in pattern.finditer(chunk) if pattern else ():
                parts.append(self._ordinary(chunk[after : match.start()], start + after))
                parts.append(np.array([self.special[match.group()]], np.uint32))
                after = match.end()
            rest = self._ordinary(chunk[after:], start + after)
            yield np.concatenate([*parts, rest]) if parts else rest

    def decode(self, ids: Any) -> str:
        """The text of the ids (any sequence or array of integers, one row).

        Bytes that are no UTF-8, such as half a character at either end, become U+FFFD; `token_bytes` gives them as they
        are. A control id is decoded as its marker. TokenError: an id out of range, with its place.
        """
        return b"".join(self.token_bytes(ids)).decode("utf-8", errors="replace")

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Tokenizer) and self.identity() == other.identity()

    def __hash__(self) -> int:
        return hash(self.hash)

    def __reduce__(self) -> tuple[Any, ...]:
        from ladle.tokens.spec import from_identity

        return from_identity, (self.identity(),)

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.name!r}, vocabulary of {self.vocab_size}>"

    def _ordinary(self, text: str, start: int) -> np.ndarray:
        if not text:
            return np.empty(0, np.uint32)
        try:
            return self._encode(text, start)
        except UnicodeEncodeError as error:
            raise lone_surrogate(self.name, text, error.start, start) from None

    def _checked(self, ids: Any) -> np.ndarray:
        """The ids as one row of integers in range."""
        array = np.asarray(ids)
        if array.ndim != 1:
            raise TokenError(f"{self.name}: expected one row of ids, found an array of shape {array.shape}")
        if not array.size:
            return np.empty(0, np.int64)
        if array.dtype.kind not in "iu":
            raise TokenError(f"{self.name}: expected integer ids, found {array.dtype}")
        outside = (array < 0) | (array >= self.vocab_size)
        if outside.any():
            raise self._refusal(array, int(outside.argmax()))
        return array

    def _refusal(self, ids: Any, place: int) -> TokenError:
        return TokenError(
            f"{self.name}: id {int(ids[place])} at place {place}: expected an id of its vocabulary of {self.vocab_size} "
            f"(0 to {self.vocab_size - 1}); these ids were made by another tokenizer, or are masked targets"
        )


def lone_surrogate(name: str, text: str, place: int, start: int) -> TokenError:
    """The error for a character of a text, at `place` in a part that begins at `start`."""
    return TokenError(
        f"{name}: character {start + place} of the text: expected a Unicode character, found the lone surrogate "
        f"U+{ord(text[place]):04X}; encode with errors='replace' to make it U+FFFD"
    )


def _mended(pieces: Iterable[str]) -> Iterator[str]:
    """Surrogate pairs joined, lone surrogates replaced by U+FFFD, also across the pieces' borders."""
    held = ""
    for piece in pieces:
        text = held + piece
        held = text[-1:] if "\ud800" <= text[-1:] <= "\udbff" else ""
        yield _SURROGATES.sub(_mend, text[: len(text) - len(held)])
    yield "\ufffd" if held else ""


def _mend(match: re.Match[str]) -> str:
    pair = match.group()
    return pair.encode("utf-16-le", "surrogatepass").decode("utf-16-le") if len(pair) == 2 else "\ufffd"
