"""show, audit and diff-runs on the command line."""

import json
import shlex
import subprocess
import sys

import pytest

import ladle
from ladle import cli
from ladle.order import stream


@pytest.fixture
def book(tmp_path, monkeypatch):
    """A folder with book.txt and data/book, made from it, as the examples in --help have them."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "book.txt").write_text("It was a bright cold day in April.\n" * 100)
    assert cli.main(["prepare", "book.txt", "data/book", "--tokenizer", "bytes", "--quiet"]) == 0
    return tmp_path


def examples(name):
    commands = next(action for action in cli.parser()._actions if getattr(action, "choices", None)).choices
    _, _, text = commands[name].epilog.partition("example:\n")
    return [line.strip() for line in text.splitlines() if line.strip()]


@pytest.mark.parametrize("name", ["show", "audit"])
def test_the_examples_run_as_they_stand(book, name):
    for line in examples(name):
        command = line.replace("ladle", f"{sys.executable} -m ladle", 1)
        done = subprocess.run(["sh", "-c", command], capture_output=True, text=True)
        assert (done.returncode, done.stderr) == (0, ""), line
        assert done.stdout, line


def one_line(capsys):
    out, err = capsys.readouterr()
    assert out == ""
    assert err.count("\n") == 1
    assert err.startswith("ladle: ")
    return err[len("ladle: ") : -1]


# --- show ---


def test_show_draws_the_batch_that_train_had(book, capsys):
    from ladle.train import TrainConfig

    usual = TrainConfig()
    capsys.readouterr()
    assert cli.main(["show", "data/book", "--step", "3", "--json", "--limit", "99"]) == 0
    told = json.loads(capsys.readouterr().out)
    with ladle.open("data/book") as corpus:
        options = {"batch_size": usual.batch_size, "block_size": usual.block_size, "seed": usual.seed, "order": usual.order}
        batch = ladle.Feed(corpus["train"], **options, framework="numpy", prefetch=0)[3]
    assert (told["position"], told["num_targets"]) == (batch.position, batch.num_targets)
    assert [row["start"] for row in told["rows"]] == batch.starts.tolist()
    assert [[token["id"] for token in row["tokens"]][:-1] for row in told["rows"]] == batch.x.tolist()
    assert cli.main(["show", "data/book", "--position", str(batch.position), "--json", "--limit", "99"]) == 0
    assert json.loads(capsys.readouterr().out) == told


def test_show_takes_the_recipe(book, capsys):
    line = (
        "show data/book --split val --step 2 --row 1 --batch-size 2 --block-size 4 --window 8 --order shuffled --seed 9"
        " --tail drop --epoch-offset --shuffle-block 3 --exclude 0@16 --json"
    )
    capsys.readouterr()
    assert cli.main(shlex.split(line)) == 0
    told = json.loads(capsys.readouterr().out)
    with ladle.open("data/book") as corpus:
        feed = ladle.Feed(
            corpus["val"],
            batch_size=2,
            block_size=4,
            window=8,
            seed=9,
            tail="drop",
            epoch_offset=True,
            shuffle_block=3,
            framework="numpy",
            prefetch=0,
        )
        feed.exclude([0], 16)
        assert (told["num_targets"], told["rows"][0]["start"]) == (0, int(feed[2].starts[1]))
    assert cli.main(shlex.split("show data/book --step 0 --block-size 8 --stride 2 --score new --limit 1")) == 0
    out = capsys.readouterr().out
    assert out.startswith("position 0: 12 rows, ")
    assert "document 0 of book.txt (line 1, byte 0)" in out


def test_show_of_a_batch_that_cannot_be(book, capsys):
    capsys.readouterr()
    for line, message in {
        "show data/book --step -1": "step: expected at least 0, found -1",
        "show data/book --position -1": "position: expected at least 0, found -1",
        "show data/book --step 1 --row 12": "row: expected less than 12, found 12",
        "show data/book --step 1 --limit 0": "limit: expected at least 1, found 0",
        "show data/book --step 1 --split test": "data/book: split: expected one of train, val, found 'test'",
        "show data/book --step 1 --block-size 9 --window 12": "block_size: expected a divisor of the window 12, found 9",
        "show data/book --step 1 --length 4": "--length: expected not to be given with --step and --position, where it means nothing",
        "show data/book --step 1 --allow-special x": "--allow-special: expected not to be given with --step and --position",
        "show text --windows --row 1": "--row: expected not to be given with --windows, where it means nothing",
        "show text --windows --exclude 1": "--exclude: expected not to be given with --windows",
        "show text --windows --block-size 4": "--block-size: expected not to be given with --windows",
        "show data/book --step 1 --exclude 1,": "--exclude: expected documents and a position, such as 3,17@40960, found '1,'",
        "show data/book --step 1 --exclude 1@-3": "found '1@-3'",
        "show data/book --step 1 --exclude 0,5@3": "document: expected a number from 0 to 0, found 5",
        "show nowhere --step 1": "nowhere: corpus: expected a folder with corpus.json",
    }.items():
        assert cli.main(shlex.split(line)) == 2, line
        assert message in one_line(capsys), line


def test_one_of_the_pictures_is_asked_for(book, capsys):
    for line in ("show data/book", "show data/book --step 1 --windows", "show --step 1"):
        with pytest.raises(SystemExit) as caught:
            cli.main(shlex.split(line))
        assert caught.value.code == 2
    err = capsys.readouterr().err
    assert "one of the arguments --step --position --windows is required" in err
    assert "argument --windows: not allowed with argument --step" in err
    assert "the following arguments are required: CORPUS|TEXT" in err


# --- audit ---


def test_audit_certifies(book, capsys):
    capsys.readouterr()
    assert cli.main(["audit", "data/book", "--epochs", "3"]) == 0
    out, err = capsys.readouterr()
    assert err == ""
    assert (
        "3,150 tokens, 150 windows, 3 whole epochs\n  each token after the first was a target exactly once in each epoch" in out
    )
    assert cli.main(["audit", "data/book", "--epochs", "3", "--json", "--quiet"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert (told["exact"], told["num_faults"], told["accounts"][0]["trained"]) == (True, 0, 3 * 3149)
    assert out.endswith(f"digest {told['digest']}\n")
    assert cli.main(["audit", "data/book", "--tail", "drop", "--exclude", "0@640"]) == 0
    assert "  of 3,149 targets an epoch: 13 never, 3,136 once\n" in capsys.readouterr().out


def test_audit_of_a_plan_that_is_wrong_exits_with_1(book, capsys, monkeypatch):
    real = stream.permute
    monkeypatch.setattr(stream, "permute", lambda index, n, key, **options: real(index, n, key, **options) // 2)
    capsys.readouterr()
    assert cli.main(["audit", "data/book"]) == 1
    assert "NOT what the recipe says: " in capsys.readouterr().out


def test_audit_of_what_cannot_be(book, capsys):
    capsys.readouterr()
    assert cli.main(["audit", "data/book", "--epochs", "0"]) == 2
    assert one_line(capsys) == "epochs: expected at least 1, found 0"
    assert cli.main(["audit", "nowhere"]) == 2
    assert "nowhere: corpus: expected a folder" in one_line(capsys)
    assert cli.main(["audit", "data/book", "--block-size", "4000"]) == 2
    assert "expected at least 4001 tokens for windows of 4000" in one_line(capsys)


# --- diff-runs ---


def step(number, **other):
    return {"step": number, "position": number * 64, "loss": 4.5 - number / 7, "digest": f"{number:016x}"} | other


def log(folder, *steps, end="\n"):
    folder.mkdir(parents=True)
    path = folder / "log.jsonl"
    path.write_text("\n".join(map(json.dumps, steps)) + end)
    return path


def test_equal_runs_exit_with_0_and_others_with_1(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    log(tmp_path / "runs" / "book", *map(step, range(4)))
    log(tmp_path / "runs" / "book2", *map(step, range(3)), end='\n{"step": 3, "pos')  # killed while writing
    log(tmp_path / "runs" / "loss", *(step(i, loss=4.5 - i / 7 + 1e-9 * (i == 2)) for i in range(4)))
    log(tmp_path / "runs" / "data", step(0), step(1, digest="f", loss=1), step(2, digest="e", loss=2))
    for line in examples("diff-runs"):
        assert cli.main(shlex.split(line)[1:]) == 0, line
    first, second = capsys.readouterr().out.splitlines()
    assert first == "3 steps in both: positions, batch digests and losses are equal"
    assert json.loads(second) == {"steps": 3, "first": None, "field": None, "values": [None, None]}
    assert cli.main(["diff-runs", "runs/book", "runs/loss"]) == 1
    assert capsys.readouterr().out.startswith("step 2: the batches are equal, the losses are not (loss 4.214")
    assert cli.main(["diff-runs", "runs/book", "runs/data/log.jsonl", "--json"]) == 1
    assert json.loads(capsys.readouterr().out) == {"steps": 3, "first": 1, "field": "digest", "values": [f"{1:016x}", "f"]}


def test_runs_that_cannot_be_compared(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    log(tmp_path / "a", *map(step, range(3)))
    log(tmp_path / "late", step(7))
    (tmp_path / "text").write_text("no log\n")
    (tmp_path / "list").write_text("[1]\n")
    (tmp_path / "empty").mkdir()
    for line, message in {
        "a late": "late/log.jsonl: steps: expected some of the 3 in a/log.jsonl, found none of them among 1",
        "a text": "text @ byte 0: line: expected a JSON object",
        "list a": "list @ byte 0: line: expected a JSON object, found list",
        "a nowhere": "nowhere: No such file or directory",
        "a empty": "empty/log.jsonl: No such file or directory",
    }.items():
        assert cli.main(["diff-runs", *line.split()]) == 2, line
        assert message in one_line(capsys), line
