"""JSON lines to documents: one a record, with what of it is to be learned, from spans of its text or from chat messages."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from ladle.corpus import spans
from ladle.corpus.chat import Chat, Ids, Learned
from ladle.corpus.plan import Options
from ladle.corpus.survey import Survey
from ladle.errors import ConfigError, TextError, TokenError
from ladle.text import RECORD_SUFFIXES, Source
from ladle.tokens import Tokenizer

MOST_BYTES = 1 << 28  # of one record, which is held in memory


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
            there = ", ".join(map(repr, self.value)) or "none"
            raise TextError(f"{self.where}: expected a field {name!r}, found {there[:200]}")
        return self.value[name]


def check(sources: Sequence[Source], options: Options, tokenizer: Tokenizer) -> None:
    """Raise ConfigError for what records cannot be prepared from, or with."""
    for source in sources:
        if source.path.suffix.lower() not in RECORD_SUFFIXES:
            known = ", ".join(sorted(RECORD_SUFFIXES))
            raise ConfigError(f"inputs: expected JSON lines ({known}) with a field option, found {source.path}")
    if options.split == "tail":
        raise ConfigError(
            "split: expected 'hash' (or 'auto') for JSON lines, found 'tail': records are shared out by their content"
        )
    if (name := options.spans_option) and not tokenizer.byte_lossless:
        raise ConfigError(
            f"{name}: expected a tokenizer whose tokens are the text's bytes, found {tokenizer.name!r}: where a token "
            "lies in the text cannot be told"
        )


def read(number: int, survey: Survey, progress: Callable[[int], None]) -> Iterator[Record]:
    """The records of a source. Lines end with a newline byte alone, so that U+2028 within a string is text; CRLF is taken too.

    Raises TextError naming file, line and byte for what is no JSON object, and for a file that changed since it was surveyed.
    """
    path, byte, line = survey.sources[number].path, int(survey.first_bytes[number]), 0
    digest = hashlib.blake2b(digest_size=16)
    with open(path, "rb") as file:
        file.seek(byte)
        while raw := file.readline(MOST_BYTES + 1):
            line += 1
            where = f"{path}, line {line} @ byte {byte}"
            if len(raw) > MOST_BYTES:
                raise TextError(f"{where}: expected a record of at most {MOST_BYTES} bytes, found a longer line")
            digest.update(raw)
            if not raw.isspace():
                yield Record(number, byte, byte + len(raw), line, where, _parsed(raw, where))
            byte += len(raw)
            progress(len(raw))
    survey.check_same(number, digest.hexdigest())


def _parsed(raw: bytes, where: str) -> dict[str, Any]:
    """A line's JSON object. Raises TextError."""
    try:
        value = json.loads(raw.decode("utf-8"))
    except (ValueError, RecursionError) as error:
        cut = "" if raw.endswith(b"\n") else " (the file's last line is cut off)"
        raise TextError(f"{where}: expected a JSON object, found none{cut}: {str(error)[:200]}") from None
    if not isinstance(value, dict):
        raise TextError(f"{where}: expected a JSON object, found {type(value).__name__}")
    return value


class Reader:
    """A record -> its ids, and which of them are learned."""

    def __init__(self, tokenizer: Tokenizer, options: Options, counted: Sequence[str]) -> None:
        """counted: the markers to count."""
        self._markers = dict.fromkeys(counted, 0)
        self.chat = Chat(
            options.train_roles,
            tokenizer.end_of_text,
            lambda text: tokenizer.encode(text, allowed_special=options.allowed_special),
        )
        self._tokenizer, self._options = tokenizer, options
        self._sizes = np.full(tokenizer.vocab_size if options.spans_option else 0, -1, np.int64)  # of tokens, in bytes, by id

    def document(self, record: Record) -> tuple[Ids, Learned, bytes]:
        """(ids, whether each is learned, what the record is known by in a split by content). Empty ids for no text.

        Raises TextError and TokenError naming file, line and byte.
        """
        end, chat = self._tokenizer.end_of_text, self._options.chat_field
        if chat is None:
            ids, learned, content = self._text(record)
        else:
            ids, learned, content = self.chat.encode(record.field(chat), f"{record.where}: {chat}", self._encode)
        if len(ids) and self._options.end_of_text and end is not None and not (chat is not None and int(ids[-1]) == end):
            # The end of a document is learned where its last token is.
            ids, learned = np.append(ids, np.uint32(end)), np.append(learned, learned[-1])
        return ids, learned, content

    def markers(self) -> dict[str, int]:
        """How often each marker that counts was written in the texts since the last call."""
        counts, self._markers = self._markers, dict.fromkeys(self._markers, 0)
        return counts

    def _text(self, record: Record) -> tuple[Ids, Learned, bytes]:
        options = self._options
        name = options.text_field or "text"
        text, where = record.field(name), f"{record.where}: {name}"
        if not isinstance(text, str):
            raise TextError(f"{where}: expected text, found {type(text).__name__}")
        ids, content = self._encode(text, where), text.encode()
        spanned = options.train_spans_field or options.mask_spans_field
        if spanned is None:
            return ids, np.ones(len(ids), np.bool_), content
        given = spans.checked(record.field(spanned), len(text), f"{record.where}: {spanned}")
        sizes = self._bytes(ids)
        if int(sizes.sum()) != len(content):
            raise TokenError(f"{where}: expected tokens of {len(content)} bytes, as the text has, found {int(sizes.sum())}")
        inside = spans.holds(given, text, sizes)
        return ids, inside if options.train_spans_field else ~inside, content

    def _bytes(self, ids: Ids) -> npt.NDArray[np.int64]:
        """How many bytes of text each token is."""
        sizes: npt.NDArray[np.int64] = self._sizes[ids]
        if sizes.size and int(sizes.min()) < 0:
            unknown = np.unique(ids[sizes < 0])
            self._sizes[unknown] = [len(part) for part in self._tokenizer.token_bytes(unknown)]
            sizes = self._sizes[ids]
        return sizes

    def _encode(self, text: str, where: str) -> Ids:
        try:
            text.encode()
        except UnicodeEncodeError as error:
            raise TextError(f"{where}: expected text in Unicode, found a lone surrogate at character {error.start}") from None
        for marker in self._markers:
            self._markers[marker] += text.count(marker)
        try:
            return self._tokenizer.encode(text, allowed_special=self._options.allowed_special)
        except TokenError as error:  # it knows no file
            raise TokenError(f"{where}: {error}") from None
