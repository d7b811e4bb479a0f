"""What is to be learned, token by token: stored beside the tokens, checked like them, made from spans and from chats."""

import json
import pickle
import subprocess
import sys

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import ladle
from ladle.corpus.verify import verify
from ladle.errors import ConfigError, FormatError, TextError


def write_lines(path, records, end="\n"):
    path.write_bytes("".join(json.dumps(record, ensure_ascii=False) + end for record in records).encode())
    return path


def whole(split):
    """(every id, its mask)."""
    n = split.num_tokens
    return split.read(0, n), split.loss_mask(np.array([0]), np.array([n]))


def spans_corpus(folder, records, tokenizer="bytes", **options):
    path = write_lines(folder / "records.jsonl", records)
    options = {"val_fraction": 0, "train_spans_field": "spans"} | options
    return ladle.prepare(path, folder / "corpus", tokenizer=tokenizer, **options)


RECORDS = [{"text": "ab cd", "spans": [[3, 5]]}, {"text": "xyz", "spans": []}, {"text": "äö", "spans": [[1, 2]]}]


def test_a_tiny_corpus_byte_by_byte(tmp_path):
    """Written by hand. bytes has 257 ids: the end of text is 256; it is learned where the token before it is."""
    with spans_corpus(tmp_path, RECORDS) as corpus:
        ids, mask = whole(corpus["train"])
        assert ids.tolist() == [*b"ab cd", 256, *b"xyz", 256, *"äö".encode(), 256]
        assert mask.tolist() == [0, 0, 0, 1, 1, 1, 0, 0, 0, 0, 0, 0, 1, 1, 1]
        assert corpus.manifest["streams"] == {"mask": {"dtype": "uint8"}}
    content = (tmp_path / "corpus/train-00000.mask.npy").read_bytes()
    header = "{'descr': '|u1', 'fortran_order': False, 'shape': (15,), }"
    assert content[:128] == b"\x93NUMPY\x01\x00\x76\x00" + header.ljust(117).encode() + b"\n"
    assert content[128:] == bytes(mask)
    assert np.load(tmp_path / "corpus/train-00000.mask.npy").tolist() == mask.tolist()
    assert not verify(tmp_path / "corpus").faults


def test_masked_spans_are_the_opposite(tmp_path):
    with spans_corpus(tmp_path, RECORDS, train_spans_field=None, mask_spans_field="spans") as corpus:
        assert whole(corpus["train"])[1].tolist() == [1, 1, 1, 0, 0, 0, 1, 1, 1, 1, 1, 1, 0, 0, 0]


def test_a_token_is_where_its_last_byte_is(tmp_path):
    """GPT-2's " answer" begins with the space before the word, which is not in the span."""
    text = "question? answer"
    with spans_corpus(tmp_path, [{"text": text, "spans": [[10, 16]]}], tokenizer="gpt2", end_of_text=False) as corpus:
        ids, mask = whole(corpus["train"])
        assert corpus["train"].tokenizer.decode(ids[mask == 1]) == " answer"
        plain = ladle.from_text(text, "gpt2")
        assert ids.tolist() == plain.read(0, plain.num_tokens).tolist()  # the same ids as without a mask


@settings(max_examples=40, deadline=None)
@given(text=st.text(min_size=1, max_size=30).filter(lambda text: text.encode("utf-8", "ignore").decode() == text), data=st.data())
def test_any_spans_of_any_text(text, data, tmp_path_factory):
    edges = sorted(data.draw(st.lists(st.integers(0, len(text)), max_size=6)))
    spans = [edges[i : i + 2] for i in range(0, len(edges) - 1, 2)]
    folder = tmp_path_factory.mktemp("spans")
    with spans_corpus(folder, [{"text": text, "spans": spans}], end_of_text=False) as corpus:
        mask = whole(corpus["train"])[1]
    inside = [any(first <= i < last for first, last in spans) for i in range(len(text))]
    assert mask.tolist() == [int(inside[i]) for i, character in enumerate(text) for _ in character.encode()]


CHAT = [
    {"role": "system", "content": "Be brief."},
    {"role": "user", "content": "Hi"},
    {"role": "assistant", "content": "Hello"},
    {"role": "user", "content": "Bye"},
    {"role": "assistant", "content": "So long"},
]


