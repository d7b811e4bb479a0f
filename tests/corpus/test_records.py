"""JSON lines, from their bytes to shards: what is read, how chats are written, how shards are cut, what is counted."""

import json
import tempfile
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import ladle
from ladle.corpus import plan, record_task, records
from ladle.corpus.inspect import inspect
from ladle.corpus.records import read
from ladle.corpus.spans import holds
from ladle.corpus.survey import survey
from ladle.corpus.verify import verify
from ladle.errors import ConfigError, TextError
from ladle.text import find
from ladle.tokens import tokenizer as build


def write_lines(path, lines):
    path.parent.mkdir(exist_ok=True)
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return path


def whole(split):
    n = split.num_tokens
    return split.read(0, n), split.loss_mask(np.array([0]), np.array([n]))


def said(role, content):
    return {"role": role, "content": content}


# --- chats ---


def test_a_chat_in_gpt2s_ids_by_hand(tmp_path):
    """The marker is <, |, user, |, >, a line feed; "Hello" is 15496, " world" 995, a line feed 198, the end of text 50256."""
    path = write_lines(tmp_path / "a.jsonl", [{"m": [said("user", "Hello"), said("assistant", "Hello world")]}])
    with ladle.prepare(path, tmp_path / "c", val_fraction=0, chat_field="m") as corpus:
        ids, mask = whole(corpus["train"])
    user, assistant = [27, 91, 7220, 91, 29, 198], [27, 91, 562, 10167, 91, 29, 198]
    assert ids.tolist() == [*user, 15496, 198, *assistant, 15496, 995, 50256]
    assert mask.tolist() == [0] * 15 + [1, 1, 1]
    assert (tmp_path / "c/train-00000.mask.npy").read_bytes()[128:] == bytes([0] * 15 + [1, 1, 1])


text = st.text(st.characters(exclude_categories=["Cs"]), max_size=12)
messages = st.lists(st.builds(said, st.sampled_from(plan.ROLES), text), min_size=1, max_size=6)


@settings(max_examples=30, deadline=None)
@given(chats=st.lists(messages, min_size=1, max_size=4), tokenizer=st.sampled_from(["bytes", "gpt2"]))
def test_what_is_learned_of_any_chats_is_what_the_assistant_says(chats, tokenizer):
    chats.append([said("assistant", "at least this")])
    with tempfile.TemporaryDirectory() as folder:
        path = write_lines(Path(folder, "a.jsonl"), [{"m": chat} for chat in chats])
        with ladle.prepare(path, Path(folder, "c"), tokenizer=tokenizer, val_fraction=0, chat_field="m") as corpus:
            ids, mask = whole(corpus["train"])
            coder, ends = corpus.tokenizer, corpus["train"].document_ends()
    end = "<|endoftext|>"
    expected = []
    for chat in chats:
        expected += [(m["content"] + end) for m in chat if m["role"] == "assistant"]
    assert coder.decode(ids[mask == 1]) == "".join(expected)
    written = [
        "".join(f"<|{m['role']}|>\n{m['content']}" + (end if m["role"] == "assistant" else "\n") for m in chat) for chat in chats
    ]
    closed = [w if chat[-1]["role"] == "assistant" else w + end for w, chat in zip(written, chats, strict=True)]
    assert [coder.decode(part) for part in np.split(ids, ends[:-1].astype(int))] == closed


def test_without_an_end_of_text_a_line_feed_ends_what_is_learned(tmp_path):
    coder = build("chars", text=["<|asinterujc>\n ABCok"])
    path = write_lines(tmp_path / "a.jsonl", [{"m": [said("user", "ok"), said("assistant", "A B")]}])
    with ladle.prepare(path, tmp_path / "c", tokenizer=coder, val_fraction=0, chat_field="m") as corpus:
        ids, mask = whole(corpus["train"])
        assert coder.decode(ids) == "<|user|>\nok\n<|assistant|>\nA B\n"
        assert coder.decode(ids[mask == 1]) == "A B\n"


def test_markers_in_a_message_are_text_and_counted(tmp_path):
    path = write_lines(tmp_path / "a.jsonl", [{"m": [said("assistant", "see <|endoftext|> here")]}])
    with ladle.prepare(path, tmp_path / "c", val_fraction=0, chat_field="m") as corpus:
        ids, _ = whole(corpus["train"])
        assert np.count_nonzero(ids == 50256) == 1
        assert corpus.summary.markers == {"<|endoftext|>": 1}


