"""prepare: what is written, when nothing is, and what is refused."""

import hashlib
import itertools
import json
import os
import random
import sys
from pathlib import Path

import numpy as np
import pytest
import tiktoken
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import ladle
from ladle.corpus.workplace import workplace_of
from ladle.errors import ConfigError, TextError, TokenError


def write(folder, texts):
    folder.mkdir(parents=True, exist_ok=True)
    for number, text in enumerate(texts):
        (folder / f"{number:04d}.txt").write_bytes(text if isinstance(text, bytes) else text.encode())
    return folder


def content(folder):
    return {path.name: path.read_bytes() for path in sorted(folder.iterdir())}


def documents(split):
    """Every document's ids."""
    ends = [0, *split.document_ends().tolist()] if split.num_tokens else [0]
    return [split.read(a, b - a).tolist() for a, b in itertools.pairwise(ends)]


TEXTS = st.lists(
    st.text(st.characters(exclude_categories=["Cs"]), max_size=300).filter(lambda t: not t.startswith("\ufeff")),
    min_size=1,
    max_size=12,
)


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    texts=TEXTS, shard_bytes=st.integers(1, 700), split=st.sampled_from(["hash", "tail"]), fraction=st.sampled_from([0, 0.1, 0.5])
)
def test_what_is_read_is_what_was_written(tmp_path_factory, texts, shard_bytes, split, fraction):
    base = tmp_path_factory.mktemp("round")
    inputs = write(base / "in", texts)
    try:
        corpus = ladle.prepare(
            inputs, base / "out", tokenizer="bytes", split=split, val_fraction=fraction, shard_bytes=shard_bytes
        )
    except TextError:
        assert split == "hash" or not any(texts)
        return
    with corpus:
        kept = [text.encode() for text in texts if text]
        found = {name: documents(s) for name, s in corpus.splits.items()}
        whole = sorted(bytes(d[:-1]) for name in found for d in found[name] if d[-1] == 256)
        if split == "tail" and len(kept) == 1 and fraction:
            assert bytes(t for name in found for d in found[name] for t in d if t != 256) == kept[0]
        else:
            assert whole == sorted(kept)
        for s in corpus.splits.values():
            assert s.num_tokens == sum(shard.num_tokens for shard in s.shards)
            assert s.num_documents == len(documents(s))
            assert s.read(0, s.num_tokens).tolist() == [t for d in documents(s) for t in d]
        count = sum(s.num_documents for s in corpus.splits.values())
        assert corpus.summary.documents + corpus.summary.empty_documents == len(texts)
        assert count in (len(kept), len(kept) + 1)


def test_the_same_bytes_whoever_and_whenever(tmp_path):
    texts = [f"text {i} " * i for i in range(150)]
    for name in ("one", "two"):
        write(tmp_path / name / "in", texts)
        os.utime(tmp_path / name / "in" / "0001.txt", (1, len(name)))
        ladle.prepare(tmp_path / name / "in", tmp_path / name / "out", shard_bytes=5000).close()
    assert content(tmp_path / "one" / "out") == content(tmp_path / "two" / "out")
    assert len([n for n in content(tmp_path / "one" / "out") if n.startswith("train-") and n.endswith(".bin")]) > 5


def test_no_path_of_this_machine_is_written(tmp_path):
    ladle.prepare(write(tmp_path / "in", ["a", "b"]), tmp_path / "out", tokenizer="bytes").close()
    assert not any(str(tmp_path).encode() in bytes_ for bytes_ in content(tmp_path / "out").values())


def test_a_second_run_does_nothing(tmp_path):
    inputs = write(tmp_path / "in", ["some text", "more text"])
    first = ladle.prepare(inputs, tmp_path / "out", tokenizer="chars")
    before = {p.name: p.stat().st_mtime_ns for p in (tmp_path / "out").iterdir()}
    again = ladle.prepare(inputs, tmp_path / "out", tokenizer="chars")
    assert first.summary.new
    assert not again.summary.new
    assert "already prepared" in str(again.summary)
    assert before == {p.name: p.stat().st_mtime_ns for p in (tmp_path / "out").iterdir()}
    assert not workplace_of(tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"val_fraction": 0.2}, "val_fraction 0.5, and 0.2"),
        ({"split": "hash"}, "split 'auto', and 'hash'"),
        ({"tokenizer": "gpt2"}, "tokenizer 'bytes', and 'gpt2'"),
        ({"end_of_text": False}, "end_of_text True, and False"),
        ({"allowed_special": {"<|endoftext|>"}}, "allowed_special [], and ['<|endoftext|>']"),
        ({"shard_bytes": 9}, "shard_bytes None, and 9"),
        ({"encoding_errors": "skip"}, "encoding_errors 'strict', and 'skip'"),
    ],
)
def test_other_options_are_refused_and_named(tmp_path, change, named):
    inputs = write(tmp_path / "in", ["some text", "more text"])
    options = {"tokenizer": "bytes", "val_fraction": 0.5}
    ladle.prepare(inputs, tmp_path / "out", **options).close()
    before = content(tmp_path / "out")
    with pytest.raises(ConfigError, match="holds a corpus made with") as caught:
        ladle.prepare(inputs, tmp_path / "out", **options | change)
    assert named in str(caught.value)
    assert content(tmp_path / "out") == before


