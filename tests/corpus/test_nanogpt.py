"""nanoGPT's folders: bare uint16 ids and a pickle that must not run."""

import io
import os
import pickle
import struct

import numpy as np
import pytest

import ladle
from ladle.errors import ConfigError, FormatError

CHARS = ["\n", " ", "a", "b", "é"]


def meta(chars=CHARS):
    return {"vocab_size": len(chars), "itos": dict(enumerate(chars)), "stoi": {c: i for i, c in enumerate(chars)}}


@pytest.fixture
def folder(tmp_path):
    np.array([2, 3, 1, 2], "<u2").tofile(tmp_path / "train.bin")
    np.array([4, 0], "<u2").tofile(tmp_path / "val.bin")
    return tmp_path


def test_it_opens_and_reads(folder):
    with ladle.open(folder) as corpus:
        assert corpus["train"].read(0, 4).tolist() == [2, 3, 1, 2]
        assert corpus["val"].read(0, 2).tolist() == [4, 0]
        assert corpus["train"].dtype == np.dtype("<u2")
        assert corpus.tokenizer is None
        assert corpus["train"].vocab_size is None
        assert corpus["train"].num_documents is None
        with pytest.raises(ConfigError, match="the documents' ends are not known here"):
            corpus["train"].document_ends()
        with pytest.raises(ConfigError, match="the documents' ends are not known here"):
            corpus["train"].locate([0])


@pytest.mark.parametrize("protocol", range(6))
def test_its_characters_decode_at_once(folder, protocol):
    (folder / "meta.pkl").write_bytes(pickle.dumps(meta(), protocol=protocol))
    with ladle.open(folder) as corpus:
        assert corpus["train"].vocab_size == 5
        assert corpus.tokenizer.decode(corpus["train"].read(0, 4)) == "ab a"
        assert corpus.tokenizer.encode("é\n").tolist() == [4, 0]


class Evil:
    def __init__(self, mark):
        self.mark = mark

    def __reduce__(self):
        return (os.mkdir, (self.mark,))


@pytest.mark.parametrize("protocol", range(6))
def test_a_pickle_that_would_run_something_is_refused_unread(folder, protocol):
    mark = str(folder / "owned")
    for evil in (Evil(mark), {**meta(), "x": Evil(mark)}, {**meta(), "x": np.float64(1)}):
        (folder / "meta.pkl").write_bytes(pickle.dumps(evil, protocol=protocol))
        with pytest.raises(
            FormatError, match=r"pickle: expected plain dicts of str and int, found the opcode .*; refused unread"
        ):
            ladle.open(folder)
        assert not os.path.exists(mark)


def test_a_memo_meant_to_exhaust_memory_is_refused_unread(folder):
    (folder / "meta.pkl").write_bytes(b"\x80\x02}r\xff\xff\xff\x7f.")  # LONG_BINPUT 2147483647: 16 GB
    with pytest.raises(FormatError, match=r"@ byte 3: pickle: expected a memo index up to 9, found 2147483647"):
        ladle.open(folder)


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"cos\nsystem\n(S'true'\ntR.",
        b"\x80\x04\x95",
        b"not a pickle",
        b"\x80\x04}" + b"\x94" * 3,
        b"\x80\x04\x8d" + struct.pack("<Q", 1 << 40) + b"x.",  # BINUNICODE8 of a terabyte
        b"\x80\x02X\xff\xff\xff\x7fx.",  # a string of 2 GB that is not there
        b"\x80\x02J\x01\x00\x00\x00.",
        b"\x80\x02\x8a\xff" + b"\x01" * 10,
        b"\x80\x02" + b"(" * 10**5 + b".",
        b"0" * 100,
    ],
)
def test_broken_and_hostile_pickles(folder, content):
    (folder / "meta.pkl").write_bytes(content)
    with pytest.raises(FormatError) as caught:
        ladle.open(folder)
    assert str(folder / "meta.pkl") in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("found", "message"),
    [
        ([], "pickle: expected plain dicts of str and int"),
        ({}, "meta: expected a dict with itos, stoi and vocab_size, found dict"),
        ({**meta(), "itos": {}}, "itos: expected a different character for each id from 0"),
        ({**meta(), "itos": {1: "a"}}, "itos: expected a different character"),
        ({**meta(), "itos": {0: "a", 1: "a"}}, "itos: expected a different character"),
        ({**meta(), "itos": {0: "ab"}}, "itos: expected a different character"),
        ({**meta(), "itos": {0: 5}}, "itos: expected a different character"),
        ({**meta(), "vocab_size": 6}, "vocab_size: expected 5, found 6"),
        ({**meta(), "stoi": {"a": 0}}, "stoi: expected the inverse of itos, found something else"),
    ],
)
def test_a_meta_that_says_something_else(folder, found, message):
    (folder / "meta.pkl").write_bytes(pickle.dumps(found))
    with pytest.raises(FormatError) as caught:
        ladle.open(folder)
    assert message in str(caught.value)


