"""The bytes tokenizer."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ladle.errors import ConfigError, TokenError
from ladle.tokens import END_OF_TEXT, tokenizer

BYTES = tokenizer("bytes")


def test_what_it_is():
    assert (BYTES.name, BYTES.vocab_size, BYTES.end_of_text, BYTES.byte_lossless) == ("bytes", 257, 256, True)
    assert BYTES.encode("hi\r\n\0字").tolist() == [104, 105, 13, 10, 0, 0xE5, 0xAD, 0x97]
    assert BYTES.encode("").shape == (0,)


@given(text=st.text(), cut=st.integers(0, 50))
def test_ids_are_the_utf8_bytes(text, cut):
    assert BYTES.encode(text).astype(np.uint8).tobytes() == text.encode()
    assert BYTES.decode(BYTES.encode(text)) == text
    parts = list(BYTES.encode_pieces([text[:cut], text[cut:]]))
    assert b"".join(part.astype(np.uint8).tobytes() for part in parts) == text.encode()


def test_the_end_of_text():
    assert BYTES.encode(f"a{END_OF_TEXT}b").max() < 256
    assert BYTES.encode(f"a{END_OF_TEXT}b", allowed_special={END_OF_TEXT}).tolist() == [97, 256, 98]
    assert BYTES.decode([97, 256]) == f"a{END_OF_TEXT}"
    assert BYTES.token_bytes([97, 256]) == [b"a", END_OF_TEXT.encode()]


def test_errors():
    with pytest.raises(TokenError, match=r"bytes: id 257 at place 1: expected an id of its vocabulary of 257"):
        BYTES.decode([0, 257])
    with pytest.raises(TokenError, match=r"bytes: character 14 of the text: .* lone surrogate U\+DEAD"):
        BYTES.encode(f"{END_OF_TEXT}a\udead", allowed_special={END_OF_TEXT})
    with pytest.raises(ConfigError, match="errors: expected 'strict' or 'replace', found 'ignore'"):
        BYTES.encode("a", errors="ignore")
    with pytest.raises(ConfigError, match="allowed_special: expected a collection of markers, found the text 'all'"):
        BYTES.encode("a", allowed_special="all")


def test_a_broken_character_is_replaced():
    assert BYTES.decode([0xE5, 0xAD]) == "\ufffd"
