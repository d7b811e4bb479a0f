"""The chars tokenizer: each character of a vocabulary, taken from the text itself, is an id."""

from __future__ import annotations

import functools
from collections.abc import Iterable
from typing import Any

import numpy as np

from ladle.errors import TokenError
from ladle.tokens.interface import Tokenizer, lone_surrogate
from ladle.tokens.markers import END_OF_TEXT

_UNSEEN = np.uint32(0xFFFFFFFF)


class Chars(Tokenizer):
    """A vocabulary of characters, and the end of text after them if it was asked for."""

    name = "chars"
    byte_lossless = True

    def __init__(self, characters: str, *, end_of_text: bool = False) -> None:
        """characters: the vocabulary, each once; id i is characters[i]. TokenError: one twice, or a lone surrogate."""
        codes = _codes(characters, 0)
        if len(np.unique(codes)) < len(codes):
            twice = next(character for character in characters if characters.count(character) > 1)
            raise TokenError(f"chars: expected a vocabulary of different characters, found {twice!r} twice")
        self.characters = characters
        self.end_of_text = len(characters) if end_of_text else None
        self.vocab_size = len(characters) + end_of_text
        self.special = {END_OF_TEXT: len(characters)} if end_of_text else {}
        self._ids = np.full(int(codes.max(initial=0)) + 2, _UNSEEN, np.uint32)  # code point -> id
        self._ids[codes] = np.arange(len(codes), dtype=np.uint32)

    @classmethod
    def from_text(cls, pieces: str | Iterable[str], *, end_of_text: bool = False) -> Chars:
        """The vocabulary of a text, given whole or in pieces, in code point order: one pass, a piece in memory at a time.

        TokenError: a lone surrogate, which no vocabulary can hold.
        """
        seen, start = np.zeros(0x110000, bool), 0
        for piece in [pieces] if isinstance(pieces, str) else pieces:
            seen[_codes(piece, start)] = True
            start += len(piece)
        return cls("".join(map(chr, np.flatnonzero(seen).tolist())), end_of_text=end_of_text)

    def identity(self) -> dict[str, Any]:
        return {"kind": "chars", "characters": self.characters, "end_of_text": self.end_of_text}

    def token_bytes(self, ids: Any) -> list[bytes]:
        table = self._table
        return [table[id] for id in self._checked(ids).tolist()]

    @functools.cached_property
    def _table(self) -> list[bytes]:
        return [character.encode("utf-8") for character in (*self.characters, *self.special)]

    def _encode(self, text: str, start: int) -> np.ndarray:
        codes = _codes(text, start)
        ids = self._ids.take(codes, mode="clip")  # the last entry is nobody's
        unseen = ids == _UNSEEN
        if unseen.any():
            place = int(unseen.argmax())
            raise TokenError(
                f"chars: character {start + place} of the text: expected one of the {len(self.characters)} characters of "
                f"the vocabulary, found {text[place]!r} (U+{ord(text[place]):04X}); build the vocabulary from a text that "
                f"holds it, or use the tokenizer 'bytes', which knows every text"
            )
        return ids


def _codes(text: str, start: int) -> np.ndarray:
    """The code points of a text, uint32, read-only. start: its place in the whole, for the message."""
    try:
        return np.frombuffer(text.encode("utf-32-le"), "<u4")
    except UnicodeEncodeError as error:
        raise lone_surrogate("chars", text, error.start, start) from None
