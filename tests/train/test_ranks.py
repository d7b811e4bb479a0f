"""Several processes, one run: started by torchrun, meeting over gloo."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from ladle.errors import ConfigError
from ladle.train import Ranks, checkpoint, joined, log

OPTIONS = (  # noqa: SIM905  as one types them
    "--vocab-size 11 --layers 1 --heads 2 --width 16 --block-size 8 --batch-size 7 --micro-batch-size 2 --dropout 0.2 --steps 12 "
    "--learning-rate 1e-2 --min-learning-rate 1e-3 --warmup-steps 3 --eval-every 5 --checkpoint-every 4 --keep 9 --device cpu "
    "--threads 1"
).split()


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("corpus")
    ids = (np.random.default_rng(0).integers(1, 3, 266).cumsum() % 11).astype("<u2")
    ids[:202].tofile(folder / "train.bin")  # 201 targets: the last window of each epoch has one that counts
    ids[202:].tofile(folder / "val.bin")
    return folder


def start(ranks: int, corpus: Path, out: Path, *more: str) -> subprocess.Popen[str]:
    torchrun = ["-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={ranks}"] if ranks > 1 else []
    command = [sys.executable, *torchrun, "-m", "ladle", "train", str(corpus), "--out", str(out), *OPTIONS, *more]
    environment = {k: v for k, v in os.environ.items() if k not in ("RANK", "WORLD_SIZE", "LOCAL_RANK")} | {
        "OMP_NUM_THREADS": "1"
    }
    return subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env=environment, start_new_session=True
    )


def finish(running: subprocess.Popen[str]) -> str:
    said, _ = running.communicate(timeout=200)
    assert running.returncode == 0, said
    return said


def lines(out: Path) -> list[dict[str, Any]]:
    return [{k: v for k, v in line.items() if k not in ("tokens_per_s", "data_wait")} for line in log.read(out / "log.jsonl")]


def weights(out: Path) -> bytes:
    folder = out / "checkpoints" / "step-00000012"
    return (folder / "model.safetensors").read_bytes() + (folder / "optimizer.safetensors").read_bytes()


@pytest.fixture(scope="module")
def alone(corpus: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("alone") / "run"
    finish(start(1, corpus, out, "--dropout", "0"))
    return out


@pytest.mark.slow
@pytest.mark.parametrize("ranks", [2, 3])
def test_ranks_train_as_one_and_resume_to_the_bit(corpus: Path, alone: Path, tmp_path: Path, ranks: int) -> None:
    """7 rows over 2 or 3 ranks, uneven: the same batches as alone, the same losses to rounding; resumed, the same bits."""
    said = finish(start(ranks, corpus, tmp_path / "plain", "--dropout", "0"))
    assert f"x {ranks} ranks" in said
    assert said.count("val loss    ") == 1, "one rank reports"
    for one, many in zip(lines(alone), lines(tmp_path / "plain"), strict=True):
        assert one.get("digest") == many.get("digest")
        for key in ("loss", "val_loss", "grad_norm"):
            assert many.get(key, 0.0) == pytest.approx(one.get(key, 0.0), rel=2e-5)
    first = lines(tmp_path / "plain")[1]
    assert first["loss"] == pytest.approx(lines(alone)[1]["loss"], rel=1e-6)

    finish(start(ranks, corpus, tmp_path / "whole"))
    shutil.copytree(tmp_path / "whole", tmp_path / "resumed")
    for path in checkpoint.list_checkpoints(tmp_path / "resumed" / "checkpoints")[1:]:
        shutil.rmtree(path)
    said = finish(start(ranks, corpus, tmp_path / "resumed", "--resume"))
    assert "step-00000004" in said
    assert "changed since" not in said
    assert lines(tmp_path / "resumed") == lines(tmp_path / "whole")
    assert weights(tmp_path / "resumed") == weights(tmp_path / "whole")


@pytest.mark.slow
def test_other_ranks_continue_with_the_same_batches(corpus: Path, alone: Path, tmp_path: Path) -> None:
    """Saved alone, resumed by 2: the digests are those of one rank to the end."""
    shutil.copytree(alone, tmp_path / "run")
    for path in checkpoint.list_checkpoints(tmp_path / "run" / "checkpoints")[1:]:
        shutil.rmtree(path)
    said = finish(start(2, corpus, tmp_path / "run", "--dropout", "0", "--resume"))
    assert "changed since: world_size; the batches are the same, the losses only to rounding" in said
    assert [line.get("digest") for line in lines(tmp_path / "run")] == [line.get("digest") for line in lines(alone)]
    for one, many in zip(lines(alone), lines(tmp_path / "run"), strict=True):
        assert many.get("loss", 0.0) == pytest.approx(one.get("loss", 0.0), rel=2e-5)


@pytest.mark.slow
def test_a_killed_rank_ends_the_run_and_it_resumes(corpus: Path, tmp_path: Path) -> None:
    long = ("--steps", "300", "--checkpoint-every", "25", "--eval-every", "0", "--keep", "2")
    finish(start(2, corpus, tmp_path / "whole", *long))
    killed = start(2, corpus, tmp_path / "killed", *long)
    deadline = time.monotonic() + 100
    while time.monotonic() < deadline and len(checkpoint.list_checkpoints(tmp_path / "killed" / "checkpoints")) < 2:
        assert killed.poll() is None
        time.sleep(0.01)
    children = Path(f"/proc/{killed.pid}/task/{killed.pid}/children").read_text().split()
    os.kill(int(children[-1]), signal.SIGKILL)  # one rank; torchrun then ends the other and itself
    killed.communicate(timeout=60)
    assert killed.returncode != 0
    finish(start(2, corpus, tmp_path / "killed", *long, "--resume"))
    assert lines(tmp_path / "killed") == lines(tmp_path / "whole")


# --- without torchrun ---


def test_alone_by_default() -> None:
    ranks = Ranks.current()
    assert (ranks.rank, ranks.world_size, ranks.first) == (0, 1, True)
    tensor = torch.ones(2)
    ranks.add_up(tensor)
    ranks.share(tensor)
    assert tensor.tolist() == [1, 1]


def test_ranks_of_one_meet_and_leave() -> None:
    with joined(rank=0, world_size=1, address="127.0.0.1", port=0, backend="gloo") as ranks:
        assert ranks == Ranks.current() == Ranks(0, 1)
        assert torch.distributed.is_initialized()
    assert not torch.distributed.is_initialized()


def test_ranks_that_never_come() -> None:
    meeting = joined(rank=1, world_size=2, address="127.0.0.1", port=1, backend="gloo", timeout_s=1)
    with pytest.raises(ConfigError, match=r"ranks: expected 2 processes to meet at 127.0.0.1:\d+, found"), meeting:
        pass


def test_half_of_torchruns_variables(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    from ladle.cli import main

    monkeypatch.setenv("WORLD_SIZE", "2")
    monkeypatch.delenv("RANK", raising=False)
    assert main(["train", str(tmp_path), "--out", str(tmp_path / "run")]) == 2
    assert capsys.readouterr().err.strip() == (
        "ladle: environment: expected the variables that torchrun sets, found WORLD_SIZE without 'RANK'"
    )


# --- the command line ---


def test_command_line(corpus: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    from ladle.cli import main

    threads = torch.get_num_threads()
    try:
        command = ["train", str(corpus), "--out", str(tmp_path / "run"), *OPTIONS, "--no-bias"]
        assert main(command) == 0
        printed = capsys.readouterr()
        assert "val loss    " in printed.out
        assert "windows of 8 an epoch" in printed.err
        state = json.loads((tmp_path / "run" / "checkpoints" / "step-00000012" / "state.json").read_text())
        assert state["run"]["config"]["bias"] is False
        assert main(command) == 2
        assert capsys.readouterr().err == (
            f"ladle: {tmp_path}/run: expected a folder without a run, found one; --resume (resume=True) continues it; or name another folder\n"
        )
        assert main([*command, "--resume"]) == 0
        assert main([*command, "--resume", "--width", "32"]) == 2
        assert "width: expected 16, found 32" in capsys.readouterr().err
        assert main([*command, "--steps", "0"]) == 2
        assert capsys.readouterr().err == "ladle: steps: expected >= 1, found 0\n"
    finally:
        torch.set_num_threads(threads)


def test_help_has_an_example(capsys: pytest.CaptureFixture[str]) -> None:
    from ladle.cli import main

    with pytest.raises(SystemExit) as caught:
        main(["train", "--help"])
    assert caught.value.code == 0
    out = capsys.readouterr().out
    assert "torchrun --nproc-per-node 2 -m ladle train" in out
    assert "tokens a row (T) [64]" in out
    assert "biases in linear layers and norms [no]" in out
