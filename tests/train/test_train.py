"""The trainer: what it writes, and that a resumed run is the uninterrupted one."""

from __future__ import annotations

import io
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import sysconfig
import threading
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import ladle
from ladle.corpus.split import Split
from ladle.errors import ConfigError, FormatError, StateError, TokenError
from ladle.nn import GPT
from ladle.train import TrainConfig, checkpoint, learning_rate, log, loop, train

SMALL = TrainConfig(
    layers=1, heads=2, width=16, block_size=8, batch_size=6, micro_batch_size=4, dropout=0.2, steps=12, learning_rate=1e-2,
    min_learning_rate=1e-3, warmup_steps=3, eval_every=5, checkpoint_every=4, keep=2, sample_tokens=12,
)  # fmt: skip
CLOCK = ("tokens_per_s", "data_wait")


@pytest.fixture(autouse=True)
def _one_thread() -> Any:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def splits(tokens: int = 400, val: int = 60) -> dict[str, Split]:
    walk = np.random.default_rng(0).integers(1, 3, tokens + val).cumsum() % 11
    ids = walk.astype(np.uint16)
    return {"train": ladle.from_ids(ids[:tokens], vocab_size=11), "val": ladle.from_ids(ids[tokens:], vocab_size=11)}


def lines(out: Path) -> list[dict[str, Any]]:
    """A log without the clock's columns."""
    return [{k: v for k, v in line.items() if k not in CLOCK} for line in log.read(out / "log.jsonl")]


def weights(out: Path, step: int) -> bytes:
    folder = out / "checkpoints" / f"step-{step:08d}"
    return (folder / "model.safetensors").read_bytes() + (folder / "optimizer.safetensors").read_bytes()


# --- one run ---


def test_a_run_writes_log_curve_checkpoints_and_report(tmp_path: Path) -> None:
    out, writer = tmp_path / "run", io.StringIO()
    report = train(splits(), out, SMALL, writer=writer)
    rows = log.read(out / "log.jsonl")
    steps, evaluations = [r for r in rows if "loss" in r], [r for r in rows if "val_loss" in r]
    assert [r["step"] for r in steps] == list(range(12))
    assert [r["position"] for r in steps] == [48 * s for s in range(12)]
    assert [(r["step"], r["position"]) for r in evaluations] == [(0, 0), (5, 240), (10, 480), (12, 576)]
    assert list(steps[0]) == ["step", "position", "loss", "lr", "tokens_per_s", "data_wait", "digest", "grad_norm"]
    assert [r["lr"] for r in steps] == [
        learning_rate(s, peak=1e-2, floor=1e-3, warmup_steps=3, decay_steps=12, steps=12) for s in range(12)
    ]
    assert all(0 <= r["data_wait"] <= 1 and r["tokens_per_s"] > 0 for r in steps)
    assert steps[-1]["loss"] < steps[0]["loss"]
    with ladle.Feed(splits()["train"], batch_size=6, block_size=8, seed=1337) as feed:
        assert [r["digest"] for r in steps] == [f"{feed[s].digest:016x}" for s in range(12)]
    assert sorted(p.name for p in (out / "checkpoints").iterdir()) == ["step-00000008", "step-00000012"]
    assert report.checkpoint == out / "checkpoints" / "step-00000012"
    assert (report.steps, report.position, report.val_loss) == (12, 576, evaluations[-1]["val_loss"])
    assert report.loss == steps[-1]["loss"]
    assert report.sample is None  # ids without a tokenizer
    assert (out / "loss.svg").read_text().lstrip().startswith("<?xml")
    said = writer.getvalue()
    for text in (
        "train 400 tokens, val 60 tokens",
        "50 windows of 8 an epoch, shuffled",
        "9 batches, 400 tokens",
        "6 rows an update (4 a pass x 2 passes x 1 ranks), 48 tokens",
        "2 batches",
        "cpu, float32, 1 threads",
        "step 11/12  loss",
        "step 12/12  val loss",
    ):
        assert text in said
    assert "waiting for data" in str(report)


