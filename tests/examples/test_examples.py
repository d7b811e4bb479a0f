"""The examples: each trains, is killed with SIGKILL between two checkpoints, and resumes the very same run."""

import importlib.util
import json
import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).parents[2] / "examples"
STEPS = 90  # two and a half epochs of the examples' corpus
CHECKPOINT = 10  # steps between two of the examples' checkpoints
ENVIRONMENT = os.environ | {
    "OMP_NUM_THREADS": "1",
    "XLA_FLAGS": "--xla_force_host_platform_device_count=2",
    "JAX_PLATFORMS": "cpu",
    "CUDA_VISIBLE_DEVICES": "",
    "HF_HUB_OFFLINE": "1",
    "PYTHONWARNINGS": "ignore",
}


def needs(*packages):
    missing = [name for name in packages if importlib.util.find_spec(name) is None]
    return pytest.mark.skipif(bool(missing), reason=f"not installed: pip install {' '.join(missing)}")


def start(name, out, *options, steps=STEPS):
    command = [sys.executable, str(EXAMPLES / name), "--out", str(out), "--steps", str(steps), *options]
    return subprocess.Popen(command, env=ENVIRONMENT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, start_new_session=True)


def finish(process):
    output, _ = process.communicate(timeout=240)
    assert process.returncode == 0, output.decode()


def lines(log):
    """The whole lines of a log, in the order in which they were written."""
    if not log.exists():
        return []
    return [json.loads(line) for line in log.read_text("utf-8").split("\n")[:-1]]


def kill(process, log, step):
    """SIGKILL to the process and its workers as soon as its log has that step."""
    try:
        while process.poll() is None and not any(line["step"] >= step for line in lines(log)):
            time.sleep(0.001)
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
    output, _ = process.communicate()
    assert process.returncode == -signal.SIGKILL, output.decode()


@pytest.mark.slow
@pytest.mark.peer
@pytest.mark.parametrize(
    ("name", "log", "first", "second"),
    [
        pytest.param("nanogpt_style.py", "log.jsonl", [], [], id="nanogpt-style"),
        pytest.param("jax_loop.py", "log.jsonl", [], [], id="jax", marks=needs("jax")),
        pytest.param(
            "hf_trainer.py", "log.jsonl", [], ["--workers", "2"], id="transformers", marks=needs("transformers", "accelerate")
        ),
        pytest.param("lightning_loop.py", "log.jsonl", [], [], id="lightning", marks=needs("lightning")),
        pytest.param(
            "lightning_loop.py",
            "log.jsonl",
            ["--workers", "2"],
            ["--workers", "2"],
            id="lightning-torchdata",
            marks=needs("lightning", "torchdata"),
        ),
        pytest.param("accelerate_loop.py", "log-0.jsonl", ["--workers", "2"], [], id="accelerate", marks=needs("accelerate")),
    ],
)
def test_an_example_killed_and_resumed_is_the_same_run(name, log, first, second, tmp_path):
    """first, second: options of the killed run and of the resumed one; the whole run has none."""
    whole, broken = tmp_path / "whole" / log, tmp_path / "broken" / log
    finish(start(name, whole.parent))
    assert [line["step"] for line in lines(whole)] == list(range(1, STEPS + 1))

    at = CHECKPOINT * 4 + 5  # beyond an epoch's border
    kill(start(name, broken.parent, *first), broken, at)
    killed = lines(broken)
    assert at <= killed[-1]["step"] < STEPS
    content = broken.read_bytes()
    os.truncate(broken, content.rfind(b"\n") + 1)  # a line that the kill cut short
    finish(start(name, broken.parent, *second))

    resumed = lines(broken)[len(killed) :]
    assert 1 < resumed[0]["step"] <= killed[-1]["step"] + 1  # from a checkpoint, not from the start
    assert (resumed[0]["step"] - 1) % CHECKPOINT == 0
    assert resumed[-1]["step"] == STEPS
    expected = {line["step"]: line for line in lines(whole)}
    for line in killed + resumed:
        assert line == expected[line["step"]]


@pytest.mark.slow
@pytest.mark.peer
@pytest.mark.parametrize(
    ("name", "logs"),
    [
        pytest.param("accelerate_loop.py", ["log-0.jsonl", "log-1.jsonl"], id="accelerate", marks=needs("accelerate")),
        pytest.param("hf_trainer.py", ["log.jsonl"], id="transformers", marks=needs("transformers", "accelerate")),
    ],
)
def test_two_ranks_train_on_the_same_global_batches(name, logs, tmp_path):
    whole, parts = tmp_path / "whole", tmp_path / "parts"
    finish(start(name, whole, steps=20))
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    ranks = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2", "--master-port", str(port)]
    command = [*ranks, str(EXAMPLES / name), "--out", str(parts), "--steps", "20"]
    done = subprocess.run(command, env=ENVIRONMENT, capture_output=True, text=True, timeout=240)
    assert done.returncode == 0, done.stderr
    found = [line for log in logs for line in lines(parts / log)]
    for one in lines(whole / logs[0]):
        mine = [line for line in found if line["step"] == one["step"]]
        assert len(mine) == 2
        assert sum(line["digest"] for line in mine) % 2**64 == one["digest"]
        if name == "accelerate_loop.py":  # it logs sums, and nothing in it is drawn by lot
            assert sum(line["loss"] for line in mine) == pytest.approx(one["loss"], rel=1e-5)


def ran(name, out, *options):
    finish(start_plain(name, out, *options))
    return json.loads((out / "result.json").read_text("utf-8"))


def start_plain(name, out, *options):
    command = [sys.executable, str(EXAMPLES / name), "--out", str(out), *options]
    return subprocess.Popen(command, env=ENVIRONMENT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, start_new_session=True)


@pytest.mark.slow
def test_balanced_draws_find_the_rare_class(tmp_path):
    found = ran("imbalanced.py", tmp_path)
    assert found["balanced"]["recall"] > found["as they come"]["recall"] + 0.2


@pytest.mark.slow
@needs("PIL")
def test_cached_images_train_the_same_model_faster(tmp_path):
    found = ran("images.py", tmp_path)
    assert found["equal"]  # the last loss, to the bit
    assert found["times"] > 5
    assert found["right"] > 0.5  # of three shapes


@pytest.mark.slow
def test_batches_of_alike_lengths_pad_less_and_learn_as_much(tmp_path):
    plain, alike = ran("text_lengths.py", tmp_path).values()
    assert alike["padding"] < plain["padding"] / 3
    assert alike["right"] > 0.9


@pytest.mark.slow
@pytest.mark.parametrize("workers", ["0", "2"])
def test_a_table_s_run_killed_in_mid_epoch_resumes_exactly(tmp_path, workers):
    whole, broken = tmp_path / "whole", tmp_path / "broken"
    finish(start_plain("tabular.py", whole, "--steps", "260"))  # past an epoch's border at 200
    kill(start_plain("tabular.py", broken, "--steps", "260", "--workers", workers), broken / "log.jsonl", 75)
    log = broken / "log.jsonl"
    os.truncate(log, log.read_bytes().rfind(b"\n") + 1)
    killed = len(lines(log))
    finish(start_plain("tabular.py", broken, "--steps", "260"))
    expected = {line["step"]: line for line in lines(whole / "log.jsonl")}
    assert len(expected) == 260
    for line in lines(log):
        assert line == expected[line["step"]]
    assert 1 < lines(log)[killed]["step"] <= killed + 1
