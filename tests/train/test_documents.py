"""The trainer on documents kept apart: packs, masked windows, the loss of each document alone."""

from __future__ import annotations

import io
import json
import math
import os
import shutil
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import ladle
from ladle.corpus.split import Split
from ladle.errors import ConfigError, StateError
from ladle.nn import GPT, GPTConfig
from ladle.rows.packs import DEALS, OVERLONG, POLICIES
from ladle.train import TrainConfig, checkpoint, config, evaluate, log, train

SMALL = TrainConfig(
    layers=1, heads=2, width=16, block_size=8, batch_size=6, micro_batch_size=4, dropout=0.2, steps=12, learning_rate=1e-2,
    min_learning_rate=1e-3, warmup_steps=3, eval_every=5, checkpoint_every=4, keep=9, pack="best_fit", device="cpu",
)  # fmt: skip


@pytest.fixture(autouse=True)
def _one_thread() -> Any:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def lengths(documents: int, longest: int, seed: int) -> list[int]:
    return np.random.default_rng(seed).integers(1, longest + 1, documents).tolist()


def split_of(sizes: list[int], seed: int = 0) -> Split:
    walk = np.random.default_rng(seed).integers(1, 3, sum(sizes)).cumsum() % 11
    return ladle.from_ids(walk.astype(np.uint16), vocab_size=11, document_ends=np.cumsum(sizes))


def splits(longest: int = 20) -> dict[str, Split]:
    return {"train": split_of(lengths(60, longest, 1)), "val": split_of(lengths(9, longest, 2), 3)}


def lines(out: Path) -> list[dict[str, Any]]:
    """A log without the clock's columns."""
    return [{k: v for k, v in line.items() if k not in ("tokens_per_s", "data_wait")} for line in log.read(out / "log.jsonl")]


def weights(out: Path) -> bytes:
    folder = out / "checkpoints" / "step-00000012"
    return (folder / "model.safetensors").read_bytes() + (folder / "optimizer.safetensors").read_bytes()


def pieces(sizes: list[int], block_size: int) -> list[tuple[int, int, int]]:
    """(first, last, document's end) of each document cut into rows, by a plain loop."""
    found, end = [], 0
    for size in sizes:
        start, end = end, end + size
        found += [(first, min(first + block_size, end), end) for first in range(start, end, block_size)]
    return found


def summed_alone(model: GPT, split: Split, sizes: list[int], block_size: int) -> tuple[float, int]:
    """The losses of every document's targets, each piece passed through the model by itself."""
    ids = torch.from_numpy(split.read(0, split.num_tokens).astype(np.int64))
    total, targets = 0.0, 0
    for first, last, end in pieces(sizes, block_size):
        x, y = ids[first : min(last, end - 1)], ids[first + 1 : min(last + 1, end)]
        if len(x):
            total += model(x[None], y[None], reduction="sum")[1].item()
            targets += len(x)
    return total, targets


# --- evaluation ---


@pytest.mark.parametrize("positions", ["learned", "rotary"])
@pytest.mark.parametrize("pack", POLICIES)
def test_the_evaluation_is_the_token_weighted_loss_of_the_documents_alone(positions: str, pack: Any) -> None:
    """Documents of 1 to 20 tokens, in rows of 8."""
    sizes = lengths(25, 20, 7)
    split, model = split_of(sizes), GPT(GPTConfig(vocab_size=11, block_size=8, layers=2, heads=2, width=16, positions=positions))
    model = model.double().eval()
    with torch.no_grad():
        model.embed.wte.weight.mul_(30)  # so that every target's loss is its own
        total, targets = summed_alone(model, split, sizes, 8)
    assert targets == sum(sizes) - len(sizes)

    def kept_apart(x: Any, y: Any, segments: Any) -> Any:
        from ladle.feed.masks import attention_mask, restarted

        return model(x, y, restarted(segments), attention_mask(segments), reduction="sum")[1]

    assert evaluate(kept_apart, split, block_size=8, batch_size=5, pack=pack) == pytest.approx(total / targets, rel=1e-10)
    mixed = evaluate(lambda x, y, _: model(x, y, reduction="sum")[1], split, block_size=8, batch_size=5, pack=pack)
    assert (mixed == pytest.approx(total / targets, rel=1e-7)) == (pack == "single")  # alone in its row, nothing to keep apart