def test_the_first_loss_and_gradient_are_the_whole_batchs(tmp_path: Path) -> None:
    config = replace(SMALL, dropout=0.0, steps=1, eval_every=0)
    train(splits(), tmp_path, config)
    model = GPT(config.shape(11), seed=config.seed)
    with ladle.Feed(splits()["train"], batch_size=6, block_size=8, seed=1337) as feed:
        loss = model(*feed[0])[1]
    loss.backward()
    first = log.read(tmp_path / "log.jsonl")[0]
    assert first["loss"] == pytest.approx(loss.item(), abs=1e-6)
    norm = torch.cat([p.grad.flatten() for p in model.parameters() if p.grad is not None]).norm().item()
    assert first["grad_norm"] == pytest.approx(norm, abs=1e-6)


def test_a_tokenizer_makes_a_sample(tmp_path: Path) -> None:
    text = ladle.from_text("one two three\nfour five six\n" * 30, tokenizer="bytes")
    report = train({"train": text}, tmp_path, replace(SMALL, steps=2))
    assert isinstance(report.sample, str)
    assert report.val_loss is None
    assert "no val split" in str(report)
    state = json.loads((report.checkpoint / "state.json").read_text())
    assert ladle.tokens.from_identity(state["run"]["tokenizer"]).hash == text.tokenizer.hash


def test_no_global_state_moves_and_no_thread_stays(tmp_path: Path) -> None:
    before, threads = torch.get_rng_state(), threading.active_count()
    train(splits(), tmp_path, SMALL)
    assert torch.equal(torch.get_rng_state(), before)
    assert threading.active_count() == threads


def test_chance_is_the_seeds(tmp_path: Path) -> None:
    for name, state in (("a", 1), ("b", 2)):
        torch.manual_seed(state)
        train(splits(), tmp_path / name, SMALL)
    assert lines(tmp_path / "a") == lines(tmp_path / "b")
    train(splits(), tmp_path / "c", replace(SMALL, seed=5))
    assert lines(tmp_path / "a") != lines(tmp_path / "c")


def test_dropout_differs_between_micro_batches_and_steps(tmp_path: Path) -> None:
    """The same rows, over and over: only chance can make the losses differ."""
    ids = ladle.from_ids(np.tile(np.arange(11, dtype=np.uint16), 9)[:9], vocab_size=11)
    config = replace(
        SMALL, dropout=0.5, batch_size=2, micro_batch_size=1, learning_rate=1e-30, min_learning_rate=0.0, weight_decay=0.0
    )
    train({"train": ids}, tmp_path, config)
    losses = [line["loss"] for line in lines(tmp_path)]
    assert len(set(losses)) == len(losses)


