"""Splits in memory."""

import numpy as np
import pytest

import ladle
from ladle.errors import ConfigError, TokenError


def test_a_view_is_not_copied_when_it_fits():
    for dtype in (np.uint16, np.uint32):
        ids = np.arange(100, dtype=dtype)
        ids.flags.writeable = False
        split = ladle.from_ids(ids[10:50])
        assert np.shares_memory(split.shards[0].tokens(), ids)
        assert split.dtype == dtype
        assert split.read(0, 3).tolist() == [10, 11, 12]
        assert not np.shares_memory(split.read(0, 3), ids)


def test_the_split_cannot_write_into_the_callers_array():
    ids = np.arange(10, dtype=np.uint16)
    with pytest.raises(ValueError, match="read-only"):
        ladle.from_ids(ids).shards[0].tokens()[0] = 1
    ids[0] = 7
    assert ids[0] == 7


@pytest.mark.parametrize(
    ("ids", "vocab_size", "dtype"),
    [
        (np.array([1, 2, 3], ">u2"), None, "<u2"),
        (np.array([1, 2, 3], ">i4"), None, "<u2"),
        (np.array([1, 2, 3], ">u8"), 70000, "<u4"),
        (np.array([1, 2, 3], np.uint8), None, "<u2"),
        (np.array([1, 2, 3], np.uint32), 100, "<u2"),
        (np.array([1, 2, 3], np.uint16), 70000, "<u4"),
        ([1, 2, 3], None, "<u2"),
        (np.array([1, 2, 70000]), None, "<u4"),
        (np.array([1, 2, 2**32 - 1]), None, "<u4"),
        (np.arange(20, dtype=np.uint16)[::2], None, "<u2"),
    ],
)
def test_anything_else_is_converted(ids, vocab_size, dtype):
    split = ladle.from_ids(ids, vocab_size=vocab_size)
    assert split.dtype == np.dtype(dtype)
    assert split.read(0, split.num_tokens).tolist() == list(ids)
    assert split.max_id == max(ids)


@pytest.mark.parametrize(
    ("ids", "vocab_size", "error", "message"),
    [
        (np.array([1, -2, 3]), None, TokenError, "from_ids: id at index 1: expected 0 or more, found -2"),
        (np.array([1, 40000]).astype(np.int16), None, TokenError, "found -25536; were ids above 32767 stored as int16?"),
        (np.array([1, 100]), 100, TokenError, "from_ids: id at index 1: expected less than 100, found 100"),
        (np.array([70000, 65536, 65535]), 65536, TokenError, "id at index 0: expected less than 65536, found 70000"),
        (np.array([2**32]), None, TokenError, "expected less than 4294967296, found 4294967296"),
        (np.array([1.0, 2.0]), None, ConfigError, "from_ids: expected integer ids, found dtype float64"),
        (np.array([True, False]), None, ConfigError, "expected integer ids, found dtype bool"),
        (["a"], None, ConfigError, "expected integer ids, found dtype <U1"),
        (np.zeros((2, 3), int), None, ConfigError, "expected a 1-D array of at least one id, found shape (2, 3)"),
        (5, None, ConfigError, "found shape ()"),
        ([], None, ConfigError, "found shape (0,)"),
        ([1], 0, ConfigError, "vocab_size: expected an integer, 1 to 4294967296, found 0"),
        ([1], 2.5, ConfigError, "vocab_size: expected an integer, 1 to 4294967296, found 2.5"),
        ([0], True, ConfigError, "vocab_size: expected an integer, 1 to 4294967296, found True"),
        ([1], "5", ConfigError, "vocab_size: expected an integer, 1 to 4294967296, found '5'"),
    ],
)
def test_ids_that_cannot_be_right(ids, vocab_size, error, message):
    with pytest.raises(error) as caught:
        ladle.from_ids(ids, vocab_size=vocab_size)
    assert message in str(caught.value)


def test_document_ends():
    split = ladle.from_ids(np.arange(10, dtype=np.uint16), document_ends=[3, 4, 10])
    assert split.num_documents == 3
    assert split.document_ends().tolist() == [3, 4, 10]
    assert split.document_ends().dtype == np.uint64
    places = split.locate([0, 2, 3, 9, 2])
    assert [(p.token, p.document, p.offset, p.source) for p in places] == [
        (0, 0, 0, None),
        (2, 0, 2, None),
        (3, 1, 0, None),
        (9, 2, 5, None),
        (2, 0, 2, None),
    ]
    assert ladle.from_ids([1]).num_documents is None
    assert split.locate([]) == []
    for tokens in ([1.5], [True], ["1"], [[1, 2]], None, [2**70]):
        with pytest.raises(ConfigError, match="expected token indices, found "):
            split.locate(tokens)


