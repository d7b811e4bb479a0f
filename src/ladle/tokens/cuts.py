r"""Where a text may be cut so that the ids of its parts, put together, are the ids of the whole.

A byte-pair tokenizer first splits a text by a pattern and then encodes each match alone. A cut changes nothing if it
falls between two matches and no lookahead (`\s+(?!\S)`, `\s++$`) of the left part sees it. For every pattern in
PATTERNS that holds at these places, whatever stands around them:

1. between a non-space and a following U+0020. No match holds a non-space followed by a space; each run of spaces to the
   left ends at a non-space, which is still there.
2. after a single newline between two non-spaces, the second not `/` (o200k lets `/` follow newlines in one match). The
   newline either ends a match of punctuation or is a match of its own, with the rest of the text or without it.
3. between a letter or a digit and a common punctuation mark. Letters and digits end there in each pattern, with no
   lookahead. The apostrophe is no such mark ('s may belong to the word), and the letters are ASCII, Han, kana and hangul:
   letters in every version of Unicode, so that no table of categories has a say.

The tests try each rule against the unsplit encoding. A `\S` of Python is a non-space in Rust too (Python's class of
spaces is the wider one). Prose and code hold such a place every few characters, and so does Chinese without spaces.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable, Iterator

# Characters a chunk: about the fastest for tiktoken, and far below the run of 800 000 spaces where its patterns fail.
LIMIT = 1 << 17

# `(text, low, high)` -> the last safe place p in low < p <= high, or None. It may look at text[high], never beyond.
LastCut = Callable[[str, int, int], "int | None"]

_GPT2 = (  # GPT-2, r50k, p50k: the release's spelling, and tiktoken's from old to new
    r"""'s|'t|'re|'ve|'m|'ll|'d| ?[\p{L}]+| ?[\p{N}]+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+""",
    r"""'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+""",
    r"""'(?:[sdmt]|ll|ve|re)| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+""",
    r"""'(?:[sdmt]|ll|ve|re)| ?\p{L}++| ?\p{N}++| ?[^\s\p{L}\p{N}]++|\s++$|\s+(?!\S)|\s""",
)
_CL100K = (  # the release's spelling, which is Llama 3's too; Qwen 2's, with single digits; tiktoken's from old to new
    (
        r"""(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+"""
        r"""|\s+(?!\S)|\s+"""
    ),
    r"""(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+""",
    r"""'(?i:[sdmt]|ll|ve|re)|[^\r\n\p{L}\p{N}]?+\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]++[\r\n]*|\s*[\r\n]|\s+(?!\S)|\s+""",
    (
        r"""'(?i:[sdmt]|ll|ve|re)|[^\r\n\p{L}\p{N}]?+\p{L}++|\p{N}{1,3}+| ?[^\s\p{L}\p{N}]++[\r\n]*+|\s++$|\s*[\r\n]"""
        r"""|\s+(?!\S)|\s"""
    ),
)
_O200K = (
    r"""[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?"""
    r"""|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?"""
    r"""|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"""
)
PATTERNS = frozenset((*_GPT2, *_CL100K, _O200K))

_SAFE = re.compile(
    r"(?<=\S)(?= )"
    r"|(?<=\S\n)(?=[^\s/])"
    r"|(?<=[A-Za-z0-9一-龥ぁ-ゖァ-ヺ가-힣])(?=[!-&(-/:-@[-`{-~，。、；：？！])"
)
_BEFORE_SPACE = re.compile(r"(?<=\S)(?= )")


def safe(text: str, low: int, high: int) -> int | None:
    """The last place of the three kinds above (a LastCut for PATTERNS)."""
    return _last(_SAFE, text, low, high)


def before_space(text: str, low: int, high: int) -> int | None:
    """The last place before a space (a LastCut for patterns nobody has thought through: likely, not proven)."""
    return _last(_BEFORE_SPACE, text, low, high)


def anywhere(text: str, low: int, high: int) -> int | None:  # noqa: ARG001  the shape of a LastCut
    """Any place (the LastCut of tokenizers that look at one character at a time)."""
    return high


def chunks(
    pieces: Iterable[str], *, last_cut: LastCut, limit: int = LIMIT, markers: Collection[str] = ()
) -> Iterator[tuple[int, str]]:
    """Re-cut a text that arrives in pieces into chunks of at most `limit` characters, none of them empty.

    markers: strings that must stay whole. Yields (the chunk's first character in the text, the chunk). The cuts depend
    on the text alone, never on the pieces. Each is the last safe place within the limit; a stretch longer than the limit
    without one is cut at the limit. Holds one piece and `limit` characters at a time.
    """
    ahead = max((len(marker) for marker in markers), default=1)  # what a cut may look at beyond itself
    text, offset = "", 0
    for piece in pieces:
        text += piece
        if len(text) <= limit + ahead:
            continue
        start = 0
        while len(text) - start > limit + ahead:
            stop = _cut(text, start, limit, last_cut, markers)
            yield offset + start, text[start:stop]
            start = stop
        text, offset = text[start:], offset + start
    start = 0
    while start < len(text):
        stop = len(text) if len(text) - start <= limit else _cut(text, start, limit, last_cut, markers)
        yield offset + start, text[start:stop]
        start = stop


def _cut(text: str, start: int, limit: int, last_cut: LastCut, markers: Collection[str]) -> int:
    place = last_cut(text, start, start + limit) or start + limit
    while True:
        straddling = [text.find(marker, max(start, place - len(marker) + 1), place + len(marker) - 1) for marker in markers]
        first = min((found for found in straddling if found >= 0), default=None)
        if first is None:
            return place
        if first == start:  # a marker longer than the limit
            return start + max(len(marker) for marker in markers if text.startswith(marker, start))
        place = first


def _last(pattern: re.Pattern[str], text: str, low: int, high: int) -> int | None:
    width, stop = 256, high
    while stop > low:
        start = max(low, stop - width)
        last = None
        for match in pattern.finditer(text, start + 1, stop + 1):
            last = match.start()
        if last is not None:
            return last
        width, stop = width * 8, start
    return None