def test_roles_nobody_knows_and_roles_that_never_speak(tmp_path):
    path = write_lines(tmp_path / "a.jsonl", [{"m": [said("assistant", "a")]}, {"m": [said("user", "a"), said("asistant", "b")]}])
    with pytest.raises(TextError, match=r"line 2 @ byte \d+: m\[1\]: role: expected one of assistant, .* found 'asistant'"):
        ladle.prepare(path, tmp_path / "c", tokenizer="bytes", chat_field="m")
    with ladle.prepare(
        path, tmp_path / "c", tokenizer="bytes", val_fraction=0, chat_field="m", train_roles=["asistant", "assistant"]
    ) as corpus:
        assert whole(corpus["train"])[1].sum() == 4
    path = write_lines(tmp_path / "b.jsonl", [{"m": [said("user", "a")]}, {"m": [said("system", "a")]}])
    with pytest.raises(TextError, match=r"^train_roles: expected messages of assistant, found only those of system, user$"):
        ladle.prepare(path, tmp_path / "d", tokenizer="bytes", chat_field="m")
    assert not (tmp_path / "d").exists()


# --- spans ---


def test_spans_hold_last_bytes():
    """ "aé😀b" is bytes a, é é, 😀 😀 😀 😀, b: characters begin at 0, 1, 3, 7; the text ends at 8."""
    one_byte_each = np.ones(8, np.int64)
    assert holds(np.array([[1, 2], [3, 4]]), "aé😀b", one_byte_each).tolist() == [0, 1, 1, 0, 0, 0, 0, 1]
    two = np.array([2, 5, 1])  # tokens that end at bytes 1 (in é), 6 (the end of 😀) and 7
    assert holds(np.array([[0, 1], [2, 2], [2, 3]]), "aé😀b", two).tolist() == [0, 1, 0]
    assert holds(np.zeros((0, 2), np.int64), "aé😀b", two).tolist() == [0, 0, 0]


@pytest.mark.parametrize("code", [0x7F, 0x80, 0x7FF, 0x800, 0xFFFF, 0x10000, 0x10FFFF])
def test_spans_of_characters_of_any_length_in_bytes(code):
    character = chr(code)
    length = len(character.encode())
    found = holds(np.array([[1, 2], [3, 4]]), f"a{character}bc", np.ones(length + 3, np.int64))
    assert found.tolist() == [0] + [1] * length + [0, 1]


def test_spans_keep_the_ids_of_the_text_alone(tmp_path):
    """Also where a marker is written and taken as an id, and where it stands last: the end of text still follows it."""
    texts = ["one<|endoftext|>two", "x<|endoftext|>", "no end"]
    lines = [{"text": t, "spans": [[0, 4]]} for t in texts]
    options = {"val_fraction": 0, "allowed_special": ["<|endoftext|>"]}
    for tokenizer in ("gpt2", "bytes"):
        folder = tmp_path / tokenizer
        path = write_lines(folder / "a.jsonl", lines)
        with ladle.prepare(path, folder / "c", tokenizer=tokenizer, train_spans_field="spans", **options) as corpus:
            ids, mask = whole(corpus["train"])
            marked = corpus.summary.markers
        plain = ladle.from_text(texts, tokenizer, end_of_text=True, allowed_special=["<|endoftext|>"])
        assert ids.tolist() == plain.read(0, plain.num_tokens).tolist()
        assert marked == {"<|endoftext|>": 2}
        end = plain.tokenizer.end_of_text
        learned = ids[mask == 1]
        assert plain.tokenizer.decode(learned[learned != end]) == "onexno e"[: 8 if tokenizer == "bytes" else 6]


def test_spans_need_a_tokenizer_that_loses_no_byte(tmp_path):
    coder = build("bytes")
    coder.byte_lossless = False
    path = write_lines(tmp_path / "a.jsonl", [{"text": "a", "spans": []}])
    for option in ("train_spans_field", "mask_spans_field"):
        with pytest.raises(
            ConfigError, match=f"^{option}: expected a tokenizer whose tokens are the text's bytes, found 'bytes'"
        ):
            ladle.prepare(path, tmp_path / "c", tokenizer=coder, **{option: "spans"})


# --- lines, shards, counts ---


