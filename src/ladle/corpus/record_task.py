"""Write the shards of a corpus of records: new ones wherever so many bytes of input have been read."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

from ladle.corpus import format
from ladle.corpus.plan import MOST_SOURCES, Options, usual_shard_bytes
from ladle.corpus.records import Reader, Record, read
from ladle.corpus.survey import Survey
from ladle.corpus.task import Written, counted_markers
from ladle.corpus.write import ShardWriter
from ladle.tokens import Tokenizer


def write(
    survey: Survey, options: Options, *, tokenizer: Tokenizer, folder: Path, progress: Callable[[int], None]
) -> list[Written]:
    """All shards, in order; their bytes depend on what was surveyed and on the options alone.

    Raises TextError, TokenError, OSError naming the file.
    """
    running = _Run(survey, options, tokenizer, folder)
    try:
        for number in range(len(survey.sources)):
            for record in read(number, survey, progress):
                running.take(record)
        return running.finish()
    finally:
        running.close()


class _Run:
    """The shards that are being written, one for each split."""

    def __init__(self, survey: Survey, options: Options, tokenizer: Tokenizer, folder: Path) -> None:
        self._survey, self._options, self._tokenizer, self._folder = survey, options, tokenizer, folder
        self._reader = Reader(tokenizer, options, counted_markers(tokenizer, options))
        self._shard_bytes = options.shard_bytes or usual_shard_bytes(survey)
        self._writers: dict[str, ShardWriter] = {}
        self._done: list[Written] = []
        self._first = (0, 0)
        self._bytes = self._records = self._empty = 0

    def take(self, record: Record) -> None:
        """One more record, in new shards where the last ones have enough."""
        if self._bytes >= self._shard_bytes or self._records == MOST_SOURCES:
            self._close_shards((record.source, record.byte))
        self._bytes += record.end - record.byte
        self._records += 1
        ids, learned, content = self._reader.document(record)
        if not len(ids):
            self._empty += 1
            return
        writer = self._writer(self._split(content))
        writer.write(ids, learned)
        writer.end_document(source=record.source - self._first[0], flags=format.RECORD, byte=record.byte, line=record.line)

    def finish(self) -> list[Written]:
        """End the last shards."""
        self._reader.chat.check_trained()
        self._close_shards((len(self._survey.sources), 0))
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
        self._done.append(Written(shards=shards, empty_documents=self._empty, markers=self._reader.markers()))
        self._writers, self._first, self._bytes, self._records, self._empty = {}, end, 0, 0, 0

    def _split(self, content: bytes) -> str:
        value = int.from_bytes(hashlib.blake2b(content, digest_size=16).digest()[:8], "big")
        return "val" if value < int(self._options.val_fraction * (1 << 64)) else "train"

    def _writer(self, split: str) -> ShardWriter:
        if split not in self._writers:
            name = f"{split}-{len(self._done):05d}"
            self._writers[split] = ShardWriter(self._folder, name, self._tokenizer.vocab_size, masked=self._options.has_loss_mask)
        return self._writers[split]
