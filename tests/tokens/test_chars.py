"""The chars tokenizer."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ladle.errors import TokenError
from ladle.tokens import END_OF_TEXT, from_identity, tokenizer


def chars(text, **options):
    return tokenizer("chars", text=text, **options)


def test_the_vocabulary_is_the_texts_sorted_characters():
    coder = chars("hello, 字!\n")
    assert coder.characters == "\n !,ehlo字"
    assert (coder.vocab_size, coder.end_of_text, coder.special) == (9, None, {})
    assert coder.encode("hello").tolist() == [5, 4, 6, 6, 7]
    assert coder.encode("hello").dtype == np.uint32
    assert coder.decode([5, 4, 8]) == "he字"
    assert coder.token_bytes([5, 8]) == [b"h", "字".encode()]


@given(text=st.text(), cut=st.integers(0, 50), end_of_text=st.booleans())
def test_round_trip(text, cut, end_of_text):
    coder = chars([text[:cut], text[cut:]], end_of_text=end_of_text)
    assert coder.characters == "".join(sorted(set(text)))
    ids = coder.encode(text)
    assert ids.tolist() == [coder.characters.index(character) for character in text]
    assert coder.decode(ids) == text
    parts = coder.encode_pieces([text[:cut], text[cut:]])
    assert [id for part in parts for id in part.tolist()] == ids.tolist()
    assert from_identity(coder.identity()) == coder


def test_an_end_of_text_only_where_it_was_asked_for():
    coder = chars("ab|<>endoftxt", end_of_text=True)
    assert coder.end_of_text == coder.vocab_size - 1 == len(coder.characters)
    assert coder.encode(f"a{END_OF_TEXT}", allowed_special={END_OF_TEXT}).tolist() == [coder.encode("a")[0], coder.end_of_text]
    assert coder.end_of_text not in coder.encode(f"a{END_OF_TEXT}")
    assert coder.decode([coder.end_of_text]) == END_OF_TEXT
    plain = chars("ab|<>endoftxt")
    assert plain.encode(END_OF_TEXT, allowed_special={END_OF_TEXT}).tolist() == plain.encode(END_OF_TEXT).tolist()


@pytest.mark.parametrize("stranger", ["d", "B", "字", "\U0010ffff", "\0"])
def test_a_character_the_vocabulary_lacks_is_named(stranger):
    message = rf"chars: character 4 of the text: expected one of the 4 characters of the vocabulary, found {stranger!r} \(U\+{ord(stranger):04X}\); "
    with pytest.raises(TokenError, match=message.replace("\\x00", r"\\x00").replace("\\U", r"\\U")):
        chars("ab\nC").encode(f"ab\nC{stranger}")


def test_its_place_is_counted_through_the_pieces():
    with pytest.raises(TokenError, match=r"chars: character 200001 of the text: .* found 'x'"):
        list(chars("ab").encode_pieces(["a" * 200_000, "bx"]))


def test_a_lone_surrogate_is_in_no_vocabulary():
    with pytest.raises(TokenError, match=r"chars: character 3 of the text: .* lone surrogate U\+D800"):
        chars(["ab", "c\ud800"])
    with pytest.raises(TokenError, match=r"chars: character 1 of the text: .* lone surrogate U\+D800"):
        chars("ab").encode("a\ud800")
    assert chars("a\ufffd").encode("a\ud800", errors="replace").tolist() == [0, 1]


def test_a_vocabulary_from_elsewhere_keeps_its_order():
    coder = from_identity({"kind": "chars", "characters": "ba"})
    assert coder.encode("ab").tolist() == [1, 0]
    with pytest.raises(TokenError, match="chars: expected a vocabulary of different characters, found 'a' twice"):
        from_identity({"kind": "chars", "characters": "aba"})


def test_no_text_is_an_empty_vocabulary():
    coder = chars("")
    assert coder.vocab_size == 0
    assert coder.encode("").shape == (0,)
    with pytest.raises(TokenError, match="one of the 0 characters"):
        coder.encode("a")


def test_twenty_million_characters_take_seconds_not_minutes():
    text = "the quick brown fox\n字" * 1_000_000
    coder = chars(text)
    assert len(coder.encode(text)) == 21_000_000
