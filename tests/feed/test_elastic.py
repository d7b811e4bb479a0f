"""Other ranks, other batches, other rows, kills in between: what all ranks were delivered is the single-process stream."""

import itertools
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import ladle

W = 12
DIVISORS = [1, 2, 3, 4, 6, 12]


def split_of(count, first=0):
    return ladle.from_ids(np.arange(first, first + count, dtype=np.uint32))


def mixture(until):
    """Three sources, of which one comes, one leaves and comes back."""
    splits = {"a": split_of(200), "b": split_of(90, 1000), "c": split_of(61, 2000)}
    stages = [(until, {"a": 3, "b": 1}), (2 * until + W, {"a": 1, "c": 1}), (None, {"a": 1, "b": 1, "c": 1})]
    return ladle.Mixture(splits, stages=stages)


SOURCES = {
    "windows": (lambda until: split_of(250), {}),
    "windows that move each epoch": (lambda until: split_of(250), {"epoch_offset": True}),
    "blocks": (lambda until: split_of(250), {"shuffle_block": 4}),
    "windows in order": (lambda until: split_of(250), {"order": "sequential", "tail": "drop"}),
    "windows drawn": (lambda until: split_of(250), {"order": "random"}),
    "a mixture with stages": (mixture, {}),
    "a mixture that moves each epoch": (mixture, {"epoch_offset": True, "tail": "drop"}),
    "a mixture drawn": (mixture, {"order": "random"}),
}


