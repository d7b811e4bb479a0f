"""JSON lines to documents: one a record, with what of it is to be learned, from spans of its text or from chat messages."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from ladle.corpus.plan import Options
from ladle.errors import ConfigError, TextError
from ladle.text import Source
from ladle.tokens import Tokenizer

SUFFIXES = (".jsonl", ".ndjson", ".jsonlines")
Learned = npt.NDArray[np.bool_]


@dataclass(frozen=True, slots=True)
class Record:
    """One line. source: its file's number. byte: where the line begins; end: after it. line: from 1. value: its JSON object."""

    source: int
    byte: int
    end: int
    line: int
    where: str
    value: dict[str, Any]

    def field(self, name: str) -> Any:
        """One of its fields. Raises TextError that lists those that are there."""
        if name not in self.value:
            raise TextError(f"{self.where}: field {name!r}: expected one of {', '.join(map(repr, self.value)) or 'none'}")
        return self.value[name]


def check(sources: Sequence[Source], options: Options, tokenizer: Tokenizer) -> None:
    """Raise ConfigError for what records cannot be prepared from, or with."""
    for source in sources:
        if not source.name.lower().endswith(SUFFIXES):
            raise ConfigError(f"inputs: expected JSON lines ({', '.join(SUFFIXES)}) with a field option, found {source.path}")
    if options.split == "tail":
        raise ConfigError(
            "split: expected 'hash' (or 'auto') for JSON lines, found 'tail': records are shared out by their content"
        )
    if (options.train_spans_field or options.mask_spans_field) and not tokenizer.byte_lossless:
        raise ConfigError(
            f"train_spans_field: expected a tokenizer whose tokens are the text's bytes, found {tokenizer.name!r}: where a token "
            f"lies in the text cannot be told"
        )


def read(number: int, source: Source, progress: Callable[[int], None]) -> Iterator[Record]:
    """The records of a file. Lines end with a newline byte alone, so that U+2028 within a string is text; CRLF is taken too.

    Raises TextError naming file, line and byte for what is no JSON object, and for a file that changed.
    """
    byte = line = 0
    with open(source.path, "rb") as file:
        if file.read(3) == b"\xef\xbb\xbf":
            byte = 3
        file.seek(byte)
        for raw in file:
            line += 1
            where = f"{source.path}, line {line} @ byte {byte}"
            if raw.strip():
                try:
                    value = json.loads(raw.decode("utf-8"))
                except ValueError as error:
                    cut = "" if raw.endswith(b"\n") else " (the file's last line is cut off)"
                    raise TextError(f"{where}: expected a JSON object, found none{cut}: {error}") from None
                if not isinstance(value, dict):
                    raise TextError(f"{where}: expected a JSON object, found {type(value).__name__}")
                yield Record(number, byte, byte + len(raw), line, where, value)
            byte += len(raw)
            progress(len(raw))
    if byte != source.num_bytes:
        raise TextError(f"{source.path}: expected {source.num_bytes} bytes as when preparing began, found {byte}")


