"""The bytes on disk, compared with literals written by hand from docs/format.md. If one breaks, make a new version."""

import hashlib
import io
import json
import struct
import zlib

import numpy as np
import pytest

import ladle
from ladle.corpus import format

DOCS = b"\x93NUMPY\x01\x00\x76\x00" + b"{'descr': '<u8', 'fortran_order': False, 'shape': (1,), }".ljust(117) + b"\n"
FROM = (
    b"\x93NUMPY\x01\x00\xb6\x00"
    b"{'descr': [('source', '<u4'), ('flags', '<u4'), ('byte', '<u8'), ('line', '<u8')], "
    + b"'fortran_order': False, 'shape': (1,), }".ljust(98)
    + b"\n"
)
SUMS = b"\x93NUMPY\x01\x00\x76\x00" + b"{'descr': '<u4', 'fortran_order': False, 'shape': (3,), }".ljust(117) + b"\n"

# a.txt is "ab", b.txt is empty, c.txt is a byte-order mark and "é"; the tokenizer is bytes, 256 its end of text.
FILES = {
    "train-00000.bin": bytes.fromhex("6100 6200 0001"),
    "train-00000.docs.npy": DOCS + bytes.fromhex("0300000000000000"),
    "train-00000.from.npy": FROM + bytes.fromhex("00000000 00000000 0000000000000000 0100000000000000"),
    "train-00000.sums.npy": SUMS + bytes.fromhex("42724294 e4ce31f4 8810b3e0"),  # as gzip's trailers have them
    "val-00000.bin": bytes.fromhex("c300 a900 0001"),
    "val-00000.docs.npy": DOCS + bytes.fromhex("0300000000000000"),
    "val-00000.from.npy": FROM + bytes.fromhex("02000000 00000000 0300000000000000 0100000000000000"),
    "val-00000.sums.npy": SUMS + bytes.fromhex("a0abda61 e4ce31f4 75684010"),
    "sources.jsonl": (  # as `b2sum -l 128` has them
        b'{"blake2b":"3dc9ae220222e2e156b2a5abb60d01c7","bytes":2,"name":"a.txt"}\n'
        b'{"blake2b":"cae66941d9efbd404e4d88758ea67670","bytes":0,"name":"b.txt"}\n'
        b'{"blake2b":"d4b1b0202b21bb84e60a3d272ecab0db","bytes":5,"name":"c.txt"}\n'
    ),
}

