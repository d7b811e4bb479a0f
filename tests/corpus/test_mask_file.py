"""The loss mask on disk: byte by byte, damaged, killed while it is written, read by ranges, let go of."""

import gzip
import hashlib
import json
import os
import pickle
import re
import signal

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import ladle
from ladle.corpus import format, write
from ladle.corpus.verify import verify
from ladle.corpus.write import CHUNK_BYTES, ShardWriter
from ladle.errors import ClosedError, ConfigError, FormatError

LINES = b'{"text": "Hello world", "spans": [[6, 11]]}\n{"text": " world", "spans": []}\n'


def npy(dict_text, content):
    return b"\x93NUMPY\x01\x00\x76\x00" + dict_text.ljust(117).encode() + b"\n" + content


# "Hello" is 15496 (3c88), " world" 995 (03e3), the end of text 50256 (c450). Only " world" of the first record is learned.
FILES = {
    "train-00000.bin": bytes.fromhex("883c e303 50c4 e303 50c4"),
    "train-00000.docs.npy": npy(
        "{'descr': '<u8', 'fortran_order': False, 'shape': (2,), }", bytes.fromhex("0300000000000000 0500000000000000")
    ),
    "train-00000.mask.npy": npy("{'descr': '|u1', 'fortran_order': False, 'shape': (5,), }", bytes.fromhex("00 01 01 00 00")),
}
SHA256 = {name: hashlib.sha256(content).hexdigest() for name, content in FILES.items()}
GPT2 = "dd15942f12af303c9071395cf2c39c39"
FINGERPRINT = "e6f52b79cc40250532e62f606e4c408cf4ee1b11b660b58c545b064740240aea"


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "a.jsonl").write_bytes(LINES)
    ladle.prepare(tmp_path / "a.jsonl", tmp_path / "c", val_fraction=0, train_spans_field="spans").close()
    return tmp_path / "c"


def mask_of(split, start=0, length=None):
    return split.loss_mask(np.array([start]), np.array([split.num_tokens if length is None else length]))


def test_a_tiny_corpus_of_gpt2s_ids_byte_by_byte(folder):
    written = {path.name: path.read_bytes() for path in folder.iterdir()}
    assert sorted(written) == sorted([*FILES, "corpus.json", "sources.jsonl", "train-00000.from.npy", "train-00000.sums.npy"])
    for name, content in FILES.items():
        assert written[name] == content, name
    origins = written["train-00000.from.npy"]
    assert origins[192:].hex() == "00000000 08000000 0000000000000000 0100000000000000".replace(" ", "") + (
        "00000000 08000000 2c00000000000000 0200000000000000".replace(" ", "")
    )  # flag 8: a record; the second begins at byte 44, on line 2
    crcs = [gzip.compress(written[f"train-00000.{kind}"])[-8:-4] for kind in ("bin", "docs.npy", "from.npy", "mask.npy")]
    sums = npy("{'descr': '<u4', 'fortran_order': False, 'shape': (4,), }", b"".join(crcs))
    assert written["train-00000.sums.npy"] == sums
    manifest = json.loads(written["corpus.json"])
    assert manifest["streams"] == {"mask": {"dtype": "uint8"}}
    shard = manifest["splits"]["train"]["shards"][0]
    assert shard["learned"] == 2
    assert shard["files"]["mask"] == {"bytes": 133, "sha256": SHA256["train-00000.mask.npy"]}
    content = [5, 2, 50256, *SHA256.values()]
    whole = json.dumps(
        {"format": "ladle-corpus", "version": 1, "tokenizer": GPT2, "dtype": "uint16", "splits": {"train": [content]}},
        sort_keys=True,
        separators=(",", ":"),
    )
    assert hashlib.sha256(whole.encode()).hexdigest() == manifest["generations"][0]["fingerprint"] == FINGERPRINT


def rewrite(folder, change, *, told=True):
    """Change the mask's file, and make the checksums right. told: and the manifest's words."""
    path, sums_path, manifest_path = folder / "train-00000.mask.npy", folder / "train-00000.sums.npy", folder / "corpus.json"
    content = change(path.read_bytes())
    path.write_bytes(content)
    sums = np.load(sums_path)
    sums[3:] = format.block_sums(content)
    sums_path.write_bytes(format.npy_header("sums", len(sums)) + sums.tobytes())
    if told:
        manifest = json.loads(manifest_path.read_bytes())
        files = manifest["splits"]["train"]["shards"][0]["files"]
        for kind, file in (("mask", path), ("sums", sums_path)):
            files[kind]["sha256"] = hashlib.sha256(file.read_bytes()).hexdigest()
        shards = {"train": manifest["splits"]["train"]["shards"]}
        found = format.fingerprint(tokenizer_hash=manifest["tokenizer_hash"], dtype="uint16", splits=shards)
        manifest["generations"][0]["fingerprint"] = found
        manifest_path.write_bytes(format.readable(manifest))


def test_neither_0_nor_1_is_named_by_whoever_reads_it(folder):
    rewrite(folder, lambda content: content[:-2] + b"\x02\x00")
    message = re.escape(f"{folder}/train-00000.mask.npy @ byte 131: mask: expected 0 or 1, found 2")
    with ladle.open(folder) as corpus:
        assert mask_of(corpus["train"], 0, 3).tolist() == [0, 1, 1]
        with pytest.raises(FormatError, match=message):
            corpus["train"].loss_mask(np.array([0, 2, 0]), np.array([2, 3, 1]))
    assert [str(fault) for fault in verify(folder).faults if re.search(message, str(fault))]