def test_other_inputs_are_refused_and_named(tmp_path):
    inputs = write(tmp_path / "in", ["some text", "more text"])
    ladle.prepare(inputs, tmp_path / "out", tokenizer="bytes").close()
    (inputs / "0001.txt").write_text("more txet")
    with pytest.raises(ConfigError, match=r"0001\.txt has other contents \(9 bytes then, 9 now\)"):
        ladle.prepare(inputs, tmp_path / "out", tokenizer="bytes")
    (inputs / "0001.txt").write_text("more text")
    (inputs / "0002.txt").write_text("x")
    with pytest.raises(ConfigError, match=r"0002\.txt is new"):
        ladle.prepare(inputs, tmp_path / "out", tokenizer="bytes")
    (inputs / "0002.txt").unlink()
    (inputs / "0001.txt").unlink()
    with pytest.raises(ConfigError, match=r"0001\.txt is no longer there"):
        ladle.prepare(inputs, tmp_path / "out", tokenizer="bytes")


def test_a_folder_with_other_things_is_refused(tmp_path):
    inputs = write(tmp_path / "in", ["some text"])
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "thesis.tex").write_text("mine")
    with pytest.raises(ConfigError, match="expected a new or empty folder, or a corpus"):
        ladle.prepare(inputs, tmp_path / "out", tokenizer="bytes")
    assert content(tmp_path / "out") == {"thesis.tex": b"mine"}
    with pytest.raises(ConfigError, match="expected a folder to make, found a file"):
        ladle.prepare(inputs, tmp_path / "out" / "thesis.tex", tokenizer="bytes")
    assert sorted(p.name for p in tmp_path.iterdir()) == ["in", "out"]


def test_an_empty_folder_a_link_and_a_deep_path_are_filled(tmp_path):
    inputs = write(tmp_path / "in", ["some text"])
    (tmp_path / "empty").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "empty")
    for out in ("link", "a/b/c"):
        with ladle.prepare(inputs, tmp_path / out, tokenizer="bytes") as corpus:
            assert corpus["train"].num_tokens == 8
    assert (tmp_path / "empty" / "corpus.json").exists()


def test_a_place_that_no_folder_can_take_is_refused_before_any_work(tmp_path, monkeypatch):
    """A rename would leave the caller in a folder that is gone; onto a mount it fails after all the work."""
    inputs = write(tmp_path / "in", ["some text"])
    (tmp_path / "here").mkdir()
    (tmp_path / "a").symlink_to("b")
    (tmp_path / "b").symlink_to("a")
    monkeypatch.chdir(tmp_path / "here")
    for out, found in (
        (".", "expected a folder that can be replaced, found the current folder; name a folder in it"),
        (tmp_path / "here", "found the current folder"),
        ("", "expected a folder to make, found an empty path"),
        (tmp_path / "a", "expected a folder to make, found a link that leads back to itself"),
    ):
        with pytest.raises(ConfigError) as caught:
            ladle.prepare(inputs, out, tokenizer="bytes")
        assert found in str(caught.value)
    assert sorted(p.name for p in tmp_path.iterdir()) == ["a", "b", "here", "in"]
    assert Path.cwd() == tmp_path / "here"
    (tmp_path / "here").rmdir()
    with pytest.raises(ConfigError, match="out: out: expected a folder to make, found that the current folder was removed"):
        ladle.prepare(inputs, "out", tokenizer="bytes")
    with ladle.prepare(inputs, tmp_path / "out", tokenizer="bytes") as corpus:  # nothing here depends on where one stands
        assert corpus["train"].num_tokens == 8


