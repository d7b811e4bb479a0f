"""Many strings as a few arrays: what a forked worker reads stays shared, since nothing counts references in it."""

from __future__ import annotations

from array import array
from collections.abc import Iterable
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray


class Strings:
    """A sequence of strings, held as UTF-8 bytes and where each ends: a list of str would be copied into every worker."""

    def __init__(self, content: NDArray[np.uint8], ends: NDArray[np.int64]) -> None:
        """content: uint8, all of them end to end. ends: int64 [n], where each ends."""
        self.content, self.ends = content, ends

    @staticmethod
    def of(texts: Iterable[str]) -> Strings:
        """From any strings; one at a time, so that their list need not be held."""
        content, ends = bytearray(), array("q")
        for text in texts:
            content += text.encode("utf-8", "surrogateescape")
            ends.append(len(content))
        return Strings(np.frombuffer(content, dtype=np.uint8), np.array(ends, dtype=np.int64))

    def __len__(self) -> int:
        return self.ends.size

    def __getitem__(self, index: int) -> str:
        first = int(self.ends[index - 1]) if index else 0
        return self.content[first : int(self.ends[index])].tobytes().decode("utf-8", "surrogateescape")

    def first_empty(self) -> int | None:
        """Where the first string of no length stands, if there is one."""
        found = np.flatnonzero(np.diff(self.ends, prepend=0) == 0)
        return int(found[0]) if found.size else None


class Coded(NamedTuple):
    """A column of words that recur: codes int64 [n] into words, which are in the order of their first appearance."""

    codes: NDArray[np.int64]
    words: list[str]

    @staticmethod
    def of(texts: Iterable[str]) -> Coded:
        """From any strings; each different one is held once."""
        known: dict[str, int] = {}
        codes = array("q", (known.setdefault(text, len(known)) for text in texts))
        return Coded(np.array(codes, dtype=np.int64), list(known))