def test_chats_are_learned_where_the_assistant_speaks(tmp_path):
    path = write_lines(tmp_path / "c.jsonl", [{"messages": CHAT}])
    with ladle.prepare(path, tmp_path / "c", tokenizer="bytes", val_fraction=0, chat_field="messages") as corpus:
        ids, mask = whole(corpus["train"])
        tokenizer = corpus["train"].tokenizer
        assert tokenizer.decode(ids) == (
            "<|system|>\nBe brief.\n<|user|>\nHi\n<|assistant|>\nHello<|endoftext|><|user|>\nBye\n<|assistant|>\nSo long<|endoftext|>"
        )
        assert tokenizer.decode(ids[mask == 1]) == "Hello<|endoftext|>So long<|endoftext|>"
        assert corpus["train"].num_documents == 1
    with ladle.prepare(
        path, tmp_path / "u", tokenizer="bytes", val_fraction=0, chat_field="messages", train_roles=["user"]
    ) as corpus:
        ids, mask = whole(corpus["train"])
        assert corpus["train"].tokenizer.decode(ids[mask == 1]) == "Hi<|endoftext|>Bye<|endoftext|>"


def test_feeds_train_on_what_is_learned_and_count_the_rest(tmp_path):
    rng = np.random.default_rng(1)
    records = []
    for _ in range(60):
        text = "".join(rng.choice(list("abc de"), int(rng.integers(1, 60))))
        cut = int(rng.integers(0, len(text) + 1))
        records.append({"text": text, "spans": [[cut, len(text)]]})
    with spans_corpus(tmp_path, records, shard_bytes=500) as corpus:
        split = corpus["train"]
        ids, mask = whole(split)
        assert len(split.shards) > 3
        for options in ({"pack": "best_fit"}, {"pack": "single"}, {"mask_documents": True}, {}):
            with ladle.Feed(split, batch_size=4, block_size=32, epochs=1, framework="numpy", prefetch=0, **options) as feed:
                trained = sum(batch.num_targets for batch in feed)
                told, account = feed.report().sources[0], feed.audit().accounts[0]
                assert trained == told.trained == account.trained
                first = np.zeros(len(ids), dtype=bool)
                first[0 if not options else np.concatenate([[0], split.document_ends()[:-1]]).astype(int)] = True
                assert trained == np.count_nonzero(mask[~first])
                assert told.unlearned == account.unlearned > 0
            with ladle.Feed(
                split, batch_size=4, block_size=32, epochs=1, framework="numpy", prefetch=0, loss_mask=False, **options
            ) as feed:
                assert feed.report().sources[0].unlearned == 0
                assert sum(batch.num_targets for batch in feed) > trained
        again = pickle.loads(pickle.dumps(split))
        assert (whole(again)[1] == mask).all()
        again.close()


def test_a_mixture_of_masked_and_unmasked(tmp_path):
    plain = ladle.from_ids(np.arange(50, dtype=np.uint16) + 100, document_ends=[20, 50])
    masked = ladle.from_ids(np.arange(40, dtype=np.uint16), document_ends=[40], loss_mask=np.arange(40) % 2)
    mixture = ladle.Mixture({"a": masked, "b": plain})
    feed = ladle.Feed(mixture, batch_size=2, block_size=8, pack="best_fit", total_tokens=320, framework="numpy", prefetch=0)
    for batch in feed:
        labels = batch.y[batch.y != -100]
        assert (labels[labels < 100] % 2 == 1).all()
        assert len(labels) == batch.num_targets
    report = feed.report()
    assert report.sources[0].unlearned > 0
    assert report.sources[1].unlearned == 0


def test_spans_of_the_mask_across_shards_and_past_the_end(tmp_path):
    records = [{"text": "abcdefghij", "spans": [[0, 5]]}] * 8
    with spans_corpus(tmp_path, records, shard_bytes=40, end_of_text=False) as corpus:
        split = corpus["train"]
        assert len(split.shards) == 8
        expected = [1, 1, 1, 1, 1, 0, 0, 0, 0, 0] * 8 + [0] * 10
        for start, length in ((0, 80), (7, 6), (75, 12), (9, 0), (80, 3)):
            assert split.loss_mask(np.array([start]), np.array([length])).tolist() == expected[start : start + length]
        found = split.loss_mask(np.array([3, 50]), np.array([30, 5]))
        assert found.tolist() == expected[3:33] + expected[50:55]
        found[:] = 7  # one's own
        assert split.loss_mask(np.array([3]), np.array([2])).tolist() == [1, 1]


DAMAGE = {
    "cut short": (lambda content: content[:-1], "size: expected 143 bytes, found 142 bytes"),
    "one byte more": (lambda content: content + b"\x01", "size: expected 143 bytes, found 144 bytes"),
    "a flipped bit": (lambda content: content[:-1] + bytes([content[-1] ^ 1]), "CRC-32 of block 0"),
    "another header": (lambda content: content.replace(b"(15,)", b"(51,)"), "CRC-32 of block 0"),
}


