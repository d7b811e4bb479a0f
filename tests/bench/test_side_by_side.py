"""`ladle bench feed`, as it is typed."""

import json
import os

import numpy as np
import pytest

import ladle
from ladle.bench import side_by_side
from ladle.bench.contenders import NANOGPT
from ladle.bench.corpus import make
from ladle.bench.machine import line, machine, slug
from ladle.cli import main

pytest.importorskip("torch")


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    return make(tmp_path_factory.mktemp("bench") / "made", 30_000).parent


def test_it_prints_the_machine_and_a_table_a_shape(made, capsys):
    assert main(["bench", "feed", str(made), "--shapes", "2x16,3x8", "--rounds", "1"]) == 0
    out, err = capsys.readouterr()
    assert out.count(NANOGPT) == out.count("Ladle, gather alone") == 2
    assert out.splitlines()[0] == line(machine())
    assert f"{made / 'train-00000.bin'}: 30000 tokens" in out
    assert "B = 2, T = 16\n| " in out
    assert "target" not in out
    assert err == ""


def test_it_prints_json(made, capsys):
    assert main(["bench", "feed", str(made), "--shapes", "2x16,3x8", "--rounds", "2", "--json"]) == 0
    shapes = [json.loads(text) for text in capsys.readouterr().out.splitlines()]
    assert [(s["batch_size"], s["block_size"]) for s in shapes] == [(2, 16), (3, 8)]
    assert shapes[0]["corpus"]["tokens"] == 30_000
    assert "machine" not in shapes[1]
    for row in shapes[0]["rows"]:
        assert row["turns"] == 2
        assert row["median_us"] > 0
    assert [row["ratio"] for row in shapes[0]["rows"] if row["name"] == NANOGPT] == [1.0]


def test_without_a_corpus_it_makes_one_and_removes_it(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(side_by_side, "MADE_TOKENS", 10_000)
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    assert main(["bench", "feed", "--shapes", "2x16", "--rounds", "1"]) == 0
    assert "random ids: 10000 tokens" in capsys.readouterr().out
    assert os.listdir(tmp_path) == []


def test_a_nanogpt_folder_and_a_corpus_of_several_shards_are_measured_too(tmp_path, capsys):
    (tmp_path / "plain").mkdir()
    np.arange(5000, dtype=np.uint16).tofile(tmp_path / "plain" / "train.bin")
    assert main(["bench", "feed", str(tmp_path / "plain"), "--shapes", "2x16", "--rounds", "1"]) == 0
    for number in range(3):
        (tmp_path / f"{number}.txt").write_text(" ".join(map(str, range(number * 1000, number * 1000 + 300 * (number + 1)))))
    texts = [tmp_path / f"{number}.txt" for number in range(3)]
    ladle.prepare(texts, tmp_path / "corpus", tokenizer="bytes", val_fraction=0, shard_bytes=1).close()
    capsys.readouterr()
    assert main(["bench", "feed", str(tmp_path / "corpus"), "--shapes", "2x16", "--rounds", "1"]) == 0
    assert "train-00002.bin" in capsys.readouterr().out  # the largest of the three


@pytest.mark.parametrize("block_size", [16, 256])
def test_a_text_that_repeats_itself_is_measured(tmp_path, block_size, capsys):
    """Code indents: the ids at a row's beginning stand in a thousand other places too."""
    lines = [f"{' ' * 4 * (number % 5 + 1)}return {number}" for number in range(2000)]
    (tmp_path / "code.py").write_text("\n".join(lines))
    ladle.prepare([tmp_path / "code.py"], tmp_path / "corpus", tokenizer="bytes", val_fraction=0).close()
    assert main(["bench", "feed", str(tmp_path / "corpus"), "--shapes", f"12x{block_size}", "--rounds", "1"]) == 0
    assert NANOGPT in capsys.readouterr().out


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--shapes", "12"], "shapes: expected batch size x block size such as 12x1024"),
        (["--shapes", "0x16"], "found '0x16'"),
        (["--shapes", "3000x16"], "expected at least 48001 tokens for 3000x16, found 30000"),
        (["--rounds", "0"], "rounds: expected >= 1, found 0"),
        (["--split", "val"], "split: expected one of train, found 'val'"),
    ],
)
def test_what_cannot_be_measured_is_one_line(made, capsys, words, message):
    assert main(["bench", "feed", str(made), *words]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert message in err
    assert err.count("\n") == 1


def test_a_file_that_does_not_stay_in_memory_is_refused(made, monkeypatch, capsys):
    monkeypatch.setattr(os, "sysconf", lambda name: {"SC_PHYS_PAGES": 10, "SC_PAGE_SIZE": 4096}[name])
    assert main(["bench", "feed", str(made), "--shapes", "2x16"]) == 2
    assert "expected at most half of this machine's memory, 20480 bytes, found 60000" in capsys.readouterr().err


def test_the_machine_has_no_names_of_its_own():
    facts = machine()
    shown = json.dumps(facts)
    assert os.uname().nodename not in shown
    assert "/" not in shown
    assert facts["packages"]["numpy"] == np.__version__
    assert slug({"cpu": "Intel(R) Xeon(R) Gold 6338 CPU @ 2.00GHz", "cores": 2, "memory_gib": 24}) == "xeon-2core-24gib"
    assert slug({"cpu": "AMD EPYC 7B13", "cores": 8, "memory_gib": 64}) == "epyc-8core-64gib"
