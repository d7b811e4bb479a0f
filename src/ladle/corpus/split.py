"""A split: one stream of tokens across its shards."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from time import monotonic
from typing import TYPE_CHECKING, Any, Self

import numpy as np
import numpy.typing as npt

from ladle.corpus import format
from ladle.corpus.documents import Documents
from ladle.corpus.mask import LossMask
from ladle.corpus.shard import Maps, Shard, Tokens
from ladle.errors import ConfigError, TokenError

if TYPE_CHECKING:
    from ladle.tokens import Tokenizer

SIZE_SECONDS = 0.1


@dataclass(frozen=True, slots=True, kw_only=True)
class Provenance:
    """Where a token came from.

    source: the file's name as it was prepared, or None when unknown. document: its number in the split. byte, line: where
    the document begins in the source (line from 1). offset: tokens from the document's first. token_byte: the token's own
    first byte in the source, for tokenizers that lose no byte, else None.
    """

    token: int
    document: int
    offset: int
    source: str | None = None
    byte: int | None = None
    line: int | None = None
    token_byte: int | None = None


class Split:
    """N tokens, numbered 0 to N - 1 across the shards. Made by ladle.open, prepare, from_ids and from_text."""

    def __init__(
        self,
        *,
        name: str,
        where: str,
        shards: Sequence[Shard],
        dtype: np.dtype[Any],
        vocab_size: int | None = None,
        max_id: int | None = None,
        num_documents: int | None = None,
        fingerprint: Callable[[], str],
        tokenizer: Callable[[], Tokenizer | None] = lambda: None,
        documents: Documents | None = None,
        mask: LossMask | None = None,
        remake: Callable[[], tuple[Callable[..., Split], tuple[Any, ...]]] | None = None,
    ) -> None:
        """fingerprint, tokenizer: called when first asked for. documents: ends and provenance, None when unknown. mask: of the
        tokens that are to be learned, None where all are.
        remake: (function, its arguments) that make this split in another process; None: it stays in this one."""
        self.name = name
        self.where = where
        self.shards = shards
        self.dtype = dtype
        self.vocab_size = vocab_size
        self.max_id = max_id
        self.num_documents = num_documents
        self.bases = np.concatenate([[0], np.cumsum([s.num_tokens for s in shards], dtype=np.int64)]).astype(np.int64)
        self.num_tokens = int(self.bases[-1])
        self.alike = all(shard.dtype == dtype for shard in shards)  # else some shards' ids are narrower than the split's
        self._sizes_known_until = 0.0
        self._maps: Maps | None = None
        self._fingerprint = fingerprint
        self._tokenizer = tokenizer
        self._documents = documents
        self.mask = mask
        self._remake = remake

    def __reduce__(self) -> tuple[Callable[..., Split], tuple[Any, ...]]:
        """A split on disk pickles as its place, and is opened anew where it arrives; one in memory as its ids.

        Raises ConfigError for a split that has neither.
        """
        if self._remake is None:
            raise ConfigError(f"{self.where}: expected a split of ladle.open or ladle.from_ids to pickle, found one made by hand")
        return self._remake()

    def __repr__(self) -> str:
        return f"Split({self.where}: {self.num_tokens} tokens, {self.dtype})"

    def __len__(self) -> int:
        return self.num_tokens

    @property
    def fingerprint(self) -> str:
        """A hash of the tokens' contents (hex); foreign files give a sampled one, which says so."""
        return self._fingerprint()

    @property
    def tokenizer(self) -> Tokenizer | None:
        """The tokenizer that made the ids, built when first asked for, or None when unknown."""
        return self._tokenizer()

    def read(self, start: int, count: int) -> Tokens:
        """Tokens [start, start + count), verified: a fresh array of the split's dtype, [count], across shards.

        Raises ConfigError for a range outside the split, FormatError for damaged bytes, ClosedError after close().
        """
        if not 0 <= start <= start + count <= self.num_tokens:
            raise ConfigError(
                f"{self.where}: expected a range of tokens within 0 to {self.num_tokens}, found {start} to {start + count}"
            )
        tokens = np.empty(count, self.dtype)
        done = 0
        while done < count:
            shard, first = self._place(start + done)
            size = min(count - done, self.shards[shard].num_tokens - first)
            self.shards[shard].check(first, first + size)
            tokens[done : done + size] = self.shards[shard].tokens()[first : first + size]
            done += size
        return tokens

    def pieces(
        self, shards: npt.NDArray[np.int64], starts: npt.NDArray[np.int64], count: int | npt.NDArray[np.int64]
    ) -> list[memoryview | bytes]:
        """Tokens [start, start + count) of each start, verified, as bytes: of scattered rows, each within its shard.

        shards: int64 [rows], where each start lies. starts: int64 [rows]. count: of all, or int64 [rows]. The shards' dtype is
        the split's.
        Raises FormatError for damaged bytes, and for a file that was cut short: touching what is gone would end the process.
        Sizes are looked at before each call, unless all were within SIZE_SECONDS: asking 60 files would double a batch's time
        where batches follow each other within microseconds, and costs nothing where a step is trained between them.
        """
        size, of = self.dtype.itemsize, self.shards
        if (now := monotonic()) > self._sizes_known_until:
            for shard in of:
                shard.check_size()
            self._sizes_known_until, self._maps = now + SIZE_SECONDS, Maps.of(of)
        byte = (starts - self.bases[shards]) * size
        places = zip(shards.tolist(), byte.tolist(), (byte + count * size).tolist(), strict=True)
        if self._maps is not None and self._maps.hold:  # hundreds of shards do not fit a core's cache: touch few objects
            contents = self._maps.contents
            return [contents[shard][first:last] for shard, first, last in places]
        return [of[shard].piece(first, last) for shard, first, last in places]

    def check_ids(self, ids: npt.NDArray[Any], starts: int | npt.NDArray[np.int64]) -> None:
        """Every id must be below vocab_size; free when the manifest's max_id already says so, or when neither is known.

        ids: [length], or [rows, length]. starts: the token index of ids[0], or int64 [rows] of each ids[r, 0].
        Raises TokenError naming file, byte, id and vocabulary.
        """
        if self.vocab_size is None or (self.max_id is not None and self.max_id < self.vocab_size) or ids.size == 0:
            return
        if int(ids.max()) < self.vocab_size:
            return
        ids = np.atleast_2d(ids)
        row, column = np.argwhere(ids >= self.vocab_size)[0].tolist()
        shard, token = self._place(int(np.atleast_1d(starts)[row]) + column)
        place = f"{self.shards[shard].where} @ byte {token * self.shards[shard].dtype.itemsize}"
        raise TokenError(
            f"{place}: id: expected less than the vocabulary's {self.vocab_size}, found {int(ids[row, column])}; "
            f"the file was made with another tokenizer, or does not hold {self.dtype.name} ids"
        )

    def document_ends(self) -> npt.NDArray[np.uint64]:
        """Where each document ends: the index after its last token, uint64 [num_documents], ascending; the last is N.

        Raises ConfigError when the split does not know its documents.
        """
        documents = self._known_documents()
        if len(self.shards) == 1:
            return documents.ends(0)
        ends, first = np.empty(sum(documents.counts), np.uint64), 0
        for shard, count in enumerate(documents.counts):  # one at a time, since each has a file open
            ends[first : first + count] = documents.ends(shard) + np.uint64(self.bases[shard])
            first += count
        return ends

    def ends_by_shard(self) -> Iterator[tuple[int, npt.NDArray[np.uint64]]]:
        """(the shard's first token, where its documents end counted from there: uint64, ascending), shard after shard.

        Raises ConfigError when the split does not know its documents.
        """
        documents = self._known_documents()
        for shard in range(len(self.shards)):
            yield int(self.bases[shard]), documents.ends(shard)

    def documents_in(self, first: int, last: int) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
        """(first, last): the tokens [first, last) of each document that holds any of the tokens asked for. int64 each."""
        documents, found = self._known_documents(), []
        for shard in range(len(self.shards)):
            base, end = int(self.bases[shard]), int(self.bases[shard + 1])
            if not (base < last and first < end and first < last):
                continue
            ends = documents.ends(shard)
            low, high = np.searchsorted(
                ends, np.array([max(first - base, 0), min(last, end) - base - 1], np.uint64), side="right"
            )
            stop = base + ends[low : high + 1].astype(np.int64)
            begin = np.concatenate([[base + int(ends[low - 1]) if low else base], stop[:-1]])
            found.append((begin, stop))
        if not found:
            return np.empty(0, np.int64), np.empty(0, np.int64)
        begins, stops = zip(*found, strict=True)
        return np.concatenate(begins), np.concatenate(stops)

    @property
    def has_loss_mask(self) -> bool:
        """Whether the corpus says of each token if it is to be learned."""
        return self.mask is not None

    def loss_mask(self, starts: npt.NDArray[np.int64], lengths: npt.NDArray[np.int64]) -> npt.NDArray[np.uint8]:
        """1 where a token is to be learned: of tokens [start, start + length) of each, one after the other.

        starts, lengths: int64 [k], 0 or more. Returns uint8 [sum of lengths], freshly owned; tokens past the end are 0, and those
        of a split without a mask are 1. Raises ConfigError for what are no ranges, FormatError for damaged bytes.
        """
        if starts.shape != lengths.shape or (starts.size and (int(starts.min()) < 0 or int(lengths.min()) < 0)):
            raise ConfigError(
                f"{self.where}: loss_mask: expected starts and lengths of 0 or more, one of each, found {starts} and {lengths}"
            )
        if self.mask is not None:
            return self.mask.read(starts, lengths)
        known = np.clip(self.num_tokens - starts, 0, lengths)
        return np.repeat(np.tile(np.array([1, 0], np.uint8), len(starts)), np.column_stack([known, lengths - known]).ravel())

    @property
    def folder(self) -> Path | None:
        """The corpus's folder, or None for a split in memory or of files that know no documents."""
        return None if self._documents is None else self._documents.folder

    def document_tokens(self, documents: npt.ArrayLike) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
        """(first, last): the tokens [first, last) of each document. documents: integers [k], in any order; int64 [k] each.

        Raises ConfigError for a document that the split does not have, or when it does not know its documents.
        """
        known = self._known_documents()
        numbers = np.atleast_1d(np.asarray(documents, np.int64))
        before = np.cumsum([0, *known.counts], dtype=np.int64)
        for number in numbers[(numbers < 0) | (numbers >= before[-1])].tolist():
            raise ConfigError(f"{self.where}: document: expected a number from 0 to {before[-1] - 1}, found {number}")
        first, last = np.empty_like(numbers), np.empty_like(numbers)
        shards = np.searchsorted(before, numbers, side="right") - 1
        for shard in np.unique(shards).tolist():
            ends, here = known.ends(shard), shards == shard
            inside, base = numbers[here] - before[shard], self.bases[shard]
            first[here] = base + np.where(inside, ends[inside - 1].astype(np.int64), 0)
            last[here] = base + ends[inside].astype(np.int64)
        return first, last

    def locate(self, tokens: npt.ArrayLike) -> list[Provenance]:
        """Where each token came from. tokens: integers [n] in 0 to N - 1, in any order.

        Raises ConfigError for a token outside the split, or when the split does not know its documents.
        """
        given = np.atleast_1d(np.asarray(tokens))
        if given.ndim != 1 or (given.size and given.dtype.kind not in "iu"):
            raise ConfigError(f"{self.where}: expected token indices, found {given.dtype} of shape {given.shape}")
        indices = given.astype(np.int64)
        documents = self._known_documents()
        for index in indices[(indices < 0) | (indices >= self.num_tokens)].tolist():
            raise ConfigError(f"{self.where}: expected a token index within 0 to {self.num_tokens - 1}, found {index}")
        shards = np.searchsorted(self.bases, indices, side="right") - 1
        found: dict[int, Provenance] = {}
        for shard in np.unique(shards).tolist():
            before, base = sum(documents.counts[:shard]), int(self.bases[shard])
            ends, origins = documents.ends(shard), documents.origins(shard)
            here = np.unique(indices[shards == shard])
            numbers = np.searchsorted(ends, (here - base).astype(np.uint64), side="right")
            for number in np.unique(numbers).tolist():
                start = base + (int(ends[number - 1]) if number else 0)
                wanted = here[numbers == number]
                origin = None if origins is None else origins[number]
                whole = origin is not None and not int(origin["flags"]) & (format.REPLACED | format.RECORD)
                lengths = self._text_lengths(start, wanted) if whole else None
                for i, token in enumerate(wanted.tolist()):
                    place = Provenance(token=token, document=before + number, offset=token - start)
                    if origin is not None:
                        byte = int(origin["byte"])
                        place = replace(
                            place,
                            source=documents.source(shard, int(origin["source"])),
                            byte=byte,
                            line=int(origin["line"]),
                            token_byte=None if lengths is None else byte + lengths[i],
                        )
                    found[token] = place
        return [found[index] for index in indices.tolist()]

    def _text_lengths(self, start: int, tokens: npt.NDArray[np.int64]) -> list[int] | None:
        """Bytes of text from token `start` up to each of tokens (ascending, none before start); None when ids lose bytes."""
        tokenizer = self.tokenizer
        if tokenizer is None or not tokenizer.byte_lossless:
            return None
        lengths, total = [], 0
        for token in tokens.tolist():
            while start < token:
                ids = self.read(start, min(token - start, 1 << 20))
                counts = np.bincount(ids)
                present = np.flatnonzero(counts)
                sizes = np.fromiter(map(len, tokenizer.token_bytes(present)), np.int64, len(present))
                total += int(counts[present] @ sizes)
                start += len(ids)
            lengths.append(total)
        return lengths

    def close(self) -> None:
        """Let go of the files. Reading afterwards raises ClosedError."""
        for shard in self.shards:
            shard.close()
        if self.mask is not None:
            self.mask.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _place(self, token: int) -> tuple[int, int]:
        """The shard that holds a token, and the token's index within it."""
        shard = int(np.searchsorted(self.bases, token, side="right")) - 1
        return shard, token - int(self.bases[shard])

    def _known_documents(self) -> Documents:
        if self._documents is None:
            raise ConfigError(
                f"{self.where}: the documents' ends are not known here; prepare the text with `ladle prepare` to keep them"
            )
        return self._documents