MANIFEST = """{
 "byte_order": "little",
 "checksum": {
  "algorithm": "crc32",
  "block_bytes": 4096
 },
 "dtype": "uint16",
 "end_of_text": 256,
 "format": "ladle-corpus",
 "generations": [
  {
   "fingerprint": "2bc480b2849e91f70df03c38bee0b40720696eba8a0eca60d44acd68f343a712",
   "shards": {
    "train": 1,
    "val": 1
   }
  }
 ],
 "made": {
  "counts": {
   "documents": 2,
   "empty_documents": 1,
   "markers": {
    "<|endoftext|>": 0
   },
   "replaced": 0,
   "skipped_files": 0
  },
  "inputs": {
   "bytes": 7,
   "files": 3
  },
  "options": {
   "allowed_special": [],
   "encoding_errors": "strict",
   "end_of_text": true,
   "shard_bytes": null,
   "split": "auto",
   "val_fraction": 0.5
  },
  "tokenizer": "bytes"
 },
 "sources": {
  "bytes": 216,
  "count": 3,
  "sha256": "7d65f2407f89581294090016b51e676b1a056a37eee5e3c0cf988c10d997cf87"
 },
 "splits": {
  "train": {
   "documents": 1,
   "max_id": 256,
   "shards": [
    {
     "documents": 1,
     "files": {
      "bin": {
       "bytes": 6,
       "sha256": "28bfc1eab2d6bc763812ff79ad260cfefc9a2c5147c324ef030c965f19c547b1"
      },
      "docs": {
       "bytes": 136,
       "sha256": "5ac0af6c87f14899d25fbcd741fd345d56b1a5c9c420a4e9352b6b56aec1baac"
      },
      "from": {
       "bytes": 216,
       "sha256": "e8943336d39a55514812dc571ad172a4769ef08e83688def094ef6ea7e35ca53"
      },
      "sums": {
       "bytes": 140,
       "sha256": "68bda1ba7cccf3e085daaa8da981b035677346d00bd04a1c06fb33303cecad02"
      }
     },
     "inputs": {
      "end": [
       3,
       0
      ],
      "first": [
       0,
       0
      ]
     },
     "max_id": 256,
     "name": "train-00000",
     "tokens": 3
    }
   ],
   "tokens": 3
  },
  "val": {
   "documents": 1,
   "max_id": 256,
   "shards": [
    {
     "documents": 1,
     "files": {
      "bin": {
       "bytes": 6,
       "sha256": "b8f57e5ac09831d71c991784c827a89cea600fac6db9c7688560862ed3808d40"
      },
      "docs": {
       "bytes": 136,
       "sha256": "5ac0af6c87f14899d25fbcd741fd345d56b1a5c9c420a4e9352b6b56aec1baac"
      },
      "from": {
       "bytes": 216,
       "sha256": "fadf86ed5e795da4f101895244718da3ed0c3bc2c892b8a6287796ad9aca6cea"
      },
      "sums": {
       "bytes": 140,
       "sha256": "d981806cf9b32a7ac8ce0a2c8cc2ef154f22d33c3ee5b1bb840d442c0a2e7e5f"
      }
     },
     "inputs": {
      "end": [
       3,
       0
      ],
      "first": [
       0,
       0
      ]
     },
     "max_id": 256,
     "name": "val-00000",
     "tokens": 3
    }
   ],
   "tokens": 3
  }
 },
 "streams": {},
 "tokenizer": {
  "kind": "bytes"
 },
 "tokenizer_hash": "17d0f1e4639d50842f9f8cf8597944d0",
 "version": 1,
 "vocab_size": 257
}
"""


def golden_input(folder):
    folder.mkdir()
    (folder / "a.txt").write_bytes(b"ab")
    (folder / "b.txt").write_bytes(b"")
    (folder / "c.txt").write_bytes(b"\xef\xbb\xbf\xc3\xa9")
    return folder


def test_version_1_byte_by_byte(tmp_path):
    ladle.prepare(golden_input(tmp_path / "in"), tmp_path / "out", tokenizer="bytes", val_fraction=0.5).close()
    written = {path.name: path.read_bytes() for path in (tmp_path / "out").iterdir()}
    assert sorted(written) == sorted([*FILES, "corpus.json"])
    for name, content in FILES.items():
        assert written[name] == content, name
    assert written["corpus.json"].decode() == MANIFEST


def test_version_1_is_read_as_it_was_written(tmp_path):
    for name, content in {**FILES, "corpus.json": MANIFEST.encode()}.items():
        (tmp_path / name).write_bytes(content)
    with ladle.open(tmp_path) as corpus:
        assert corpus["train"].read(0, 3).tolist() == [97, 98, 256]
        assert corpus["val"].read(0, 3).tolist() == [0xC3, 0xA9, 256]
        assert corpus["val"].document_ends().tolist() == [3]
        assert corpus.fingerprint == "2bc480b2849e91f70df03c38bee0b40720696eba8a0eca60d44acd68f343a712"
        place = corpus["val"].locate([1])[0]
        assert (place.source, place.byte, place.line, place.token_byte) == ("c.txt", 3, 1, 4)


