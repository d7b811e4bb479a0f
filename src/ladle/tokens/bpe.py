"""Byte-pair encodings, by tiktoken: GPT-2's shipped, others by name, or a `tiktoken.Encoding` of the caller's."""

from __future__ import annotations

import base64
import hashlib
from typing import TYPE_CHECKING, Any

import numpy as np

from ladle.errors import TokenError
from ladle.tokens import cuts, gpt2
from ladle.tokens.interface import Tokenizer
from ladle.tokens.markers import END_OF_TEXT

if TYPE_CHECKING:
    import tiktoken


class BPE(Tokenizer):
    """A tiktoken encoding. Its written markers are ordinary text unless they are allowed."""

    def __init__(self, encoding: tiktoken.Encoding) -> None:
        self._encoding = encoding
        self._pattern: str = encoding._pat_str  # tiktoken's README extends encodings by these attributes
        self._ranks: dict[bytes, int] = encoding._mergeable_ranks
        self.name = encoding.name
        self.vocab_size = encoding.max_token_value + 1
        self.special = dict(encoding._special_tokens)
        self.end_of_text = self.special.get(END_OF_TEXT)
        known = self._pattern in cuts.PATTERNS
        self.byte_lossless = known and all(bytes([byte]) in self._ranks for byte in range(256))
        self._last_cut = cuts.safe if known else cuts.before_space
        self._limit = cuts.LIMIT if known else cuts.LIMIT * 8

    def identity(self) -> dict[str, Any]:
        """By name and by the hash of its ranks, where the name can be loaded again; whole otherwise.

        `ranks` is the SHA-256 of the ranks as a `.tiktoken` file: the hash that tiktoken publishes for those it downloads.
        The pattern of a named encoding is left out: tiktoken respells its patterns, the matches staying the same.
        """
        lines = _tiktoken_file(self._ranks)
        identity = {
            "kind": "tiktoken",
            "name": self.name,
            "vocab_size": self.vocab_size,
            "special": self.special,
            "ranks": hashlib.sha256(lines).hexdigest(),
        }
        if not _is_named(self._encoding):
            identity |= {"pattern": self._pattern, "tokens": lines.decode("ascii")}
        return identity

    def token_bytes(self, ids: Any) -> list[bytes]:
        row = self._checked(ids)
        try:
            return self._encoding.decode_tokens_bytes(row.tolist())
        except KeyError:  # some encodings leave ids unused
            used = set(self._ranks.values()) | set(self.special.values())
            self._refuse(row, next(place for place, id in enumerate(row.tolist()) if id not in used))
            raise

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
        return BPE(gpt2.encoding(name))
    import tiktoken

    try:
        return BPE(tiktoken.get_encoding(name))
    except (OSError, ValueError) as error:  # requests' errors are OSErrors; a file that fails its hash is a ValueError
        raise TokenError(
            f"{name}: expected tiktoken to load its ranks, found {type(error).__name__}: {error}; Ladle ships "
            f"{', '.join(gpt2.SHIPPED)}; tiktoken downloads the others, once, into the folder TIKTOKEN_CACHE_DIR names"
        ) from error


def names() -> list[str]:
    """The encodings that can be asked for by name."""
    import tiktoken

    return sorted({*gpt2.SHIPPED, *tiktoken.list_encoding_names()})


def from_identity(identity: dict[str, Any]) -> BPE:
    """The encoding that `BPE.identity` described. TokenError: the name now stands for other ranks."""
    if "tokens" in identity:
        import tiktoken

        lines = [line.split(" ") for line in identity["tokens"].splitlines()]
        tokenizer = BPE(
            tiktoken.Encoding(
                identity["name"],
                pat_str=identity["pattern"],
                mergeable_ranks={base64.b64decode(token): int(rank) for token, rank in lines},
                special_tokens=identity["special"],
            )
        )
    else:
        tokenizer = load(identity["name"])
    found = tokenizer.identity()
    for field in ("ranks", "special", "vocab_size"):
        if found[field] != identity[field]:
            raise TokenError(f"{identity['name']}: {field}: expected {identity[field]}, found {found[field]}")
    return tokenizer


def from_encoding(encoding: tiktoken.Encoding) -> BPE:
    """A `tiktoken.Encoding` of the caller's; one with GPT-2's name, ranks and markers is our 'gpt2'."""
    if encoding.name in gpt2.SHIPPED:
        shipped = gpt2.encoding(encoding.name)
        same = encoding._special_tokens == shipped._special_tokens and encoding._mergeable_ranks == shipped._mergeable_ranks
        if same and encoding._pat_str in cuts.PATTERNS:
            return BPE(shipped)
    return BPE(encoding)


def _is_named(encoding: tiktoken.Encoding) -> bool:
    from tiktoken import registry

    if encoding.name in gpt2.SHIPPED:
        return encoding is gpt2.encoding(encoding.name)
    return encoding is registry.ENCODINGS.get(encoding.name)


def _tiktoken_file(ranks: dict[bytes, int]) -> bytes:
    """The ranks as tiktoken's files hold them: base64 of the token, a space, its rank, a newline, by rank."""
    rows = sorted(ranks.items(), key=lambda item: item[1])
    return b"".join(base64.b64encode(token) + b" %d\n" % rank for token, rank in rows)
