"""A tokenizer.json, by the tokenizers package, made here by that package itself."""

import json
import os
import sys

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ladle.errors import MissingExtra, TokenError
from ladle.tokens import cuts, from_identity, gpt2, tokenizer

hf = pytest.importorskip("tokenizers")
END = "<|endoftext|>"


def letters():
    shown = {byte: chr(byte) for byte in range(256) if chr(byte).isprintable() and byte != 32}
    return shown | {byte: chr(256 + place) for place, byte in enumerate(byte for byte in range(256) if byte not in shown)}


def gpt2_tokenizer():
    """GPT-2's tokenizer.json, as the model's own repository has it."""
    shown = letters()
    tokens = ["".join(shown[byte] for byte in token) for token in gpt2.ranks()]
    merges = [(tokens[left], tokens[right]) for left, right in gpt2.merges().tolist()]
    made = hf.Tokenizer(hf.models.BPE({token: rank for rank, token in enumerate(tokens)}, merges))
    made.pre_tokenizer = hf.pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = hf.decoders.ByteLevel()
    made.add_special_tokens([END])
    return made


@pytest.fixture(scope="module")
def contents():
    return gpt2_tokenizer().to_str()


@pytest.fixture(scope="module")
def coder(contents, tmp_path_factory):
    path = tmp_path_factory.mktemp("hf") / "tokenizer.json"
    path.write_text(contents, encoding="utf-8")
    return tokenizer(path)


def test_what_it_is(coder):
    assert (coder.name, coder.vocab_size, coder.end_of_text, coder.special) == ("tokenizer.json", 50257, 50256, {END: 50256})
    assert coder.encode("Hello, do you").tolist() == [15496, 11, 466, 345]
    assert coder.encode("Hello, do you").dtype == np.uint32
    assert coder.encode("").shape == (0,)


@given(text=st.text(), cut=st.integers(0, 20))
@settings(deadline=None, max_examples=50)
def test_gpt2s_ids_are_gpt2s(coder, text, cut):
    expected = tokenizer("gpt2").encode(text).tolist()
    assert coder.encode(text).tolist() == expected
    parts = coder.encode_pieces([text[:cut], text[cut:]])
    assert [id for part in parts for id in part.tolist()] == expected
    assert b"".join(coder.token_bytes(expected)) == text.encode()


def test_a_written_marker_is_text_unless_it_is_allowed(coder):
    text = f"see {END} here"
    assert coder.encode(text).tolist() == tokenizer("gpt2").encode(text).tolist()
    assert coder.encode(text, allowed_special={END}).tolist() == [3826, 220, 50256, 994]
    assert coder.decode([3826, 220, 50256, 994]) == text
    assert coder.token_bytes([50256]) == [END.encode()]


def test_a_long_text_is_cut_where_ids_cannot_change(coder):
    assert coder._last_cut is cuts.safe
    text = "The quick brown fox\njumps over; the lazy dog " * 4_000
    assert coder.encode(text).tolist() == tokenizer("gpt2").encode(text).tolist()


@pytest.mark.parametrize("adds", ["<s> $A", "$A </s>", "<s> $A </s>", "$A"])
def test_nothing_is_added_whatever_the_file_says(adds):
    """A file whose template adds a BOS, an EOS, both or none."""
    made = hf.Tokenizer(hf.models.WordLevel({"<s>": 0, "</s>": 1, "a": 2, "b": 3, "?": 4}, unk_token="?"))
    made.pre_tokenizer = hf.pre_tokenizers.Whitespace()
    made.add_special_tokens(["<s>", "</s>"])
    made.post_processor = hf.processors.TemplateProcessing(single=adds, special_tokens=[("<s>", 0), ("</s>", 1)])
    coder = from_identity({"kind": "huggingface", "json": made.to_str()})
    assert made.encode("a b").ids != [2, 3] or adds == "$A"
    assert coder.encode("a b").tolist() == [2, 3]
    assert coder.end_of_text == 1


def test_nothing_is_truncated_or_padded():
    made = gpt2_tokenizer()
    made.enable_truncation(4)
    made.enable_padding(length=8)
    coder = from_identity({"kind": "huggingface", "json": made.to_str()})
    assert len(coder.encode("word " * 100)) == 101
    assert coder.encode("Hello world").tolist() == [15496, 995]


def test_the_identity_is_the_whole_file(coder, contents):
    assert coder.identity() == {"kind": "huggingface", "json": contents}
    again = from_identity(json.loads(json.dumps(coder.identity())))
    assert again == coder
    changed = json.loads(contents)
    changed["model"]["merges"].pop()
    assert from_identity({"kind": "huggingface", "json": json.dumps(changed)}).hash != coder.hash


