"""Ranks: slices of one global batch, in one process and in real ones."""

import subprocess
import sys
import textwrap

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import ladle


def feed_of(count: int = 1001, **options) -> ladle.Feed:
    chosen = {"batch_size": 8, "block_size": 4, "framework": "numpy", "prefetch": 0, "seed": 2} | options
    return ladle.Feed(ladle.from_ids(np.arange(count, dtype=np.uint32)), **chosen)


@settings(max_examples=80, deadline=None)
@given(
    batch_size=st.integers(1, 40),
    world_size=st.integers(1, 40),
    position=st.integers(0, 3000),
    order=st.sampled_from(["shuffled", "random", "sequential"]),
)
def test_ranks_are_slices_of_the_global_batch(batch_size, world_size, position, order):
    """Contiguous, sizes differing by one at most; digests add up; targets, positions and states are the same on each."""
    if world_size > batch_size:
        return
    whole = feed_of(batch_size=batch_size, order=order).at(position)
    parts = [
        feed_of(batch_size=batch_size, order=order, rank=rank, world_size=world_size).at(position) for rank in range(world_size)
    ]
    np.testing.assert_array_equal(np.concatenate([part.x for part in parts]), whole.x)
    np.testing.assert_array_equal(np.concatenate([part.y for part in parts]), whole.y)
    np.testing.assert_array_equal(np.concatenate([part.starts for part in parts]), whole.starts)
    assert [row for part in parts for row in part.rows] == list(whole.rows)
    sizes = {len(part.rows) for part in parts}
    assert max(sizes) - min(sizes) <= 1
    assert sum(part.digest for part in parts) % 2**64 == whole.digest
    for part in parts:
        assert (part.position, part.next_position) == (whole.position, whole.next_position)
        assert part.num_targets == whole.num_targets == int((whole.y >= 0).sum())
        assert part.state == whole.state


@pytest.mark.parametrize("world_size", [1, 3, 8])
def test_every_rank_takes_the_same_number_of_steps(world_size):
    """Also where the last batch is mostly masked rows: ranks in lock-step hang nobody's collective."""
    ranks = [feed_of(103, rank=rank, world_size=world_size, epochs=2) for rank in range(world_size)]
    assert {len(feed) for feed in ranks} == {len(feed_of(103, epochs=2))}
    batches = [list(feed) for feed in ranks]
    assert {len(each) for each in batches} == {len(feed_of(103, epochs=2))}
    seen = np.concatenate([batch.y[batch.y >= 0] for each in batches for batch in each])
    np.testing.assert_array_equal(np.bincount(seen), [0] + [2] * 102)


def test_more_ranks_than_windows_still_works():
    """A tiny split under many ranks: batches span many epochs."""
    feeds = [feed_of(9, batch_size=64, rank=rank, world_size=64) for rank in range(64)]
    assert sorted(int(next(feed).starts[0]) for feed in feeds) == sorted([0, 4] * 32)


def test_a_very_large_world_costs_a_rank_its_own_rows_only():
    feed = feed_of(10**6, batch_size=100_000, rank=77_777, world_size=100_000)
    batch = next(feed)
    assert batch.x.shape == (1, 4)
    assert batch.num_targets == 400_000
    assert batch.digest == feed_of(10**6, batch_size=1).at(77_777 * 4).digest


# --- real processes ---

WORKER = """
import datetime, sys, warnings, numpy as np
import torch, torch.distributed as dist
import ladle
torch.set_num_threads(1)
rank, world_size, folder = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3]
dist.init_process_group(
    "gloo", init_method=f"file://{folder}/rendezvous", rank=rank, world_size=world_size, timeout=datetime.timedelta(seconds=60)
)
def gathered(value):
    parts = [None] * world_size
    dist.all_gather_object(parts, value)
    return parts
"""


