"""Run one shard task: read its sources, encode them, write its shards."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from ladle.corpus import format
from ladle.corpus.plan import Options, Part, Plan, Task
from ladle.corpus.write import ShardWriter
from ladle.errors import TokenError
from ladle.tokens import END_OF_TEXT, MarkerCounter, Tokenizer


@dataclass(frozen=True, slots=True, kw_only=True)
class Written:
    """What a task wrote. shards: the manifest's entry for each split it had documents for. All of it is plain JSON."""

    shards: dict[str, dict[str, Any]]
    empty_documents: int
    markers: dict[str, int]


def run(task: Task, plan: Plan, *, tokenizer: Tokenizer, folder: Path, progress: Callable[[int], None]) -> Written:
    """Write the task's shards into folder, one for each split with documents; their bytes depend on task and plan alone.

    progress: called with the bytes of text read since its last call. Raises TextError, TokenError, OSError naming the file.
    """
    running = _Run(task, plan, tokenizer, folder, progress)
    try:
        wanted = [number for number in range(task.first, task.end) if not plan.survey.skipped[number]]
        empty = sum(not running.document(number) for number in wanted)
        return Written(shards=running.finish(), empty_documents=empty, markers={c.marker: c.count for c in running.counters})
    finally:
        running.close()


def counted_markers(tokenizer: Tokenizer, options: Options) -> list[str]:
    """The markers that are counted in the text: those that are taken as ids, and every end of text. Sorted."""
    special = tokenizer.special.items()
    return sorted({END_OF_TEXT} | {m for m, id in special if id == tokenizer.end_of_text or m in options.allowed_special})


class _Run:
    """A task being run: a writer for each split that has had tokens."""

    def __init__(self, task: Task, plan: Plan, tokenizer: Tokenizer, folder: Path, progress: Callable[[int], None]) -> None:
        self.task, self.plan, self.tokenizer, self.folder, self.progress = task, plan, tokenizer, folder, progress
        self.writers: dict[str, ShardWriter] = {}
        self.counters = [MarkerCounter(marker) for marker in counted_markers(tokenizer, plan.options)]

    def document(self, number: int) -> bool:
        """Append one source's document to its split, or to two if it is cut. Returns whether it had any tokens."""
        source, survey, kept = self.plan.survey.sources[number], self.plan.survey, False
        with source.pieces(encoding_errors=self.plan.options.reading) as pieces:
            watched: Iterable[str] = pieces
            for counter in self.counters:
                watched = counter.watch(watched)
            text = _Text(watched, pieces.first_byte, self.progress)
            try:
                for part in self.plan.parts(number):
                    kept |= self._part(part, text, number)
            except TokenError as error:
                raise TokenError(f"{source.path}: {error}") from None
            survey.check_same(number, pieces.digest)
        return kept

    def finish(self) -> dict[str, dict[str, Any]]:
        """Finish every shard; the entries for the manifest."""
        inputs = {"first": [self.task.first, 0], "end": [self.task.end, 0]}
        return {split: {**writer.finish(), "inputs": inputs} for split, writer in sorted(self.writers.items())}

    def close(self) -> None:
        """Close every file."""
        for writer in self.writers.values():
            writer.close()

    def _part(self, part: Part, text: _Text, number: int) -> bool:
        """Append one part, if it has tokens; the end of text follows where the document really ends."""
        writer, byte, line, options = None, text.byte, text.line, self.plan.options
        for ids in self.tokenizer.encode_pieces(text.until(part.end), allowed_special=options.allowed_special):
            if len(ids):
                writer = self._writer(part.split)
                writer.write(ids)
        if writer is None:
            return False
        if options.end_of_text and part.end is None:
            writer.write(np.array([self.tokenizer.end_of_text]))
        flags = (
            (format.BEGINS_ELSEWHERE if part.first else 0)
            | (format.ENDS_ELSEWHERE if part.end is not None else 0)
            | (format.REPLACED if self.plan.survey.replaced[number] else 0)
        )
        writer.end_document(source=number - self.task.first, flags=flags, byte=byte, line=line)
        return True

    def _writer(self, split: str) -> ShardWriter:
        if split not in self.writers:
            self.writers[split] = ShardWriter(self.folder, f"{split}-{self.task.number:05d}", self.tokenizer.vocab_size)
        return self.writers[split]


class _Text:
    """A document's pieces, handed out in parts. byte, line: where the next part begins in the source."""

    def __init__(self, pieces: Iterable[str], byte: int, progress: Callable[[int], None]) -> None:
        self.byte, self.line = byte, 1
        self._characters = 0
        self._pieces = iter(pieces)
        self._held = ""
        self._progress = progress

    def until(self, end: int | None) -> Iterator[str]:
        """The pieces up to character `end` of the document, or to its end."""
        while end is None or self._characters < end:
            piece = self._held or next(self._pieces, None)
            if piece is None:
                return
            stop = len(piece) if end is None else end - self._characters
            piece, self._held = piece[:stop], piece[stop:]
            self._characters += len(piece)
            num_bytes = len(piece) if piece.isascii() else len(piece.encode())
            self.byte += num_bytes
            self.line += piece.count("\n") if end is not None else 0
            self._progress(num_bytes)
            yield piece