def test_a_corpus_inside_its_own_input_folder(tmp_path):
    inputs = write(tmp_path / "in", ["some text"])
    for new in (True, False):
        with ladle.prepare(inputs, inputs / "corpus.md", tokenizer="bytes") as corpus:
            assert corpus.summary.files == 1
            assert corpus.summary.new is new


def test_one_document_is_cut_by_characters_as_nanogpt_cuts_it(tmp_path):
    text = "".join(random.Random(0).choices("abc é中\n", k=1115))
    (tmp_path / "t.txt").write_text(text)
    with ladle.prepare(tmp_path / "t.txt", tmp_path / "out", tokenizer="chars", val_fraction=0.1) as corpus:
        cut = int(1115 * 0.9)
        assert corpus.splits["train"].num_tokens == cut
        assert corpus["val"].num_tokens == 1115 - cut
        assert corpus.tokenizer.decode(corpus["train"].read(0, cut)) == text[:cut]
        assert corpus.tokenizer.decode(corpus["val"].read(0, 1115 - cut)) == text[cut:]
        place = corpus["val"].locate([0, 10])
        assert place[0].byte == len(text[:cut].encode())
        assert place[0].line == text[:cut].count("\n") + 1
        assert place[1].token_byte == len(text[: cut + 10].encode())


def test_the_cut_goes_to_gpt2_too_and_only_the_end_has_an_end(tmp_path):
    text = "Hello world. " * 100
    (tmp_path / "t.txt").write_text(text)
    cut = int(len(text) * 0.9)
    with ladle.prepare(tmp_path / "t.txt", tmp_path / "out", val_fraction=0.1) as corpus:
        coder = corpus.tokenizer
        assert corpus["train"].read(0, corpus["train"].num_tokens).tolist() == coder.encode(text[:cut]).tolist()
        assert corpus["val"].read(0, corpus["val"].num_tokens).tolist() == [*coder.encode(text[cut:]).tolist(), 50256]


def test_tail_takes_whole_documents_at_the_closest_border(tmp_path):
    for lengths, fraction, train in (
        ([10, 10, 10, 10], 0.25, 3),
        ([10, 10, 10, 10], 0.01, 3),
        ([1, 100], 0.9, 1),
        ([50, 1, 49], 0.5, 1),
    ):
        name = f"{lengths}{fraction}"
        inputs = write(tmp_path / name / "in", ["x" * n for n in lengths])
        with ladle.prepare(inputs, tmp_path / name / "out", tokenizer="bytes", split="tail", val_fraction=fraction) as corpus:
            assert corpus["train"].num_documents == train
            assert corpus["val"].num_documents == len(lengths) - train


def test_another_tokenizer_of_the_same_name_is_refused(tmp_path):
    inputs = write(tmp_path / "in", ["abc"])

    def mine(first):
        ranks = {bytes([(first + i) % 256]): i for i in range(256)}
        return tiktoken.Encoding("mine", pat_str=r"\S+|\s+", mergeable_ranks=ranks, special_tokens={})

    ladle.prepare(inputs, tmp_path / "out", tokenizer=mine(0), val_fraction=0).close()
    ladle.prepare(inputs, tmp_path / "out", tokenizer=mine(0), val_fraction=0).close()
    with pytest.raises(ConfigError, match=r"out: holds a corpus made with another tokenizer of the name 'mine'; choose another"):
        ladle.prepare(inputs, tmp_path / "out", tokenizer=mine(1), val_fraction=0)


def test_hash_puts_equal_documents_on_the_same_side(tmp_path):
    texts = [f"document {i % 100}" for i in range(200)]
    texts[150] = b"\xef\xbb\xbf" + texts[150].encode()
    with ladle.prepare(write(tmp_path / "in", texts), tmp_path / "out", tokenizer="bytes", val_fraction=0.3) as corpus:
        train, val = ({tuple(d) for d in documents(corpus[name])} for name in ("train", "val"))
        assert not train & val
        assert len(train) + len(val) == 100
        assert 15 <= len(val) <= 45


def test_auto_is_tail_below_100_documents(tmp_path):
    for count, by_tail in ((99, True), (100, False)):
        texts = [f"document {i}" for i in range(count)] + [""] * 5
        with ladle.prepare(
            write(tmp_path / str(count) / "in", texts), tmp_path / str(count) / "out", tokenizer="bytes"
        ) as corpus:
            last = bytes(documents(corpus["val"])[-1][:-1]) == texts[count - 1].encode()
            ends_in_order = [bytes(d[:-1]).decode() for d in documents(corpus["val"])] == texts[
                count - corpus["val"].num_documents : count
            ]
            assert (last and ends_in_order) == by_tail


