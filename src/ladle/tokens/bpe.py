"""Byte-pair encodings, by tiktoken: GPT-2's shipped, others by name, or a `tiktoken.Encoding` of the caller's."""

from __future__ import annotations

import base64
import functools
import hashlib
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from ladle.errors import TokenError
from ladle.tokens import cuts, gpt2
from ladle.tokens.interface import Tokenizer
from ladle.tokens.markers import END_OF_TEXT

if TYPE_CHECKING:
    import tiktoken


class BPE(Tokenizer):
    """A tiktoken encoding, loaded when it is first used. Its written markers are ordinary text unless they are allowed."""

    def __init__(
        self,
        name: str,
        *,
        pattern: str,
        special: Mapping[str, int],
        vocab_size: int,
        ranks: str,
        load: Callable[[], tiktoken.Encoding],
        whole: Mapping[str, str] | None = None,
    ) -> None:
        """ranks: their hash, as `identity` gives it. load: a pure function that gives the encoding. whole: pattern and tokens."""
        known = pattern in cuts.PATTERNS
        self.name = name
        self.vocab_size = vocab_size
        self.special = special
        self.end_of_text = special.get(END_OF_TEXT)
        self.byte_lossless = known  # a pattern nobody has thought through may skip text
        self._last_cut = cuts.safe if known else cuts.before_space
        self._limit = cuts.LIMIT if known else cuts.LIMIT * 8
        self._ranks = ranks
        self._load = load
        self._whole = whole or {}

    @functools.cached_property
    def _encoding(self) -> tiktoken.Encoding:
        return self._load()

    def identity(self) -> dict[str, Any]:
        """A name, and what proves that it still stands for the same ids.

        `ranks` is the SHA-256 of the ranks as a `.tiktoken` file: the hash that tiktoken publishes for those it downloads.
        The pattern is left out, since tiktoken respells its patterns from time to time, the matches staying the same.
        An encoding of the caller's own, for which no name stands, also gives its pattern and every token.
        """
        return {
            "kind": "tiktoken",
            "name": self.name,
            "vocab_size": self.vocab_size,
            "special": dict(self.special),
            "ranks": self._ranks,
            **self._whole,
        }

    def token_bytes(self, ids: Any) -> list[bytes]:
        row = self._checked(ids).tolist()
        try:
            return self._encoding.decode_tokens_bytes(row)
        except KeyError:  # some encodings leave ids unused
            used = {*self._encoding._mergeable_ranks.values(), *self.special.values()}
            raise self._refusal(row, next(place for place, id in enumerate(row) if id not in used)) from None

    def _encode(self, text: str, start: int) -> np.ndarray:
        try:
            return self._encoding.encode_to_numpy(text, disallowed_special=()).copy()
        except UnicodeEncodeError:
            raise
        except BaseException as error:
            # A pattern that gives up raises ValueError in today's tiktoken and a Rust panic, no Exception, in older ones.
            if not isinstance(error, ValueError) and type(error).__name__ != "PanicException":
                raise
            raise TokenError(
                f"{self.name}: characters {start} to {start + len(text)} of the text: expected a text its pattern can split, "
                f"found {error}; split the text yourself, or use 'gpt2' or 'bytes'"
            ) from None


def load(name: str) -> BPE:
    """A tiktoken encoding by name. TokenError: it would have to be downloaded, and cannot be."""
    if name in gpt2.SHIPPED:
        special, ranks = gpt2.SHIPPED[name]
        vocab_size = max(gpt2.END_OF_TEXT + (25 if name.startswith("p50k") else 1), *(id + 1 for id in special.values()))
        build = functools.partial(gpt2.encoding, name)
        return BPE(name, pattern=gpt2.PATTERN, special=special, vocab_size=vocab_size, ranks=ranks, load=build)
    import tiktoken

    try:
        encoding = tiktoken.get_encoding(name)
    except (OSError, ValueError) as error:  # requests' errors are OSErrors; a file that fails its hash is a ValueError
        raise TokenError(
            f"{name}: expected tiktoken to load its ranks, found {type(error).__name__}: {error}; Ladle ships "
            f"{', '.join(gpt2.SHIPPED)}; tiktoken downloads the others, once, into the folder TIKTOKEN_CACHE_DIR names"
        ) from error
    return _wrap(encoding, named=True)


def names() -> list[str]:
    """The encodings that can be asked for by name."""
    import tiktoken

    return sorted({*gpt2.SHIPPED, *tiktoken.list_encoding_names()})


def from_encoding(encoding: tiktoken.Encoding) -> BPE:
    """A `tiktoken.Encoding` of the caller's; one that gives the ids of 'gpt2' is our 'gpt2', and so on."""
    from tiktoken import registry

    own = _wrap(encoding, named=False)
    if encoding.name in gpt2.SHIPPED and own.byte_lossless:
        shipped = load(encoding.name)
        return shipped if own.identity() | shipped.identity() == own.identity() else own
    if encoding is registry.ENCODINGS.get(encoding.name):
        return load(encoding.name)
    return own


def from_identity(identity: dict[str, Any]) -> BPE:
    """The encoding that `BPE.identity` described. TokenError: the name now stands for other ranks."""
    if "tokens" in identity:
        import tiktoken

        rows = [line.split(" ") for line in identity["tokens"].splitlines()]
        ranks = {base64.b64decode(token): int(rank) for token, rank in rows}
        encoding = tiktoken.Encoding(
            identity["name"], pat_str=identity["pattern"], mergeable_ranks=ranks, special_tokens=identity["special"]
        )
        tokenizer = _wrap(encoding, named=False)
    else:
        tokenizer = load(identity["name"])
    for field, found in tokenizer.identity().items():
        if found != identity[field]:
            raise TokenError(f"tokenizer {identity['name']!r}: {field}: expected {identity[field]}, found {found}")
    return tokenizer


def _wrap(encoding: tiktoken.Encoding, *, named: bool) -> BPE:
    file = _tiktoken_file(encoding)
    return BPE(
        encoding.name,
        pattern=encoding._pat_str,  # tiktoken's own README extends encodings by these attributes
        special=encoding._special_tokens,
        vocab_size=encoding.max_token_value + 1,
        ranks=hashlib.sha256(file).hexdigest(),
        load=lambda: encoding,
        whole=None if named else {"pattern": encoding._pat_str, "tokens": file.decode("ascii")},
    )


def _tiktoken_file(encoding: tiktoken.Encoding) -> bytes:
    """The ranks as tiktoken's files hold them: base64 of the token, a space, its rank, a newline, by rank."""
    rows = sorted(encoding._mergeable_ranks.items(), key=lambda item: item[1])
    return b"".join(base64.b64encode(token) + b" %d\n" % rank for token, rank in rows)
