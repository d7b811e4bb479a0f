"""Full disks, read-only disks, folders one may not write to, and memory that does not grow."""

import os
import subprocess
import sys

import pytest

import ladle
from ladle import cli
from ladle.corpus.workplace import workplace_of


@pytest.fixture
def mount(tmp_path):
    """Mounts a small tmpfs, which needs root and a system that allows it."""
    mounted = []

    def make(name, options):
        folder = tmp_path / name
        folder.mkdir()
        done = subprocess.run(["mount", "-t", "tmpfs", "-o", options, "none", str(folder)], capture_output=True, text=True)
        if done.returncode:
            pytest.skip(f"this system refuses to mount a tmpfs: {done.stderr.strip()}")
        mounted.append(folder)
        return folder

    yield make
    for folder in mounted:
        subprocess.run(["umount", str(folder)], check=True)


def text(tmp_path, num_bytes):
    path = tmp_path / "t.txt"
    path.write_bytes(b"some words and a line\n" * (num_bytes // 22))
    return path


@pytest.mark.parametrize("size", ["64k", "300k", "900k"])
def test_a_full_disk(tmp_path, mount, capsys, size):
    full = mount("full", f"size={size}")
    path = text(tmp_path, 600_000)
    code = cli.main(["prepare", str(path), str(full / "out"), "--tokenizer", "bytes", "--quiet"])
    out, err = capsys.readouterr()
    assert code == 2
    assert out == ""
    assert err.startswith(f"ladle: {workplace_of(full / 'out')}/corpus/")
    assert err.endswith(": No space left on device\n")
    assert err.count("\n") == 1
    assert list(full.iterdir()) == []


def test_a_read_only_disk(tmp_path, mount, capsys):
    folder = mount("ro", "size=1m,ro")
    assert cli.main(["prepare", str(text(tmp_path, 1000)), str(folder / "out"), "--tokenizer", "bytes", "--quiet"]) == 2
    assert capsys.readouterr().err == f"ladle: {workplace_of(folder / 'out')}: Read-only file system\n"


def test_a_mount_point_cannot_be_replaced(tmp_path, mount, capsys):
    folder = mount("volume", "size=1m")
    assert cli.main(["prepare", str(text(tmp_path, 1000)), str(folder), "--tokenizer", "bytes", "--quiet"]) == 2
    assert "expected a folder that can be replaced, found a mount point; name a folder in it\n" in capsys.readouterr().err


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become someone who may not write")
def test_a_folder_one_may_not_write_to(tmp_path, tmp_path_factory):
    path = text(tmp_path, 1000)
    ladle.prepare(path, tmp_path / "warm", tokenizer="bytes").close()  # every module is loaded before the fork
    top = tmp_path_factory.getbasetemp().parent
    for folder in [tmp_path, *tmp_path.parents]:
        if folder.is_relative_to(top):
            folder.chmod(0o755)
        elif not folder.stat().st_mode & 0o1:
            pytest.skip(f"others may not enter {folder}, so they cannot read the test's input")
    read, write = os.pipe()
    child = os.fork()
    if not child:
        try:
            os.setuid(65534)
            sys.stderr = os.fdopen(write, "w")
            code = cli.main(["prepare", str(path), str(tmp_path / "out"), "--tokenizer", "bytes", "--quiet"])
            sys.stderr.flush()
            os._exit(code)
        except BaseException:
            os._exit(99)
    os.close(write)
    with os.fdopen(read) as file:
        err = file.read()
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 2
    assert err == f"ladle: {workplace_of(tmp_path / 'out')}: Permission denied\n"
    assert sorted(p.name for p in tmp_path.iterdir()) == ["t.txt", "warm"]


LIMITED = """
import resource, sys, ladle
from pathlib import Path
ladle.prepare(sys.argv[1], sys.argv[3], tokenizer=sys.argv[5]).close()  # everything is loaded and warm
now = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
limit = now + int(sys.argv[4])
resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
with ladle.prepare(sys.argv[2], sys.argv[3] + "-large", tokenizer=sys.argv[5], val_fraction=0) as corpus:
    print(corpus["train"].num_tokens)
"""


@pytest.mark.slow
@pytest.mark.parametrize(("tokenizer", "megabytes"), [("bytes", 200), ("gpt2", 60)])
def test_a_file_larger_than_the_memory_allowed(tmp_path, tokenizer, megabytes):
    """One document of `megabytes`, prepared in a process that may take 48 MB more than a tiny one did."""
    (tmp_path / "small.txt").write_text("a few words here\n" * 1000)
    with open(tmp_path / "large.txt", "wb") as file:
        file.writelines(b"sixteen bytes 16" * 62_500 for _ in range(megabytes))
    command = [
        sys.executable,
        "-c",
        LIMITED,
        tmp_path / "small.txt",
        tmp_path / "large.txt",
        tmp_path / "out",
        str(48_000_000),
        tokenizer,
    ]
    done = subprocess.run([str(word) for word in command], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-2000:]
    if tokenizer == "bytes":
        assert int(done.stdout) == megabytes * 1_000_000 + 1
    with ladle.open(tmp_path / "out-large") as corpus:
        assert corpus["train"].num_documents == 1
        assert corpus["train"].locate([corpus["train"].num_tokens - 1])[0].source == "large.txt"