def test_no_val(tmp_path):
    with ladle.prepare(write(tmp_path / "in", ["abc"]), tmp_path / "out", tokenizer="bytes", val_fraction=0) as corpus:
        assert list(corpus.splits) == ["train"]
        with pytest.raises(ConfigError, match="split: expected one of train, found 'val'"):
            corpus["val"]


def test_an_empty_val_is_there_and_says_so(tmp_path):
    (tmp_path / "t.txt").write_text("x")
    with ladle.prepare(tmp_path / "t.txt", tmp_path / "out", tokenizer="bytes") as corpus:
        assert corpus["train"].read(0, 2).tolist() == [120, 256]
        assert corpus["val"].num_tokens == 0
        assert corpus["val"].document_ends().tolist() == []


def test_documents_of_nothing_are_left_out_and_counted(tmp_path):
    texts = ["", " ", "a", b"\xef\xbb\xbf"]
    with ladle.prepare(write(tmp_path / "in", texts), tmp_path / "out", tokenizer="bytes", val_fraction=0) as corpus:
        assert documents(corpus["train"]) == [[32, 256], [97, 256]]
        assert corpus.summary.empty_documents == 2
        assert "2 empty documents left out" in str(corpus.summary)


@pytest.mark.parametrize("texts", [[""], ["", b"\xef\xbb\xbf"]])
def test_nothing_but_empty_files(tmp_path, texts):
    with pytest.raises(TextError, match="no text to prepare"):
        ladle.prepare(write(tmp_path / "in", texts), tmp_path / "out", tokenizer="bytes")
    assert [p.name for p in tmp_path.iterdir()] == ["in"]


def test_a_folder_without_text(tmp_path):
    (tmp_path / "in").mkdir()
    with pytest.raises(TextError, match="expected a folder with text"):
        ladle.prepare(tmp_path / "in", tmp_path / "out", tokenizer="bytes")
    assert [p.name for p in tmp_path.iterdir()] == ["in"]


def test_bytes_that_are_no_utf8(tmp_path):
    inputs = write(tmp_path / "in", ["good", b"b\xffd\xfe", "fine"])
    with pytest.raises(TextError, match=r"0001\.txt @ byte 1: expected UTF-8 text, found the byte 0xff"):
        ladle.prepare(inputs, tmp_path / "out", tokenizer="bytes")
    assert [p.name for p in tmp_path.iterdir()] == ["in"]
    with ladle.prepare(inputs, tmp_path / "skip", tokenizer="bytes", encoding_errors="skip", val_fraction=0) as corpus:
        assert [bytes(d[:-1]) for d in documents(corpus["train"])] == [b"good", b"fine"]
        assert corpus.summary.skipped_files == 1
        assert [p.source for p in corpus["train"].locate([0, 5])] == ["0000.txt", "0002.txt"]
        assert "1 file left out: not UTF-8" in str(corpus.summary)
    with ladle.prepare(inputs, tmp_path / "mend", tokenizer="bytes", encoding_errors="replace", val_fraction=0) as corpus:
        assert bytes(documents(corpus["train"])[1][:-1]).decode() == "b\ufffdd\ufffd"
        assert corpus.summary.replaced == 2
        assert corpus["train"].locate([6])[0].token_byte is None
        assert corpus["train"].locate([1])[0].token_byte == 1


def test_a_file_is_known_by_its_own_bytes_also_where_some_were_replaced(tmp_path):
    inputs = write(tmp_path / "in", [b"b\xffd", b"\xef\xbb\xbfb\xffd"])
    with ladle.prepare(inputs, tmp_path / "out", tokenizer="bytes", encoding_errors="replace", val_fraction=0):
        lines = [json.loads(line) for line in (tmp_path / "out" / "sources.jsonl").read_text().splitlines()]
    assert {line["blake2b"] for line in lines} == {hashlib.blake2b(b"b\xffd", digest_size=16).hexdigest()}