def test_a_folder_that_holds_one(coder, contents, tmp_path):
    (tmp_path / "tokenizer.json").write_text(contents, encoding="utf-8")
    assert tokenizer(str(tmp_path) + "/").hash == coder.hash


def test_bytes_of_a_sentencepiece_like_vocabulary():
    made = hf.Tokenizer(
        hf.models.BPE(
            {"<unk>": 0, "</s>": 1, "<0xE5>": 2, "<0xAD>": 3, "<0x97>": 4, "▁a": 5}, [], byte_fallback=True, unk_token="<unk>"
        )
    )
    made.decoder = hf.decoders.Sequence([hf.decoders.Replace("▁", " "), hf.decoders.ByteFallback(), hf.decoders.Fuse()])
    made.add_special_tokens(["</s>"])
    coder = from_identity({"kind": "huggingface", "json": made.to_str()})
    assert coder.token_bytes([5, 2, 3, 4, 1]) == [b" a", b"\xe5", b"\xad", b"\x97", b"</s>"]
    assert coder.decode([5, 2, 3, 4]) == " a字"
    assert coder._last_cut is cuts.before_space  # nobody has proven where it may be cut


@pytest.mark.parametrize("pattern", sorted(cuts.PATTERNS))
def test_a_split_by_a_known_pattern_is_known(pattern):
    made = gpt2_tokenizer()
    split = hf.pre_tokenizers.Split(hf.Regex(pattern), "isolated")
    made.pre_tokenizer = hf.pre_tokenizers.Sequence([split, hf.pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)])
    coder = from_identity({"kind": "huggingface", "json": made.to_str()})
    assert coder._last_cut is cuts.safe
    text = "It's 12345 o'clock!\n\n  /* 字，字 */\r\nOK\n/x" * 30
    whole = coder.encode(text).tolist()
    coder._limit = 40
    assert coder.encode(text).tolist() == whole


def test_added_words_and_normalizers_make_it_unknown():
    made = gpt2_tokenizer()
    made.add_tokens([hf.AddedToken("two words")])
    assert from_identity({"kind": "huggingface", "json": made.to_str()})._last_cut is cuts.before_space
    made = gpt2_tokenizer()
    made.normalizer = hf.normalizers.NFC()
    assert from_identity({"kind": "huggingface", "json": made.to_str()})._last_cut is cuts.before_space


def test_errors(coder, tmp_path):
    with pytest.raises(TokenError, match=r"tokenizer.json: character 1 of the text: .* lone surrogate U\+D83D"):
        coder.encode("a\ud83d")
    with pytest.raises(TokenError, match=r"tokenizer.json: id 50257 at place 1: expected an id of its vocabulary of 50257"):
        coder.decode([1, 50257])
    path = tmp_path / "broken.json"
    path.write_text('{"model": 1}')
    with pytest.raises(TokenError, match=r"broken.json: tokenizer.json: expected a file the package tokenizers can read, found"):
        tokenizer(path)
    path.write_bytes(b"\xff\xfe")
    with pytest.raises(TokenError, match=r"broken.json: expected a tokenizer.json, found 'utf-8' codec"):
        tokenizer(path)


def test_a_text_that_the_package_cannot_encode_is_named():
    made = hf.Tokenizer(hf.models.WordLevel({"a": 0}, unk_token="?"))
    made.pre_tokenizer = hf.pre_tokenizers.Whitespace()
    coder = from_identity({"kind": "huggingface", "json": made.to_str()})
    assert coder.encode("a").tolist() == [0]
    with pytest.raises(TokenError, match=r"characters 0 to 3 of the text: expected a text it can encode, found WordLevel error"):
        coder.encode("a b")


def test_without_the_extra(monkeypatch, contents):
    monkeypatch.setitem(sys.modules, "tokenizers", None)
    with pytest.raises(
        MissingExtra, match=r"a tokenizer.json needs the package 'tokenizers', which is not installed; pip install 'ladle\[hf\]'"
    ):
        from_identity({"kind": "huggingface", "json": contents})


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_a_forked_process_encodes_too(coder):
    """The package warns of, and some versions hang in, a fork after its own threads were used: one text at a time uses none."""
    coder.encode("Hello world")
    child = os.fork()
    if child == 0:
        os._exit(0 if coder.encode("Hello world").tolist() == [15496, 995] else 1)
    assert os.waitpid(child, 0)[1] == 0


@pytest.mark.slow
def test_memory_levels_off(coder):
    """The package keeps a cache of words; distinct long documents must not fill the memory."""
    resource = pytest.importorskip("resource")
    draw = np.random.default_rng(7)

    def document():
        return " ".join("".join(map(chr, draw.integers(97, 123, 9).tolist())) for _ in range(10_000))

    def grow(documents):
        before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        for _ in range(documents):
            coder.encode(document())
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before

    grow(20)
    assert grow(30) < 20_000  # KiB