class Reader:
    """A record -> its ids, and which of them are learned."""

    def __init__(self, tokenizer: Tokenizer, options: Options) -> None:
        self._tokenizer, self._options = tokenizer, options
        self._end = [] if tokenizer.end_of_text is None else [tokenizer.end_of_text]
        self._sizes = np.zeros(0, dtype=np.int64)  # of tokens, in bytes, by id

    def document(self, record: Record) -> tuple[npt.NDArray[np.uint32], Learned, bytes]:
        """(ids, whether each is learned, what the record is known by in a split by content). Empty ids for no text."""
        if self._options.chat_field is not None:
            ids, learned, content = self._chat(record, self._options.chat_field)
        else:
            ids, learned, content = self._spans(record)
        if len(ids) and self._options.end_of_text and self._end and int(ids[-1]) != self._end[0]:
            # The end of a document is learned where its last token is.
            ids, learned = np.append(ids, np.uint32(self._end[0])), np.append(learned, learned[-1])
        return ids, learned, content

    # --- spans of characters ---

    def _spans(self, record: Record) -> tuple[npt.NDArray[np.uint32], Learned, bytes]:
        options = self._options
        text = self._string(record, options.text_field or "text")
        ids = self._encode(text, record)
        name, inside = (options.train_spans_field, True) if options.train_spans_field else (options.mask_spans_field, False)
        if name is None or not len(ids):
            return ids, np.ones(len(ids), np.bool_), text.encode()
        spans = self._checked(record, name, len(text))
        # A token is in a span when its last byte is: all in bytes, since tokens are. GPT-2's begin with the space before a word.
        lengths = np.fromiter((len(character.encode()) for character in text), np.int64, len(text))
        places = np.concatenate([[0], np.cumsum(lengths)])
        ends = np.cumsum(self._bytes(ids)) - 1
        found = np.zeros(len(ids), np.bool_)
        for first, last in spans:
            low, high = np.searchsorted(ends, [places[first], places[last]])
            found[low:high] = True
        return ids, found if inside else ~found, text.encode()

    def _checked(self, record: Record, name: str, length: int) -> list[tuple[int, int]]:
        """The spans of a record. Raises TextError for what are no ascending, separate ranges within the text."""
        spans, found, before = record.field(name), list[tuple[int, int]](), 0
        if not isinstance(spans, list):
            raise TextError(f"{record.where}: {name}: expected a list of [first, last] characters, found {type(spans).__name__}")
        for number, span in enumerate(spans):
            if not (isinstance(span, list) and len(span) == 2 and all(type(edge) is int for edge in span)):
                raise TextError(f"{record.where}: {name}[{number}]: expected [first, last] in characters, found {span!r}"[:300])
            first, last = span
            if not before <= first <= last <= length:
                raise TextError(
                    f"{record.where}: {name}[{number}]: expected {before} <= first <= last <= {length} (the text's length; spans "
                    f"ascend and do not overlap), found {first}, {last}"
                )
            found.append((first, last))
            before = last
        return found

    def _bytes(self, ids: npt.NDArray[np.uint32]) -> npt.NDArray[np.int64]:
        """How many bytes of text each token is."""
        if not self._sizes.size:
            self._sizes = np.full(self._tokenizer.vocab_size, -1, dtype=np.int64)
        unknown = np.unique(ids[self._sizes[ids] < 0])
        if unknown.size:
            self._sizes[unknown] = [len(part) for part in self._tokenizer.token_bytes(unknown)]
        sizes: npt.NDArray[np.int64] = self._sizes[ids]
        return sizes

    # --- chat messages ---

    def _chat(self, record: Record, name: str) -> tuple[npt.NDArray[np.uint32], Learned, bytes]:
        """Each message as "<|role|>", a new line, its content, and an end: the end of text after what is learned (a new line
        where the tokenizer has none), a new line after the rest. Content and end of the roles that are trained are learned."""
        messages = record.field(name)
        if not isinstance(messages, list):
            raise TextError(f"{record.where}: {name}: expected a list of messages, found {type(messages).__name__}")
        ids, learned = list[npt.NDArray[np.uint32]](), list[Learned]()
        for number, message in enumerate(messages):
            where = f"{record.where}: {name}[{number}]"
            if not isinstance(message, dict) or not {"role", "content"} <= set(message):
                found = ", ".join(map(repr, message)) if isinstance(message, dict) else type(message).__name__
                raise TextError(f"{where}: expected an object with 'role' and 'content', found {found}")
            role, content = message["role"], message["content"]
            for key, value in (("role", role), ("content", content)):
                if not isinstance(value, str):
                    raise TextError(f"{where}: {key}: expected text, found {type(value).__name__}")
            if not role or not role.replace("_", "").replace("-", "").isalnum():
                raise TextError(f"{where}: role: expected letters and digits, found {role!r}")
            trained = role in self._options.train_roles
            body = self._encode(content, record)
            end = np.array(self._end, np.uint32) if trained and self._end else self._encode("\n", record)
            for part, is_learned in ((self._encode(f"<|{role}|>\n", record), False), (body, trained), (end, trained)):
                ids.append(part)
                learned.append(np.full(len(part), is_learned))
        known = json.dumps(messages, sort_keys=True, ensure_ascii=False).encode("utf-8", "surrogatepass")
        if not ids:
            return np.zeros(0, np.uint32), np.zeros(0, np.bool_), known
        return np.concatenate(ids), np.concatenate(learned), known

    def _encode(self, text: str, record: Record) -> npt.NDArray[np.uint32]:
        try:
            text.encode()
        except UnicodeEncodeError as error:
            raise TextError(
                f"{record.where}: expected text in Unicode, found a lone surrogate at character {error.start}"
            ) from None
        return self._tokenizer.encode(text, allowed_special=self._options.allowed_special)

    def _string(self, record: Record, name: str) -> str:
        text = record.field(name)
        if not isinstance(text, str):
            raise TextError(f"{record.where}: {name}: expected text, found {type(text).__name__}")
        return text
