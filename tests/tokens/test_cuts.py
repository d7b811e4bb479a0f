"""Cutting a text changes no id: each rule, tried against tiktoken's own answer for the whole text."""

import argparse
import inspect
import itertools
import sys

import pytest
import tiktoken
from hypothesis import given, settings
from hypothesis import strategies as st
from tiktoken_ext import openai_public

from ladle.tokens import cuts, gpt2, tokenizer
from ladle.tokens.bpe import from_encoding

# Under these ranks any two bytes of one match join, the pairs preferred in opposite orders, so that the ids betray where
# the matches lie. GPT-2's ranks are the real thing.
BYTES = {bytes([byte]): byte for byte in range(256)}
PAIRS = BYTES | {bytes([a, b]): 256 + a * 256 + b for a in range(256) for b in range(256)}
OPPOSITE = BYTES | {bytes([a, b]): 256 + (255 - a) * 256 + 255 - b for a in range(256) for b in range(256)}
PATTERNS = sorted(cuts.PATTERNS)
ALPHABET = "aA1 \n\r/'s.字e\u0301\u00a0ʰ，<|>"


def encoding(pattern, ranks=PAIRS, special=None):
    return tiktoken.Encoding("test", pat_str=pattern, mergeable_ranks=ranks, special_tokens=special or {})


@pytest.fixture(scope="module")
def encodings():
    return [encoding(pattern, ranks) for pattern in PATTERNS for ranks in (PAIRS, OPPOSITE, gpt2.ranks())]


def safe_places(text):
    return [place for place in range(1, len(text)) if cuts.safe(text, place - 1, place) == place]


def check_places(text, encodings):
    for place in safe_places(text):
        for whole in encodings:
            left, right = whole.encode_ordinary(text[:place]), whole.encode_ordinary(text[place:])
            assert left + right == whole.encode_ordinary(text), (whole._pat_str, text, place)


def test_every_text_of_four_characters(encodings):
    betraying = [coder for coder in encodings if coder.n_vocab > 60_000]
    for letters in itertools.product("asA1 \n\r/'.字\u0301\u00a0，", repeat=4):
        check_places("".join(letters), betraying)


@given(text=st.text(st.sampled_from(ALPHABET), max_size=24))
@settings(max_examples=300, deadline=None)
def test_hostile_text(encodings, text):
    check_places(text, encodings)


@given(
    text=st.text(max_size=24),
    cut=st.sampled_from(["a ", "\u0301 ", "a\nb", ".\n.", "\n\n", "字，", "a;"]),
    more=st.text(max_size=24),
)
@settings(max_examples=300, deadline=None)
def test_any_unicode_around_a_place(encodings, text, cut, more):
    check_places(text + cut + more, encodings)


def test_the_three_kinds_of_places():
    assert safe_places("ab  cd") == [2]
    assert safe_places("ab\ncd\n/e\n\nf\r\ng") == [3]
    assert safe_places("字，a.b'c(1;") == [1, 3, 7, 9]
    assert safe_places("a\u00a0b\tc\u2028d") == []


def test_every_space_of_rust_is_one_of_pythons(encodings):
    """Around each character up to the last of Unicode's spaces, U+3000."""
    for code in range(0x3001):
        check_places(f"{chr(code)}  b{chr(code)}\nc", encodings[::9])


def test_every_letter_of_the_third_rule_is_a_letter_to_tiktoken():
    """If one were punctuation, it would be one match with the mark after it."""
    r50k = encoding(gpt2.PATTERN)
    letters = [chr(code) for code in range(0x80, 0xFFFF) if not 0xD800 <= code < 0xE000 and safe_places(chr(code) + ".")]
    assert len(letters) > 32_000
    for letter in letters:
        assert r50k.encode_ordinary("a" + letter + ".") == [*r50k.encode_ordinary("a" + letter), ord(".")], letter


