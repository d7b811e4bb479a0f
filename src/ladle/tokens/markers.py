"""Markers: control tokens written out in a text, such as `<|endoftext|>`."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

END_OF_TEXT = "<|endoftext|>"


class MarkerCounter:
    """Counts a marker in texts that pass by in pieces, also where it lies across two of them.

    count: how often the marker was seen so far, in all texts, without overlaps.
    """

    def __init__(self, marker: str = END_OF_TEXT) -> None:
        self.marker = marker
        self.count = 0

    def watch(self, pieces: Iterable[str]) -> Iterator[str]:
        """Pass the pieces of ONE text on, unchanged, counting as they go."""
        tail = ""
        for piece in pieces:
            text = tail + piece
            after = 0
            while (found := text.find(self.marker, after)) >= 0:
                self.count += 1
                after = found + len(self.marker)
            tail = text[max(after, len(text) - len(self.marker) + 1) :]
            yield piece