def test_a_written_marker_is_text_and_counted(tmp_path):
    inputs = write(tmp_path / "in", ["see <|endoftext|> here", "<|endoftext|>"])
    with ladle.prepare(inputs, tmp_path / "text", val_fraction=0) as corpus:
        ids = corpus["train"].read(0, corpus["train"].num_tokens)
        assert np.count_nonzero(ids == 50256) == 2
        assert corpus["train"].num_documents == 2
        assert corpus.summary.markers == {"<|endoftext|>": 2}
        assert "<|endoftext|> is written 2 times in the text, kept as text" in str(corpus.summary)
    with ladle.prepare(inputs, tmp_path / "id", val_fraction=0, allowed_special={"<|endoftext|>"}) as corpus:
        ids = corpus["train"].read(0, corpus["train"].num_tokens)
        assert np.count_nonzero(ids == 50256) == 4
        assert corpus["train"].num_documents == 2, "an end-of-text id inside a document is no boundary"
        assert "taken as the control id" in str(corpus.summary)


def test_end_of_text_follows_the_tokenizer(tmp_path):
    inputs = write(tmp_path / "in", ["ab", "cd"])
    for tokenizer, asked, ids in (
        ("bytes", None, [97, 98, 256, 99, 100, 256]),
        ("bytes", False, [97, 98, 99, 100]),
        ("chars", None, [0, 1, 2, 3]),
        ("chars", True, [0, 1, 4, 2, 3, 4]),
    ):
        out = tmp_path / f"{tokenizer}{asked}"
        with ladle.prepare(inputs, out, tokenizer=tokenizer, end_of_text=asked, val_fraction=0) as corpus:
            assert corpus["train"].read(0, corpus["train"].num_tokens).tolist() == ids
    coder = ladle.open(tmp_path / "charsNone").tokenizer
    with pytest.raises(ConfigError, match="expected a tokenizer that has an end-of-text id, found 'chars'"):
        ladle.prepare(inputs, tmp_path / "x", tokenizer=coder, end_of_text=True)


def test_a_character_that_the_vocabulary_lacks_names_file_and_place(tmp_path):
    coder = ladle.from_text("abc", tokenizer="chars").tokenizer
    inputs = write(tmp_path / "in", ["abc", "abd"])
    with pytest.raises(TokenError, match=r"0001\.txt: chars: character 2 of the text") as caught:
        ladle.prepare(inputs, tmp_path / "out", tokenizer=coder)
    assert "'d'" in str(caught.value)
    assert [p.name for p in tmp_path.iterdir()] == ["in"]


class Wrong:
    """A tokenizer whose ids do not fit its own vocabulary."""

    def __new__(cls, vocab_size, ids):
        from ladle.tokens.bytes import Bytes

        class Liar(Bytes):
            def encode_pieces(self, pieces, **_):
                list(pieces)
                yield np.array(ids)

        liar = Liar()
        liar.vocab_size = vocab_size
        return liar


@pytest.mark.parametrize(
    ("vocab_size", "ids", "bad"), [(65536, [1, 65536], 65536), (257, [300], 300), (70001, [70001], 70001), (257, [-1], -1)]
)
def test_an_id_that_does_not_fit_is_an_error_never_a_wrap(tmp_path, vocab_size, ids, bad):
    inputs = write(tmp_path / "in", ["text"])
    dtype = "uint32" if vocab_size > 65536 else "uint16"
    with pytest.raises(TokenError) as caught:
        ladle.prepare(inputs, tmp_path / "out", tokenizer=Wrong(vocab_size, ids))
    assert "0000.txt" in str(caught.value)
    assert f"document 0 of train-00000, token {len(ids) - 1}" in str(caught.value)
    assert f"stored as {dtype}; found {bad}" in str(caught.value)
    assert [p.name for p in tmp_path.iterdir()] == ["in"]


@pytest.mark.parametrize("vocab_size", [65536, 65537, 70001])
def test_the_dtype_comes_from_the_vocabulary_not_the_ids(tmp_path, vocab_size):
    coder = Wrong(vocab_size, [70000, 65536, 65535][3 - (3 if vocab_size > 70000 else 2 if vocab_size > 65536 else 1) :])
    with ladle.prepare(
        write(tmp_path / "in", ["text"]), tmp_path / "out", tokenizer=coder, val_fraction=0, end_of_text=False
    ) as corpus:
        assert corpus["train"].dtype == ("<u2" if vocab_size == 65536 else "<u4")
        assert corpus["train"].read(0, corpus["train"].num_tokens)[-1] == 65535


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"split": "random"}, "split: expected one of auto, hash, tail, found 'random'"),
        ({"val_fraction": 1}, "val_fraction: expected 0 or more and below 1, found 1.0"),
        ({"val_fraction": -0.1}, "val_fraction: expected 0 or more"),
        ({"val_fraction": float("nan")}, "val_fraction: expected 0 or more"),
        ({"val_fraction": "tenth"}, "val_fraction: expected a number, found 'tenth'"),
        ({"shard_bytes": 0}, "shard_bytes: expected an integer, 1 or more, found 0"),
        ({"shard_bytes": 1e6}, "shard_bytes: expected an integer, 1 or more, found 1000000.0"),
        ({"allowed_special": "<|endoftext|>"}, "allowed_special: expected a collection of markers, found '<|endoftext|>'"),
        ({"allowed_special": [50256]}, "allowed_special: expected a collection of markers, found [50256]"),
        ({"encoding_errors": "ignore"}, "encoding_errors: expected one of strict, replace, skip, found 'ignore'"),
        ({"tokenizer": "gpt5"}, "found 'gpt5'"),
    ],
)
def test_options_that_cannot_be_right(tmp_path, options, message):
    with pytest.raises(ConfigError) as caught:
        ladle.prepare(write(tmp_path / "in", ["text"]), tmp_path / "out", **options)
    assert message in str(caught.value)
    assert [p.name for p in tmp_path.iterdir()] == ["in"]