def test_the_fingerprint_is_the_documented_hash():
    shards = json.loads(MANIFEST)["splits"]
    text = (
        '{"dtype":"uint16","format":"ladle-corpus","splits":{'
        '"train":[[3,1,256,"28bfc1eab2d6bc763812ff79ad260cfefc9a2c5147c324ef030c965f19c547b1",'
        '"5ac0af6c87f14899d25fbcd741fd345d56b1a5c9c420a4e9352b6b56aec1baac"]],'
        '"val":[[3,1,256,"b8f57e5ac09831d71c991784c827a89cea600fac6db9c7688560862ed3808d40",'
        '"5ac0af6c87f14899d25fbcd741fd345d56b1a5c9c420a4e9352b6b56aec1baac"]]},'
        '"tokenizer":"17d0f1e4639d50842f9f8cf8597944d0","version":1}'
    )
    found = format.fingerprint(
        tokenizer_hash="17d0f1e4639d50842f9f8cf8597944d0",
        dtype="uint16",
        splits={name: split["shards"] for name, split in shards.items()},
    )
    assert found == hashlib.sha256(text.encode()).hexdigest() == json.loads(MANIFEST)["generations"][0]["fingerprint"]


def test_numpy_reads_the_side_files():
    for kind, dtype in (("docs", format.ENDS_DTYPE), ("from", format.FROM_DTYPE), ("sums", format.SUMS_DTYPE)):
        for count in (0, 1, 10**12):
            header = format.npy_header(kind, count)
            assert len(header) == format.HEADER_BYTES[kind]
            assert len(header) % 64 == 0
        array = np.zeros(5, dtype)
        assert np.array_equal(np.load(io.BytesIO(format.npy_header(kind, 5) + array.tobytes())), array)


def test_the_dtype_follows_the_vocabulary():
    assert [format.dtype_name(size) for size in (1, 65535, 65536, 65537, 1 << 32)] == ["uint16"] * 3 + ["uint32"] * 2


def read_by_the_page(folder):
    """A reader written from docs/format.md with the standard library alone: {split: (tokens, document ends, sources)}."""
    manifest = json.loads((folder / "corpus.json").read_bytes())
    assert (manifest["format"], manifest["version"]) == ("ladle-corpus", 1)
    code = {"uint16": "H", "uint32": "I"}[manifest["dtype"]]
    names = [json.loads(line)["name"] for line in (folder / "sources.jsonl").read_bytes().splitlines()]
    content = {}
    for split, entry in manifest["splits"].items():
        tokens, ends, sources = [], [], []
        for shard in entry["shards"]:
            files = {k: (folder / f"{shard['name']}.{k}").read_bytes() for k in ("bin", "docs.npy", "from.npy", "sums.npy")}
            sums = struct.unpack(f"<{(len(files['sums.npy']) - 128) // 4}I", files.pop("sums.npy")[128:])
            assert sums == tuple(zlib.crc32(f[i : i + 4096]) for f in files.values() for i in range(0, len(f), 4096))
            ends += [len(tokens) + end for end in struct.unpack(f"<{shard['documents']}Q", files["docs.npy"][128:])]
            tokens += struct.unpack(f"<{shard['tokens']}{code}", files["bin"])
            records = struct.iter_unpack("<IIQQ", files["from.npy"][192:])
            sources += [names[shard["inputs"]["first"][0] + record[0]] for record in records]
        content[split] = (tokens, ends, sources)
    return content


@pytest.mark.parametrize("tokenizer", ["bytes", "gpt2"])
def test_the_page_is_enough_to_write_a_reader(tmp_path, tokenizer):
    (tmp_path / "in").mkdir()
    for i in range(30):
        (tmp_path / "in" / f"{i:02}.txt").write_text(f"text {i} é " * (i * 37 % 500))
    with ladle.prepare(
        tmp_path / "in", tmp_path / "out", tokenizer=tokenizer, split="hash", val_fraction=0.3, shard_bytes=9000
    ) as corpus:
        content = read_by_the_page(tmp_path / "out")
        assert set(content) == {"train", "val"}
        for name, (tokens, ends, sources) in content.items():
            split = corpus[name]
            assert len(split.shards) > 2
            assert split.read(0, split.num_tokens).tolist() == tokens
            assert split.document_ends().tolist() == ends
            assert [place.source for place in split.locate([end - 1 for end in ends])] == sources
