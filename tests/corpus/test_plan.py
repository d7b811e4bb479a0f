"""A plan's tasks are independent: any order, any process, again and again, the same bytes."""

import pickle
import subprocess
import sys

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from ladle.corpus import plan as planning
from ladle.corpus.plan import Options, Task, plan
from ladle.corpus.survey import Survey, survey
from ladle.corpus.task import run
from ladle.text import find
from ladle.tokens.bytes import Bytes

DEFAULTS = {
    "split": "hash",
    "val_fraction": 0.3,
    "end_of_text": True,
    "allowed_special": (),
    "shard_bytes": 50,
    "encoding_errors": "strict",
}


def written(folder):
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def test_tasks_run_in_any_order_and_process(tmp_path):
    (tmp_path / "in").mkdir()
    for i in range(20):
        (tmp_path / "in" / f"{i:02}.txt").write_text(f"document {i} " * (i % 5))
    decided = plan(survey(find(tmp_path / "in")), Options(**DEFAULTS))
    assert len(decided.tasks) > 4
    for name in ("forward", "backward", "apart"):
        (tmp_path / name).mkdir()
    forward = [run(t, decided, tokenizer=Bytes(), folder=tmp_path / "forward", progress=lambda _: None) for t in decided.tasks]
    backward = [
        run(t, decided, tokenizer=Bytes(), folder=tmp_path / "backward", progress=lambda _: None) for t in decided.tasks[::-1]
    ]
    assert forward == backward[::-1]
    (tmp_path / "plan").write_bytes(pickle.dumps(decided))
    code = f"""
import pickle, sys
from pathlib import Path
from ladle.corpus.task import run
from ladle.tokens.bytes import Bytes
decided = pickle.loads(Path({str(tmp_path / "plan")!r}).read_bytes())
for number in sys.argv[1:]:
    run(decided.tasks[int(number)], decided, tokenizer=Bytes(), folder=Path({str(tmp_path / "apart")!r}), progress=lambda _: None)
"""
    halves = [range(0, len(decided.tasks), 2), range(1, len(decided.tasks), 2)]
    workers = [subprocess.Popen([sys.executable, "-c", code, *map(str, half)]) for half in halves]
    assert [worker.wait() for worker in workers] == [0, 0]
    assert written(tmp_path / "forward") == written(tmp_path / "backward") == written(tmp_path / "apart")


def surveyed(sizes, characters=None):
    """A survey of made-up sources."""
    n = len(sizes)
    rng = np.random.default_rng(0)
    return Survey(
        sources=[None] * n,
        text_bytes=np.array(sizes, np.int64),
        first_bytes=np.zeros(n, np.uint8),
        characters=np.array(sizes if characters is None else characters, np.int64),
        replaced=np.zeros(n, np.int64),
        skipped=np.zeros(n, bool),
        digests=rng.bytes(16 * n),
    )


@given(sizes=st.lists(st.integers(0, 1000), min_size=1, max_size=300), shard_bytes=st.integers(1, 5000))
def test_tasks_cover_every_source_once_in_order(sizes, shard_bytes):
    tasks = plan(surveyed(sizes), Options(**DEFAULTS | {"shard_bytes": shard_bytes})).tasks
    assert [t.number for t in tasks] == list(range(len(tasks)))
    assert [n for t in tasks for n in range(t.first, t.end)] == list(range(len(sizes)))
    for t in tasks[:-1]:
        assert sum(sizes[t.first : t.end]) >= shard_bytes > sum(sizes[t.first : t.end - 1])


def test_the_default_size_keeps_the_number_of_tasks_bounded():
    gigabytes = [1 << 30] * 20_000
    tasks = plan(surveyed(gigabytes), Options(**DEFAULTS | {"shard_bytes": None})).tasks
    assert 2048 <= len(tasks) <= 4096
    assert len(plan(surveyed([1000] * 1000), Options(**DEFAULTS | {"shard_bytes": None})).tasks) == 1
    assert plan(surveyed([1 << 26, 5]), Options(**DEFAULTS | {"shard_bytes": None})).tasks == (Task(0, 0, 1), Task(1, 1, 2))


def test_a_task_has_a_bounded_number_of_sources(monkeypatch):
    monkeypatch.setattr(planning, "MOST_SOURCES", 7)
    assert [t.end - t.first for t in plan(surveyed([1] * 20), Options(**DEFAULTS)).tasks] == [7, 7, 6]


@given(sizes=st.lists(st.integers(0, 50), min_size=2, max_size=40), fraction=st.floats(0.001, 0.999))
def test_tail_leaves_a_document_on_each_side_at_the_closest_border(sizes, fraction):
    decided = plan(surveyed(sizes), Options(**DEFAULTS | {"split": "tail", "val_fraction": fraction}))
    kept = [n for n, size in enumerate(sizes) if size]
    if len(kept) < 2:
        return
    sides = [part.split for n in kept for part in decided.parts(n)]
    border = sides.index("val")
    assert sides == ["train"] * border + ["val"] * (len(kept) - border)
    assert 1 <= border < len(kept)
    total = sum(sizes)
    misses = [abs(sum(sizes[n] for n in kept[:k]) - total * (1 - fraction)) for k in range(1, len(kept))]
    assert misses[border - 1] <= min(misses) + 1e-6


@given(characters=st.integers(1, 10**7), fraction=st.floats(0.0001, 0.9999))
def test_one_document_is_cut_with_a_character_on_each_side(characters, fraction):
    decided = plan(
        surveyed([0, characters, 0], [0, characters, 0]), Options(**DEFAULTS | {"split": "tail", "val_fraction": fraction})
    )
    parts = decided.parts(1)
    if characters == 1:
        assert [(p.split, p.first, p.end) for p in parts] == [("train", 0, None)]
    else:
        cut = min(max(int(characters * (1 - fraction)), 1), characters - 1)
        assert [(p.split, p.first, p.end) for p in parts] == [("train", 0, cut), ("val", cut, None)]


def test_hash_keeps_its_share():
    decided = plan(surveyed([1] * 20_000), Options(**DEFAULTS | {"val_fraction": 0.1}))
    share = sum(decided.parts(n)[0].split == "val" for n in range(20_000))
    assert 1850 <= share <= 2150  # 2000 expected, standard deviation 42