def slots_of(feed, slots):
    """(x, y) of the first slots, flat, from one process with whole windows as rows."""
    parts = [(batch.x.ravel(), batch.y.ravel()) for batch in itertools.islice(feed, -(-slots // W))]
    return tuple(np.concatenate([part[i] for part in parts])[:slots] for i in (0, 1))


phases = st.lists(
    st.tuples(
        st.integers(1, 8),  # ranks
        st.integers(1, 11),  # batch size, at least a row for each rank
        st.sampled_from(DIVISORS),  # block size
        st.sampled_from([0, 0, 0, 1, 3]),  # prefetch
        st.integers(0, 6),  # batches until the state is saved
        st.integers(0, 3),  # batches that the kill undoes
    ),
    min_size=1,
    max_size=7,
)


@settings(max_examples=120, deadline=None)
@given(source=st.sampled_from(sorted(SOURCES)), until=st.integers(1, 400), seed=st.integers(0, 99), schedule=phases)
def test_any_schedule_of_ranks_is_the_single_process_stream(source, until, seed, schedule):
    """Slot by slot, inputs and targets, masks included: nothing repeated, nothing lost, nothing in another place."""
    make, options = SOURCES[source]
    options = {"framework": "numpy", "window": W, "seed": seed, **options}
    state, found = None, []
    for ranks, batch_size, block_size, prefetch, steps, undone in schedule:
        batch_size = max(batch_size, ranks)
        feeds = [
            ladle.Feed(
                make(until),
                batch_size=batch_size,
                block_size=block_size,
                rank=rank,
                world_size=ranks,
                prefetch=prefetch,
                **options,
            )
            for rank in range(ranks)
        ]
        for feed in feeds:
            if state is not None:
                feed.load_state_dict(json.loads(state))
        for _ in range(steps):
            parts = [next(feed) for feed in feeds]
            assert [row for part in parts for row in part.rows] == list(range(parts[0].rows[0], parts[0].rows[0] + batch_size))
            before = parts[0].position % block_size  # slots of the first row that were handed out at another block size
            x, y = (np.concatenate([getattr(part, name).ravel() for part in parts]) for name in ("x", "y"))
            assert (y[:before] == -100).all()
            found.append((x[before:], y[before:]))
        states = {json.dumps(feed.state_dict()) for feed in feeds}
        assert len(states) == 1  # the same on every rank
        (state,) = states
        for feed in feeds:  # what comes after the state was saved is lost with the process, and comes again
            for _ in range(undone):
                next(feed)
            feed.close()
    x, y = (np.concatenate([np.empty(0, dtype=np.int64), *(part[i] for part in found)]) for i in (0, 1))
    assert x.size == json.loads(state)["position"]
    single = ladle.Feed(make(until), batch_size=1, block_size=W, prefetch=0, **options)
    expected_x, expected_y = slots_of(single, x.size) if x.size else (x, y)
    np.testing.assert_array_equal(x, expected_x)
    np.testing.assert_array_equal(y, expected_y)


WORKER = """
import json, os, sys, time
from pathlib import Path
import numpy as np
import torch, torch.distributed as dist
import ladle

torch.set_num_threads(1)
folder, phase = Path(sys.argv[1]), sys.argv[2]
batch_size, block_size = int(sys.argv[3]), int(sys.argv[4])
dist.init_process_group("gloo")
rank = dist.get_rank()
(folder / f"pid-{phase}-{rank}").write_text(str(os.getpid()))
with ladle.open(folder / "web") as web, ladle.open(folder / "code") as code:
    splits = {"web": web["train"], "code": code["train"]}
    mixture = ladle.Mixture(splits, stages=[(700, {"web": 3, "code": 1}), (None, {"web": 1, "code": 1})])
    feed = ladle.Feed(mixture, batch_size=batch_size, block_size=block_size, window=32, seed=5, prefetch=3)
    saved = folder / "state.json"
    if saved.exists():
        feed.load_state_dict(json.loads(saved.read_text()))
    with open(folder / f"delivered-{phase}-{rank}.jsonl", "w") as log:
        for step, batch in enumerate(feed):
            x, y = batch
            told = {"position": batch.position, "rows": list(batch.rows), "x": x.tolist(), "y": y.tolist()}
            log.write(json.dumps(told) + chr(10))
            log.flush()
            dist.barrier()  # as the step's gradient would
            if rank == 0 and step % 3 == 2:
                (folder / "next.json").write_text(json.dumps(feed.state_dict()))
                os.replace(folder / "next.json", saved)
            time.sleep(0.01)
"""


def ended(pid):
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return True
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"


@pytest.mark.slow
def test_torchrun_on_4_then_3_then_8_then_1_ranks_each_killed(tmp_path):
    """Real processes under torchrun on gloo; SIGKILL in the middle; each goes on from the state that rank 0 saved."""
    for name, first in (("web", 0), ("code", 20_000)):
        (tmp_path / name).mkdir()
        np.arange(first, first + 5000, dtype=np.uint16).tofile(tmp_path / name / "train.bin")
    (tmp_path / "worker.py").write_text(WORKER)
    saved = tmp_path / "state.json"
    borders = [0]
    phases = [(4, 8, 32), (3, 10, 16), (8, 9, 8), (1, 6, 32)]
    for phase, (ranks, batch_size, block_size) in enumerate(phases):
        command = [sys.executable, "-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={ranks}"]
        command += [str(tmp_path / "worker.py"), str(tmp_path), str(phase), str(batch_size), str(block_size)]
        environment = os.environ | {"OMP_NUM_THREADS": "1"}
        with open(tmp_path / f"log-{phase}", "w") as log:
            agent = subprocess.Popen(command, stdout=log, stderr=log, env=environment)
        try:
            begun = time.monotonic()
            while not saved.exists() or json.loads(saved.read_text())["position"] <= borders[-1] + 12 * batch_size * block_size:
                assert agent.poll() is None, (tmp_path / f"log-{phase}").read_text()
                assert time.monotonic() - begun < 120
                time.sleep(0.013)
            pids = [int((tmp_path / f"pid-{phase}-{rank}").read_text()) for rank in range(ranks)]
            # One rank dies and torchrun ends the others, or all die at once.
            for pid in pids[-1:] if phase == 0 else [agent.pid, *pids]:
                os.kill(pid, signal.SIGKILL)
            assert agent.wait(timeout=60) != 0
        finally:
            agent.kill()
            agent.wait()
        while not all(map(ended, pids)):
            assert time.monotonic() - begun < 180
            time.sleep(0.01)
        borders.append(json.loads(saved.read_text())["position"])
    assert json.loads(saved.read_text())["format"] == 1

    x, y = [], []
    for phase, (ranks, batch_size, block_size) in enumerate(phases):
        delivered = []
        for rank in range(ranks):
            lines = (tmp_path / f"delivered-{phase}-{rank}.jsonl").read_text().splitlines()
            told = [json.loads(line) for line in lines if line.endswith("}")]  # the kill may have cut the last one
            delivered.append([one for one in told if one["position"] < borders[phase + 1]])
        assert len({len(each) for each in delivered}) == 1
        assert delivered[0]
        for parts in zip(*delivered, strict=True):
            assert len({part["position"] for part in parts}) == 1
            rows = [row for part in parts for row in part["rows"]]
            assert rows == list(range(rows[0], rows[0] + batch_size))
            before = parts[0]["position"] % block_size
            x += [one for part in parts for row in part["x"] for one in row][before:]
            y += [one for part in parts for row in part["y"] for one in row][before:]
    assert len(x) == borders[-1]
    with ladle.open(tmp_path / "web") as web, ladle.open(tmp_path / "code") as code:
        splits = {"web": web["train"], "code": code["train"]}
        whole = ladle.Mixture(splits, stages=[(700, {"web": 3, "code": 1}), (None, {"web": 1, "code": 1})])
        single = ladle.Feed(whole, batch_size=1, block_size=32, seed=5, prefetch=0, framework="numpy")
        slots = [(batch.x[0], batch.y[0]) for batch in itertools.islice(single, -(-len(x) // 32))]
    assert x == np.concatenate([row for row, _ in slots])[: len(x)].tolist()
    assert y == np.concatenate([row for _, row in slots])[: len(x)].tolist()
