"""Splits in memory, without a folder."""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Iterable
from functools import cache
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from ladle.corpus import format
from ladle.corpus.documents import MemoryDocuments
from ladle.corpus.mask import LossMask
from ladle.corpus.shard import ArrayShard
from ladle.corpus.split import Split
from ladle.errors import ConfigError, TokenError

if TYPE_CHECKING:
    from ladle.tokens import Tokenizer

WHERE = "memory"


def from_ids(
    array: npt.ArrayLike,
    vocab_size: int | None = None,
    document_ends: npt.ArrayLike | None = None,
    loss_mask: npt.ArrayLike | None = None,
) -> Split:
    """A split over ids already at hand.

    array: integers [N], N >= 1. It is not copied when it is uint16 or uint32, contiguous, in this machine's byte order, and
    the vocabulary fits; it must then not be changed while the split is in use. Anything else is converted once.
    vocab_size: every id must be below it; it decides the dtype (uint16 up to 65 536). Without it the array's own dtype is
    kept, or the largest id decides. document_ends: integers [D], ascending, the last equal to N. loss_mask: [N], 1 or True
    where a token is to be learned, 0 or False where it is only read.
    Raises ConfigError for an array that is not 1-D, not of integers or empty; TokenError naming the first id that is negative
    or too large, and its index.
    """
    ids = np.asarray(array)
    if ids.ndim != 1 or len(ids) == 0:
        raise ConfigError(f"from_ids: expected a 1-D array of at least one id, found shape {ids.shape}")
    if ids.dtype.kind not in "iu":
        raise ConfigError(f"from_ids: expected integer ids, found dtype {ids.dtype}")
    if vocab_size is not None and (
        isinstance(vocab_size, bool) or not isinstance(vocab_size, int | np.integer) or not 1 <= vocab_size <= 1 << 32
    ):
        raise ConfigError(f"from_ids: vocab_size: expected an integer, 1 to {1 << 32}, found {vocab_size!r}")
    vocab_size = None if vocab_size is None else int(vocab_size)
    max_id = int(ids.max())
    if int(ids.min()) < 0:
        index = int(np.argmax(ids < 0))
        hint = "; were ids above 32767 stored as int16?" if ids.dtype.itemsize == 2 else ""
        raise TokenError(f"from_ids: id at index {index}: expected 0 or more, found {int(ids[index])}{hint}")
    limit = 1 << 32 if vocab_size is None else vocab_size
    if max_id >= limit:
        index = int(np.argmax(ids >= limit))
        raise TokenError(f"from_ids: id at index {index}: expected less than {limit}, found {int(ids[index])}")
    if vocab_size is None and ids.dtype.itemsize in (2, 4) and ids.dtype.kind == "u":
        dtype = format.TOKEN_DTYPES[ids.dtype.name]
    else:
        dtype = format.TOKEN_DTYPES[format.dtype_name(max_id + 1 if vocab_size is None else vocab_size)]
    return _split(ids.astype(dtype, order="C", copy=False), vocab_size, max_id, None, document_ends, mask=loss_mask)


def from_text(
    text: str | Iterable[str],
    tokenizer: object = "gpt2",
    *,
    allowed_special: Collection[str] = (),
    end_of_text: bool = False,
) -> Split:
    """A split over one text, or over an iterable of texts, one document each.

    tokenizer: as for prepare; "chars" takes its vocabulary from the text. allowed_special: markers such as "<|endoftext|>"
    that become control ids where they are written; by default they are text like any other.
    end_of_text: append the tokenizer's end-of-text id after each document. Documents of no tokens are left out.
    Raises ConfigError for a tokenizer without an end of text, TokenError for what it cannot encode, or for no text at all.
    """
    from ladle.tokens import tokenizer as build

    texts = [text] if isinstance(text, str) else list(text) if isinstance(text, Iterable) else [text]
    for number, one in enumerate(texts):
        if not isinstance(one, str):
            raise ConfigError(f"from_text: text {number}: expected a str, found {type(one).__name__}")
    coder = build(tokenizer, text=texts, end_of_text=end_of_text)
    if end_of_text and coder.end_of_text is None:
        raise ConfigError(f"from_text: end_of_text: the tokenizer {coder.name!r} has no end-of-text id")
    last = [] if not end_of_text else [np.array([coder.end_of_text], np.uint32)]
    documents = [d for d in (coder.encode(t, allowed_special=allowed_special) for t in texts) if len(d)]
    if not documents:
        raise TokenError("from_text: expected at least one token, found none: the text is empty")
    dtype = format.TOKEN_DTYPES[format.dtype_name(coder.vocab_size)]
    ids = np.concatenate([part for d in documents for part in (d, *last)])
    ends = np.cumsum([len(d) + len(last) for d in documents])
    return _split(ids.astype(dtype), coder.vocab_size, int(ids.max()), coder, ends)