def test_a_folder_is_searched_for_json_lines(tmp_path):
    write_lines(tmp_path / "in/b.jsonl", [{"text": "b"}])
    write_lines(tmp_path / "in/a.NDJSON", [{"text": "a"}])
    (tmp_path / "in/c.txt").write_text("passed over")
    with ladle.prepare(
        tmp_path / "in", tmp_path / "c", tokenizer="bytes", val_fraction=0, text_field="text", end_of_text=False
    ) as corpus:
        assert bytes(whole(corpus["train"])[0].tolist()) == b"ab"
    (tmp_path / "none").mkdir()
    (tmp_path / "none/c.txt").write_text("no records")
    with pytest.raises(TextError, match=r"found no file with a suffix such as \.jsonl, \.jsonlines, \.ndjson among 1"):
        ladle.prepare(tmp_path / "none", tmp_path / "d", tokenizer="bytes", text_field="text")


def test_a_file_that_changes_meanwhile_is_named(tmp_path):
    path = write_lines(tmp_path / "a.jsonl", [{"text": "a"}])
    surveyed = survey(find(path))
    assert [record.value["text"] for record in read(0, surveyed, lambda _: None)] == ["a"]
    path.write_bytes(path.read_bytes().replace(b"a", b"b"))  # of the same size
    with pytest.raises(TextError, match=r"a\.jsonl: expected the text that preparing began with, found another"):
        list(read(0, surveyed, lambda _: None))


def test_a_line_without_end_is_not_held_in_memory(tmp_path, monkeypatch):
    monkeypatch.setattr(records, "MOST_BYTES", 100)
    path = write_lines(tmp_path / "a.jsonl", [{"text": "a"}, {"text": "a" * 100}])
    with pytest.raises(TextError, match=r"line 2 @ byte 14: expected a record of at most 100 bytes, found a longer line"):
        list(read(0, survey(find(path)), lambda _: None))


def test_shards_are_cut_by_bytes_and_by_records(tmp_path, monkeypatch):
    """Ten lines of 14 bytes in two files."""
    for name in "ab":
        write_lines(tmp_path / f"in/{name}.jsonl", [{"text": f"{i}"} for i in range(5)])
    options = {"tokenizer": "bytes", "val_fraction": 0, "text_field": "text", "end_of_text": False}
    with ladle.prepare(tmp_path / "in", tmp_path / "c", shard_bytes=40, **options) as corpus:
        listed = corpus.manifest["splits"]["train"]["shards"]
        assert [shard["inputs"]["first"] for shard in listed] == [[0, 0], [0, 42], [1, 14], [1, 56]]
        assert [shard["tokens"] for shard in listed] == [3, 3, 3, 1]
        assert bytes(whole(corpus["train"])[0].tolist()) == b"0123401234"
    monkeypatch.setattr(record_task, "MOST_SOURCES", 4)
    with ladle.prepare(tmp_path / "in", tmp_path / "d", **options) as corpus:
        assert [shard.num_tokens for shard in corpus["train"].shards] == [4, 4, 2]
        assert [place.source for place in corpus["train"].locate(range(10))] == ["a.jsonl"] * 5 + ["b.jsonl"] * 5


def test_what_is_learned_is_counted_told_and_verified(tmp_path):
    path = write_lines(tmp_path / "a.jsonl", [{"text": "abcd", "spans": [[0, 1]]}] * 3)
    options = {"tokenizer": "bytes", "val_fraction": 0, "train_spans_field": "spans", "shard_bytes": 40, "end_of_text": False}
    with ladle.prepare(path, tmp_path / "c", **options) as corpus:
        assert [shard["learned"] for shard in corpus.manifest["splits"]["train"]["shards"]] == [2, 1]
        assert corpus.summary.splits["train"]["learned"] == 3
        assert "12 tokens in 3 documents, 2 shards, 25.0 % to be learned" in str(corpus.summary)
        assert "largest id 100, 25.0 % to be learned" in inspect(corpus)
    manifest = tmp_path / "c/corpus.json"
    content = manifest.read_text()
    manifest.write_text(content.replace('"learned": 2', '"learned": 5'))
    assert [str(fault) for fault in verify(tmp_path / "c").faults] == [
        f"{tmp_path / 'c/train-00000.mask.npy'}: mask: expected 5 tokens to be learned, found 2"
    ]
    for old, new, message in (
        ('"learned": 2', '"learned": 9', r"shards\[0\]\.learned: expected an integer from 0 to 8, found 9"),
        ('"dtype": "uint8"', '"dtype": "int8"', r"streams\.mask\.dtype: expected uint8, found 'int8'"),
    ):
        manifest.write_text(content.replace(old, new))
        with pytest.raises(ladle.errors.FormatError, match=message):
            ladle.open(tmp_path / "c")