# --- resuming ---


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An uninterrupted run, every checkpoint kept."""
    out = tmp_path_factory.mktemp("whole")
    torch.set_num_threads(1)
    train(splits(), out, replace(SMALL, keep=9))
    return out


@pytest.mark.parametrize("step", [4, 8])
def test_resume_is_equal_to_the_bit(whole: Path, tmp_path: Path, step: int) -> None:
    """From a checkpoint, with a log that had run on: losses, norms, digests, evaluations, weights and moments."""
    shutil.copytree(whole, tmp_path / "run")
    for path in checkpoint.list_checkpoints(tmp_path / "run" / "checkpoints"):
        if int(path.name[5:]) > step:
            shutil.rmtree(path)
    torch.manual_seed(99)
    writer = io.StringIO()
    report = train(splits(), tmp_path / "run", replace(SMALL, keep=9), resume=True, writer=writer)
    assert lines(tmp_path / "run") == lines(whole)
    assert weights(tmp_path / "run", 12) == weights(whole, 12)
    assert f"resumed from {tmp_path}/run/checkpoints/step-{step:08d}" in writer.getvalue()
    assert "changed since" not in writer.getvalue()
    assert report.position == 576


def test_resume_of_a_finished_run_does_nothing(whole: Path, tmp_path: Path) -> None:
    shutil.copytree(whole, tmp_path / "run")
    report = train(splits(), tmp_path / "run", replace(SMALL, keep=9), resume=True)
    assert lines(tmp_path / "run") == lines(whole)
    assert report.loss is None
    assert report.val_loss == lines(whole)[-1]["val_loss"]
    assert "nothing was left to do" in str(report)


def test_resume_before_the_first_checkpoint_starts_anew(whole: Path, tmp_path: Path) -> None:
    (tmp_path / "log.jsonl").write_text('{"step": 0, "lo')
    train(splits(), tmp_path, SMALL, resume=True)
    assert lines(tmp_path) == lines(whole)


def test_a_changed_batch_size_continues_at_the_next_row(whole: Path, tmp_path: Path) -> None:
    """4 updates of 6 rows, then of 3: the next row is number 24, and nothing repeats."""
    shutil.copytree(whole, tmp_path / "run")
    for path in checkpoint.list_checkpoints(tmp_path / "run" / "checkpoints")[1:]:
        shutil.rmtree(path)
    writer = io.StringIO()
    train(splits(), tmp_path / "run", replace(SMALL, batch_size=3), resume=True, writer=writer)
    positions = [line["position"] for line in lines(tmp_path / "run") if "loss" in line]
    assert positions == [0, 48, 96, 144, *(192 + 24 * i for i in range(8))]
    assert "changed since: batch_size; the rows are the same, from the next one on in other batches" in writer.getvalue()


def test_a_longer_run_goes_on(whole: Path, tmp_path: Path) -> None:
    shutil.copytree(whole, tmp_path / "run")
    report = train(splits(), tmp_path / "run", replace(SMALL, steps=14, decay_steps=12), resume=True)
    assert report.steps == 14
    assert [line["step"] for line in lines(tmp_path / "run") if "loss" in line] == list(range(14))


def test_what_may_not_change_is_named(whole: Path, tmp_path: Path) -> None:
    shutil.copytree(whole, tmp_path / "run")
    before = sorted((p, p.read_bytes()) for p in (tmp_path / "run").rglob("*") if p.is_file())
    for change, message in (
        ({"learning_rate": 2e-2}, "learning_rate: expected 0.01, found 0.02"),
        ({"width": 32}, "width: expected 16, found 32"),
        ({"seed": 1}, "seed: expected 1337, found 1"),
        ({"order": "random"}, "order: expected 'shuffled', found 'random'"),
    ):
        with pytest.raises(StateError, match=message):
            train(splits(), tmp_path / "run", replace(SMALL, **change), resume=True)
    with pytest.raises(StateError, match="corpus"):
        train(splits(tokens=401), tmp_path / "run", SMALL, resume=True)
    assert sorted((p, p.read_bytes()) for p in (tmp_path / "run").rglob("*") if p.is_file()) == before


def test_a_state_with_a_field_missing(whole: Path, tmp_path: Path) -> None:
    shutil.copytree(whole, tmp_path / "run")
    path = tmp_path / "run" / "checkpoints" / "step-00000012" / "state.json"
    state = json.loads(path.read_text())
    for field in ("feed", "config", "made_with", "log_bytes"):
        broken = state | {"run": {k: v for k, v in state["run"].items() if k != field}}
        path.write_text(json.dumps(broken))
        with pytest.raises(FormatError, match=rf"state.json: {field}: expected a value of type \w+, found None"):
            train(splits(), tmp_path / "run", SMALL, resume=True)


def test_other_threads_are_said(whole: Path, tmp_path: Path) -> None:
    shutil.copytree(whole, tmp_path / "run")
    shutil.rmtree(tmp_path / "run" / "checkpoints" / "step-00000012")
    torch.set_num_threads(2)
    writer = io.StringIO()
    train(splits(), tmp_path / "run", SMALL, resume=True, writer=writer)
    assert "changed since: threads;" in writer.getvalue()


SCRIPT = """
import sys
sys.path.insert(0, sys.argv[2])
import torch
from pathlib import Path
from dataclasses import replace
from test_train import SMALL, splits
from ladle.train import train
torch.set_num_threads(1)
train(splits(), Path(sys.argv[1]), replace(SMALL, steps=int(sys.argv[3]), eval_every=50, checkpoint_every=16), resume="--resume" in sys.argv, writer=sys.stderr)
"""


def process(script: Path, *arguments: object) -> subprocess.Popen[str]:
    script.write_text(SCRIPT)
    command = [sys.executable, str(script), *map(str, arguments)]
    return subprocess.Popen(command, stderr=subprocess.PIPE, text=True)


def wait_for_step(out: Path, step: int, running: subprocess.Popen[str]) -> None:
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline and running.poll() is None:
        path = out / "log.jsonl"
        if path.exists() and f'"step": {step},'.encode() in path.read_bytes():
            return
        time.sleep(0.005)
    raise AssertionError("the run ended or stood still before that step")


@pytest.mark.slow
def test_sigkill_and_resume_are_equal_to_the_bit(tmp_path: Path) -> None:
    """A real process, really killed, twice, at moments nobody chose; then resumed to the end."""
    here, steps = Path(__file__).parent, 400
    uninterrupted = process(tmp_path / "a.py", tmp_path / "whole", here, steps)
    uninterrupted.communicate(timeout=120)
    assert uninterrupted.returncode == 0
    for step in (100, 220):
        killed = process(tmp_path / "b.py", tmp_path / "killed", here, steps, "--resume")
        wait_for_step(tmp_path / "killed", step, killed)
        os.kill(killed.pid, signal.SIGKILL)
        killed.communicate(timeout=60)
        assert killed.returncode == -signal.SIGKILL
    last = process(tmp_path / "b.py", tmp_path / "killed", here, steps, "--resume")
    _, said = last.communicate(timeout=120)
    assert last.returncode == 0
    assert "resumed from" in said
    assert lines(tmp_path / "killed") == lines(tmp_path / "whole")
    assert weights(tmp_path / "killed", steps) == weights(tmp_path / "whole", steps)


@pytest.mark.slow
def test_ctrl_c_says_how_to_go_on(tmp_path: Path) -> None:
    running = process(tmp_path / "a.py", tmp_path / "run", Path(__file__).parent, 100_000)
    wait_for_step(tmp_path / "run", 50, running)
    os.kill(running.pid, signal.SIGINT)
    _, said = running.communicate(timeout=60)
    assert running.returncode not in (0, None)
    assert re.search(r"interrupted at step \d+; .*/step-\d{8} is whole; the same command with --resume continues", said)
    newest = checkpoint.list_checkpoints(tmp_path / "run" / "checkpoints")[-1]
    assert checkpoint.read(newest).step >= 48
    assert not list((tmp_path / "run" / "checkpoints").glob(".*"))


def test_a_device_that_works_ahead_is_read_one_step_late(whole: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As on CUDA: each number is read after the next update was queued, the digest is the host's; the log is the same."""
    monkeypatch.setattr(loop, "_works_ahead", lambda device: True)
    written: list[tuple[int, int]] = []
    settle = loop._Run._settle

    def spy(run: Any) -> None:
        if run.pending is not None:
            written.append((run.pending[0]["step"], run.optimizer.state[run.model.ln_f.weight]["step"].item()))
        settle(run)

    monkeypatch.setattr(loop._Run, "_settle", spy)
    train(splits(), tmp_path, replace(SMALL, keep=9, eval_every=0, checkpoint_every=0))
    assert written == [*((step, step + 2) for step in range(11)), (11, 12)]
    assert [line for line in lines(tmp_path) if "loss" in line] == [line for line in lines(whole) if "loss" in line]
    assert weights(tmp_path, 12) == weights(whole, 12)