@pytest.mark.parametrize("what", DAMAGE)
def test_a_damaged_mask_is_named(tmp_path, what):
    damage, message = DAMAGE[what]
    spans_corpus(tmp_path, RECORDS).close()
    path = tmp_path / "corpus/train-00000.mask.npy"
    path.write_bytes(damage(path.read_bytes()))
    with pytest.raises(FormatError, match=message) as caught, ladle.open(tmp_path / "corpus") as corpus:
        whole(corpus["train"])
    assert str(path) in str(caught.value)
    assert verify(tmp_path / "corpus").faults


def test_a_mask_that_is_gone_is_named(tmp_path):
    spans_corpus(tmp_path, RECORDS).close()
    (tmp_path / "corpus/train-00000.mask.npy").unlink()
    with pytest.raises(FormatError, match=r"mask\.npy: file: expected a file, found none"):
        ladle.open(tmp_path / "corpus")


def test_the_mask_is_part_of_what_a_corpus_is(tmp_path):
    (tmp_path / "a").mkdir()
    (tmp_path / "b").mkdir()
    with (
        spans_corpus(tmp_path / "a", RECORDS) as a,
        spans_corpus(tmp_path / "b", [{**RECORDS[0], "spans": []}, *RECORDS[1:]]) as b,
    ):
        assert a.fingerprint != b.fingerprint
    ids = [1, 2, 3]
    assert ladle.from_ids(ids).fingerprint != ladle.from_ids(ids, loss_mask=[1, 0, 1]).fingerprint


@pytest.mark.parametrize(
    ("mask", "message"),
    [
        ([1, 0], "expected a 0 or a 1 for each of 3 tokens, found int64 of shape \\(2,\\)"),
        ([1, 0, 2], "expected 0 or 1, found 2 for token 2"),
        ([0.5, 0, 1], "expected a 0 or a 1 for each of 3 tokens, found float64"),
    ],
)
def test_masks_in_memory_that_cannot_be(mask, message):
    with pytest.raises(ConfigError, match=f"loss_mask: {message}"):
        ladle.from_ids([1, 2, 3], loss_mask=mask)


BAD = [
    ('{"text": "abc", "spans": [[0, 4]]}', r"line 1 @ byte 0: spans\[0\]: expected 0 <= first <= last <= 3 .* found 0, 4"),
    ('{"text": "abc", "spans": [[2, 3], [1, 2]]}', r"spans\[1\]: expected 3 <= first <= last <= 3"),
    ('{"text": "abc", "spans": [[0, 1.5]]}', r"spans\[0\]: expected \[first, last\] in characters, found \[0, 1.5\]"),
    ('{"text": "abc", "spans": [[true, 2]]}', r"spans\[0\]: expected \[first, last\]"),
    ('{"text": "abc", "spans": 3}', r"spans: expected a list of \[first, last\] characters, found int"),
    ('{"text": "abc"}', r"line 1 @ byte 0: expected a field 'spans', found 'text'"),
    ('{"body": "abc", "spans": []}', r"expected a field 'text', found 'body', 'spans'"),
    ('{"text": 7, "spans": []}', r"text: expected text, found int"),
    ("{}", r"expected a field 'text', found none"),
    ("[1]", r"line 1 @ byte 0: expected a JSON object, found list"),
    ("[" * 100_000, r"line 1 @ byte 0: expected a JSON object, found none .*recursion"),
    ('{"text": "a", "spans": []} {"text": "b", "spans": []}', r"line 1 @ byte 0: expected a JSON object, found none.*Extra data"),
    (
        '{"text": "a", "spans": []}\n{"text": "b',
        r"line 2 @ byte 27: expected a JSON object, found none \(the file's last line is cut off\)",
    ),
    ('{"text": "\\ud800", "spans": []}', r"expected text in Unicode, found a lone surrogate at character 0"),
]


