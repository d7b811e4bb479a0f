"""The shipped merges are OpenAI's: every file that tiktoken would download is rebuilt, and has the published hash."""

import base64
import hashlib
import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from tiktoken_ext import openai_public

from ladle.tokens import gpt2, tokenizer

# Copied by hand from tiktoken_ext/openai_public.py of tiktoken 0.14.0.
VOCAB_BPE = "1ce1664773c50f3e0cc8842619a93edc4624525b728b188a9e0be33b7726adc5"
ENCODER_JSON = "196139668be63f3b5d6574427317ae82f612a97c5d1cdaf36ed2256dbf636783"
R50K_BASE = "306cd27f03c1a714eca7108e03d66b7dc042abe8c258b44c199a7ed9838dd930"
P50K_BASE = "94b5ca7dff4d00767bc256fdd1b27e5b17361d7b8a5f968547f9f23eb70d2069"


def sha256(contents: bytes) -> str:
    return hashlib.sha256(contents).hexdigest()


LETTERS = {byte: chr(byte) for byte in range(256) if chr(byte).isprintable() and byte != 32}
LETTERS |= {byte: chr(256 + place) for place, byte in enumerate(byte for byte in range(256) if byte not in LETTERS)}


def written(token: bytes) -> str:
    """How OpenAI's own files write a token: each byte as one printable character."""
    return "".join(LETTERS[byte] for byte in token)


def tiktoken_file(ranks: dict[bytes, int]) -> bytes:
    return b"".join(base64.b64encode(token) + b" %d\n" % rank for token, rank in sorted(ranks.items(), key=lambda row: row[1]))


def test_the_hashes_are_the_installed_tiktokens_own():
    source = Path(openai_public.__file__).read_text(encoding="utf-8")
    assert all(published in source for published in (VOCAB_BPE, ENCODER_JSON, R50K_BASE, P50K_BASE))


def test_vocab_bpe_is_rebuilt_to_the_byte():
    tokens = list(gpt2.ranks())
    lines = [f"{written(tokens[left])} {written(tokens[right])}" for left, right in gpt2.merges().tolist()]
    assert sha256(("#version: 0.2\n" + "\n".join(lines) + "\n").encode()) == VOCAB_BPE


def test_encoder_json_is_rebuilt_to_the_byte():
    ids = {written(token): rank for token, rank in gpt2.ranks().items()} | {"<|endoftext|>": 50256}
    assert sha256(json.dumps(ids).encode()) == ENCODER_JSON


@pytest.mark.parametrize(("name", "published"), [("gpt2", R50K_BASE), ("r50k_base", R50K_BASE), ("p50k_base", P50K_BASE)])
def test_the_ranks_have_tiktokens_published_hash(name, published):
    assert sha256(tiktoken_file(gpt2.ranks(name))) == published == tokenizer(name).identity()["ranks"]


def test_known_ids():
    gpt = tokenizer("gpt2")
    assert gpt.encode("Hello, do you").tolist() == [15496, 11, 466, 345]
    assert gpt.encode("Hello world").tolist() == [15496, 995]
    assert gpt.decode([15496, 995]) == "Hello world"
    assert len(gpt.encode("The quick brown fox jumps over the lazy dog " * 100)) == 901
    assert (gpt.vocab_size, gpt.end_of_text, gpt.byte_lossless) == (50257, 50256, True)
    assert gpt.encode("Hello world").dtype == np.uint32


def test_p50k_joins_runs_of_spaces():
    p50k = tokenizer("p50k_base")
    assert p50k.encode(" " * 8).tolist() == [50263]  # runs of 2 to 25 are ids 50257 to 50280
    assert p50k.encode(" " * 24).tolist() == [50279]
    assert p50k.vocab_size == 50281
    edit = tokenizer("p50k_edit")
    assert edit.vocab_size == 50284
    assert edit.encode("<|fim_suffix|>", allowed_special=edit.special).tolist() == [50283]


@pytest.mark.parametrize("name", sorted(gpt2.SHIPPED))
def test_what_is_said_before_loading_is_true_after_it(name):
    lazy, loaded = tokenizer(name), gpt2.encoding(name)
    assert lazy.vocab_size == loaded.n_vocab
    assert lazy.special == loaded._special_tokens


def test_naming_gpt2_loads_neither_tiktoken_nor_the_merges():
    code = """
import sys
from pathlib import Path
from ladle.tokens import tokenizer, from_identity
gpt2 = tokenizer("gpt2")
assert from_identity(gpt2.identity()).hash == gpt2.hash
assert "tiktoken" not in sys.modules
assert gpt2.encode("Hello world").tolist() == [15496, 995]
"""
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)