# --- refusals ---


def test_a_folder_that_holds_a_run_is_refused(whole: Path) -> None:
    with pytest.raises(ConfigError, match=r"expected a folder without a run, found one; --resume \(resume=True\) continues it"):
        train(splits(), whole, SMALL)


def test_ids_beyond_the_vocabulary_name_both_sizes(tmp_path: Path) -> None:
    data = splits()
    with pytest.raises(TokenError, match="its largest id is 10, so it needs 11 ids, but the model's vocabulary has 10"):
        train(data, tmp_path, replace(SMALL, vocab_size=10))
    data["val"] = ladle.from_ids(np.full(60, 300, dtype=np.uint16))
    with pytest.raises(TokenError, match="its largest id is 300, so it needs 301 ids, but the model's vocabulary has 11"):
        train(data, tmp_path, SMALL)
    assert not list(tmp_path.iterdir())


def test_a_corpus_that_does_not_know_its_vocabulary(tmp_path: Path) -> None:
    data = {"train": ladle.from_ids(np.arange(200, dtype=np.uint16) % 11)}
    with pytest.raises(ConfigError, match=r"vocab_size: expected a number of ids, found none: .* \(its largest id is 10\)"):
        train(data, tmp_path, SMALL)
    assert train(data, tmp_path, replace(SMALL, vocab_size=11, steps=1)).steps == 1


