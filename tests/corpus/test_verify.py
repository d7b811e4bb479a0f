"""verify lists every fault; inspect describes."""

import hashlib
import json
import pickle

import numpy as np
import pytest

import ladle
from ladle.corpus import format
from ladle.corpus.inspect import inspect
from ladle.corpus.verify import verify
from ladle.errors import FormatError


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "in").mkdir()
    for i in range(3):
        (tmp_path / "in" / f"{i}.txt").write_text("abcdefgh" * 1000)
    ladle.prepare(tmp_path / "in", tmp_path / "out", tokenizer="bytes", val_fraction=0, shard_bytes=16_000).close()
    return tmp_path / "out"


def edit(path, changes):
    content = bytearray(path.read_bytes())
    for offset, value in changes.items():
        content[offset] ^= value
    path.write_bytes(content)


def test_a_sound_corpus(folder):
    verdict = verify(folder)
    assert verdict.faults == ()
    assert verdict.num_files == 9
    assert verdict.num_bytes == sum(p.stat().st_size for p in folder.iterdir() if p.name != "corpus.json")
    assert str(verdict) == f"9 files, {verdict.num_bytes / 1e6:,.1f} MB reread: every checksum, hash and id is right"


def test_every_damaged_block_is_named(folder):
    path = folder / "train-00000.bin"
    edit(path, {5: 1, 4096 * 3 + 7: 2, 32_003: 1})
    faults = [str(fault) for fault in verify(folder).faults]
    assert len(faults) == 4
    assert faults[0].startswith(f"{path}: SHA-256: expected ")
    for fault, block in zip(faults[1:], (0, 3, 7), strict=True):
        assert fault.startswith(f"{path} @ byte {block * 4096}: CRC-32 of block {block}: expected ")


@pytest.mark.parametrize("kind", ["docs", "from"])
def test_damaged_side_files(folder, kind):
    path = folder / f"train-00001{format.SUFFIXES[kind]}"
    edit(path, {130: 1})
    faults = [str(fault) for fault in verify(folder).faults]
    assert len(faults) == 2
    assert faults[1].startswith(f"{path} @ byte 0: CRC-32 of block 0: expected ")


def test_damaged_sums_accuse_only_themselves(folder):
    edit(folder / "train-00000.sums.npy", {130: 1})
    (fault,) = verify(folder).faults
    assert str(fault).startswith(f"{folder / 'train-00000.sums.npy'}: SHA-256: expected ")
    edit(folder / "train-00000.bin", {0: 1})
    assert len(verify(folder).faults) == 2


def test_cut_missing_and_swapped_files(folder):
    cut, gone = folder / "train-00000.bin", folder / "train-00001.docs.npy"
    cut.write_bytes(cut.read_bytes()[:10_000])
    gone.unlink()
    (folder / "sources.jsonl").write_text("{}\n")
    faults = [str(fault) for fault in verify(folder).faults]
    assert f"{cut}: size: expected 32004 bytes, found 10000 bytes" in faults
    assert any(f.startswith(f"{cut} @ byte 8192: CRC-32 of block 2") for f in faults)
    assert any(f.startswith(f"{gone}: file: expected a file, found none") for f in faults)
    assert any(f.startswith(f"{folder / 'sources.jsonl'}: size: expected ") for f in faults)
    assert str(verify(folder)).endswith(f"{len(faults)} faults")


def test_a_largest_id_that_is_not_there(folder):
    path = folder / "corpus.json"
    found = json.loads(path.read_text())
    shards = found["splits"]["train"]["shards"]
    shards[1]["max_id"] = 255  # its ids reach 256, the end of text
    found["generations"][0]["fingerprint"] = format.fingerprint(
        tokenizer_hash=found["tokenizer_hash"], dtype=found["dtype"], splits={"train": shards}
    )
    path.write_text(json.dumps(found))
    (fault,) = verify(folder).faults
    assert str(fault) == f"{folder / 'train-00001.bin'}: largest id: expected 255, found 256"


def rewrite(folder, *keys):
    """Set one field of the manifest: keys, and the value."""
    path = folder / "corpus.json"
    top = found = json.loads(path.read_text())
    for key in keys[:-2]:
        found = found[key]
    found[keys[-2]] = keys[-1]
    path.write_text(json.dumps(top))