def test_another_shards_header_is_named_where_its_checksum_is_right(folder):
    rewrite(folder, lambda content: content.replace(b"(5,)", b"(4,)"))
    with (
        ladle.open(folder) as corpus,
        pytest.raises(FormatError, match=r"mask\.npy @ byte 0: header: expected that of 5 entries"),
    ):
        mask_of(corpus["train"])


def test_a_mask_that_the_manifest_does_not_know_is_no_mask_and_one_it_hides_is_refused(folder):
    manifest = folder / "corpus.json"
    content = json.loads(manifest.read_bytes())
    del content["splits"]["train"]["shards"][0]["files"]["mask"]
    manifest.write_bytes(format.readable(content))
    with pytest.raises(FormatError, match=r"train\.shards\[0\]\.files\.sums\.bytes: expected 140, found 144"):
        ladle.open(folder)


def test_a_mask_cut_short_while_it_is_open(folder):
    with ladle.open(folder) as corpus:
        mask_of(corpus["train"], 0, 1)
        os.truncate(folder / "train-00000.mask.npy", 130)
        with pytest.raises(FormatError, match=r"mask\.npy: size: expected 133 bytes, found 130 bytes"):
            mask_of(corpus["train"])


def test_a_split_that_is_closed_reads_no_mask(folder):
    corpus = ladle.open(folder)
    split = corpus["train"]
    copied = pickle.loads(pickle.dumps(split))
    assert mask_of(split).tolist() == [0, 1, 1, 0, 0]
    corpus.close()
    with pytest.raises(ClosedError):
        mask_of(split)
    assert mask_of(copied).tolist() == [0, 1, 1, 0, 0]
    copied.close()
    in_memory = ladle.from_ids([5, 6, 7], loss_mask=[True, False, True])
    assert mask_of(pickle.loads(pickle.dumps(in_memory))).tolist() == [1, 0, 1]


@settings(max_examples=60, deadline=None)
@given(
    flags=st.lists(st.booleans(), min_size=1, max_size=30),
    ranges=st.lists(st.tuples(st.integers(0, 40), st.integers(0, 40)), max_size=5),
    masked=st.booleans(),
)
def test_any_ranges_past_the_end_too(flags, ranges, masked):
    split = ladle.from_ids(np.arange(len(flags)), loss_mask=flags if masked else None)
    assert split.has_loss_mask == masked
    starts, lengths = (np.array([pair[side] for pair in ranges], np.int64) for side in (0, 1))
    plain = [int(f) for f in flags] if masked else [1] * len(flags)
    padded = plain + [0] * 100
    found = split.loss_mask(starts, lengths)
    assert found.dtype == np.uint8
    assert found.flags.writeable
    assert found.tolist() == [flag for start, length in ranges for flag in padded[start : start + length]]


@pytest.mark.parametrize(("starts", "lengths"), [([-1], [1]), ([0], [-1]), ([0, 1], [1])])
def test_what_is_no_range_is_refused(starts, lengths):
    for mask in (None, [1, 0]):
        with pytest.raises(ConfigError, match="loss_mask: expected starts and lengths of 0 or more, one of each"):
            ladle.from_ids([1, 2], loss_mask=mask).loss_mask(np.array(starts), np.array(lengths))


def test_a_large_mask_is_written_as_it_was_told(tmp_path):
    """In pieces that end anywhere; more than two of the chunks in which it is kept."""
    rng = np.random.default_rng(0)
    flags = rng.random(2 * CHUNK_BYTES + 12_345) < 0.3
    writer, done = ShardWriter(tmp_path, "train-00000", 257, masked=True), 0
    while done < len(flags):
        piece = flags[done : done + int(rng.integers(1, 200_000))]
        writer.write(np.zeros(len(piece), np.uint16), piece)
        done += len(piece)
    writer.end_document(source=0, flags=0, byte=0, line=1)
    entry = writer.finish()
    assert entry["learned"] == int(flags.sum())
    content = (tmp_path / "train-00000.mask.npy").read_bytes()
    assert np.array_equal(np.frombuffer(content[128:], np.uint8), flags)
    sums = np.load(tmp_path / "train-00000.sums.npy")
    first = format.first_sum("mask", num_tokens=len(flags), num_documents=1, itemsize=2)
    assert np.array_equal(sums[first:], format.block_sums(content))


def die_at(call, prepare):
    """Prepare in a fork that is killed when the call-th file is finished. Its exit code."""
    child = os.fork()
    if child:
        return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    left, finish = [call], write._SummedFile.finish

    def deadly(file):
        left[0] -= 1
        if not left[0]:
            os.kill(os.getpid(), signal.SIGKILL)
        finish(file)

    write._SummedFile.finish = deadly
    try:
        prepare().close()
        os._exit(0)
    except BaseException:
        os._exit(7)


def test_killed_at_each_file_nothing_opens_and_the_next_run_is_the_same(tmp_path):
    path = tmp_path / "a.jsonl"
    path.write_text("".join(json.dumps({"m": [{"role": "assistant", "content": f"answer {i}"}]}) + "\n" for i in range(90)))

    def prepare(out):
        return ladle.prepare(path, tmp_path / out, tokenizer="bytes", split="hash", chat_field="m", shard_bytes=2000)

    with prepare("whole") as corpus:
        files = 5 * sum(len(split.shards) for split in corpus.splits.values()) + 2  # and the sources, and the manifest
    expected = {file.name: file.read_bytes() for file in (tmp_path / "whole").iterdir()}
    assert len(expected) == files
    for call in range(1, files + 1):
        assert die_at(call, lambda: prepare("out")) == -signal.SIGKILL
        with pytest.raises(FormatError):
            ladle.open(tmp_path / "out")
    assert die_at(files + 1, lambda: prepare("out")) == 0
    assert {file.name: file.read_bytes() for file in (tmp_path / "out").iterdir()} == expected
    assert not verify(tmp_path / "out").faults
