"""The bytes tokenizer: a text's UTF-8 bytes are its ids."""

from __future__ import annotations

from typing import Any

import numpy as np

from ladle.tokens.interface import Tokenizer
from ladle.tokens.markers import END_OF_TEXT


class Bytes(Tokenizer):
    """256 bytes and the end of text."""

    name = "bytes"
    vocab_size = 257
    end_of_text = 256
    special = {END_OF_TEXT: 256}  # noqa: RUF012  a constant of the class
    byte_lossless = True

    def identity(self) -> dict[str, Any]:
        return {"kind": "bytes"}

    def token_bytes(self, ids: Any) -> list[bytes]:
        table = [bytes([byte]) for byte in range(256)] + [END_OF_TEXT.encode()]
        return [table[id] for id in self._checked(ids).tolist()]

    def _encode(self, text: str, start: int) -> np.ndarray:  # noqa: ARG002
        return np.frombuffer(text.encode("utf-8"), np.uint8).astype(np.uint32)