@pytest.mark.parametrize(
    ("edit", "message"),
    [
        (("end_of_text", 255), "corpus.json: end_of_text: expected the tokenizer's 256, found 255"),
        (("end_of_text", None), "corpus.json: end_of_text: expected the tokenizer's 256, found None"),
        (("vocab_size", 258), "corpus.json: vocab_size: expected the tokenizer's 257, found 258"),
        (("tokenizer", {"kind": "chars", "characters": "ab", "end_of_text": None}), "corpus.json: tokenizer_hash: expected "),
        (("tokenizer", {"kind": "cytes"}), "corpus.json: tokenizer_hash: expected "),
        (("sources", "count", 4), "corpus.json: sources.count: expected sources.jsonl's 3 lines, found 4"),
        (("splits", "train", "shards", 1, "inputs", "first", [2, 1]), None),
        (
            ("splits", "train", "shards", 0, "inputs", "end", [1, 0]),
            "train-00000.from.npy: sources: expected sources that ascend within 0 to 0, the shard's inputs, found others",
        ),
    ],
)
def test_what_the_manifest_says_is_held_against_the_files(folder, edit, message):
    rewrite(folder, *edit)
    faults = [str(fault) for fault in verify(folder).faults]
    assert [message in fault for fault in faults] == ([True] if message else [])


def test_a_shard_that_names_anothers_sources_does_not_open(folder):
    """The provenance of every document in it would be another file's."""
    for field, value, message in (
        ("first", [1, 0], r"train-00001: inputs: expected inputs after those of train-00000, which end at \(2, 0\)"),
        ("first", [3, 0], r"train-00001: inputs: expected inputs within 3 sources, found \(3, 0\) to \(3, 0\)"),
    ):
        before = (folder / "corpus.json").read_text()
        rewrite(folder, "splits", "train", "shards", 1, "inputs", field, value)
        with pytest.raises(FormatError, match=message):
            ladle.open(folder)
        (folder / "corpus.json").write_text(before)


def test_a_tokenizer_that_cannot_be_built_here_is_no_fault(folder):
    """A vocabulary to download, an extra that is not installed: its hash is right, and that is all one can say."""
    identity = {"kind": "tiktoken", "name": "an encoding of tomorrow"}
    rewrite(folder, "tokenizer", identity)
    hashed = hashlib.blake2b(format.canonical(identity), digest_size=16).hexdigest()
    found = json.loads((folder / "corpus.json").read_text())
    fingerprint = format.fingerprint(tokenizer_hash=hashed, dtype="uint16", splits={"train": found["splits"]["train"]["shards"]})
    rewrite(folder, "tokenizer_hash", hashed)
    rewrite(folder, "generations", 0, "fingerprint", fingerprint)
    assert verify(folder).faults == ()


def test_the_manifest_itself(folder):
    edit(folder / "corpus.json", {0: 1})
    with pytest.raises(FormatError, match="manifest: expected JSON"):
        verify(folder)
    (folder / "corpus.json").unlink()
    with pytest.raises(FormatError, match=r"corpus: expected a folder with corpus\.json, which holds the checksums, found none"):
        verify(folder)


def test_inspect(folder, tmp_path):
    with ladle.open(folder) as corpus:
        text = inspect(corpus)
    for line in (
        "tokenizer        bytes",
        "vocabulary       257 ids",
        "train            24,003 tokens, 3 documents, 2 shards, largest id 256",
    ):
        assert line in text
    assert "made from        3 files, 24,000 bytes" in text
    manifest = json.loads((folder / "corpus.json").read_text())
    (folder / "corpus.json").write_text(json.dumps(manifest | {"made": None}))
    with ladle.open(folder) as corpus:
        text = inspect(corpus)
    assert "tokenizer        bytes" in text
    assert "made from" not in text
    np.arange(4, dtype=np.uint16).tofile(tmp_path / "train.bin")
    with ladle.open(tmp_path) as corpus:
        text = inspect(corpus)
    assert "nanogpt folder" in text
    assert "tokenizer        unknown" in text
    assert "train            4 tokens, documents unknown, 1 shard\n" in text
    found = {"vocab_size": 2, "itos": {0: "a", 1: "b"}, "stoi": {"a": 0, "b": 1}}
    (tmp_path / "meta.pkl").write_bytes(pickle.dumps(found))
    np.array([0, 1, 1], dtype=np.uint16).tofile(tmp_path / "train.bin")
    with ladle.open(tmp_path) as corpus:
        assert "tokenizer        chars" in inspect(corpus)
    assert "fingerprint      sampled:" in text