def test_a_short_split_and_one_without_a_target() -> None:
    uniform = lambda x, y, _: torch.tensor(math.log(11)) * (y != -100).sum()  # noqa: E731
    for how in ({"pack": "best_fit"}, {"mask_documents": True}):
        assert evaluate(uniform, split_of([3, 2]), block_size=8, **how) == pytest.approx(math.log(11))
        with pytest.raises(
            ConfigError, match="memory: expected a target to evaluate on, found none: its documents have one token each"
        ):
            evaluate(uniform, split_of([1, 1, 1]), block_size=2, **how)


# --- training ---


def test_the_first_loss_is_the_documents_alone(tmp_path: Path) -> None:
    """An epoch in one update, with micro-batches of another number of targets each."""
    sizes = lengths(40, 8, 4)
    split = split_of(sizes)
    rows = ladle.Feed(split, batch_size=1, block_size=8, pack="best_fit").batches_per_epoch
    once = replace(SMALL, dropout=0.0, steps=1, eval_every=0, batch_size=rows)
    train({"train": split}, tmp_path / "run", once)
    with torch.no_grad():
        total, targets = summed_alone(GPT(once.shape(11), seed=once.seed), split, sizes, 8)
    assert lines(tmp_path / "run")[0]["loss"] == pytest.approx(total / targets, rel=1e-6)


@pytest.fixture(
    scope="module", params=[{}, {"deal": "fresh"}, {"pack": None, "mask_documents": True}], ids=["pack", "fresh", "mask"]
)
def whole(request: Any, tmp_path_factory: pytest.TempPathFactory) -> tuple[TrainConfig, Path]:
    """An uninterrupted run, every checkpoint kept."""
    out, how = tmp_path_factory.mktemp("whole"), replace(SMALL, **request.param)
    torch.set_num_threads(1)
    train(splits(), out, how)
    return how, out


@pytest.mark.parametrize("step", [4, 8])
def test_resume_is_equal_to_the_bit(whole: tuple[TrainConfig, Path], tmp_path: Path, step: int) -> None:
    how, out = whole
    shutil.copytree(out, tmp_path / "run")
    for path in checkpoint.list_checkpoints(tmp_path / "run" / "checkpoints"):
        if int(path.name[5:]) > step:
            shutil.rmtree(path)
    train(splits(), tmp_path / "run", how, resume=True)
    assert lines(tmp_path / "run") == lines(out)
    assert weights(tmp_path / "run") == weights(out)


def test_the_runs_are_not_alike(tmp_path: Path) -> None:
    """Each option reaches the feed."""
    first = {}
    for name, change in {
        "windows": {"pack": None},
        "masked": {"pack": None, "mask_documents": True},
        "best_fit": {},
        "sequential": {"pack": "sequential"},
        "single": {"pack": "single"},
        "dropped": {"overlong": "drop"},
        "fresh": {"deal": "fresh"},
    }.items():
        train(splits(), tmp_path / name, replace(SMALL, **change, steps=2, eval_every=0))
        first[name] = lines(tmp_path / name)[0]["digest"]
    assert len(set(first.values())) == 7


def test_what_packing_does_is_shown_before_the_training(tmp_path: Path) -> None:
    """Documents of 3, 5 and 12 tokens in rows of 8: the long one is cut into 8 and 4; rows 8, 5 + 3 and 4."""
    three = {"train": split_of([3, 5, 12])}
    writer = io.StringIO()
    train(three, tmp_path / "packs", replace(SMALL, steps=1, batch_size=3), writer=writer)
    said = writer.getvalue()
    assert "3 packed rows of 8 an epoch, shuffled" in said
    assert "1 batches, 24 slots" in said
    assert (
        "documents   3 documents of 20 tokens in 3 rows; 1 cut at a row's end; "
        "24 slots = 17 targets + 3 documents' last tokens + 4 padded (83.333 % full)\n"
        "targets     17 an epoch, in 24 slots; masked: 3 last tokens of documents, 4 padded\n"
    ) in said
    assert said.index("83.333") < said.index("step 0/1")
    writer = io.StringIO()
    train(three, tmp_path / "windows", replace(SMALL, pack=None, mask_documents=True, steps=1, batch_size=3), writer=writer)
    assert "targets     17 an epoch, in 24 slots; masked: 2 last tokens of documents, 5 repeated\n" in writer.getvalue()


def test_an_update_without_a_target_is_no_nan(tmp_path: Path) -> None:
    """Documents of one token, but for one: most batches have nothing to learn (A3-19)."""
    train({"train": split_of([1] * 40 + [5])}, tmp_path, replace(SMALL, pack="single", batch_size=2, steps=22, eval_every=0))
    losses = [line["loss"] for line in lines(tmp_path)]
    assert sum(loss == 0.0 for loss in losses) == 21
    assert all(math.isfinite(loss) for loss in losses)