def test_a_meta_that_would_be_shown_for_ever(folder):
    """Sixty dicts, each twice in the next: a few hundred bytes, whose repr has 2**60 parts."""
    bomb = {}
    for _ in range(60):
        bomb = {0: bomb, 1: bomb}
    for field, message in (
        ("vocab_size", "vocab_size: expected 5, found a dict"),
        ("stoi", "stoi: expected the inverse of itos"),
    ):
        (folder / "meta.pkl").write_bytes(pickle.dumps({**meta(), field: bomb}))
        with pytest.raises(FormatError) as caught:
            ladle.open(folder)
        assert message in str(caught.value)


def test_a_huge_meta_is_not_read(folder):
    with open(folder / "meta.pkl", "wb") as file:
        file.truncate(1 << 40)
    with pytest.raises(FormatError, match="size: expected at most 4194304 bytes"):
        ladle.open(folder)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "val.bin: size: expected at least one token, found 0 bytes; the script that prepared val did not finish"),
        (b"abc", "val.bin: size: expected an even number of bytes (uint16 ids), found 3 bytes; the file is cut off"),
        (None, "val.bin: file: expected a file, found none"),
    ],
)
def test_a_broken_val_is_an_error_only_when_it_is_asked_for(folder, content, message):
    (folder / "val.bin").unlink()
    if content is not None:
        (folder / "val.bin").write_bytes(content)
    with ladle.open(folder) as corpus:
        assert corpus["train"].num_tokens == 4
        with pytest.raises(FormatError) as caught:
            corpus["val"]
        assert message in str(caught.value)


@pytest.mark.parametrize(("content", "message"), [(b"", "at least one token, found 0 bytes"), (b"abc", "found 3 bytes")])
def test_a_broken_train_is_an_error_at_once(folder, content, message):
    (folder / "train.bin").write_bytes(content)
    with pytest.raises(FormatError, match=message):
        ladle.open(folder)


def test_the_sampled_fingerprint_says_so_and_sees_changes(tmp_path):
    ids = np.arange(10**6, dtype="<u4").astype("<u2")
    ids.tofile(tmp_path / "train.bin")
    first = ladle.open(tmp_path)
    assert first.fingerprint.startswith("sampled:")
    assert first["train"].fingerprint.startswith("sampled:")
    assert first.fingerprint == ladle.open(tmp_path).fingerprint
    for place in (0, len(ids) - 1):
        ids[place] ^= 1
        ids.tofile(tmp_path / "train.bin")
        assert ladle.open(tmp_path)["train"].fingerprint != first["train"].fingerprint
        ids[place] ^= 1


def test_a_shrinking_file_raises(folder):
    np.zeros(10**5, "<u2").tofile(folder / "train.bin")
    with ladle.open(folder) as corpus:
        corpus["train"].read(0, 5)
        os.truncate(folder / "train.bin", 1000)
        with pytest.raises(FormatError, match="the file shrank while it was open"):
            corpus["train"].read(90_000, 5)


def test_the_unpickler_itself_admits_no_global():
    from ladle.corpus.nanogpt import _Plain

    with pytest.raises(pickle.UnpicklingError, match=r"builtins\.dict is not admitted"):
        _Plain(io.BytesIO(pickle.dumps(dict))).load()
