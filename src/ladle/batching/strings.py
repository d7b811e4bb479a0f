"""Many strings as two arrays: what a forked worker reads stays shared, since nothing counts references in it."""

from __future__ import annotations

from collections.abc import Iterable

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
        content, ends = bytearray(), []
        for text in texts:
            content += text.encode("utf-8", "surrogateescape")
            ends.append(len(content))
        return Strings(np.frombuffer(bytes(content), dtype=np.uint8), np.array(ends, dtype=np.int64))

    def __len__(self) -> int:
        return self.ends.size

    def __getitem__(self, index: int) -> str:
        first = int(self.ends[index - 1]) if index else 0
        return self.content[first : int(self.ends[index])].tobytes().decode("utf-8", "surrogateescape")