def test_a_model_with_a_table_of_positions_takes_long_documents(tmp_path: Path) -> None:
    """A document of 60 tokens in rows of 8: places are counted in the row, so that none falls off the table."""
    report = train({"train": split_of([60, 3])}, tmp_path, replace(SMALL, positions="learned", steps=2))
    assert report.loss is not None


# --- several processes ---

OPTIONS = (  # noqa: SIM905  as one types them
    "--layers 1 --heads 2 --width 16 --block-size 32 --batch-size 6 --micro-batch-size 4 --dropout 0.2 --warmup-steps 3 "
    "--eval-every 0 --checkpoint-every 10 --sample-tokens 5 --device cpu --threads 1"
).split()


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("text")
    generator = np.random.default_rng(5)
    (folder / "texts").mkdir()
    for number, size in enumerate(generator.integers(1, 90, 200).tolist()):
        (folder / "texts" / f"{number:03}.txt").write_text("".join(chr(97 + c) for c in generator.integers(0, 26, size)))
    ladle.prepare([folder / "texts"], folder / "corpus", tokenizer="bytes", progress=False).close()
    return folder / "corpus"


ACCOUNT = """
import os, sys, torch
from torch import nn
from ladle.train import accumulate, joined
from ladle.train.gradient import Gradient

rank, place = int(os.environ["RANK"]), {"address": os.environ["MASTER_ADDR"], "port": int(os.environ["MASTER_PORT"])}
with joined(rank=rank, world_size=2, backend="gloo", **place) as ranks:
    # rank 0: 2 labels of loss 4, and a micro-batch without any; rank 1: 6 labels of loss 1
    losses = [[[4.0, 4.0, 9.0, 9.0], [9.0] * 4], [[1.0, 1.0, 1.0, 1.0], [1.0, 1.0, 9.0, 9.0]]][rank]
    counts = [[[1, 1, 0, 0], [0] * 4], [[1, 1, 1, 1], [1, 1, 0, 0]]][rank]
    model = nn.Linear(1, 1, bias=False)
    nn.init.ones_(model.weight)
    gradient = Gradient(model)

    def loss_sum(loss, counts):
        each = model(loss[:, None])[:, 0] + torch.where(counts > 0, 0.0, float("nan"))  # a padding's loss is worth nothing
        return each.masked_select(counts > 0).sum()

    parts = [(torch.tensor(a), torch.tensor(b)) for a, b in zip(losses, counts)]
    mean = gradient.add_up(accumulate(loss_sum, parts, 8), ranks)
    nothing = gradient.vector.item()
    gradient.clear()
    none = gradient.add_up(accumulate(loss_sum, [(torch.ones(2), torch.zeros(2))], 0), ranks)
    with open(f"{sys.argv[1]}/rank{rank}", "w") as file:
        print(mean.item(), nothing, none.item(), gradient.vector.item(), file=file)
"""


def torchrun(*command: str) -> None:
    start = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2", *command]
    done = subprocess.run(start, env=os.environ | {"OMP_NUM_THREADS": "1"}, capture_output=True, text=True, timeout=200)
    assert done.returncode == 0, done.stderr


@pytest.mark.slow
def test_the_mean_is_over_the_targets_of_all_ranks(tmp_path: Path) -> None:
    """Two processes: 2 labels of loss 4 and 6 of loss 1 are 1.75, and not 2.5; without labels 0, and not NaN (A3-18, A3-19)."""
    (tmp_path / "account.py").write_text(ACCOUNT)
    torchrun(str(tmp_path / "account.py"), str(tmp_path))
    for rank in (0, 1):
        assert [float(n) for n in (tmp_path / f"rank{rank}").read_text().split()] == [1.75, 1.75, 0.0, 0.0]


@pytest.mark.slow
def test_two_ranks_train_as_one_on_packs_with_unlike_numbers_of_targets(corpus: Path, tmp_path: Path) -> None:
    """One document a row: each rank has another number of targets, at times none (documents of one token)."""
    how = ["--steps", "12", "--pack", "single", "--batch-size", "2", "--dropout", "0"]
    torchrun("-m", "ladle", "train", str(corpus), "--out", str(tmp_path / "two"), *OPTIONS, *how)
    from ladle.cli import main

    assert main(["train", str(corpus), "--out", str(tmp_path / "one"), *OPTIONS, *how]) == 0
    for one, two in zip(lines(tmp_path / "one"), lines(tmp_path / "two"), strict=True):
        assert one.get("digest") == two.get("digest")
        for key in ("loss", "val_loss", "grad_norm"):
            assert two.get(key, 0.0) == pytest.approx(one.get(key, 0.0), rel=2e-5)


