"""The made corpus is a corpus: of the size asked for, with documents, checksums and one file."""

import numpy as np
import pytest

import ladle
from ladle.bench.corpus import VOCAB, make


@pytest.mark.parametrize("num_tokens", [1, 999, 50_000])
def test_a_made_corpus_opens_and_has_the_tokens_asked_for(tmp_path, num_tokens):
    path = make(tmp_path / "made", num_tokens)
    with ladle.open(path.parent) as corpus:
        split = corpus["train"]
        assert split.num_tokens == num_tokens
        ids = split.read(0, num_tokens)
        ends = split.document_ends()
    assert np.array_equal(ids, np.fromfile(path, "<u2"))
    assert int(ids.max()) < VOCAB
    assert int(ends[-1]) == num_tokens
    assert len(ends) >= num_tokens // 2000


def test_its_damage_is_seen(tmp_path):
    path = make(tmp_path / "made", 5000)
    raw = bytearray(path.read_bytes())
    raw[4096] ^= 1
    path.write_bytes(raw)
    with ladle.open(path.parent) as corpus, pytest.raises(ladle.errors.FormatError, match="CRC-32 of block 1"):
        corpus["train"].read(0, 5000)
