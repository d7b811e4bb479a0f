"""What the two READMEs say is so: their links lead somewhere, their commands parse, their code runs, and they say the same."""

import json
import re
import shlex
import warnings
from pathlib import Path

import pytest

import ladle
from ladle import cli

ROOT = Path(__file__).parents[2]
READMES = ["README.md", "README.zh-CN.md"]
BLOCK = re.compile(r"^```(python|sh)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
LINK = re.compile(r"\]\((?!https?:)([^)#\s]+)")
COMMENT = re.compile(r"\s+# .*$", re.MULTILINE)


def blocks(name, kind):
    return [COMMENT.sub("", code) for found, code in BLOCK.findall((ROOT / name).read_text(encoding="utf-8")) if found == kind]


def cells(name):
    """The code of the second column of each row, which no translation changes."""
    rows = [line for line in (ROOT / name).read_text(encoding="utf-8").splitlines() if line.startswith("| ")]
    return [re.findall(r"`[^`]+`", row.split(" | ")[1]) for row in rows]


@pytest.mark.parametrize("name", [*READMES, "CHANGELOG.md"])
def test_links_lead_somewhere(name):
    for target in LINK.findall((ROOT / name).read_text(encoding="utf-8")):
        assert (ROOT / target).exists(), target


@pytest.mark.parametrize("name", READMES)
def test_the_commands_parse(name):
    lines = [line for block in blocks(name, "sh") for line in block.splitlines() if line.startswith("ladle ")]
    assert len(lines) >= 6
    for line in lines:
        cli.parser().parse_args(shlex.split(line)[1:])


def test_the_translation_has_the_same_code_and_the_same_links():
    english, chinese = READMES
    for kind in ("python", "sh"):
        assert blocks(english, kind) == blocks(chinese, kind)
    assert cells(english) == cells(chinese)
    links = [LINK.findall((ROOT / name).read_text(encoding="utf-8")) for name in READMES]
    assert links[0] == links[1]


def test_the_code_runs(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "books").mkdir()
    for number in range(120):
        (tmp_path / "books" / f"{number}.txt").write_text(f"Book {number}. " + "It was a dark night. " * 20)
    ladle.prepare(tmp_path / "books", tmp_path / "data" / "code", val_fraction=0).close()
    names = {}
    first, second, packed, table = blocks("README.md", "python")
    assert "for batch in feed:\n" in first
    for code in (first.replace("in feed:", "in [next(feed)]:"), second):
        for written, here in (('"cuda"', '"cpu"'), ("batch_size=64", "batch_size=4"), ("block_size=1024", "block_size=32")):
            assert written in code
            code = code.replace(written, here)
        exec(code, names)
    names["feed"].close()
    assert names["x"].shape == names["y"].shape == (4, 32)
    assert (names["x"][:, 1:] == names["y"][:, :-1]).all()
    assert names["spans"][0].origin.source.endswith(".txt")
    assert any(row.targets for row in names["rows"])

    from ladle.nn import GPT, GPTConfig

    chats = [[{"role": "user", "content": f"{i}?"}, {"role": "assistant", "content": f"{i}!" * (i % 7)}] for i in range(200)]
    (tmp_path / "chats.jsonl").write_text("".join(json.dumps({"messages": chat}) + "\n" for chat in chats))
    names["model"] = GPT(GPTConfig(vocab_size=50257, block_size=32, layers=1, heads=2, width=16))
    code = packed.replace("in feed:", "in [next(feed)]:").replace("batch_size=64", "batch_size=4")
    exec(code.replace("block_size=1024", "block_size=32"), names)
    assert names["logits"].shape == (4, 32, 50257)
    assert 0 < names["batch"].num_targets < 4 * 32

    for name in ("train", "val"):
        (tmp_path / f"{name}.csv").write_text("file_path,label\n" + "".join(f"a.txt,{i % 2}\n" for i in range(200)))
    (tmp_path / "a.txt").write_text("text")
    names["augment"] = len
    with warnings.catch_warnings():
        exec(table, names)
    assert names["state"]["unit"] == "samples"
    names["batches"].close()
