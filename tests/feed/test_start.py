"""What it costs to begin, and what is not imported for it."""

import subprocess
import sys

import numpy as np
import pytest

import ladle
from ladle.corpus import format
from ladle.feed.plan import Plan

IMPORT = """
import sys, time
begun = time.perf_counter()
import ladle
spent = time.perf_counter() - begun
print(spent, *sorted({name.partition(".")[0] for name in sys.modules} & {"torch", "jax", "numpy", "tiktoken"}))
"""

FIRST = """
import sys, time, numpy
import ladle
ladle.Feed, ladle.open, ladle.get_batch
import ladle.corpus.nanogpt
folder, order = sys.argv[1:]
begun = time.perf_counter()
with ladle.open(folder) as corpus:
    with ladle.Feed(corpus["train"], batch_size=12, block_size=1024, seed=1, order=order, framework="numpy") as feed:
        batch = next(feed)
        spent = time.perf_counter() - begun
print(spent, *sorted({"torch", "jax"} & set(sys.modules)))
"""


def best_of(runs: int, script: str, *arguments: str) -> tuple[float, str]:
    """(least seconds of several fresh processes, whatever else the last printed)."""
    times = []
    for _ in range(runs):
        done = subprocess.run([sys.executable, "-c", script, *arguments], capture_output=True, text=True, check=False)
        assert (done.returncode, done.stderr) == (0, "")
        seconds, _, rest = done.stdout.strip().partition(" ")
        times.append(float(seconds))
    return min(times), rest


def test_importing_ladle_is_quick_and_imports_nothing_heavy():
    seconds, modules = best_of(5, IMPORT)
    assert seconds < 0.150
    assert modules == ""


def nanogpt_folder(folder, num_tokens):
    folder.mkdir()
    with open(folder / "train.bin", "wb") as file:
        file.truncate(2 * num_tokens)


def our_folder(folder, num_tokens):
    """One shard of zeros: sparse on disk, with right checksums wherever the first batches of any order will look."""
    folder.mkdir()
    sizes = {
        kind: format.file_bytes(kind, num_tokens=num_tokens, num_documents=1, itemsize=2) for kind in format.kinds(mask=False)
    }
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
    (folder / format.MANIFEST).write_bytes(
        format.readable(format.manifest({"train": [shard]}, vocab_size=50257, sources=sources))
    )
    sum_of_zeros = int(format.block_sums(bytes(format.BLOCK_BYTES))[0]).to_bytes(4, "little")
    with ladle.open(folder) as corpus, open(folder / "train-00000.sums.npy", "r+b") as file:
        for order in ("shuffled", "random"):
            with ladle.Feed(corpus["train"], batch_size=12, block_size=1024, seed=1, order=order, framework="numpy") as feed:
                plan: Plan = feed._look._plan
                for start in plan.rows(0, 12 * 4).start.tolist():  # as far as the thread may come
                    for block in range(2 * start >> format.BLOCK_SHIFT, (2 * (start + 1025) - 1 >> format.BLOCK_SHIFT) + 1):
                        file.seek(format.HEADER_BYTES["sums"] + 4 * block)
                        file.write(sum_of_zeros)


@pytest.mark.parametrize("order", ["shuffled", "random"])
@pytest.mark.parametrize("make", [nanogpt_folder, our_folder])
def test_the_first_batch_costs_the_same_at_a_million_and_a_million_million_tokens(tmp_path, make, order):
    """10**12 tokens are 2 * 10**12 bytes, sparse. From opening the folder to a batch in hand: under 50 ms at both."""
    times = {}
    for name, num_tokens in (("small", 10**6), ("large", 10**12)):
        try:
            make(tmp_path / name, num_tokens)
        except OSError as error:
            pytest.skip(f"this file system holds no sparse file of {2 * num_tokens} bytes: {error}")
        times[name], modules = best_of(3, FIRST, str(tmp_path / name), order)
        assert modules == ""
    assert max(times.values()) < 0.050, times


def test_any_place_of_a_million_million_tokens_is_at_hand(tmp_path):
    nanogpt_folder(tmp_path / "c", 10**12)
    with ladle.open(tmp_path / "c") as corpus, open(tmp_path / "c" / "train.bin", "r+b") as file:
        file.seek(2 * 10**12 - 4)
        file.write(np.array([7, 8], dtype=np.uint16).tobytes())
        file.flush()
        with ladle.Feed(corpus["train"], batch_size=1, block_size=1024, order="sequential", framework="numpy") as feed:
            last = feed[feed.batches_per_epoch - 1]
            assert last.y[0, -2:].tolist() == [7, 8]
            assert last.num_targets == (10**12 - 1) % 1024
            feed.load_state_dict(feed.state_dict() | {"position": feed.slots_per_epoch * 1000})
            assert next(feed).starts.tolist() == [0]
