"""Names, identities, and the hashes that manifests rely on."""

import pickle
import subprocess
import sys
from pathlib import Path

import pytest

from ladle.errors import ConfigError, TokenError
from ladle.tokens import from_identity, tokenizer


def test_golden_hashes():
    """Stored in every manifest: a change here makes old corpora strangers. Written once, by hand."""
    assert tokenizer("bytes").hash == "17d0f1e4639d50842f9f8cf8597944d0"
    assert tokenizer("gpt2").hash == "dd15942f12af303c9071395cf2c39c39"
    assert tokenizer("r50k_base").hash == "82e6d51cc3568c13dc8aaab62715ca91"
    assert tokenizer("p50k_base").hash == "52e1616cc261aac91574cb5621285a23"
    assert tokenizer("chars", text="To be, or not to be: 字").hash == "676b4dcb53875618cbe4a7b292cee2c1"
    assert tokenizer("chars", text="To be, or not to be: 字", end_of_text=True).hash == "8a960c5be1fb915a9b26ea5cb53a6df0"


def test_golden_identities():
    assert tokenizer("bytes").identity() == {"kind": "bytes"}
    assert tokenizer("chars", text="ab字").identity() == {"kind": "chars", "characters": "ab字", "end_of_text": None}
    assert tokenizer("gpt2").identity() == {
        "kind": "tiktoken",
        "name": "gpt2",
        "vocab_size": 50257,
        "special": {"<|endoftext|>": 50256},
        "ranks": "306cd27f03c1a714eca7108e03d66b7dc042abe8c258b44c199a7ed9838dd930",
    }


def test_hashes_differ_where_ids_differ():
    coders = [
        tokenizer("bytes"),
        tokenizer("gpt2"),
        tokenizer("p50k_base"),
        *(tokenizer("chars", text=text, end_of_text=end) for text in ("ab", "abc") for end in (True, False)),
    ]
    assert len({coder.hash for coder in coders}) == len(set(coders)) == len(coders)


@pytest.mark.parametrize("name", ["bytes", "gpt2", "p50k_edit"])
def test_a_tokenizer_comes_back_from_its_identity(name):
    coder = tokenizer(name)
    again = from_identity(coder.identity())
    assert again == coder
    assert again.encode("Hello").tolist() == coder.encode("Hello").tolist()
    assert tokenizer(coder) is coder
    assert pickle.loads(pickle.dumps(coder)) == coder


def test_the_hash_does_not_depend_on_the_process():
    code = "from ladle.tokens import tokenizer; print(tokenizer('chars', text='To be, or not to be: 字').hash)"
    hashes = {
        subprocess.run(
            [sys.executable, "-c", code], env={"PYTHONHASHSEED": seed}, capture_output=True, text=True, check=True, timeout=60
        ).stdout
        for seed in ("1", "2")
    }
    assert hashes == {tokenizer("chars", text="To be, or not to be: 字").hash + "\n"}


def test_what_is_no_tokenizer_is_refused():
    with pytest.raises(
        ConfigError, match=r"tokenizer: expected 'bytes', 'chars', one of .*gpt2.*, or the path of a tokenizer.json, found 'gpt5'"
    ):
        tokenizer("gpt5")
    with pytest.raises(ConfigError, match=r"expected a name, a path, a tiktoken.Encoding or a Tokenizer, found a dict"):
        tokenizer({"kind": "bytes"})
    with pytest.raises(ConfigError, match="tokenizer 'chars': expected text="):
        tokenizer("chars")


@pytest.mark.parametrize("missing", ["nowhere/tokenizer.json", Path("nowhere"), "tokenizer.json"])
def test_a_path_that_leads_nowhere(missing):
    with pytest.raises(TokenError, match=r"expected a tokenizer.json, found \[Errno 2\] No such file"):
        tokenizer(missing)


@pytest.mark.parametrize(
    ("identity", "message"),
    [
        ({"kind": "morse"}, "kind: expected bytes, chars, tiktoken or huggingface, found 'morse'; a newer Ladle may know it"),
        (None, "kind: expected bytes, chars, tiktoken or huggingface, found None"),
        ({"kind": "chars"}, "kind 'chars': expected a field it always has, found KeyError"),
        ({"kind": "chars", "characters": 3}, "kind 'chars': expected a field it always has, found"),
        ({"kind": "tiktoken", "name": "gpt2"}, "kind 'tiktoken': expected a field it always has, found KeyError"),
        ({"kind": "tiktoken", "name": "no such"}, "no such: expected tiktoken to load its ranks, found ValueError"),
        ({"kind": "huggingface", "json": "{}"}, "tokenizer.json: expected a file the package tokenizers can read, found"),
    ],
)
def test_a_broken_identity_is_one_clear_error(identity, message):
    with pytest.raises(TokenError, match=message):
        from_identity(identity)
