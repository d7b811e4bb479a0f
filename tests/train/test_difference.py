"""Where two logs part."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path

import pytest

from ladle.errors import FormatError
from ladle.train import compare


def log(path: Path, *steps: dict[str, object]) -> Path:
    path.write_text("".join(json.dumps(step) + "\n" for step in steps))
    return path


def step(number: int, **other: object) -> dict[str, object]:
    return {"step": number, "position": number * 64, "loss": 4.5 - number / 7, "digest": f"{number:016x}"} | other


@pytest.fixture
def whole(tmp_path: Path) -> Path:
    return log(tmp_path / "whole.jsonl", *map(step, range(4)), {"step": 4, "val_loss": 4.0})


def test_equal_steps_are_equal_whatever_else_the_logs_say(tmp_path: Path, whole: Path) -> None:
    other = log(tmp_path / "other.jsonl", {"step": 2, "val_loss": 1.0}, *(step(i, tokens_per_s=i) for i in range(1, 6)))
    found = compare(whole, other)
    assert (found.first, found.steps) == (None, 3)
    assert str(found) == "3 steps in both: positions, batch digests and losses are equal"


@pytest.mark.parametrize(
    ("change", "field", "words"),
    [
        (
            {"loss": 4.2142857142857135},
            "loss",
            "the batches are equal, the losses are not (loss 4.214285714285714 and 4.21428571428571",
        ),
        ({"digest": "f", "loss": 0.0}, "digest", "the batches differ (digest '0000000000000002' and 'f')"),
        ({"position": 96, "digest": "f", "loss": 0.0}, "position", "the runs stand at different positions (position 128 and 96)"),
    ],
)
def test_the_first_step_and_the_first_cause_are_named(
    tmp_path: Path, whole: Path, change: dict[str, object], field: str, words: str
) -> None:
    other = log(tmp_path / "other.jsonl", step(0), step(1), step(2, **change), step(3, loss=0.0))
    found = compare(whole, other)
    assert (found.first, found.field) == (2, field)
    assert str(found).startswith(f"step 2: {words}")
    told = json.loads(json.dumps(asdict(found)))
    assert told == {"steps": 4, "first": 2, "field": field, "values": [step(2)[field], change[field]]}


def test_a_step_logged_twice_counts_as_it_was_logged_last_and_nan_equals_nan(tmp_path: Path) -> None:
    one = log(tmp_path / "one.jsonl", step(0, loss=1.0), step(0, loss=float("nan")))
    assert compare(one, log(tmp_path / "two.jsonl", step(0, loss=float("nan")))).first is None
    assert compare(one, log(tmp_path / "three.jsonl", step(0, loss=1.0))).first == 0


def test_logs_that_share_no_step_cannot_be_compared(tmp_path: Path, whole: Path) -> None:
    with pytest.raises(FormatError, match=r"steps: expected some of the 4 in .*whole\.jsonl, found none of them among 1"):
        compare(whole, log(tmp_path / "other.jsonl", step(9)))
