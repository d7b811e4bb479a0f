"""Checkpoints: whole or not there, and refused by name when they are damaged or belong elsewhere."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from ladle.errors import FormatError
from ladle.nn import GPT, GPTConfig
from ladle.train import TrainConfig, checkpoint, optimizer

SHAPE = GPTConfig(vocab_size=13, block_size=8, layers=1, heads=2, width=16)


def trained(seed: int = 0, steps: int = 2, **shape: Any) -> tuple[GPT, torch.optim.Optimizer]:
    model = GPT(GPTConfig(**({"vocab_size": 13, "block_size": 8, "layers": 1, "heads": 2, "width": 16} | shape)), seed=seed)
    adamw = optimizer.make(model, TrainConfig())
    x = torch.randint(0, 13, (4, 8), generator=torch.Generator().manual_seed(seed))
    for _ in range(steps):
        adamw.zero_grad()
        model(x, x)[1].backward()
        adamw.step()
    return model, adamw


def load(path: Path, model: GPT, adamw: torch.optim.Optimizer) -> dict[str, Any]:
    saved = checkpoint.read(path)
    saved.load_into(model, adamw)
    return saved.run


def same(a: tuple[GPT, torch.optim.Optimizer], b: tuple[GPT, torch.optim.Optimizer]) -> bool:
    for p, q in zip(a[0].parameters(), b[0].parameters(), strict=True):
        if not torch.equal(p, q) or any(
            not torch.equal(a[1].state[p][k], b[1].state[q][k]) for k in ("step", "exp_avg", "exp_avg_sq")
        ):
            return False
    return True


@pytest.fixture
def saved(tmp_path: Path) -> Path:
    model, adamw = trained(1)
    return checkpoint.save(tmp_path, 2, model, adamw, {"step": 2, "note": "ü"}, keep=3)


def test_round_trip_to_the_bit(saved: Path) -> None:
    other = trained(2, steps=1)
    assert load(saved, *other) == {"step": 2, "note": "ü"}
    assert same(other, trained(1))
    for pair in (other, original := trained(1)):  # and the next step is the same step
        pair[1].zero_grad()
        pair[0](torch.arange(8)[None], torch.arange(8)[None])[1].backward()
        pair[1].step()
    assert same(other, original)


def test_files_are_plain(saved: Path) -> None:
    """safetensors and JSON; torch.load is not needed, and no name leads out of the folder."""
    assert sorted(p.name for p in saved.iterdir()) == ["model.safetensors", "optimizer.safetensors", "state.json"]
    weights = load_file(saved / "model.safetensors")
    assert set(weights) == set(dict(GPT(SHAPE, device="meta").named_parameters()))
    assert "embed.wte.weight.exp_avg" in load_file(saved / "optimizer.safetensors")


def test_the_newest_are_kept(tmp_path: Path) -> None:
    model, adamw = trained()
    for step in (5, 100, 20, 99_999_999, 100_000_000):
        checkpoint.save(tmp_path, step, model, adamw, {"step": step}, keep=2)
    assert [p.name for p in checkpoint.list_checkpoints(tmp_path)] == ["step-99999999", "step-100000000"]
    assert len(list(tmp_path.iterdir())) == 2


def test_a_step_is_saved_once(tmp_path: Path, saved: Path) -> None:
    """To replace a checkpoint would mean a moment without it."""
    with pytest.raises(FormatError, match="step-00000002: checkpoint: expected room"):
        checkpoint.save(tmp_path, 2, *trained(5), {"again": True}, keep=3)
    other = trained(2)
    load(saved, *other)
    assert same(other, trained(1))
    assert list(tmp_path.iterdir()) == [saved]


def test_leftovers_of_a_killed_save_are_no_checkpoints(tmp_path: Path, saved: Path) -> None:
    half = tmp_path / ".step-00000003.77.tmp"
    half.mkdir()
    (half / "model.safetensors").write_bytes(b"half")
    assert checkpoint.list_checkpoints(tmp_path) == [saved]
    checkpoint.save(tmp_path, 4, *trained(), {}, keep=3)
    assert not half.exists()


def test_nothing_there() -> None:
    assert checkpoint.list_checkpoints(Path("/nonexistent/folder")) == []


def truncate(path: Path, size: int) -> None:
    with path.open("r+b") as file:
        file.truncate(size)


@pytest.mark.parametrize("name", ["model.safetensors", "optimizer.safetensors", "state.json"])
def test_truncated_anywhere(saved: Path, name: str) -> None:
    whole = (saved / name).read_bytes()
    for size in (0, 1, 7, 8, 9, len(whole) // 2, len(whole) - 1):
        (saved / name).write_bytes(whole[:size] if name != "state.json" else whole[: min(size, len(whole) - 3)])
        model, adamw = trained(2)
        with pytest.raises(FormatError, match=name):
            load(saved, model, adamw)
        assert same((model, adamw), trained(2)), "an error must leave the model as it was"


@pytest.mark.parametrize("name", ["model.safetensors", "optimizer.safetensors"])
def test_one_flipped_bit_or_a_missing_file(saved: Path, name: str) -> None:
    content = bytearray((saved / name).read_bytes())
    content[-5] ^= 1
    (saved / name).write_bytes(content)
    with pytest.raises(FormatError, match=rf"{name}: bytes and CRC-32: expected .*; it is damaged: remove .*step-00000002"):
        load(saved, *trained())
    (saved / name).unlink()
    with pytest.raises(FormatError, match="found None"):
        load(saved, *trained())


HOSTILE = [
    ("[]", "expected a JSON object, found list"),
    ("null", "expected a JSON object, found NoneType"),
    ("{", "expected a JSON object"),
    ("[" * 100_000, "expected a JSON object"),
    ("\xff\xfe", "expected a JSON object"),
    ("{}", "format: expected a value of type int, found None"),
    ('{"format": true, "step": 2, "files": {}, "run": {}}', "format: expected a value of type int, found True"),
    ('{"format": 2, "step": 2, "files": {}, "run": {}}', "format: expected 1, found 2; it was saved by another version"),
    ('{"format": 1, "step": 3, "files": {}, "run": {}}', "step: expected step-00000002, found 3"),
    ('{"format": 1, "step": 2, "files": [], "run": {}}', r"files: expected a value of type dict, found \[\]"),
    ('{"format": 1, "step": 2, "files": {"../../etc/passwd": {}}, "run": {}}', "bytes and CRC-32: expected None"),
    ('{"format": 1, "step": 2, "files": {"model.safetensors": 7}, "run": {}}', "bytes and CRC-32: expected 7"),
]


@pytest.mark.parametrize(("text", "message"), HOSTILE)
def test_hostile_states(saved: Path, text: str, message: str) -> None:
    (saved / "state.json").write_bytes(text.encode("latin-1"))
    with pytest.raises(FormatError, match=message):
        load(saved, *trained())


def test_an_absurdly_large_state_is_not_read(saved: Path) -> None:
    with (saved / "state.json").open("r+b") as file:
        file.truncate(1 << 40)
    with pytest.raises(FormatError, match=r"size: expected at most 67108864 bytes, found 1099511627776"):
        load(saved, *trained())


def forge(saved: Path, name: str, content: bytes) -> None:
    """Replace a file and make the state vouch for it, as an attacker would."""
    (saved / name).write_bytes(content)
    state = json.loads((saved / "state.json").read_text())
    state["files"][name] = checkpoint._sizes(saved / name)
    (saved / "state.json").write_text(json.dumps(state))


def test_hostile_headers_behind_right_checksums(saved: Path) -> None:
    for content in (b"", b"\xff" * 8, (2**60).to_bytes(8, "little") + b"{}", b"\x02" + b"\0" * 7 + b"{}", b"PK\x03\x04" * 9):
        forge(saved, "model.safetensors", content)
        with pytest.raises(FormatError, match=r"model\.safetensors"):
            load(saved, *trained())


def test_another_model_is_named_by_its_tensor(saved: Path) -> None:
    with pytest.raises(FormatError, match=r"embed.wte.weight: expected torch.float32 \[14, 16\], found torch.float32 \[13, 16\]"):
        load(saved, *trained(vocab_size=14))
    with pytest.raises(FormatError, match=r"h.1.attn.c_attn.bias: expected a tensor, found none; it belongs to another model"):
        load(saved, *trained(layers=2))
    with pytest.raises(FormatError, match=r"embed.wpe.weight: expected none, found a tensor"):
        load(saved, *trained(positions="rotary"))


def test_another_dtype_is_refused(saved: Path, tmp_path: Path) -> None:
    halves = {name: tensor.half() for name, tensor in load_file(saved / "model.safetensors").items()}
    save_file(halves, tmp_path / "halves")
    forge(saved, "model.safetensors", (tmp_path / "halves").read_bytes())
    with pytest.raises(FormatError, match=r"expected torch.float32 .*, found torch.float16"):
        load(saved, *trained())


def test_a_place_that_cannot_be_written(tmp_path: Path, saved: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(FormatError, match=r"checkpoint: expected room and permission to write it"):
        checkpoint.save(tmp_path / "file", 3, *trained(), {}, keep=1)
    assert checkpoint.list_checkpoints(tmp_path) == [saved]


SAVER = """
import sys
sys.path.insert(0, sys.argv[2])
from pathlib import Path
import torch
torch.set_num_threads(1)
from test_checkpoint import trained
from ladle.train import checkpoint
model, adamw = trained(vocab_size=4000)
step = int(sys.argv[3])
while True:
    step += 1
    with torch.no_grad():
        for p in model.parameters():
            p.fill_(step)
    checkpoint.save(Path(sys.argv[1]), step, model, adamw, {"step": step}, keep=2)
    print(step, flush=True)
"""


@pytest.mark.slow
def test_sigkill_while_saving_leaves_a_whole_one(tmp_path: Path) -> None:
    """A process that does nothing but save, killed at random moments: the newest that is there is whole, always."""
    chance = random.Random(7)
    script = tmp_path / "saver.py"
    script.write_text(SAVER)
    folder, last = tmp_path / "checkpoints", 0
    for _ in range(4):
        process = subprocess.Popen(
            [sys.executable, str(script), str(folder), str(Path(__file__).parent), str(last)],
            stdout=subprocess.PIPE,
            text=True,
        )
        assert process.stdout is not None
        with process.stdout:
            process.stdout.readline()
            time.sleep(chance.random() / 5)
            os.kill(process.pid, signal.SIGKILL)
            process.wait()
            finished = [int(line) for line in process.stdout.read().split()]
        newest = checkpoint.list_checkpoints(folder)[-1]
        model, adamw = trained(vocab_size=4000, steps=1)
        last = load(newest, model, adamw)["step"]
        assert last >= max(finished, default=1)
        assert all(bool((p == last).all()) for p in model.parameters())
