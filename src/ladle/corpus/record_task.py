"""Write the shards of a corpus of records: a new one wherever so many bytes of input have been read."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from ladle.corpus import format
from ladle.corpus.plan import SHARD_BYTES, Options
from ladle.corpus.records import Reader, Record, read
from ladle.corpus.task import Written
from ladle.corpus.write import ShardWriter
from ladle.errors import TextError
from ladle.text import Source
from ladle.tokens import Tokenizer


def write(
    sources: Sequence[Source], options: Options, *, tokenizer: Tokenizer, folder: Path, progress: Callable[[int], None]
) -> list[Written]:
    """All shards, in order; their bytes depend on the sources and the options alone. Raises TextError, TokenError, OSError."""
    running = _Run(sources, options, tokenizer, folder)
    try:
        for number, source in enumerate(sources):
            for record in read(number, source, progress):
                try:
                    running.take(record)
                except TextError:
                    raise
                except ValueError as error:  # a tokenizer's: it knows no file
                    raise type(error)(f"{record.where}: {error}") from None
        return running.finish()
    finally:
        running.close()


class _Run:
    """The shards that are being written, one for each split."""

    def __init__(self, sources: Sequence[Source], options: Options, tokenizer: Tokenizer, folder: Path) -> None:
        self._count, self._options, self._tokenizer, self._folder = len(sources), options, tokenizer, folder
        self._reader = Reader(tokenizer, options)
        self._shard_bytes = options.shard_bytes or SHARD_BYTES
        self._writers: dict[str, ShardWriter] = {}
        self._done: list[Written] = []
        self._first = (0, 0)
        self._bytes = self._empty = 0
        self._last: Record | None = None

    def take(self, record: Record) -> None:
        """One more record, in a new shard where the last one has enough."""
        if self._bytes >= self._shard_bytes:
            self._close_shards((record.source, record.byte))
        self._bytes += record.end - record.byte
        self._last = record
        ids, learned, content = self._reader.document(record)
        if not len(ids):
            self._empty += 1
            return
        writer = self._writer(self._split(content))
        writer.write(ids, learned)
        writer.end_document(source=record.source - self._first[0], flags=format.RECORD, byte=record.byte, line=record.line)

    def finish(self) -> list[Written]:
        """End the last shards."""
        self._close_shards((self._count, 0))
        return self._done

    def close(self) -> None:
        """Close every file."""
        for writer in self._writers.values():
            writer.close()

    def _close_shards(self, end: tuple[int, int]) -> None:
        inputs = {"first": list(self._first), "end": list(end)}
        shards: dict[str, dict[str, Any]] = {
            split: {**writer.finish(), "inputs": inputs} for split, writer in sorted(self._writers.items())
        }
        self._done.append(Written(shards=shards, empty_documents=self._empty, markers={}))
        self._writers, self._first, self._bytes, self._empty = {}, end, 0, 0

    def _split(self, content: bytes) -> str:
        value = int.from_bytes(hashlib.blake2b(content, digest_size=16).digest()[:8], "big")
        return "val" if value < int(self._options.val_fraction * (1 << 64)) else "train"

    def _writer(self, split: str) -> ShardWriter:
        if split not in self._writers:
            name = f"{split}-{len(self._done):05d}"
            self._writers[split] = ShardWriter(self._folder, name, self._tokenizer.vocab_size, masked=self._options.has_loss_mask)
        return self._writers[split]