# --- what cannot be ---


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"pack": "tight"}, "pack: expected one of best_fit, sequential, single, found 'tight'"),
        ({"overlong": "cut"}, "overlong: expected one of split, drop, error, found 'cut'"),
        ({"deal": "new"}, "deal: expected one of fixed, fresh, found 'new'"),
        (
            {"pack": None, "overlong": "drop"},
            "overlong: expected 'split' without pack, found 'drop': it says how documents are packed",
        ),
        ({"pack": None, "deal": "fresh"}, "deal: expected 'fixed' without pack, found 'fresh'"),
    ],
)
def test_errors(change: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        replace(SMALL, **change)


def test_the_feeds_errors_come_before_the_training(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="mask_documents: expected False with pack='best_fit', found True"):
        train(splits(), tmp_path, replace(SMALL, mask_documents=True))
    bare = ladle.from_ids(np.zeros(99, dtype=np.uint16), vocab_size=11)
    with pytest.raises(ConfigError, match="the documents' ends are not known here"):
        train({"train": bare}, tmp_path, SMALL)
    with pytest.raises(ConfigError, match="9"):
        train({"train": split_of([9])}, tmp_path, replace(SMALL, overlong="error"))


def test_a_run_may_not_change_what_it_packs_and_an_older_one_was_not_asked() -> None:
    saved = SMALL.to_dict()
    with pytest.raises(StateError, match="pack: expected 'best_fit', found None"):
        replace(SMALL, pack=None).check_resumes(saved)
    older = {
        k: v for k, v in replace(SMALL, pack=None).to_dict().items() if k not in ("pack", "overlong", "deal", "mask_documents")
    }
    assert replace(SMALL, pack=None).check_resumes(older) == []


def test_the_names_are_the_feeds() -> None:
    """Written twice, since `ladle train --help` may not wait for NumPy."""
    assert (config.PACKS, config.OVERLONG, config.DEALS) == (POLICIES, OVERLONG, DEALS)


# --- the command line ---


def test_command_line(corpus: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    from ladle.cli import main

    assert main(["train", str(corpus), "--out", str(tmp_path / "a"), *OPTIONS, "--steps", "2", "--pack", "best_fit"]) == 0
    printed = capsys.readouterr()
    assert "packed rows of 32 an epoch" in printed.err
    assert "documents' last tokens" in printed.err
    assert "% full)" in printed.err
    assert main(["train", str(corpus), "--out", str(tmp_path / "b"), *OPTIONS, "--steps", "2", "--mask-documents"]) == 0
    assert "masked: " in capsys.readouterr().err
    assert main(["train", str(corpus), "--out", str(tmp_path / "c"), *OPTIONS, "--pack", "bestfit"]) == 2
    assert capsys.readouterr().err == "ladle: pack: expected one of best_fit, sequential, single, found 'bestfit'\n"
    with pytest.raises(SystemExit):
        main(["train", "--help"])
    said = " ".join(capsys.readouterr().out.split())
    assert "keep documents whole in the rows, apart from each other: best_fit, sequential, single" in said
    assert "--mask-documents, --no-mask-documents" in said
    assert "ladle train data/books --pack best_fit --out runs/books" in said


@pytest.mark.slow
def test_a_killed_packed_run_resumes_to_the_bit(corpus: Path, tmp_path: Path) -> None:
    def start(out: Path, *more: str) -> subprocess.Popen[bytes]:
        how = ["--steps", "150", "--pack", "best_fit", "--deal", "fresh", "--positions", "rotary", *more]
        command = [sys.executable, "-m", "ladle", "train", str(corpus), "--out", str(out), *OPTIONS, *how]
        return subprocess.Popen(
            command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, env=os.environ | {"OMP_NUM_THREADS": "1"}
        )

    assert start(tmp_path / "whole").wait(200) == 0
    running = start(tmp_path / "killed")
    deadline = time.monotonic() + 100
    while time.monotonic() < deadline and len(checkpoint.list_checkpoints(tmp_path / "killed" / "checkpoints")) < 2:
        assert running.poll() is None
        time.sleep(0.01)
    os.kill(running.pid, signal.SIGKILL)
    running.wait(60)
    assert start(tmp_path / "killed", "--resume").wait(200) == 0
    assert lines(tmp_path / "killed") == lines(tmp_path / "whole")
    state = json.loads((tmp_path / "killed" / "checkpoints" / "step-00000150" / "state.json").read_text())
    assert state["run"]["config"]["deal"] == "fresh"