def processes(script: str, world_size: int, folder) -> list[tuple[int, str, str]]:
    """(exit code, stdout, stderr) of each rank."""
    code = WORKER + textwrap.dedent(script) + "\ndist.destroy_process_group()\n"
    started = [
        subprocess.Popen(
            [sys.executable, "-c", code, str(rank), str(world_size), str(folder)],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank in range(world_size)
    ]
    try:
        outputs = [process.communicate(timeout=120) for process in started]
    finally:
        for process in started:
            process.kill()
    return [(process.returncode, *output) for process, output in zip(started, outputs, strict=True)]


@pytest.fixture
def folder(tmp_path):
    np.arange(5000, dtype=np.uint16).tofile(tmp_path / "train.bin")
    return tmp_path


@pytest.mark.slow
def test_two_processes_share_what_torch_distributed_says(folder):
    """Rank and world size come from it: feeds slice one batch, get_batch never gives two ranks the same rows."""
    done = processes(
        """
        with ladle.open(folder) as corpus:
            feed = ladle.Feed(corpus["train"], batch_size=5, block_size=16, seed=3)
            whole = ladle.Feed(corpus["train"], batch_size=5, block_size=16, seed=3, rank=rank, world_size=world_size)
            assert (feed.shape.rank, feed.shape.world_size) == (rank, world_size)
            for step in range(10):
                batch = next(feed)
                parts = gathered((batch.x.tolist(), batch.digest, batch.state))
                assert [len(x) for x, _, _ in parts] == [2, 3]
                assert parts[0][2] == parts[1][2]
                assert batch.x.tolist() == next(whole).x.tolist()
                if rank == 0 and step == 9: print(sum(digest for _, digest, _ in parts) % 2**64)
            get_batch = ladle.get_batch(folder, batch_size=4, block_size=16)
            rows = [x for _ in range(50) for part in gathered(get_batch("train")[0][:, 0].tolist()) for x in part]
            assert len(rows) == 400
            if rank == 0: print(rows)
            feed.close(), whole.close(), get_batch.close()
        """,
        2,
        folder,
    )
    assert [(code, error) for code, _, error in done] == [(0, ""), (0, "")]
    digest, rows = done[0][1].splitlines()
    with ladle.open(folder) as corpus:
        one = ladle.Feed(corpus["train"], batch_size=5, block_size=16, seed=3, framework="numpy")
        assert one[9].digest == int(digest)
    with ladle.get_batch(folder, batch_size=8, block_size=16, framework="numpy") as get_batch:
        alone = [int(start) for _ in range(50) for start in get_batch("train")[0][:, 0]]
    assert alone == [int(row) for row in rows.strip("[]").split(",")]
    assert len(set(alone)) > 370  # of 4 984 starts, with replacement


@pytest.mark.slow
def test_what_torch_distributed_contradicts_is_refused(folder):
    done = processes(
        """
        with ladle.open(folder) as corpus:
            for options in ({"rank": 1 - rank, "world_size": 2}, {"rank": 0, "world_size": 1}, {"rank": 2, "world_size": 4}):
                try:
                    ladle.Feed(corpus["train"], batch_size=8, block_size=16, **options)
                except ladle.errors.ConfigError as error:
                    print(error)
        """,
        2,
        folder,
    )
    assert [error for _, _, error in done] == ["", ""]
    assert done[0][1].splitlines() == [
        "rank, world_size: expected torch.distributed's (0, 2), found (1, 2)",
        "rank, world_size: expected torch.distributed's (0, 2), found (0, 1)",
        "rank, world_size: expected torch.distributed's (0, 2), found (2, 4)",
    ]


@pytest.mark.slow
def test_a_feed_made_before_the_process_group_does_not_repeat_rows_on_every_rank(folder):
    """It would hand the whole batch to each rank; and a get_batch looks again when a split is first asked for."""
    script = """
    import sys, torch.distributed as dist, ladle
    rank, folder = int(sys.argv[1]), sys.argv[3]
    feed = ladle.Feed(ladle.open(folder)["train"], batch_size=8, block_size=16)
    get_batch = ladle.get_batch(folder, batch_size=4, block_size=16)
    dist.init_process_group("gloo", init_method=f"file://{folder}/rendezvous", rank=rank, world_size=2)
    try:
        next(feed)
    except ladle.errors.ConfigError as error:
        print(error)
    print(get_batch("train")[0][:, 0].tolist())
    feed.close(), get_batch.close()
    dist.destroy_process_group()
    """
    started = [
        subprocess.Popen(
            [sys.executable, "-c", textwrap.dedent(script), str(rank), "2", str(folder)],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank in range(2)
    ]
    outputs = [process.communicate(timeout=120) for process in started]
    assert [error for _, error in outputs] == ["", ""]
    lines = [output.splitlines() for output, _ in outputs]
    for rank in range(2):
        assert lines[rank][0] == (
            f"rank, world_size: this feed was made as (0, 1), and torch.distributed now says ({rank}, 2); "
            "make the feed after init_process_group, or pass rank= and world_size="
        )
    assert lines[0][1] != lines[1][1]