def _split(  # noqa: PLR0917  pickle passes them by place
    ids: npt.NDArray[Any],
    vocab_size: int | None,
    max_id: int,
    tokenizer: Tokenizer | None,
    document_ends: npt.ArrayLike | None,
    known: str | None = None,
    mask: npt.ArrayLike | None = None,
) -> Split:
    """known: the fingerprint, where another process has taken it. mask: as from_ids takes it."""
    flags = None if mask is None else _checked_mask(mask, len(ids))
    documents = None if document_ends is None else MemoryDocuments(_checked_ends(document_ends, len(ids)))

    @cache
    def fingerprint() -> str:
        if known is not None:
            return known
        content: list[Any] = [len(ids), max_id, hashlib.sha256(np.ascontiguousarray(ids).data).hexdigest()]
        content.append(None if documents is None else hashlib.sha256(documents.ends(0).tobytes()).hexdigest())
        content += [] if flags is None else [hashlib.sha256(flags.data).hexdigest()]
        whole = {"format": WHERE, "tokenizer": tokenizer and tokenizer.hash, "dtype": ids.dtype.name, "content": content}
        return hashlib.sha256(format.canonical(whole)).hexdigest()

    view = ids.view()
    view.flags.writeable = False
    return Split(
        name=WHERE,
        where=WHERE,
        shards=[ArrayShard(view)],
        dtype=view.dtype,
        vocab_size=vocab_size,
        max_id=max_id,
        num_documents=None if documents is None else documents.counts[0],
        fingerprint=fingerprint,
        tokenizer=lambda: tokenizer,
        documents=documents,
        mask=None if flags is None else LossMask([ArrayShard(flags)], [b""], [len(ids)]),
        remake=lambda: (_split, (ids, vocab_size, max_id, tokenizer, document_ends, fingerprint(), flags)),
    )


def _checked_mask(mask: npt.ArrayLike, num_tokens: int) -> npt.NDArray[np.uint8]:
    """The mask as uint8. Raises ConfigError unless it has a 0 or a 1 for each token."""
    flags = np.asarray(mask)
    if flags.shape != (num_tokens,) or flags.dtype.kind not in "iub":
        raise ConfigError(
            f"loss_mask: expected a 0 or a 1 for each of {num_tokens} tokens, found {flags.dtype} of shape {flags.shape}"
        )
    if (wrong := np.flatnonzero((flags != 0) & (flags != 1))).size:
        raise ConfigError(f"loss_mask: expected 0 or 1, found {flags[wrong[0]]} for token {wrong[0]}")
    return np.ascontiguousarray(flags, dtype=np.uint8)


def _checked_ends(document_ends: npt.ArrayLike, num_tokens: int) -> npt.NDArray[np.uint64]:
    """The ends as uint64. Raises ConfigError unless they ascend strictly from above 0 to num_tokens."""
    ends = np.asarray(document_ends)
    if ends.ndim != 1 or ends.dtype.kind not in "iu" or len(ends) == 0:
        raise ConfigError(f"document_ends: expected a 1-D array of integers, found {ends.dtype} of shape {ends.shape}")
    if int(ends[-1]) != num_tokens:
        raise ConfigError(f"document_ends: expected the last to be the number of tokens, {num_tokens}, found {int(ends[-1])}")
    if int(ends[0]) < 1 or not np.all(ends[1:] > ends[:-1]):
        raise ConfigError("document_ends: expected ends that ascend from above 0 (a document has at least one token)")
    return ends.astype(np.uint64)
