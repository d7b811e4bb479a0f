"""Opening: what a manifest may say, what its files must be, and what it costs."""

import copy
import json
import os
import random
import shutil
import subprocess
import sys

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import ladle
from ladle.corpus import format
from ladle.corpus.inspect import inspect
from ladle.errors import ConfigError, FormatError, LadleError


@pytest.fixture(scope="module")
def original(tmp_path_factory):
    base = tmp_path_factory.mktemp("original")
    (base / "in").mkdir()
    for i in range(8):
        (base / "in" / f"{i}.txt").write_text(f"text number {i}\n" * (i + 1))
    ladle.prepare(base / "in", base / "out", tokenizer="bytes", val_fraction=0.3, shard_bytes=100).close()
    return base / "out"


@pytest.fixture
def folder(original, tmp_path):
    return shutil.copytree(original, tmp_path / "corpus")


def change(folder, edit):
    """Edit the manifest as JSON."""
    path = folder / "corpus.json"
    found = json.loads(path.read_text())
    edit(found)
    path.write_text(json.dumps(found))


def put(*keys):
    """An edit that sets one field: put(key, ..., value)."""

    def edit(found):
        for key in keys[:-2]:
            found = found[key]
        found[keys[-2]] = keys[-1]

    return edit


SHARD = ("splits", "train", "shards", 0)


