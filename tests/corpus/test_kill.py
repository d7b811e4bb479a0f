"""A corpus appears whole or not at all, whatever kills its writer."""

import io
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

import ladle
from ladle.corpus.verify import verify
from ladle.corpus.workplace import workplace_of
from ladle.errors import FormatError

OPTIONS = {"tokenizer": "bytes", "val_fraction": 0.3, "split": "hash", "shard_bytes": 900}


@pytest.fixture
def inputs(tmp_path):
    (tmp_path / "in").mkdir()
    for i in range(12):
        (tmp_path / "in" / f"{i:02}.txt").write_text(f"document {i} " * 20)
    return tmp_path / "in"


def content(folder):
    return {path.name: path.read_bytes() for path in sorted(folder.iterdir())}


def die_at(call, inputs, out):
    """Prepare in a fork that dies at the call-th system call that writes, syncs, makes, renames or removes."""
    child = os.fork()
    if child:
        return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    try:
        left = [call]

        def deadly(function):
            def run(*arguments, **options):
                left[0] -= 1
                if not left[0]:
                    os.kill(os.getpid(), signal.SIGKILL)
                return function(*arguments, **options)

            return run

        class DeadlyFile(io.FileIO):
            write = deadly(io.FileIO.write)

        io.FileIO = DeadlyFile
        os.fsync = deadly(os.fsync)
        os.rmdir = deadly(os.rmdir)
        for name in ("mkdir", "rename", "unlink", "rmdir"):
            setattr(Path, name, deadly(getattr(Path, name)))
        ladle.prepare(inputs, out, **OPTIONS).close()
        os._exit(0)
    except BaseException:
        os._exit(7)


def test_killed_at_every_single_call_nothing_opens_and_the_next_run_is_the_same(inputs, tmp_path):
    whole = ladle.prepare(inputs, tmp_path / "whole", **OPTIONS)
    assert len(whole["train"].shards) > 1
    expected = content(tmp_path / "whole")
    out = tmp_path / "out"
    call, deaths, whole_after_death = 0, 0, 0
    while True:
        call += 1
        code = die_at(call, inputs, out)
        if code == 0:
            break
        assert code == -signal.SIGKILL
        deaths += 1
        if out.exists():  # it died after the rename: then it is whole
            assert content(out) == expected
            whole_after_death += 1
            for path in out.iterdir():
                path.unlink()
            out.rmdir()
        else:
            with pytest.raises(FormatError):
                ladle.open(out)
    assert deaths > 40
    assert 1 <= whole_after_death <= 5
    assert content(out) == expected
    assert not workplace_of(out).exists()


@pytest.mark.slow
def test_sigkill_at_random_moments(tmp_path):
    rng = random.Random(0)
    (tmp_path / "in").mkdir()
    for i in range(300):
        (tmp_path / "in" / f"{i:03}.txt").write_text("".join(rng.choices("abcdef \n", k=4000)))
    command = [
        sys.executable,
        "-m",
        "ladle",
        "prepare",
        str(tmp_path / "in"),
        str(tmp_path / "out"),
        "--quiet",
        "--shard-bytes",
        "20000",
    ]
    reference = [*command[:5], str(tmp_path / "whole"), *command[6:]]
    begun = time.monotonic()
    subprocess.run(reference, check=True, capture_output=True)
    seconds = time.monotonic() - begun
    killed = 0
    for _ in range(12):
        process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        time.sleep(rng.uniform(0.1, 1) * seconds)
        process.kill()
        killed += process.wait() == -signal.SIGKILL
        if (tmp_path / "out").exists():
            assert content(tmp_path / "out") == content(tmp_path / "whole")
            break
    assert killed >= 3
    subprocess.run(command, check=True, capture_output=True)
    assert content(tmp_path / "out") == content(tmp_path / "whole")
    assert verify(tmp_path / "out").faults == ()
    assert sorted(p.name for p in tmp_path.iterdir()) == ["in", "out", "whole"]


def test_two_at_once_one_is_refused(inputs, tmp_path):
    """Two real processes: the first is stopped half-way, so that the second surely meets it."""
    hold = f"""
import sys, ladle
from ladle.tokens.bytes import Bytes
class Slow(Bytes):
    def encode_pieces(self, pieces, **options):
        print("holding", flush=True)
        sys.stdin.readline()
        return super().encode_pieces(pieces, **options)
ladle.prepare({str(inputs)!r}, {str(tmp_path / "out")!r}, tokenizer=Slow())
"""
    first = subprocess.Popen([sys.executable, "-c", hold], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert first.stdout.readline() == "holding\n"
    command = [sys.executable, "-m", "ladle", "prepare", str(inputs), str(tmp_path / "out"), "--tokenizer", "bytes", "--quiet"]
    second = subprocess.run(command, capture_output=True, text=True)
    assert second.returncode == 2
    assert "another process is preparing this corpus; wait for it, or choose another folder" in second.stderr
    first.communicate("\n" * 20)
    assert first.returncode == 0
    third = subprocess.run(command, capture_output=True, text=True)
    assert third.returncode == 0, third.stderr
    assert "already prepared" in third.stdout


def test_ctrl_c_leaves_nothing(inputs, tmp_path):
    code = f"""
import os, signal, sys
from ladle import cli
from ladle.corpus import task
run = task.ShardWriter.finish
def interrupted(self):
    os.kill(os.getpid(), signal.SIGINT)
    return run(self)
task.ShardWriter.finish = interrupted
sys.exit(cli.main(["prepare", {str(inputs)!r}, {str(tmp_path / "out")!r}, "--tokenizer", "bytes"]))
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 130
    assert done.stderr == "ladle: interrupted; nothing half-written is left\n"
    assert [p.name for p in tmp_path.iterdir()] == ["in"]
