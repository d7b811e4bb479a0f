"""Splits and corpora cross process borders: on disk as their place, in memory as their ids."""

import os
import pickle
import shutil

import numpy as np
import pytest

import ladle
from ladle.corpus.shard import ArrayShard
from ladle.corpus.split import Split
from ladle.errors import ConfigError, FormatError


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "a.txt").write_text("one two three four five six seven eight nine ten\n" * 40)
    ladle.prepare(tmp_path / "a.txt", tmp_path / "corpus", tokenizer="bytes").close()
    return tmp_path / "corpus"


def test_a_split_on_disk_pickles_as_its_place(folder):
    with ladle.open(folder) as corpus:
        split = corpus["train"]
        content = pickle.dumps(split)
        assert len(content) < 600
        with pickle.loads(content) as again:
            np.testing.assert_array_equal(again.read(0, 50), split.read(0, 50))
            assert (again.fingerprint, again.num_documents, again.tokenizer.hash) == (
                split.fingerprint,
                split.num_documents,
                split.tokenizer.hash,
            )


def test_it_arrives_wherever_the_process_stands(folder, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with ladle.open("corpus") as corpus:
        content, tokens = pickle.dumps((corpus, corpus["train"])), corpus["train"].num_tokens
    (tmp_path / "elsewhere").mkdir()
    os.chdir(tmp_path / "elsewhere")
    again, split = pickle.loads(content)
    assert again["train"].num_tokens == split.num_tokens == tokens
    again.close()
    split.close()


def test_another_corpus_under_the_same_name_is_refused(folder, tmp_path):
    with ladle.open(folder) as corpus:
        contents = [pickle.dumps(corpus), pickle.dumps(corpus["train"])]
        expected = corpus.fingerprint
    shutil.rmtree(folder)
    (tmp_path / "a.txt").write_text("something else\n" * 99)
    ladle.prepare(tmp_path / "a.txt", folder, tokenizer="bytes").close()
    with pytest.raises(FormatError, match=f"fingerprint: expected {expected}, found .*; the corpus was made anew"):
        pickle.loads(contents[0])
    with pytest.raises(
        FormatError, match=r"fingerprint: expected .*, found .*; the corpus was made anew while this was on its way"
    ):
        pickle.loads(contents[1])


def test_a_nanogpt_folder_is_one_too(tmp_path):
    for name in ("train", "val"):
        np.arange(500, dtype="<u2").tofile(tmp_path / f"{name}.bin")
    with ladle.open(tmp_path) as corpus:
        again, split = pickle.loads(pickle.dumps((corpus, corpus["val"])))
        assert again["train"].read(7, 2).tolist() == split.read(7, 2).tolist() == [7, 8]
        again.close()
        split.close()


def test_a_split_in_memory_pickles_as_its_ids():
    split = ladle.from_ids(np.arange(100, dtype=np.uint16), vocab_size=1000, document_ends=[40, 100])
    again = pickle.loads(pickle.dumps(split))
    assert again.read(0, 100).tolist() == list(range(100))
    assert (again.fingerprint, again.vocab_size, again.max_id) == (split.fingerprint, 1000, 99)
    assert again.document_ends().tolist() == [40, 100]
    text = pickle.loads(pickle.dumps(ladle.from_text(["ab", "cd"], tokenizer="chars")))
    assert text.tokenizer.decode(text.read(0, 4)) == "abcd"


def test_a_split_made_by_hand_says_why_it_stays():
    split = Split(name="x", where="memory", shards=[ArrayShard(np.zeros(3, np.uint16))], dtype=np.dtype("<u2"), fingerprint=str)
    with pytest.raises(
        ConfigError, match=r"memory: expected a split of ladle\.open or ladle\.from_ids to pickle, found one made by"
    ):
        pickle.dumps(split)
