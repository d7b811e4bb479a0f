"""tiktoken's encodings: markers, hostile texts, names, encodings of the caller's own."""

import multiprocessing
import time
import tracemalloc

import numpy as np
import pytest
import tiktoken
from hypothesis import given, settings
from hypothesis import strategies as st

from ladle.errors import TokenError
from ladle.tokens import bpe, cuts, from_identity, gpt2, tokenizer

END = "<|endoftext|>"
BYTES = {bytes([byte]): byte for byte in range(256)}


@pytest.fixture(scope="module")
def gpt():
    return tokenizer("gpt2")


def kin(pattern):
    """GPT-2's merges under another family's pattern: the real ranks need a download, the pattern is what cuts depend on."""
    return bpe.from_encoding(tiktoken.Encoding("kin", pat_str=pattern, mergeable_ranks=gpt2.ranks(), special_tokens={END: 50256}))


@given(text=st.text())
@settings(deadline=None)
def test_ids_are_tiktokens_and_decode_to_the_text(text):
    gpt = tokenizer("gpt2")
    ids = gpt.encode(text)
    assert ids.dtype == np.uint32
    assert ids.tolist() == gpt2.encoding().encode_ordinary(text)
    assert gpt.decode(ids) == text
    assert b"".join(gpt.token_bytes(ids)) == text.encode()


def test_the_arrays_belong_to_the_caller(gpt):
    ids = gpt.encode("Hello world")
    ids[:] = 0
    for part in gpt.encode_pieces(["Hello ", "world"]):
        part[:] = 0
    assert gpt.encode("Hello world").tolist() == [15496, 995]


def test_no_text_is_no_ids(gpt):
    assert gpt.encode("").shape == (0,)
    assert gpt.encode("").dtype == np.uint32
    assert list(gpt.encode_pieces(["", ""])) == []
    assert gpt.decode([]) == ""
    assert gpt.token_bytes(np.empty(0)) == []


def test_a_written_marker_is_text_unless_it_is_allowed(gpt):
    text = f"see {END} here"
    ordinary = gpt.encode(text)
    assert 50256 not in ordinary
    assert gpt.decode(ordinary) == text
    allowed = gpt.encode(text, allowed_special={END})
    assert allowed.tolist() == [3826, 220, 50256, 994]
    assert gpt.decode(allowed) == text
    assert gpt.encode(END * 3, allowed_special=[END]).tolist() == [50256] * 3


def test_a_marker_that_is_not_known_stays_text(gpt):
    assert gpt.encode("a<pad>", allowed_special={"<pad>"}).tolist() == gpt.encode("a<pad>").tolist()


def test_markers_across_pieces(gpt):
    text = f"one{END}two {END}"
    pieces = list(gpt.encode_pieces(text, allowed_special={END}))  # a str is an iterable of one-character pieces
    assert np.concatenate(pieces).tolist() == gpt.encode(text, allowed_special={END}).tolist()
    assert np.concatenate(pieces).tolist().count(50256) == 2


def test_many_markers_cost_time_in_proportion(gpt):
    story = "Once upon a time there was a ladle." + END
    assert (
        gpt.encode(story * 20_000, allowed_special={END}).tolist() == gpt.encode(story, allowed_special={END}).tolist() * 20_000
    )