def test_a_corpus_without_a_train_split(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="corpus: expected a split named 'train', found test, val"):
        train({"val": splits()["val"], "test": splits()["val"]}, tmp_path, SMALL)


def test_a_damaged_val_split_is_an_error_and_none_is_not(tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    config = replace(SMALL, vocab_size=11, steps=1)
    (np.arange(400, dtype="<u2") % 11).tofile(tmp_path / "data" / "train.bin")
    (tmp_path / "data" / "val.bin").write_bytes(b"")
    with pytest.raises(FormatError, match=r"val\.bin"):
        train(tmp_path / "data", tmp_path / "run", config)
    with ladle.open(tmp_path / "data") as corpus:
        assert train({"train": corpus["train"]}, tmp_path / "run", config).val_loss is None


def test_a_full_disk_leaves_the_older_checkpoints(tmp_path: Path) -> None:
    """No file may grow past 300 000 bytes: the optimizer's does not fit, the model's does."""
    script = tmp_path / "full.py"
    limit = "import resource\nresource.setrlimit(resource.RLIMIT_FSIZE, (300_000, 300_000))\n"
    script.write_text(limit + SCRIPT.replace("steps=", "width=96, steps="))
    running = subprocess.run(
        [sys.executable, str(script), str(tmp_path / "run"), str(Path(__file__).parent), "20"], capture_output=True, text=True
    )
    assert running.returncode != 0
    assert "FormatError" in running.stderr
    assert "checkpoint: expected room and permission to write it, found" in running.stderr
    assert list((tmp_path / "run" / "checkpoints").iterdir()) == []


def test_unknown_largest_id_is_checked_on_the_host_batch_by_batch(tmp_path: Path) -> None:
    """nanoGPT's files say nothing: a wrong id is found while it is gathered, before a device sees it."""
    ids = np.arange(400, dtype=np.uint16) % 11
    ids[333] = 50_000
    (tmp_path / "data").mkdir()
    for name in ("train", "val"):
        ids.tofile(tmp_path / "data" / f"{name}.bin")
    with pytest.raises(TokenError, match=r"(train|val)\.bin @ byte 666: id: expected less than the vocabulary's 11, found 50000"):
        train(tmp_path / "data", tmp_path / "run", replace(SMALL, vocab_size=11))


def test_a_loss_that_is_not_finite_stops_the_run_and_names_the_batch(tmp_path: Path) -> None:
    config = replace(SMALL, learning_rate=1e30, grad_clip=0.0, checkpoint_every=1, eval_every=0)
    with pytest.raises(
        ConfigError, match=r"step \d+: expected a finite loss and gradient, found .*feed.at\(\d+\), digest [0-9a-f]{16}"
    ):
        train(splits(), tmp_path, config)
    for path in checkpoint.list_checkpoints(tmp_path / "checkpoints"):
        checkpoint.read(path)


@pytest.mark.parametrize("device", ["banana", "cuda:99"])
def test_a_device_that_is_not_there(tmp_path: Path, device: str) -> None:
    with pytest.raises(ConfigError, match="device: expected"):
        train(splits(), tmp_path, replace(SMALL, device=device))


# --- on request ---


def test_bfloat16(tmp_path: Path) -> None:
    train(splits(), tmp_path / "half", replace(SMALL, dtype="bfloat16", dropout=0.0))
    train(splits(), tmp_path / "full", replace(SMALL, dropout=0.0))
    half, full = (next(line["loss"] for line in lines(tmp_path / name) if "loss" in line) for name in ("half", "full"))
    assert half != full
    assert half == pytest.approx(full, rel=2e-2)


def test_scaled_rates(tmp_path: Path) -> None:
    train(splits(), tmp_path, replace(SMALL, steps=3, scale_rate="linear", base_batch_size=3))
    rates = [line["lr"] for line in lines(tmp_path) if "loss" in line]
    assert rates[-1] == pytest.approx(2e-2)


def test_random_order_and_no_evaluations_between(tmp_path: Path) -> None:
    writer = io.StringIO()
    train(splits(), tmp_path, replace(SMALL, order="random", eval_every=0, checkpoint_every=0), writer=writer)
    assert "independent random windows of 8; no epochs" in writer.getvalue()
    assert [line["step"] for line in lines(tmp_path) if "val_loss" in line] == [12]
    assert len(checkpoint.list_checkpoints(tmp_path / "checkpoints")) == 1


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_a_bar_on_a_terminal(tmp_path: Path) -> None:
    writer, threads = Terminal(), threading.active_count()
    train(splits(), tmp_path, SMALL, writer=writer)
    assert "12/12" in writer.getvalue()
    assert "tokens/s" in writer.getvalue()
    assert threading.active_count() == threads


def compiler() -> bool:
    headers = Path(sysconfig.get_path("include"), "Python.h").exists()
    return headers and any(shutil.which(name) for name in ("g++", "clang++", "c++"))


@pytest.mark.slow
@pytest.mark.skipif(not compiler(), reason="torch.compile needs a C++ compiler and Python.h on the CPU, and they are not here")
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_compiled(tmp_path: Path) -> None:
    """On request; the losses equal the plain run's to rounding."""
    config, data = replace(SMALL, dropout=0.0, steps=3, micro_batch_size=None), {"train": splits()["train"]}
    train(data, tmp_path / "plain", config)
    train(data, tmp_path / "compiled", replace(config, compile=True))
    for a, b in zip(lines(tmp_path / "plain"), lines(tmp_path / "compiled"), strict=True):
        assert a["loss"] == pytest.approx(b["loss"], rel=1e-4)


@pytest.mark.slow
def test_compiling_without_a_compiler_is_one_line(tmp_path: Path) -> None:
    (np.arange(400, dtype="<u2") % 11).tofile(tmp_path / "train.bin")
    (np.arange(100, dtype="<u2") % 11).tofile(tmp_path / "val.bin")
    options = f"--vocab-size 11 --layers 1 --heads 1 --width 8 --block-size 8 --steps 1 --compile --out {tmp_path}/run".split()
    nowhere = {"PATH": "/nonexistent", "CXX": "/nonexistent/c++", "TORCHINDUCTOR_CACHE_DIR": str(tmp_path / "cache")}
    running = subprocess.run(
        [sys.executable, "-m", "ladle", "train", str(tmp_path), *options], capture_output=True, text=True, env=nowhere
    )
    assert running.returncode == 2
    assert running.stderr.splitlines()[-1].startswith("ladle: compile: expected a model that torch.compile can build here, found")
    assert "Traceback" not in running.stderr