@pytest.mark.parametrize(
    ("ends", "message"),
    [
        ([3, 9], "expected the last to be the number of tokens, 10, found 9"),
        ([3, 3, 10], "expected ends that ascend from above 0"),
        ([0, 10], "expected ends that ascend from above 0"),
        ([5, 3, 10], "expected ends that ascend from above 0"),
        ([], "expected a 1-D array of integers"),
        ([2.0, 10.0], "expected a 1-D array of integers, found float64"),
        ([[10]], "expected a 1-D array of integers"),
    ],
)
def test_document_ends_that_cannot_be_right(ends, message):
    with pytest.raises(ConfigError) as caught:
        ladle.from_ids(np.arange(10), document_ends=ends)
    assert message in str(caught.value)


def test_unsigned_ends_that_descend_are_seen():
    with pytest.raises(ConfigError, match="ascend"):
        ladle.from_ids(np.arange(10), document_ends=np.array([5, 3, 10], np.uint64))


def test_text():
    split = ladle.from_text("Hello, do you", tokenizer="gpt2")
    assert split.read(0, split.num_tokens).tolist() == [15496, 11, 466, 345]
    assert (split.vocab_size, split.dtype, split.num_documents) == (50257, np.uint16, 1)
    assert split.tokenizer.decode(split.read(0, 4)) == "Hello, do you"


def test_texts_are_documents():
    split = ladle.from_text(["ab", "", "c"], tokenizer="bytes", end_of_text=True)
    assert split.read(0, split.num_tokens).tolist() == [97, 98, 256, 99, 256]
    assert split.document_ends().tolist() == [3, 5]


def test_markers_are_text_unless_they_are_allowed():
    assert 50256 not in ladle.from_text("a<|endoftext|>b").shards[0].tokens()
    allowed = ladle.from_text("a<|endoftext|>b", allowed_special={"<|endoftext|>"})
    assert allowed.read(0, 3).tolist() == [64, 50256, 65]
    assert allowed.num_documents == 1


def test_chars_take_their_vocabulary_from_the_text():
    split = ladle.from_text("hello", tokenizer="chars")
    assert split.vocab_size == 4
    assert split.read(0, 5).tolist() == [1, 0, 2, 2, 3]
    with_end = ladle.from_text("hello", tokenizer="chars", end_of_text=True)
    assert (with_end.vocab_size, with_end.read(5, 1).tolist()) == (5, [4])


@pytest.mark.parametrize("text", ["", [], ["", ""]])
def test_no_text(text):
    with pytest.raises(TokenError, match="expected at least one token, found none: the text is empty"):
        ladle.from_text(text, tokenizer="bytes")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (b"bytes", "text 0: expected a str, found int"),
        (["a", b"b"], "text 1: expected a str, found bytes"),
        ([None], "text 0: expected a str, found NoneType"),
        (None, "text 0: expected a str, found NoneType"),
        (5, "text 0: expected a str, found int"),
    ],
)
@pytest.mark.parametrize("tokenizer", ["bytes", "chars", "gpt2"])
def test_what_is_no_text(text, message, tokenizer):
    with pytest.raises(ConfigError, match=f"^from_text: {message}$"):
        ladle.from_text(text, tokenizer)


def test_an_end_that_the_tokenizer_lacks():
    coder = ladle.from_text("ab", tokenizer="chars").tokenizer
    with pytest.raises(ConfigError, match="the tokenizer 'chars' has no end-of-text id"):
        ladle.from_text("ab", tokenizer=coder, end_of_text=True)


def test_the_fingerprint_is_of_the_contents():
    ids = np.arange(10)
    assert ladle.from_ids(ids).fingerprint == ladle.from_ids(ids.astype(">u2")).fingerprint
    others = [ladle.from_ids(ids[::-1]), ladle.from_ids(ids, document_ends=[10]), ladle.from_ids(ids, vocab_size=70000)]
    assert len({ladle.from_ids(ids).fingerprint, *(o.fingerprint for o in others)}) == 4


def test_the_interface_of_a_shard_is_there():
    with ladle.from_ids(np.arange(10)) as split:
        shard = split.shards[0]
        shard.check(0, 10)
        shard.check_many(np.array([0, 5]), 5)
        shard.advise_random()
        shard.advise_willneed(np.array([0, 5]), 5)
        shard.drop()
        assert shard.tokens().tolist() == list(range(10))
