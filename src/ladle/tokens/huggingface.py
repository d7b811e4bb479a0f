"""A Hugging Face `tokenizer.json`, by the `tokenizers` package (extra `ladle[hf]`)."""

from __future__ import annotations

import functools
import json
from pathlib import Path
from typing import Any

import numpy as np

from ladle.errors import MissingExtra, TokenError
from ladle.tokens import cuts, gpt2
from ladle.tokens.interface import Tokenizer

# A tokenizer.json does not say which token ends a text: the first of these among its special tokens does.
ENDS_OF_TEXT = ("<|endoftext|>", "<|end_of_text|>", "</s>", "<eos>", "<|eos|>", "[EOS]", "<｜end▁of▁sentence｜>")


class HuggingFace(Tokenizer):
    """A tokenizer.json. Nothing is ever added: no BOS, no EOS, no padding; and nothing truncated, whatever the file asks for."""

    name = "tokenizer.json"
    byte_lossless = False  # it may normalise its text

    def __init__(self, contents: str) -> None:
        """contents: the file's text, kept whole: it is the identity."""
        try:
            import tokenizers
        except ImportError:
            raise MissingExtra("a tokenizer.json", "tokenizers", "hf") from None
        try:
            self._tokenizer = tokenizers.Tokenizer.from_str(contents)
        except Exception as error:  # noqa: BLE001  what the package raises
            raise TokenError(f"tokenizer.json: expected a file the package tokenizers can read, found {error}") from None
        self._tokenizer.no_truncation()
        self._tokenizer.no_padding()
        self._tokenizer.encode_special_tokens = True  # written markers are text; the allowed ones are split off before
        self._contents = contents
        vocabulary: dict[str, int] = self._tokenizer.get_vocab(with_added_tokens=True)
        self.vocab_size = max(vocabulary.values(), default=-1) + 1
        added = self._tokenizer.get_added_tokens_decoder()
        self.special = {token.content: id for id, token in sorted(added.items()) if token.special}
        self.end_of_text = next((self.special[marker] for marker in ENDS_OF_TEXT if marker in self.special), None)
        plain = all(token.special for token in added.values())
        known = plain and _pattern(json.loads(contents)) in cuts.PATTERNS
        self._last_cut = cuts.safe if known else cuts.before_space
        self._limit = cuts.LIMIT if known else cuts.LIMIT * 8

    def identity(self) -> dict[str, Any]:
        return {"kind": "huggingface", "json": self._contents}

    def decode(self, ids: Any) -> str:
        """As the file's decoder puts the tokens together."""
        text: str = self._tokenizer.decode(self._checked(ids).tolist(), skip_special_tokens=False)
        return text

    def token_bytes(self, ids: Any) -> list[bytes]:
        """Each token's bytes, where the file's decoder works on bytes (ByteLevel, ByteFallback); else its own text."""
        return [self._bytes(id) for id in self._checked(ids).tolist()]

    def _encode(self, text: str, start: int) -> np.ndarray:
        text.encode("utf-8")  # the package's own error names no place
        try:
            return np.array(self._tokenizer.encode(text, add_special_tokens=False).ids, np.uint32)
        except Exception as error:  # noqa: BLE001  the package raises nothing more special, for want of an unknown token, say
            raise TokenError(
                f"{self.name}: characters {start} to {start + len(text)} of the text: expected a text it can encode, "
                f"found {error}"
            ) from None

    def _bytes(self, id: int) -> bytes:
        token: str = self._tokenizer.id_to_token(id) or ""
        if token in self.special:
            return token.encode("utf-8")
        if "ByteLevel" in self._decoders:
            letters = _byte_of_letter()
            return bytes(letters[letter] for letter in token) if all(letter in letters for letter in token) else token.encode()
        if "ByteFallback" in self._decoders and len(token) == 6 and token.startswith("<0x"):
            return bytes([int(token[3:5], 16)])
        return token.replace("▁", " ").encode("utf-8") if {"Metaspace", "Replace"} & self._decoders else token.encode("utf-8")

    @functools.cached_property
    def _decoders(self) -> set[str]:
        decoder = json.loads(self._contents).get("decoder") or {}
        return {part.get("type") for part in [decoder, *decoder.get("decoders", ())]}


def load(path: Path) -> HuggingFace:
    """The tokenizer.json at `path`, or in the folder `path`. TokenError: there is none, or it cannot be read."""
    file = path / "tokenizer.json" if path.is_dir() else path
    try:
        contents = file.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise TokenError(f"{file}: expected a tokenizer.json, found {error}") from None
    try:
        return HuggingFace(contents)
    except TokenError as error:
        raise TokenError(f"{file}: {error}") from None


def _pattern(contents: dict[str, Any]) -> str | None:
    """The pattern that splits the text, if splitting by one pattern is all that happens before the merges."""
    if contents.get("normalizer") is not None or contents["model"].get("type") != "BPE":
        return None
    step = contents.get("pre_tokenizer") or {}
    steps = step.get("pretokenizers", ()) if step.get("type") == "Sequence" else (step,)
    match [(step.get("type"), step) for step in steps]:
        case [("ByteLevel", {"add_prefix_space": False, **rest})] if rest.get("use_regex", True):
            return gpt2.PATTERN
        case [
            ("Split", {"pattern": {"Regex": str(pattern)}, "behavior": "Isolated", "invert": False}),
            ("ByteLevel", {"add_prefix_space": False, "use_regex": False}),
        ]:
            return pattern
    return None


@functools.lru_cache(maxsize=1)
def _byte_of_letter() -> dict[str, int]:
    """The printable character by which ByteLevel writes each byte: GPT-2's, 188 as they are and 68 from U+0100 on."""
    letters = [chr(byte) for byte in gpt2.BYTES_BY_RANK[:188]] + [chr(256 + place) for place in range(68)]
    return dict(zip(letters, gpt2.BYTES_BY_RANK, strict=True))