@pytest.mark.parametrize(
    ("edit", "message"),
    [
        (put("format", "parquet"), "format: expected ladle-corpus, found 'parquet'"),
        (put("version", 2), "version: expected 1, found 2; a newer Ladle wrote it; upgrade this one"),
        (put("version", True), "version: expected 1, found True"),
        (put("version", "1"), "version: expected 1, found '1'"),
        (put("byte_order", "big"), "byte_order: expected little, found 'big'"),
        (put("checksum", None), "checksum.: expected a JSON object, found nothing"),
        (put("checksum", "algorithm", "md5"), "checksum.algorithm: expected crc32, found 'md5'"),
        (put("checksum", "block_bytes", 65536), "checksum.block_bytes: expected 4096, found 65536"),
        (put("dtype", "int16"), "dtype: expected uint16 or uint32, found 'int16'"),
        (put("dtype", "uint32"), "files.bin.bytes: expected"),
        (put("vocab_size", 0), "vocab_size: expected an integer from 1 to 4294967296, found 0"),
        (put("vocab_size", -5), "vocab_size: expected an integer"),
        (put("vocab_size", 257.0), "vocab_size: expected an integer"),
        (put("vocab_size", True), "vocab_size: expected an integer"),
        (put("vocab_size", 70000), "dtype: expected uint32 for a vocabulary of 70000, found 'uint16'"),
        (put("vocab_size", 100), "end_of_text: expected an integer from 0 to 99, found 256"),
        (put(*SHARD, "max_id", 257), "shards[0].max_id: expected an integer from 0 to 256, found 257"),
        (put("end_of_text", 257), "end_of_text: expected an integer from 0 to 256, found 257"),
        (put("tokenizer", 7), "tokenizer.: expected a JSON object, found 7"),
        (put("tokenizer_hash", "../etc"), "tokenizer_hash: expected 32 to 128 hexadecimal digits"),
        (put("splits", {}), "splits: expected at least one split"),
        (put("splits", []), "splits.: expected a JSON object"),
        (put("splits", "../up", {}), "splits: expected names of a to z, 0 to 9 and _, found '../up'"),
        (put("splits", "a/b", {}), "splits: expected names"),
        (put("splits", "train", None), "splits.train.: expected a JSON object"),
        (put("splits", "train", "tokens", 5), "splits.train.tokens: expected"),
        (put("splits", "train", "documents", 5), "splits.train.documents: expected"),
        (put("splits", "train", "max_id", 5), "splits.train.max_id: expected 256, found 5"),
        (put("splits", "train", "shards", {}), "splits.train.shards: expected a list"),
        (put(*SHARD, "name", "/etc/passwd"), "splits.train.shards[0].name: expected train- and a number of 5 digits or more"),
        (put(*SHARD, "name", "../train-00000"), "shards[0].name: expected"),
        (put(*SHARD, "name", "train-00000/../x"), "shards[0].name: expected"),
        (put(*SHARD, "name", "val-00000"), "shards[0].name: expected"),
        (put(*SHARD, "name", "train-00001"), "splits.train.shards: expected names in ascending order"),
        (put(*SHARD, "name", "train-00000\n"), "shards[0].name: expected"),
        (put(*SHARD, "tokens", -1), "shards[0].tokens: expected an integer from 1"),
        (put(*SHARD, "tokens", 0), "shards[0].tokens: expected an integer from 1"),
        (put(*SHARD, "tokens", 1 << 63), "shards[0].tokens: expected an integer from 1"),
        (put(*SHARD, "tokens", "9"), "shards[0].tokens: expected an integer from 1"),
        (put(*SHARD, "tokens", 1 << 61), "shards[0].files.bin.bytes: expected 4611686018427387904, found"),
        (put(*SHARD, "documents", 10**9), "shards[0].files.docs.bytes: expected"),
        (put(*SHARD, "inputs", None), "shards[0].inputs.: expected a JSON object"),
        (put(*SHARD, "inputs", "first", [0, -1]), "shards[0].inputs.first: expected [source, byte]"),
        (put(*SHARD, "inputs", "end", [0]), "shards[0].inputs.end: expected [source, byte]"),
        (put(*SHARD, "inputs", "end", [0, 0]), "train-00000: inputs: expected inputs within "),
        (put(*SHARD, "inputs", "end", [10**6, 0]), "train-00000: inputs: expected inputs within "),
        (put("sources", None), "sources.: expected a JSON object, found nothing"),
        (put("sources", "count", -1), "sources.count: expected an integer from 0"),
        (put("sources", "bytes", "9"), "sources.bytes: expected an integer from 0"),
        (put("sources", "sha256", "0"), "sources.sha256: expected 64 hexadecimal digits"),
        (put(*SHARD, "files", "sums", None), "shards[0].files.sums.: expected a JSON object"),
        (put(*SHARD, "files", "bin", "bytes", -2), "shards[0].files.bin.bytes: expected"),
        (put(*SHARD, "files", "bin", "sha256", "0" * 63), "shards[0].files.bin.sha256: expected 64 hexadecimal digits"),
        (put(*SHARD, "files", "bin", "sha256", "0" * 64), "generations[0].fingerprint: expected"),
        (put(*SHARD, "max_id", 255), "generations[0].fingerprint: expected"),
        (put("made", 5), "made.: expected a JSON object, found 5"),
        (put("made", "inputs", "files", -1), "made.inputs.files: expected an integer from 0"),
        (
            put("made", "counts", "markers", "<|endoftext|>", "many"),
            "made.counts.markers.<|endoftext|>: expected an integer from 0",
        ),
        (put("generations", []), "generations: expected a last one that covers every shard"),
        (put("generations", 0, "shards", "train", 1), "generations: expected a last one that covers every shard"),
        (put("generations", 0, "shards", "train", 10**6), "generations[0].shards.train: expected an integer from 0"),
        (put("generations", 0, "shards", {}), "generations[0].shards: expected a count for each of train, val, found none"),
        (put("generations", 0, "fingerprint", "f" * 64), "generations[0].fingerprint: expected " + "f" * 64),
    ],
)
def test_what_a_manifest_may_not_say(folder, edit, message):
    change(folder, edit)
    with pytest.raises(FormatError) as caught:
        ladle.open(folder)
    assert f"{folder / 'corpus.json'}: " in str(caught.value)
    assert message in str(caught.value)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "manifest: expected JSON in UTF-8"),
        (b"{", "manifest: expected JSON in UTF-8"),
        (b"\xff\xfe", "manifest: expected JSON in UTF-8"),
        (b"[]", "manifest: expected a JSON object, found []"),
        (b"null", "manifest: expected a JSON object, found nothing"),
        (b"[" * 100_000, "manifest: expected JSON in UTF-8"),
        (b'{"format": NaN}', "manifest: expected JSON in UTF-8, found NaN is no JSON"),
        (b'{"version": ' + b"9" * 5000 + b"}", "manifest: expected JSON in UTF-8"),
    ],
)
def test_what_is_no_manifest(folder, content, message):
    (folder / "corpus.json").write_bytes(content)
    with pytest.raises(FormatError) as caught:
        ladle.open(folder)
    assert message in str(caught.value)