@pytest.mark.parametrize(("content", "message"), BAD)
def test_a_bad_record_is_named_with_file_line_and_byte(tmp_path, content, message):
    path = tmp_path / "bad.jsonl"
    path.write_text(content)
    with pytest.raises(TextError, match=message) as caught:
        ladle.prepare(path, tmp_path / "out", tokenizer="bytes", val_fraction=0, train_spans_field="spans")
    assert str(path) in str(caught.value)
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("messages", "message"),
    [
        ("hi", "messages: expected a list of messages, found str"),
        (["hi"], r"messages\[0\]: expected an object with 'role' and 'content', found str"),
        ([{"role": "user"}], r"messages\[0\]: expected an object with 'role' and 'content', found 'role'"),
        ([{"role": "user", "content": ["a"]}], r"messages\[0\]: content: expected text, found list"),
        ([{"role": "a|>b", "content": "x"}], r"messages\[0\]: role: expected one of assistant, developer, .* found 'a\|>b'"),
    ],
)
def test_a_bad_chat_is_named(tmp_path, messages, message):
    path = write_lines(tmp_path / "bad.jsonl", [{"messages": messages}])
    with pytest.raises(TextError, match=message):
        ladle.prepare(path, tmp_path / "out", tokenizer="bytes", val_fraction=0, chat_field="messages")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"train_spans_field": "a", "chat_field": "b"}, "expected one of .* found train_spans_field, chat_field"),
        ({"train_spans_field": ""}, "train_spans_field: expected a field's name, found ''"),
        ({"chat_field": "m", "train_roles": "assistant"}, "train_roles: expected a collection of roles, found 'assistant'"),
        ({"chat_field": "m", "train_roles": ["a|>b"]}, r"train_roles: expected letters and digits, found 'a\|>b'"),
        ({"chat_field": "m", "train_roles": []}, "train_roles: expected at least one, and a chat_field, found none"),
        ({"text_field": "text", "train_roles": ["user"]}, "train_roles: expected at least one, and a chat_field, found user"),
        ({"text_field": "text", "split": "tail"}, "split: expected 'hash' .* found 'tail'"),
        ({"text_field": "text", "encoding_errors": "replace"}, "encoding_errors: expected 'strict' for JSON lines"),
        ({"text_field": "text", "tokenizer": "chars"}, "expected one with a vocabulary of its own for JSON lines, found 'chars'"),
    ],
)
def test_options_that_cannot_be(tmp_path, options, message):
    path = write_lines(tmp_path / "a.jsonl", RECORDS)
    with pytest.raises(ConfigError, match=message):
        ladle.prepare(path, tmp_path / "out", **{"tokenizer": "bytes"} | options)
    (tmp_path / "a.txt").write_text("x")
    with pytest.raises(ConfigError, match=r"inputs: expected JSON lines .* found .*a\.txt"):
        ladle.prepare(tmp_path / "a.txt", tmp_path / "out", tokenizer="bytes", text_field="text")


def test_lines_end_with_newline_bytes_alone(tmp_path):
    path = tmp_path / "a.jsonl"
    path.write_bytes(b'\xef\xbb\xbf{"text": "a\xe2\x80\xa8b\xc2\x85c"}\r\n\r\n{"text": "d"}')
    with ladle.prepare(path, tmp_path / "out", tokenizer="bytes", val_fraction=0, text_field="text", end_of_text=False) as corpus:
        split = corpus["train"]
        assert split.num_documents == 2
        assert split.tokenizer.decode(split.read(0, split.num_tokens)) == "a\u2028b\x85cd"
        assert not split.has_loss_mask  # nothing says that anything is not learned
        place = split.locate([split.num_tokens - 1])[0]
        assert (place.source, place.line, place.byte, place.token_byte) == ("a.jsonl", 3, 27, None)


def test_prepared_again_it_does_nothing_and_other_fields_are_refused(tmp_path):
    spans_corpus(tmp_path, RECORDS).close()
    with spans_corpus(tmp_path, RECORDS) as corpus:
        assert not corpus.summary.new
    with pytest.raises(ConfigError, match="made with train_spans_field 'spans', and 'other' is asked for"):
        spans_corpus(tmp_path, RECORDS, train_spans_field="other")
    with pytest.raises(ConfigError, match="made with train_spans_field 'spans', and None is asked for"):
        spans_corpus(tmp_path, RECORDS, train_spans_field=None)  # as text, without a mask


def test_on_the_command_line(tmp_path):
    path = write_lines(tmp_path / "c.jsonl", [{"messages": CHAT}] * 3)

    def run(*words):
        return subprocess.run([sys.executable, "-m", "ladle", *map(str, words)], capture_output=True, text=True, check=False)

    done = run(
        "prepare", path, tmp_path / "c", "--chat-field", "messages", "--val-fraction", "0", "--tokenizer", "bytes", "--quiet"
    )
    assert done.returncode == 0, done.stderr
    done = run("inspect", tmp_path / "c")
    assert "% to be learned" in done.stdout
    done = run("audit", tmp_path / "c", "--block-size", "16", "--quiet")
    assert done.returncode == 0
    assert "masked by the corpus" in done.stdout
    done = run("prepare", path, tmp_path / "d", "--chat-field", "message")
    assert (done.returncode, done.stderr.count("\n")) == (2, 1)
    assert "line 1 @ byte 0: expected a field 'message', found 'messages'" in done.stderr