@pytest.mark.parametrize("mark", [b"", b"\xef\xbb\xbf"])
def test_a_file_that_changes_while_it_is_read_is_noticed(tmp_path, mark):
    inputs = write(tmp_path / "in", ["first", mark + b"second"])

    from ladle.tokens.bytes import Bytes

    class Meddler(Bytes):
        def encode_pieces(self, pieces, **options):
            (inputs / "0001.txt").write_bytes(mark + b"SECOND")
            return super().encode_pieces(pieces, **options)

    with pytest.raises(TextError, match=r"0001\.txt: expected the text that preparing began with"):
        ladle.prepare(inputs, tmp_path / "out", tokenizer=Meddler())
    assert [p.name for p in tmp_path.iterdir()] == ["in"]


def test_names_of_files_that_are_no_unicode(tmp_path):
    (tmp_path / "in").mkdir()
    name = os.fsdecode(b"caf\xe9.txt")
    (tmp_path / "in" / name).write_text("text")
    with ladle.prepare(tmp_path / "in", tmp_path / "out", tokenizer="bytes") as corpus:
        assert corpus["train"].locate([0])[0].source == r"caf\xe9.txt"


def test_the_text_is_utf8_whatever_the_locale(tmp_path):
    import subprocess

    (tmp_path / "t.txt").write_bytes("é中".encode())
    code = f"import ladle; print(ladle.prepare({str(tmp_path / 't.txt')!r}, {str(tmp_path / 'out')!r}, tokenizer='bytes', val_fraction=0)['train'].read(0, 5).tolist())"
    environment = {**os.environ, "LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == str(list("é中".encode()))


def test_the_summary_as_json(tmp_path):
    with ladle.prepare(write(tmp_path / "in", ["ab", "cd"]), tmp_path / "out", tokenizer="bytes") as corpus:
        found = json.loads(json.dumps(corpus.summary.to_dict()))
    assert (found["files"], found["documents"], found["tokens"], found["dtype"]) == (2, 2, 6, "uint16")
    assert found["splits"]["train"] == {"documents": 1, "tokens": 3, "shards": 1}


def test_prepare_twice_at_once_is_refused(tmp_path):
    from ladle.corpus.workplace import workplace

    inputs = write(tmp_path / "in", ["text"])
    with pytest.raises(ConfigError, match="another process is preparing this corpus"), workplace(tmp_path / "out") as folder:
        (folder / "x").write_text("x")
        ladle.prepare(inputs, tmp_path / "out", tokenizer="bytes")
    assert [p.name for p in tmp_path.iterdir()] == ["in"]


def test_what_an_interrupted_run_left_is_cleaned_up(tmp_path):
    left = workplace_of(tmp_path / "out")
    write(left / "corpus", ["half a shard"])
    (left / "lock").write_text("")
    with ladle.prepare(write(tmp_path / "in", ["text"]), tmp_path / "out", tokenizer="bytes") as corpus:
        assert not Path(corpus.path / "0000.txt").exists()
    assert sorted(p.name for p in tmp_path.iterdir()) == ["in", "out"]


def test_the_marker_is_counted_for_tokenizers_that_do_not_know_it(tmp_path):
    inputs = write(tmp_path / "in", ["a<|endoftext|>b"])
    with ladle.prepare(inputs, tmp_path / "out", tokenizer="chars", val_fraction=0) as corpus:
        assert corpus["train"].num_tokens == len("a<|endoftext|>b")
        assert corpus.summary.markers == {"<|endoftext|>": 1}