def test_todays_patterns_are_known(monkeypatch):
    """A tiktoken that respells its patterns would fall back to uncut text, slower and in more memory: notice it here."""
    monkeypatch.setattr(openai_public, "load_tiktoken_bpe", lambda *args, **keywords: {})
    monkeypatch.setattr(openai_public, "data_gym_to_mergeable_bpe_ranks", lambda *args, **keywords: {})
    for name, build in openai_public.ENCODING_CONSTRUCTORS.items():
        assert build()["pat_str"] in cuts.PATTERNS, name


def pieces_of(text, borders):
    borders = sorted({min(border, len(text)) for border in borders})
    return [text[start:stop] for start, stop in itertools.pairwise([0, *borders, len(text)])]


def chunks(pieces, **options):
    found = list(cuts.chunks(pieces, **options))
    text = "".join(chunk for _, chunk in found)
    assert [start for start, _ in found] == [len(text[: text.index(chunk, start)]) for start, chunk in found]
    return [chunk for _, chunk in found]


@given(
    text=st.text(st.sampled_from("ab .\n<|x|>"), max_size=80),
    borders=st.lists(st.integers(0, 80), max_size=8),
    limit=st.integers(1, 12),
    markers=st.lists(st.sampled_from(["<|x|>", "x|>", " a", "|>."]), unique=True),
)
@settings(max_examples=500, deadline=None)
def test_chunks_depend_on_the_text_alone(text, borders, limit, markers):
    found = chunks([text], last_cut=cuts.safe, limit=limit, markers=markers)
    assert found == chunks(pieces_of(text, borders), last_cut=cuts.safe, limit=limit, markers=markers)
    assert "".join(found) == text
    assert all(found)
    assert all(len(chunk) <= max(limit, 5) for chunk in found)
    joints = list(itertools.accumulate(map(len, found)))
    for marker in markers:
        for place in range(len(text)):
            if text.startswith(marker, place):
                assert not any(place < joint < place + len(marker) for joint in joints)


def test_a_chunk_ends_at_its_last_safe_place_or_at_the_limit():
    assert chunks(["aa bb cc dd"], last_cut=cuts.safe, limit=7) == ["aa bb", " cc dd"]
    assert chunks(["a" * 20 + " b"], last_cut=cuts.safe, limit=8) == ["aaaaaaaa", "aaaaaaaa", "aaaa b"]
    assert chunks(["a" * 1000 + " " + "b" * 999], last_cut=cuts.safe, limit=1500) == ["a" * 1000, " " + "b" * 999]
    assert chunks([], last_cut=cuts.safe, limit=8) == chunks(["", ""], last_cut=cuts.safe, limit=8) == []


word = st.text(st.sampled_from(ALPHABET), max_size=12)


@pytest.mark.parametrize("pattern", PATTERNS)
def test_encode_pieces_gives_the_ids_of_the_whole(pattern):
    whole = encoding(pattern, gpt2.ranks(), {"<|endoftext|>": 50256, "<|x|>": 50257, " <|": 50258})
    coder = from_encoding(whole)
    assert coder.byte_lossless
    coder._limit = 40  # so that texts of a few hundred characters are cut

    @given(
        words=st.lists(st.one_of(word, st.sampled_from(["<|endoftext|>", "<|x|>", " <|", "<|endof"])), max_size=30),
        borders=st.lists(st.integers(0, 500), max_size=20),
        allowed=st.sets(st.sampled_from(["<|endoftext|>", "<|x|>", " <|", "unknown"])),
    )
    @settings(max_examples=100, deadline=None)
    def check(words, borders, allowed):
        text = "a b".join(words)  # a safe place every 14 characters
        expected = whole.encode(text, allowed_special=allowed, disallowed_special=())
        assert coder.encode(text, allowed_special=allowed).tolist() == expected
        pieces = coder.encode_pieces(pieces_of(text, borders), allowed_special=allowed)
        assert [id for ids in pieces for id in ids.tolist()] == expected

    check()


def test_real_code_is_cut_and_keeps_its_ids():
    text = inspect.getsource(argparse) + inspect.getsource(sys.modules[__name__])
    gpt = tokenizer("gpt2")
    gpt._limit = 500
    assert gpt.encode(text).tolist() == gpt2.encoding().encode_ordinary(text)
