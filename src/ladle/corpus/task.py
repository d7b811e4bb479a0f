"""Run one shard task: read its sources, encode them, write its shards."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self

import numpy as np

from ladle.corpus import format
from ladle.corpus.plan import Options, Part, Plan, Task
from ladle.corpus.write import ShardWriter
from ladle.errors import TokenError
from ladle.tokens import Tokenizer
from ladle.tokens.markers import MarkerCounter


@dataclass(frozen=True, slots=True, kw_only=True)
class Written:
    """What a task wrote. shards: the manifest's entry for each split it had documents for. All of it is plain JSON."""

    shards: dict[str, dict[str, Any]] = field(default_factory=dict)
    empty_documents: int = 0
    markers: dict[str, int] = field(default_factory=dict)


def run(
    task: Task, plan: Plan, options: Options, *, tokenizer: Tokenizer, folder: Path, progress: Callable[[int], None]
) -> Written:
    """Write the task's shards into folder, one for each split with documents; their bytes depend on the arguments alone.

    progress: called with the bytes of text read since its last call. Raises TextError, TokenError, OSError naming the file.
    """
    survey = plan.survey
    counters = [MarkerCounter(marker) for marker in markers(tokenizer, options)]
    empty = 0
    with _Writers(folder, task.number, tokenizer.vocab_size) as writers:
        for number in range(task.first, task.end):
            source, kept = survey.sources[number], False
            with source.pieces(encoding_errors=options.encoding_errors) as pieces:
                watched: Iterable[str] = pieces
                for counter in counters:
                    watched = counter.watch(watched)
                text = _Text(watched, byte=pieces.first_byte, progress=progress)
                for part in plan.parts(number):
                    flags = format.REPLACED if survey.replaced[number] else 0
                    origin = _Origin(number - task.first, source.name, flags, text.byte, text.line)
                    kept |= _write(
                        writers=writers,
                        part=part,
                        pieces=text.until(part.end),
                        origin=origin,
                        tokenizer=tokenizer,
                        options=options,
                    )
                survey.check_same(number, pieces)
            empty += not kept
        inputs = {"first": [task.first, 0], "end": [task.end, 0]}
        shards = {split: {**writer.finish(), "inputs": inputs} for split, writer in sorted(writers.items())}
    return Written(shards=shards, empty_documents=empty, markers={counter.marker: counter.count for counter in counters})


def markers(tokenizer: Tokenizer, options: Options) -> list[str]:
    """The markers whose appearances in the text are counted: the end of text's, and those allowed to be control ids."""
    return sorted(m for m, id in tokenizer.special.items() if id == tokenizer.end_of_text or m in options.allowed_special)


@dataclass(frozen=True, slots=True)
class _Origin:
    """Where a part of a document begins. source: its number from the task's first."""

    source: int
    name: str
    flags: int
    byte: int
    line: int


def _write(
    *, writers: _Writers, part: Part, pieces: Iterable[str], origin: _Origin, tokenizer: Tokenizer, options: Options
) -> bool:
    """Append one part of a document, if it has tokens at all; the end of text follows where the document really ends."""
    writer = None
    try:
        for ids in tokenizer.encode_pieces(pieces, allowed_special=options.allowed_special):
            if len(ids):
                writer = writers[part.split]
                writer.write(ids)
    except TokenError as error:
        raise TokenError(f"{origin.name}: {error}") from None
    if writer is None:
        return False
    flags = origin.flags | (format.BEGINS_ELSEWHERE if part.first else 0)
    if part.end is not None:
        flags |= format.ENDS_ELSEWHERE
    elif options.end_of_text:
        writer.write(np.array([tokenizer.end_of_text]))
    writer.end_document(source=origin.source, flags=flags, byte=origin.byte, line=origin.line)
    return True


class _Writers(dict[str, ShardWriter]):
    """The task's shard of each split, begun when it is first asked for; leaving the block closes them."""

    def __init__(self, folder: Path, number: int, vocab_size: int) -> None:
        super().__init__()
        self._folder, self._number, self._vocab_size = folder, number, vocab_size

    def __missing__(self, split: str) -> ShardWriter:
        writer = self[split] = ShardWriter(self._folder, f"{split}-{self._number:05d}", self._vocab_size)
        return writer

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for writer in self.values():
            writer.close()


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
            if end is not None:
                piece, self._held = piece[: end - self._characters], piece[end - self._characters :]
            else:
                self._held = ""
            self._characters += len(piece)
            num_bytes = len(piece) if piece.isascii() else len(piece.encode("utf-8", "surrogatepass"))
            self.byte += num_bytes
            if end is not None:
                self.line += piece.count("\n")
            self._progress(num_bytes)
            yield piece
