"""The command line as people meet it: one line on stderr for what cannot be done, and the exit code."""

import json
import os
import shlex
import subprocess
import sys

import numpy as np
import pytest

from ladle import cli


@pytest.fixture
def book(tmp_path, monkeypatch):
    """A folder with book.txt, books/ and notes.md, as the examples in --help have them, and nothing else."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "book.txt").write_text("It was a bright cold day in April.\n" * 200)
    (tmp_path / "notes.md").write_text("# Notes\n" * 10)
    (tmp_path / "books").mkdir()
    for i in range(3):
        (tmp_path / "books" / f"{i}.txt").write_text(f"Book {i}. " * 100)
    chats = [[{"role": "user", "content": f"Hi {i}"}, {"role": "assistant", "content": "Hello"}] for i in range(20)]
    (tmp_path / "chats.jsonl").write_text("".join(json.dumps({"messages": chat}) + "\n" for chat in chats))
    return tmp_path


def run(*argv):
    return subprocess.run([sys.executable, "-m", "ladle", *argv], capture_output=True, text=True)


def commands():
    """Every command's parser, by name."""
    return next(
        action for action in cli.parser()._actions if action.dest == "command" or (hasattr(action, "choices") and action.choices)
    ).choices


def examples(name):
    _, _, text = commands()[name].epilog.partition("example:\n")
    return [line.strip() for line in text.splitlines() if line.strip()]


def test_every_command_has_help_with_an_example():
    assert {"prepare", "inspect", "verify"} <= set(commands())
    for name, parser in commands().items():
        assert examples(name), name
        assert all(line.startswith("ladle ") or "ladle" in line for line in examples(name))
        assert parser.description.endswith(".")


@pytest.mark.parametrize("name", ["prepare", "inspect", "verify"])
def test_the_examples_run_as_they_stand(book, name, capsys):
    if name != "prepare":
        assert cli.main(["prepare", "book.txt", "data/book", "--quiet"]) == 0
    for line in examples(name):
        assert cli.main(shlex.split(line)[1:]) == 0, line
    assert capsys.readouterr().out


def test_help_exits_with_0_and_mistakes_with_2(capsys):
    for argv, code in (
        (["--help"], 0),
        (["prepare", "--help"], 0),
        (["--version"], 0),
        ([], 2),
        (["prepair"], 2),
        (["inspect", "--nope", "x"], 2),
    ):
        with pytest.raises(SystemExit) as caught:
            cli.main(argv)
        assert caught.value.code == code
    assert capsys.readouterr().err.splitlines()[-1] == "ladle: unrecognized arguments: --nope; see `ladle --help`"


def test_a_mistyped_command_is_one_line(capsys):
    for argv, message in (
        (["prepare"], "ladle: the following arguments are required: INPUT, OUT; see `ladle prepare --help`\n"),
        (
            ["train", "x", "--out", "y", "--steps", "z"],
            "ladle: argument --steps: invalid int value: 'z'; see `ladle train --help`\n",
        ),
    ):
        with pytest.raises(SystemExit):
            cli.main(argv)
        assert capsys.readouterr().err == message


