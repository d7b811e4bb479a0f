"""The loss mask of a split: of each token, whether it is to be learned."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from ladle.corpus import format
from ladle.corpus.shard import Shard
from ladle.errors import FormatError

Flags = npt.NDArray[np.uint8]


class LossMask:
    """The masks of a split's shards, one after the other. Reads what it is asked for, verified; holds no file itself.

    parts: for each shard what holds its mask, one byte a token behind `header` bytes, or None where every token is learned.
    """

    def __init__(self, parts: Sequence[Shard | None], headers: Sequence[bytes], counts: Sequence[int]) -> None:
        """headers: what each mask must begin with. counts: tokens of each shard."""
        self.parts, self.headers, self.counts = list(parts), list(headers), list(counts)
        self._bases = np.concatenate([[0], np.cumsum(self.counts, dtype=np.int64)]).astype(np.int64)
        self._seen = [False] * len(self.parts)

    def read(self, starts: npt.NDArray[np.int64], lengths: npt.NDArray[np.int64]) -> Flags:
        """Of tokens [start, start + length) of each, one after the other: uint8 [sum of lengths], freshly owned.

        1 where the token is to be learned, 0 where not, and past the split's end. Raises FormatError for damaged bytes, and for
        those that are neither 0 nor 1.
        """
        shards = np.searchsorted(self._bases[1:-1], starts, side="right")
        ends = starts + lengths
        inside = ends <= self._bases[shards + 1]
        for shard in set(shards.tolist()):
            self._ready(shard)
        if inside.all():
            places = zip(
                shards.tolist(), (starts - self._bases[shards]).tolist(), (ends - self._bases[shards]).tolist(), strict=True
            )
            pieces = [self._piece(shard, first, last) for shard, first, last in places]
        else:
            pieces = [b"".join(self._across(first, last)) for first, last in zip(starts.tolist(), ends.tolist(), strict=True)]
        flags = np.frombuffer(bytearray(b"".join(pieces)), np.uint8)
        if flags.size and int(flags.max()) > 1:
            raise self._fault(starts, lengths, flags)
        return flags

    def _across(self, first: int, last: int) -> list[bytes]:
        """The mask of tokens [first, last), over shards' borders and the end."""
        found, end = [], int(self._bases[-1])
        while first < min(last, end):
            shard = int(np.searchsorted(self._bases[1:-1], first, side="right"))
            base, stop = int(self._bases[shard]), min(last, int(self._bases[shard + 1]))
            self._ready(shard)
            found.append(bytes(self._piece(shard, first - base, stop - base)))
            first = stop
        return [*found, bytes(max(last - max(first, 0), 0))]

    def _piece(self, shard: int, first: int, last: int) -> bytes | memoryview:
        part, header = self.parts[shard], len(self.headers[shard])
        if part is None:
            return b"\x01" * (last - first)
        return part.piece(header + first, header + last) if last > first else b""

    def _fault(self, starts: npt.NDArray[np.int64], lengths: npt.NDArray[np.int64], flags: Flags) -> FormatError:
        """The error for the first flag that is neither 0 nor 1."""
        at = int(np.argmax(flags > 1))
        row = int(np.searchsorted(np.cumsum(lengths), at, side="right"))
        token = int(starts[row]) + at - int(lengths[:row].sum())
        shard = int(np.searchsorted(self._bases[1:-1], token, side="right"))
        part = self.parts[shard]
        byte = token - int(self._bases[shard]) + len(self.headers[shard])
        return FormatError("memory" if part is None else part.where, byte, "mask", "0 or 1", int(flags[at]))

    def _ready(self, shard: int) -> None:
        """The file is as long as it was, and its header says that it is this shard's."""
        part, header = self.parts[shard], self.headers[shard]
        if part is None:
            return
        part.check_size()
        if not self._seen[shard]:
            if header and bytes(part.piece(0, len(header))) != header:
                raise FormatError(part.where, 0, "header", f"that of {self.counts[shard]} entries (docs/format.md)", "another")
            self._seen[shard] = True

    def close(self) -> None:
        """Let go of the files."""
        for part in self.parts:
            if part is not None:
                part.close()


def joined(masks: Sequence[tuple[LossMask | None, Sequence[Shard]]]) -> LossMask | None:
    """The mask of several splits laid end to end, each with its shards; None where none has one."""
    if all(mask is None for mask, _ in masks):
        return None
    parts: list[Shard | None] = []
    headers: list[bytes] = []
    counts: list[int] = []
    for mask, shards in masks:
        parts += mask.parts if mask is not None else [None] * len(shards)
        headers += mask.headers if mask is not None else [b""] * len(shards)
        counts += [shard.num_tokens for shard in shards]
    return LossMask(parts, headers, counts)


def header_of(num_tokens: int) -> bytes:
    """What a mask's file of so many tokens begins with."""
    return format.npy_header("mask", num_tokens)
