"""Windows drawn for the eye: inputs above targets, each target under the token that it follows."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterator, Sequence
from itertools import groupby, zip_longest
from typing import TYPE_CHECKING, Any

from numpy.typing import NDArray

from ladle.corpus.summary import plural
from ladle.errors import ConfigError
from ladle.feed.coverage import Coverage

if TYPE_CHECKING:
    from ladle.tokens import Tokenizer

SPACE = "␣"
PARTIAL = "<E4 BD> stands for bytes that are no whole character: the token holds a part of one"
_GAP = "  "
_LOOKS_LIKE_BYTES = re.compile(r"<[0-9A-F]{2}(?=[ 0-9A-F]*>)")


class Picture:
    """The first windows of a text.

    ids: unsigned integers [N]. length, stride: as `GPTDataset`'s max_length and stride. limit: windows drawn at most.
    `str(picture)` is plain text; `to_dict()` the same for machines.
    Raises ConfigError for a size below 1 and for a text too short for one window.
    """

    def __init__(
        self, ids: NDArray[Any], tokenizer: Tokenizer, *, length: int, stride: int, limit: int = 8, width: int = 100
    ) -> None:
        """width: columns of the page; a window that needs more is drawn in several bands."""
        if limit < 1:
            raise ConfigError(f"limit: expected >= 1 windows, found {limit}")
        self.coverage = Coverage(num_tokens=len(ids), max_length=length, stride=stride)
        self._starts = range(0, self.coverage.num_windows * stride, stride)[:limit]
        self._ids, self._tokenizer, self._width = ids, tokenizer, width

    def __str__(self) -> str:
        length = self.coverage.max_length
        lines, partial = [f"{self._tokenizer.name}: {self.coverage}"], False
        for number, start in enumerate(self._starts):
            ids, tokens = self._window(start)
            cells = [show(token) for token in tokens]
            partial |= any(whole(token) is None for token in tokens)
            columns = zip(cells[:-1], ids[:-1], cells[1:], ids[1:], strict=True)
            lines += [
                "",
                f"window {number}: inputs are tokens {start} to {start + length - 1}, targets {start + 1} to {start + length}",
            ]
            cells_of = [(text, str(id_), target, str(target_id)) for text, id_, target, target_id in columns]
            lines += bands(("  inputs", "", "  targets", ""), cells_of, self._width)
        if further := self.coverage.num_windows - len(self._starts):
            lines += ["", f"and {plural(further, 'more window')}"]
        if partial:
            lines += ["", PARTIAL]
        return "\n".join(lines)

    def to_dict(self) -> dict[str, Any]:
        """The same windows as JSON values. A token is its id, its bytes (hex), and its text, null for a part of a character."""

        def token(id_: int, content: bytes) -> dict[str, Any]:
            return {"id": id_, "text": whole(content), "bytes": content.hex(" ")}

        windows = []
        for start in self._starts:
            tokens = [token(*pair) for pair in zip(*self._window(start), strict=True)]
            windows.append({"start": start, "inputs": tokens[:-1], "targets": tokens[1:]})
        coverage = self.coverage
        return {
            "tokenizer": self._tokenizer.name,
            "num_tokens": coverage.num_tokens,
            "length": coverage.max_length,
            "stride": coverage.stride,
            "num_windows": coverage.num_windows,
            "times_a_target": {str(times): count for times, count in coverage.times.items()},
            "windows": windows,
        }

    def _window(self, start: int) -> tuple[list[int], list[bytes]]:
        ids = self._ids[start : start + self.coverage.max_length + 1]
        return ids.tolist(), self._tokenizer.token_bytes(ids)


def bands(heads: tuple[str, ...], columns: Sequence[tuple[str, ...]], width: int) -> Iterator[str]:
    """Lines: columns side by side, a cell under each head, broken where the page ends."""
    margin = max(map(len, heads))
    while columns:
        used = margin
        taken: list[list[str]] = []
        for column in columns:
            size = max(map(columns_of, column))
            if taken and used + len(_GAP) + size > width:
                break
            used += len(_GAP) + size
            taken.append([pad(cell, size) for cell in column])
        columns = columns[len(taken) :]
        for head, row in zip_longest(heads, zip(*taken, strict=True)):
            yield _GAP.join([head.ljust(margin), *row]).rstrip()
        if columns:
            yield ""


def show(token: bytes) -> str:
    """A token's bytes as printable text of known width.

    Spaces become ␣; control and format characters, other blanks, and marks without their letter become escapes; bytes that
    are no whole character stand in hex between < and >. A text that only looks like one of these is escaped itself.
    """
    return "".join(_pieces(token))


def _pieces(token: bytes) -> Iterator[str]:
    text = token.decode("utf-8", "surrogateescape")  # a byte b of no character becomes U+DC00 + b
    for broken, group in groupby(text, lambda character: "\udc80" <= character <= "\udcff"):
        piece = "".join(group)
        if broken:
            yield f"<{piece.encode('utf-8', 'surrogateescape').hex(' ').upper()}>"
            continue
        previous = ""
        for place, character in enumerate(piece):
            previous = r"\x3c" if _LOOKS_LIKE_BYTES.match(piece, place) else _character(character, previous)
            yield previous


def _character(character: str, previous: str) -> str:
    """previous: what the character before it is shown as; a mark needs a letter there."""
    if character == " ":
        return SPACE
    if character == "\\":
        return "\\\\"
    kind = unicodedata.category(character)
    floating = kind in {"Mn", "Me"} and (len(previous) != 1 or previous == SPACE or "\ufe00" <= character <= "\ufe0f")
    if character == SPACE or kind[0] in "CZ" or floating:
        return character.encode("unicode_escape").decode("ascii")
    return character


def whole(token: bytes) -> str | None:
    try:
        return token.decode("utf-8")
    except UnicodeDecodeError:
        return None


def columns_of(text: str) -> int:
    """Columns of a terminal that a text takes: two for wide characters, none for marks on a letter."""
    letters = [character for character in text if unicodedata.category(character) not in {"Mn", "Me"}]
    return len(letters) + sum(unicodedata.east_asian_width(letter) in {"W", "F"} for letter in letters)


def pad(text: str, columns: int) -> str:
    """The text, filled with blanks to a number of columns."""
    return text + " " * (columns - columns_of(text))