def test_prepare_inspect_verify(book, capsys):
    assert cli.main(["prepare", "book.txt", "out", "--tokenizer", "bytes", "--quiet"]) == 0
    out, err = capsys.readouterr()
    assert err == ""
    assert out.startswith("out: 1 file, 0.0 MB, in ")
    assert "1 document, 7,001 tokens of uint16, tokenizer bytes (vocabulary 257)" in out
    assert "train  6,300 tokens in 1 document, 1 shard" in out
    assert "val    701 tokens in 1 document, 1 shard" in out
    assert cli.main(["inspect", "out"]) == 0
    assert "fingerprint" in capsys.readouterr().out
    assert cli.main(["inspect", "out", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["format"] == "ladle-corpus"
    assert cli.main(["verify", "out"]) == 0
    assert "every checksum, hash and id is right" in capsys.readouterr().out


def test_every_option_of_prepare_reaches_it(book, capsys):
    argv = shlex.split(
        "prepare books notes.md out --tokenizer chars --split hash --val-fraction 0 --end-of-text --shard-bytes 100"
        " --allow-special '<|endoftext|>' --encoding-errors skip --quiet --json"
    )
    assert cli.main(argv) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["files"] == 4
    assert found["splits"] == {"train": {"documents": 4, "tokens": found["tokens"], "shards": 4}}
    assert json.loads((book / "out" / "corpus.json").read_text())["made"]["options"] == {
        "allowed_special": ["<|endoftext|>"],
        "encoding_errors": "skip",
        "end_of_text": True,
        "shard_bytes": 100,
        "split": "hash",
        "val_fraction": 0.0,
    }


def one_line(capsys):
    out, err = capsys.readouterr()
    assert out == ""
    assert err.count("\n") == 1
    assert err.startswith("ladle: ")
    return err[len("ladle: ") : -1]


def test_bad_input_is_one_line_and_2(book, capsys):
    (book / "empty.txt").write_text("")
    (book / "bin").mkdir()
    (book / "bin" / "train.bin").write_bytes(b"\x01\x00\x02")
    (book / "latin.txt").write_bytes(b"caf\xe9")
    (book / "dir").mkdir()
    (book / "full").mkdir()
    (book / "full" / "thesis").write_text("x")
    for line, message in {
        "prepare nowhere.txt out": "nowhere.txt: expected a file or a folder, found: No such file or directory",
        "prepare empty.txt out --quiet": "no text to prepare: 1 files, all of them empty or left out",
        "prepare dir out": "dir: expected a folder with text",
        "prepare latin.txt out --tokenizer bytes --quiet": "latin.txt @ byte 3: expected UTF-8 text, found the byte 0xe9",
        "prepare book.txt full": "full: out: expected a new or empty folder, or a corpus",
        "prepare book.txt notes.md": "notes.md: out: expected a folder to make, found a file",
        "prepare book.txt out --tokenizer gpt9": "found 'gpt9'",
        "prepare book.txt out --val-fraction 2": "val_fraction: expected 0 or more and below 1, found 2.0",
        "prepare book.txt out --shard-bytes 0": "shard_bytes: expected an integer, 1 or more, found 0",
        "train out --out run --threads 0": "threads: expected >= 1, found 0",
        "inspect nowhere": "nowhere: corpus: expected a folder with corpus.json, or with train.bin, found no such folder",
        "inspect bin": "train.bin: size: expected an even number of bytes (uint16 ids), found 3 bytes",
        "verify bin": "bin: corpus: expected a folder with corpus.json, which holds the checksums, found none",
    }.items():
        assert cli.main(shlex.split(line)) == 2, line
        assert message in one_line(capsys), line
    assert not (book / "out").exists()


def test_other_options_are_refused_naming_the_difference(book, capsys):
    assert cli.main(["prepare", "book.txt", "out", "--tokenizer", "bytes", "--quiet"]) == 0
    capsys.readouterr()
    assert cli.main(["prepare", "book.txt", "out", "--tokenizer", "bytes", "--val-fraction", "0.2", "--quiet"]) == 2
    assert "holds a corpus made with val_fraction 0.1, and 0.2 is asked for now; choose another folder" in one_line(capsys)
    assert cli.main(["prepare", "book.txt", "out", "--tokenizer", "bytes", "--quiet"]) == 0
    assert "already prepared; nothing to do" in capsys.readouterr().out


def test_verify_finds_faults_and_exits_with_1(book, capsys):
    assert cli.main(["prepare", "book.txt", "out", "--tokenizer", "bytes", "--quiet"]) == 0
    path = book / "out" / "train-00000.bin"
    content = bytearray(path.read_bytes())
    content[5000] ^= 1
    path.write_bytes(content)
    capsys.readouterr()
    assert cli.main(["verify", "out"]) == 1
    assert "train-00000.bin @ byte 4096: CRC-32 of block 1" in capsys.readouterr().out


def test_what_the_system_refuses_names_the_path(book, capsys):
    os.symlink("loop", "loop")
    assert cli.main(["prepare", "book.txt", "loop/out", "--tokenizer", "bytes", "--quiet"]) == 2
    assert "loop" in one_line(capsys)


def test_as_a_program(book):
    done = run("prepare", "book.txt", "out", "--tokenizer", "bytes")
    assert done.returncode == 0
    assert done.stdout.startswith("out: 1 file")
    assert "Traceback" not in done.stderr
    done = run("inspect", "nowhere")
    assert (done.returncode, done.stdout, done.stderr.count("\n")) == (2, "", 1)
    assert run("--version").stdout.startswith("ladle ")


def test_a_reader_that_leaves_early_is_no_error(book):
    np.arange(100, dtype=np.uint16).tofile(book / "train.bin")
    process = subprocess.Popen([sys.executable, "-m", "ladle", "inspect", "."], stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    process.stdout.close()
    assert process.stderr.read() == b""
    process.stderr.close()
    assert process.wait() == 141


@pytest.mark.parametrize("closed", ["<&-", ">&-", "2>&-", "<&- >&- 2>&-"])
def test_closed_standard_streams_are_no_traceback(book, closed):
    """As daemons and some job runners start programs."""

    def shell(line):
        line = f"{shlex.quote(sys.executable)} -m ladle {line} {closed}"
        return subprocess.run(["sh", "-c", line], capture_output=True, text=True)

    done = shell("prepare book.txt out --tokenizer bytes")
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith("out: 1 file") is (">&-" not in closed.split())
    for line in ("show --windows -", "inspect nowhere"):
        done = shell(line)
        assert done.returncode == 2
        assert done.stdout == ""
        assert done.stderr.count("\n") == (0 if "2>&-" in closed else 1)
    assert shell("verify out --quiet").returncode == 0


def test_names_that_standard_output_cannot_hold(book):
    """A corpus of a name that is no UTF-8, and one that an ASCII terminal cannot show, are named by escapes."""
    for out, encoding, shown in ((os.fsdecode(b"b\xff"), "utf-8", r"b\udcff"), ("bé", "ascii", r"b\xe9")):
        env = {**os.environ, "PYTHONIOENCODING": encoding}
        for line in (["prepare", "book.txt", out, "--tokenizer", "bytes", "--quiet"], ["inspect", out]):
            done = subprocess.run([sys.executable, "-m", "ladle", *line], capture_output=True, env=env)
            assert (done.returncode, done.stderr) == (0, b"")
            assert done.stdout.startswith(shown.encode())


def test_a_message_cannot_move_the_cursor(book, capsys):
    assert cli.main(["inspect", "no\x1b[2J\rwhere\nelse"]) == 2
    assert one_line(capsys).startswith(r"no\x1b[2J\rwhere else: corpus: expected ")


def test_an_interrupt_while_the_options_are_read_is_one_line(monkeypatch, capsys):
    def interrupted():
        raise KeyboardInterrupt

    monkeypatch.setattr(cli, "parser", interrupted)
    assert cli.main([]) == 130
    assert one_line(capsys) == "interrupted; nothing half-written is left"


def test_a_model_larger_than_memory_is_one_line(book, capsys):
    assert cli.main(["prepare", "book.txt", "out", "--tokenizer", "bytes", "--quiet"]) == 0
    capsys.readouterr()
    assert cli.main(["train", "out", "--out", "run", "--width", str(2**40), "--device", "cpu"]) == 2
    assert capsys.readouterr().err.endswith("ladle: out of memory\n")


def test_help_imports_nothing_heavy():
    code = "import sys\nfrom ladle import cli\ncli.parser()\nprint([m for m in ('numpy', 'torch', 'tiktoken', 'tqdm') if m in sys.modules])"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True).stdout == "[]\n"


def test_progress_off_a_terminal_is_plain_lines(book, monkeypatch, capsys):
    from ladle.corpus import progress

    monkeypatch.setattr(progress, "LINE_SECONDS", 0)
    assert cli.main(["prepare", "book.txt", "out", "--tokenizer", "bytes"]) == 0
    err = capsys.readouterr().err
    assert err.startswith("reading: 0 of 0 MB, ")
    assert "tokenising: 0 of 0 MB, " in err
    assert "\r" not in err


def test_progress_on_a_terminal_is_a_bar(book):
    import pty
    import termios

    ours, theirs = pty.openpty()
    termios.tcsetwinsize(theirs, (24, 80))
    done = subprocess.run([sys.executable, "-m", "ladle", "prepare", "book.txt", "out"], stderr=theirs, stdout=subprocess.PIPE)
    shown = os.read(ours, 1 << 16).decode()
    os.close(theirs)
    os.close(ours)
    assert done.returncode == 0
    assert "tokenising:" in shown
    assert "\r" in shown
