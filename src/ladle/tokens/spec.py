"""From a specification, a few letters or an object, to a tokenizer; and back from a stored identity."""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from ladle.errors import ConfigError, TokenError
from ladle.tokens.interface import Tokenizer


def tokenizer(spec: Any, *, text: str | Iterable[str] | None = None, end_of_text: bool = False) -> Tokenizer:
    """The tokenizer that `spec` names.

    spec: "bytes"; "chars"; "gpt2" or another tiktoken encoding's name; the path of a `tokenizer.json`, or of the folder
    that holds it (extra `ladle[hf]`); a `tiktoken.Encoding`; or a Tokenizer, which is returned as it is.
    text: for "chars", the text whose characters are the vocabulary, whole or in pieces; ignored by the others.
    end_of_text: for "chars", whether it has an end-of-text id; the others have theirs or have none.
    ConfigError: nothing goes by that name. TokenError, MissingExtra: it cannot be loaded.
    """
    if isinstance(spec, Tokenizer):
        return spec
    if spec == "bytes":
        from ladle.tokens.bytes import Bytes

        return Bytes()
    if spec == "chars":
        from ladle.tokens.chars import Chars

        if text is None:
            raise ConfigError("tokenizer 'chars': expected text=, the text its vocabulary is taken from, found none")
        return Chars.from_text(text, end_of_text=end_of_text)
    if isinstance(spec, os.PathLike) or (isinstance(spec, str) and (spec.endswith(".json") or os.sep in spec)):
        from ladle.tokens import huggingface

        return huggingface.load(Path(spec))

    from ladle.tokens import bpe, gpt2

    if isinstance(spec, str):
        if spec in gpt2.SHIPPED or spec in bpe.names():
            return bpe.load(spec)
        raise ConfigError(
            f"tokenizer: expected 'bytes', 'chars', one of {', '.join(bpe.names())}, or the path of a tokenizer.json, "
            f"found {spec!r}"
        )
    import tiktoken

    if isinstance(spec, tiktoken.Encoding):
        return bpe.from_encoding(spec)
    raise ConfigError(f"tokenizer: expected a name, a path, a tiktoken.Encoding or a Tokenizer, found a {type(spec).__name__}")


def from_identity(identity: dict[str, Any]) -> Tokenizer:
    """The tokenizer whose `identity()` this is, from a manifest.

    TokenError: a kind this version does not know, a field that is missing or wrong, or ranks that are no longer the same.
    """
    from ladle.tokens import bpe, huggingface
    from ladle.tokens.bytes import Bytes
    from ladle.tokens.chars import Chars

    kind = identity.get("kind") if isinstance(identity, dict) else None
    try:
        if kind == "bytes":
            return Bytes()
        if kind == "chars":
            return Chars(identity["characters"], end_of_text=identity.get("end_of_text") is not None)
        if kind == "tiktoken":
            return bpe.from_identity(identity)
        if kind == "huggingface":
            return huggingface.HuggingFace(identity["json"])
    except (KeyError, TypeError, AttributeError) as error:
        raise TokenError(f"tokenizer identity of kind {kind!r}: expected a field it always has, found {error!r}") from None
    raise TokenError(
        f"tokenizer identity: kind: expected bytes, chars, tiktoken or huggingface, found {kind!r}; a newer Ladle may know it"
    )
