"""Spans of characters to tokens: which tokens of a text lie in them."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from ladle.errors import TextError

I64 = npt.NDArray[np.int64]


def checked(spans: object, num_characters: int, where: str) -> I64:
    """Spans as a record gives them, [[first, last), ...] in characters, as int64 [spans, 2].

    where: for messages, the record and its field. Raises TextError for what are no ascending, separate ranges within the text.
    """
    if not isinstance(spans, list):
        raise TextError(f"{where}: expected a list of [first, last] characters, found {type(spans).__name__}")
    before = 0
    for number, span in enumerate(spans):
        at = f"{where}[{number}]"
        if not (isinstance(span, list) and len(span) == 2 and all(type(edge) is int for edge in span)):
            raise TextError(f"{at}: expected [first, last] in characters, found {repr(span)[:80]}")
        first, last = span
        if not before <= first <= last <= num_characters:
            raise TextError(
                f"{at}: expected {before} <= first <= last <= {num_characters} (the text's length; spans ascend and do not "
                f"overlap), found {str(first)[:40]}, {str(last)[:40]}"
            )
        before = last
    return np.array(spans, np.int64).reshape(-1, 2)


def holds(spans: I64, text: str, sizes: I64) -> npt.NDArray[np.bool_]:
    """Of each token, whether a span holds its last byte: bool [tokens].

    spans: int64 [spans, 2], ascending and separate, in characters of the text. sizes: int64 [tokens], the bytes of text that
    each token is; they add up to the text's.
    """
    edges = _byte_places(text)[spans]
    last_bytes = np.cumsum(sizes) - 1
    begun, ended = (np.searchsorted(edges[:, side], last_bytes, side="right") for side in (0, 1))
    return np.asarray(begun > ended)


def _byte_places(text: str) -> I64:
    """Where each character begins in UTF-8, and where the text ends: int64 [characters + 1]."""
    if text.isascii():
        return np.arange(len(text) + 1)
    codes = np.frombuffer(text.encode("utf-32-le"), "<u4")
    sizes = 1 + (codes >= 1 << 7) + (codes >= 1 << 11) + (codes >= 1 << 16).astype(np.int64)
    return np.concatenate([np.zeros(1, np.int64), np.cumsum(sizes)])