@pytest.mark.parametrize(
    ("pattern", "unit"),
    [(gpt2.PATTERN, unit) for unit in ["a", "^", " ", "\n", "1", "\u00a0", "😀", "字", "\0"]]
    + [(pattern, unit) for pattern in (cuts._CL100K[-1], cuts._O200K) for unit in ("A", " ", " \n")],
)
def test_a_million_equal_characters(pattern, unit):
    """tiktoken fails on a million spaces before a word (its pattern's stack), and older versions panic."""
    coder = kin(pattern)
    text = unit * (1_000_000 // len(unit)) + "x"
    start = time.perf_counter()
    ids = coder.encode(f"before {text}")
    assert time.perf_counter() - start < 20
    assert coder.decode(ids) == f"before {text}"


def test_a_hostile_document_does_not_harm_the_others(gpt):
    texts = ["one", " " * 1_000_000 + "x", "^" * 1_000_000, "two"]
    assert [gpt.decode(gpt.encode(text)) for text in texts] == texts


def test_where_a_text_without_a_safe_place_is_cut(gpt):
    """A run longer than 131 072 characters is cut there, so its ids may differ from the whole's; they decode alike."""
    run = "ab" * 131_072
    assert gpt.encode(run).tolist() == gpt.encode(run[:131_072]).tolist() * 2
    assert gpt.encode(run[:131_072]).tolist() == gpt2.encoding().encode_ordinary(run[:131_072])
    assert gpt.decode(gpt.encode(run)) == run


@pytest.mark.slow
@pytest.mark.parametrize("words", ["the quick brown fox, ", "敏捷的棕色狐狸。", "x=f(1);", "0,17,"])
def test_a_line_of_20_megabytes(gpt, words):
    line = words * (20_000_000 // len(words.encode()))
    ids = gpt.encode(line)
    assert np.array_equal(ids, gpt2.encoding().encode_to_numpy(line))


def test_memory_is_bounded_by_the_piece(gpt):
    piece = "the quick brown fox jumps over the lazy dog " * 1000
    gpt.encode(piece)
    tracemalloc.start()
    total = sum(len(ids) for ids in gpt.encode_pieces(piece for _ in range(100)))
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert total == 100 * 9000 + 1
    assert peak < 3_000_000, f"{peak} bytes for a text of 4 400 000"


def test_a_lone_surrogate_is_named_or_replaced(gpt):
    with pytest.raises(
        TokenError, match=r"gpt2: character 1 of the text: expected a Unicode character, found the lone surrogate U\+D83D"
    ):
        gpt.encode("a\ud83d b")
    with pytest.raises(TokenError, match="character 300007 of the text"):
        list(gpt.encode_pieces(["word " * 60_000, "ab", "cd", f"{END[:3]}", "\udc00"], allowed_special={END}))
    assert gpt.decode(gpt.encode("a\ud83d b", errors="replace")) == "a\ufffd b"


@given(text=st.text(st.sampled_from("a\ud83d\ude00\udbff\udc00 "), max_size=12), cut=st.integers(0, 12))
@settings(deadline=None)
def test_surrogates_are_mended_alike_in_pieces(text, cut):
    gpt = tokenizer("gpt2")
    whole = gpt.encode(text, errors="replace").tolist()
    pieces = gpt.encode_pieces([text[:cut], text[cut:]], errors="replace")
    assert [id for ids in pieces for id in ids.tolist()] == whole
    assert gpt.decode(whole) == text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")


def test_half_a_character_is_shown_as_such(gpt):
    ids = gpt.encode("字")
    assert len(ids) > 1
    assert gpt.decode(ids[:1]) == "\ufffd"
    assert b"".join(gpt.token_bytes(ids)) == "字".encode()


@pytest.mark.parametrize("ids", [[1, 50257, -1], np.array([1, 50257], np.uint16), np.array([1, 50257], np.int64)])
def test_an_id_out_of_range_is_named(gpt, ids):
    for decode in (gpt.decode, gpt.token_bytes):
        with pytest.raises(
            TokenError, match=r"^gpt2: id 50257 at place 1: expected an id of its vocabulary of 50257 \(0 to 50256\)"
        ):
            decode(ids)


def test_ids_must_be_one_row_of_integers(gpt):
    with pytest.raises(TokenError, match="id -100 at place 2"):
        gpt.decode([1, 2, -100])
    with pytest.raises(TokenError, match=r"expected one row of ids, found an array of shape \(2, 2\)"):
        gpt.decode([[1, 2], [3, 4]])
    with pytest.raises(TokenError, match="expected integer ids, found float64"):
        gpt.decode([1.0, 2.0])


def test_an_encoding_of_ones_own_is_stored_whole():
    own = tiktoken.Encoding("own", pat_str=r"\w+|\W", mergeable_ranks=BYTES | {b"ab": 256}, special_tokens={"<s>": 300, END: 301})
    coder = tokenizer(own)
    assert (coder.name, coder.vocab_size, coder.end_of_text, coder.byte_lossless) == ("own", 302, 301, False)
    again = from_identity(coder.identity())
    assert again == coder
    assert again.encode("ab<s> ab", allowed_special={"<s>"}).tolist() == [256, 300, 32, 256]
    with pytest.raises(TokenError, match="id 299 at place 1"):  # within the vocabulary's size, but no token
        again.decode([97, 299])


def test_an_encoding_that_is_gpt2_is_gpt2(gpt):
    assert tokenizer(gpt2.encoding()) == gpt
    respelled = tiktoken.Encoding("gpt2", pat_str=cuts._GPT2[0], mergeable_ranks=gpt2.ranks(), special_tokens={END: 50256})
    assert tokenizer(respelled).hash == gpt.hash
    other = tiktoken.Encoding("gpt2", pat_str=gpt2.PATTERN, mergeable_ranks=BYTES, special_tokens={END: 256})
    assert tokenizer(other).hash != gpt.hash
    assert tokenizer(other).encode("ab").tolist() == [97, 98]


def test_an_unknown_pattern_is_cut_late_and_its_failure_named():
    """Nobody has proven where this pattern may be cut, so a text of a million characters is left whole."""
    own = tiktoken.Encoding("own", pat_str=r"\s+(?!\S)|\s+|\S+\s\S+|\S+", mergeable_ranks=BYTES, special_tokens={})
    coder = tokenizer(own)
    text = "ab cd " * 50_000
    assert coder.encode(text).tolist() == own.encode_ordinary(text)
    with pytest.raises(
        TokenError, match=r"own: characters 0 to 1000001 of the text: expected a text its pattern can split, found"
    ):
        coder.encode(" " * 1_000_000 + "x")


def test_a_panic_in_tiktoken_is_an_error_like_any_other(monkeypatch, gpt):
    """Older versions panic, and pyo3 raises what no `except Exception` catches."""
    panic = type("PanicException", (BaseException,), {"__module__": "pyo3_runtime"})
    broken = tokenizer("gpt2")

    class Panics:
        def encode_to_numpy(self, *args, **keywords):
            raise panic("called `Result::unwrap()` on an `Err` value")

    broken._load = Panics
    with pytest.raises(TokenError, match=r"gpt2: characters 0 to 3 of the text: .* found called `Result::unwrap\(\)`"):
        broken.encode("abc")


def test_what_cannot_be_downloaded_is_one_clear_error(monkeypatch, tmp_path):
    monkeypatch.setenv("TIKTOKEN_CACHE_DIR", str(tmp_path))
    monkeypatch.setenv("HTTPS_PROXY", "http://127.0.0.1:9")  # nobody listens there
    monkeypatch.setattr("tiktoken.registry.ENCODINGS", {})
    start = time.perf_counter()
    with pytest.raises(
        TokenError, match=r"o200k_base: expected tiktoken to load its ranks, found .*; Ladle ships gpt2, p50k_base"
    ):
        tokenizer("o200k_base")
    assert time.perf_counter() - start < 10


def test_a_name_that_stands_for_other_ranks_is_refused(gpt):
    with pytest.raises(TokenError, match="tokenizer 'gpt2': ranks: expected 00ff, found 306cd27f"):
        from_identity(gpt.identity() | {"ranks": "00ff"})


def encode_in_child(answers):
    answers.put(tokenizer("gpt2").encode("Hello world").tolist())


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_a_process_started_after_use_encodes_too(gpt, method):
    gpt.encode("Hello")
    context = multiprocessing.get_context(method)
    answers = context.Queue()
    child = context.Process(target=encode_in_child, args=(answers,))
    child.start()
    assert answers.get(timeout=60) == [15496, 995]
    child.join(60)
    answers.close()
    assert child.exitcode == 0