def test_a_manifest_that_is_absurdly_long_is_not_read(folder):
    os.truncate(folder / "corpus.json", 1 << 40)
    with pytest.raises(FormatError, match="size: expected at most 268435456 bytes, found 1099511627776 bytes"):
        ladle.open(folder)


def test_unknown_keys_are_ignored(folder):
    change(folder, put("later", {"a": 1}))
    change(folder, put(*SHARD, "streams", {"mask": {}}))
    ladle.open(folder).close()


def one_clear_line(error):
    assert "\n" not in str(error)
    assert "expected" in str(error)
    assert "found" in str(error)


JUNK = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=5,
)


@settings(max_examples=300, suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(seed=st.integers(0, 2**32), junk=JUNK, remove=st.booleans())
def test_any_field_replaced_is_one_clear_error_or_harmless(original, tmp_path_factory, seed, junk, remove):
    """Fuzz: a random field anywhere in the manifest becomes junk or is removed."""
    rng = random.Random(seed)
    found = json.loads((original / "corpus.json").read_text())
    node = found
    while True:
        key = rng.choice(sorted(node)) if isinstance(node, dict) else rng.randrange(len(node))
        if not isinstance(node[key], dict | list) or not node[key] or rng.random() < 0.2:
            break
        node = node[key]
    if remove:
        del node[key]
    else:
        node[key] = junk
    folder = tmp_path_factory.mktemp("fuzz")
    for path in original.iterdir():
        if path.name != "corpus.json":
            os.link(path, folder / path.name)
    (folder / "corpus.json").write_text(json.dumps(found))
    try:
        with ladle.open(folder) as corpus:
            for split in corpus.splits.values():
                split.read(0, split.num_tokens)
            corpus["train"].locate([0])
            corpus.tokenizer
            inspect(corpus)
    except LadleError as error:
        one_clear_line(error)


@settings(max_examples=100, suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(place=st.integers(0, 10**6), value=st.integers(0, 255))
def test_any_byte_of_a_manifest_changed_is_no_crash(original, tmp_path_factory, place, value):
    content = bytearray((original / "corpus.json").read_bytes())
    content[place % len(content)] = value
    folder = tmp_path_factory.mktemp("bytes")
    for path in original.iterdir():
        if path.name != "corpus.json":
            os.link(path, folder / path.name)
    (folder / "corpus.json").write_bytes(content)
    try:
        ladle.open(folder).close()
    except LadleError as error:
        one_clear_line(error)


@pytest.mark.parametrize("suffix", [format.SUFFIXES[kind] for kind in format.kinds(mask=False)])
def test_files_of_another_size_are_refused(folder, suffix):
    path = folder / f"train-00000{suffix}"
    size = path.stat().st_size
    for found in (0, size - 1, size + 1):
        os.truncate(path, found)
        with pytest.raises(FormatError) as caught:
            ladle.open(folder)
        assert f"{path}: size: expected {size} bytes, found {found} bytes; the file is cut off" in str(caught.value)
    path.unlink()
    with pytest.raises(FormatError, match="file: expected a file, found none"):
        ladle.open(folder)


def test_links_may_not_lead_out(folder, tmp_path):
    path = folder / "train-00000.bin"
    path.rename(tmp_path / "outside.bin")
    path.symlink_to(tmp_path / "outside.bin")
    with pytest.raises(FormatError, match=r"link: expected a target inside .* found .*outside.bin"):
        ladle.open(folder)
    path.unlink()
    (tmp_path / "outside.bin").rename(folder / "inside.bin")
    path.symlink_to("inside.bin")
    ladle.open(folder)["train"].read(0, 3)
    (tmp_path / "link").symlink_to(folder)
    ladle.open(tmp_path / "link")["train"].read(0, 3)


def test_a_pipe_in_place_of_a_shard_is_refused_not_waited_for(folder):
    path = folder / "train-00000.bin"
    path.unlink()
    os.mkfifo(path)
    with pytest.raises(FormatError, match="expected a regular file, found prw"):
        ladle.open(folder)


def test_swapped_shards_are_noticed(folder):
    """Two files of one size, exchanged: the sizes are right, the first touch is not."""
    np.array([1, 2, 3], np.uint16).tofile(folder / "x")
    names = [p for p in sorted(folder.glob("train-*.bin"))]
    a, b = names[0], names[1]
    same = b.read_bytes()[: a.stat().st_size].ljust(a.stat().st_size, b"\0")
    a.write_bytes(same)
    with ladle.open(folder) as corpus, pytest.raises(FormatError, match="CRC-32 of block 0"):
        corpus["train"].read(0, 1)


@pytest.mark.parametrize(("kind", "offset"), [("docs", 130), ("from", 200), ("docs", 20), ("from", 20)])
def test_damaged_side_files_are_noticed(folder, kind, offset):
    path = folder / f"train-00000{format.SUFFIXES[kind]}"
    content = bytearray(path.read_bytes())
    content[offset] ^= 4
    path.write_bytes(content)
    with (
        ladle.open(folder) as corpus,
        pytest.raises(FormatError, match=f"train-00000.{kind}.npy @ byte 0: (header|CRC-32 of block 0)"),
    ):
        corpus["train"].locate([0])


def test_a_tokenizer_that_changed_is_noticed(folder):
    change(folder, put("tokenizer", {"kind": "chars", "characters": "ab", "end_of_text": None}))
    with ladle.open(folder) as corpus, pytest.raises(FormatError, match="tokenizer_hash: expected"):
        corpus.tokenizer


@pytest.mark.parametrize(("make", "found"), [(None, "no such folder"), ("file", "a file"), ("folder", "neither")])
def test_what_is_no_corpus(tmp_path, make, found):
    path = tmp_path / "x"
    if make == "file":
        path.write_text("x")
    if make == "folder":
        path.mkdir()
    with pytest.raises(FormatError) as caught:
        ladle.open(path)
    assert str(caught.value) == (
        f"{path}: corpus: expected a folder with corpus.json, or with train.bin, found {found}; make one with `ladle prepare`"
    )


def test_an_unknown_split_names_those_there_are(folder):
    with ladle.open(folder) as corpus, pytest.raises(ConfigError, match="split: expected one of train, val, found 'test'"):
        corpus["test"]


def test_an_older_generation_is_a_prefix(folder):
    """A corpus that was appended to: the manifest of the whole, and a generation without the last shards."""
    found = json.loads((folder / "corpus.json").read_text())
    before = copy.deepcopy(found["generations"][0])
    before["shards"] = {"train": 2, "val": 0}
    before["fingerprint"] = format.fingerprint(
        tokenizer_hash=found["tokenizer_hash"],
        dtype="uint16",
        splits={"train": found["splits"]["train"]["shards"][:2], "val": []},
    )
    change(folder, lambda m: m["generations"].insert(0, before))
    with ladle.open(folder) as now, ladle.open(folder, generation=0) as then, ladle.open(folder, generation=1) as last:
        assert (len(then["train"].shards), len(then["val"].shards)) == (2, 0)
        assert then["train"].read(0, then["train"].num_tokens).tolist() == now["train"].read(0, then["train"].num_tokens).tolist()
        assert then.fingerprint == before["fingerprint"] != now.fingerprint == last.fingerprint
        assert then["train"].fingerprint != now["train"].fingerprint == last["train"].fingerprint
    with pytest.raises(ConfigError, match="generation: expected 0 to 1, found 2"):
        ladle.open(folder, generation=2)


def test_a_read_only_folder_is_enough(folder):
    for path in folder.iterdir():
        path.chmod(0o444)
    folder.chmod(0o555)
    try:
        with ladle.open(folder) as corpus:
            corpus["train"].read(0, 3)
    finally:
        folder.chmod(0o755)


def huge(folder, num_tokens):
    """A corpus of one document of zeros, sparse on disk."""
    folder.mkdir()
    sizes = {k: format.file_bytes(k, num_tokens=num_tokens, num_documents=1, itemsize=2) for k in format.kinds(mask=False)}
    for kind, suffix in ((kind, format.SUFFIXES[kind]) for kind in sizes):
        with open(folder / f"train-00000{suffix}", "wb") as file:
            file.truncate(sizes[kind])
    shard = {
        "name": "train-00000",
        "tokens": num_tokens,
        "documents": 1,
        "max_id": 0,
        "inputs": {"first": [0, 0], "end": [1, 0]},
        "files": {kind: {"bytes": size, "sha256": "0" * 64} for kind, size in sizes.items()},
    }
    sources = {"count": 1, "bytes": 0, "sha256": "0" * 64}
    (folder / "corpus.json").write_bytes(format.readable(format.manifest({"train": [shard]}, vocab_size=50257, sources=sources)))
    zeros = np.fromfile(folder / "train-00000.sums.npy", np.uint32, 0)
    assert zeros.size == 0
    return folder


OPENED = """
import sys, time, numpy as np, ladle, ladle.corpus.open
best = 9.0
for _ in range(5):
    begun = time.perf_counter()
    corpus = ladle.open(sys.argv[1])
    split = corpus["train"]
    starts = np.linspace(0, split.num_tokens - 1025, 12).astype(np.int64)
    split.shards[0].advise_random()
    rows = [split.shards[0].tokens()[s:s + 1025] for s in starts.tolist()]
    assert sum(map(np.count_nonzero, rows)) == 0
    best = min(best, time.perf_counter() - begun)
    corpus.close()
print(best)
"""


def test_a_changed_list_of_sources_names_no_document(folder):
    """A name that was not the one prepared would be believed by whoever looks a document up."""
    path = folder / "sources.jsonl"
    sound = path.read_bytes()
    for content, message in (
        (sound.replace(b"0.txt", b"9.txt"), "SHA-256: expected "),
        (sound[:-1], f"size: expected {len(sound)}, found {len(sound) - 1}; it was changed since it was prepared"),
    ):
        path.write_bytes(content)
        with ladle.open(folder) as corpus, pytest.raises(FormatError) as caught:
            corpus["train"].locate([0])
        assert str(caught.value).startswith(f"{path}: {message}")
    path.write_bytes(sound + b'{"name":"later"}\n')  # a corpus that is appended to while it is open
    with ladle.open(folder) as corpus:
        assert corpus["train"].locate([0])[0].source.endswith(".txt")


def test_a_manifest_that_is_no_file_is_not_passed_over(folder):
    """Else the folder would be taken for another kind of corpus, and the message would be about that."""
    path = folder / "corpus.json"
    path.unlink()
    os.mkfifo(path)
    with pytest.raises(FormatError, match=r"corpus\.json: file: expected a regular file, found p"):
        ladle.open(folder)


@pytest.mark.parametrize("number", [True, "0", 0.0])
def test_a_generation_is_an_integer(folder, number):
    with pytest.raises(ConfigError, match="generation: expected 0 to 0, found "):
        ladle.open(folder, generation=number)


@pytest.mark.parametrize("num_tokens", [10**6, 10**12])
@pytest.mark.parametrize("kind", ["ours", "nanogpt"])
def test_opening_costs_the_same_at_any_size(tmp_path, kind, num_tokens):
    folder = tmp_path / "c"
    try:
        if kind == "ours":
            huge(folder, num_tokens)
        else:
            folder.mkdir()
            for name in ("train.bin", "val.bin"):
                with open(folder / name, "wb") as file:
                    file.truncate(num_tokens * 2)
    except OSError as error:
        pytest.skip(f"this file system holds no sparse file of {2 * num_tokens} bytes: {error}")
    done = subprocess.run([sys.executable, "-c", OPENED, str(folder)], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert float(done.stdout) < 0.05
