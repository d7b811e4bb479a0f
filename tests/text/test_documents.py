"""Finding sources: real files, folders, links and pipes."""

import os
import socket
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from ladle.errors import TextError
from ladle.text import find


def make(folder, *names):
    for name in names:
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(name, encoding="utf-8")
    return folder


def names(inputs):
    return [source.name for source in find(inputs)]


def test_a_folder_in_the_order_of_its_paths_bytes(tmp_path):
    make(tmp_path, "b.txt", "a/z.md", "a.txt", "a-b.py", "B.TXT", "a/b/c.rst", "é.txt", "字.txt", "z.txt")
    assert names(tmp_path) == ["B.TXT", "a-b.py", "a.txt", "a/b/c.rst", "a/z.md", "b.txt", "z.txt", "é.txt", "字.txt"]
    assert names(str(tmp_path) + "/") == names([tmp_path])
    source = find(tmp_path)[3]
    assert (source.path, source.num_bytes) == (tmp_path / "a/b/c.rst", 9)


def test_the_inputs_keep_their_order(tmp_path):
    make(tmp_path, "x/b.txt", "x/a.txt", "y.log")
    assert names([tmp_path / "y.log", tmp_path / "x"]) == ["y.log", "a.txt", "b.txt"]


def test_a_named_file_is_taken_whatever_its_suffix(tmp_path):
    make(tmp_path, "notes", "data.bin", ".hidden")
    assert names([tmp_path / "notes", tmp_path / "data.bin", tmp_path / ".hidden"]) == ["notes", "data.bin", ".hidden"]


def test_what_a_folder_passes_over(tmp_path):
    make(tmp_path, "a.py", "a.pyc", "b.jsonl", "c.json", "README", "d.txt.gz", ".e.txt", ".git/f.txt", "__pycache__/g.py")
    make(tmp_path, "site-packages/h.py", "x/node_modules/i.js")
    found = find(tmp_path)
    assert [source.name for source in found] == ["a.py"]
    assert (found.num_others, found.num_repeats) == (5, 0)
    assert names(tmp_path / "site-packages") == ["h.py"]  # named itself, it is searched


def test_links_are_followed_and_loops_end(tmp_path):
    make(tmp_path, "in/a.txt", "in/sub/b.txt", "elsewhere/c.txt")
    (tmp_path / "in/sub/up").symlink_to(tmp_path / "in")
    (tmp_path / "in/self").symlink_to("self")
    (tmp_path / "in/gone.txt").symlink_to("nowhere.txt")
    (tmp_path / "in/other").symlink_to(tmp_path / "elsewhere")
    (tmp_path / "in/z.txt").symlink_to("a.txt")
    found = find(tmp_path / "in")
    assert [source.name for source in found] == ["a.txt", "other/c.txt", "sub/b.txt"]
    assert (found.num_others, found.num_repeats) == (2, 1)


def test_a_file_is_taken_once(tmp_path):
    make(tmp_path, "in/a.txt", "in/b.txt")
    found = find([tmp_path / "in/b.txt", tmp_path / "in", tmp_path / "in/../in/b.txt"])
    assert [source.name for source in found] == ["b.txt", "a.txt"]
    assert found.num_repeats == 2


def test_equal_names_are_told_apart(tmp_path):
    make(tmp_path, "x/one/a.txt", "y/one/a.txt", "x/one/b.txt", "c/a.txt")
    assert names([tmp_path / "x/one", tmp_path / "y/one", tmp_path / "c"]) == ["x/one/a.txt", "b.txt", "y/one/a.txt", "c/a.txt"]
    assert names([tmp_path / "x", tmp_path / "y"]) == ["x/one/a.txt", "one/b.txt", "y/one/a.txt"]


def test_a_name_in_any_bytes(tmp_path):
    os.close(os.open(os.fsencode(tmp_path) + b"/caf\xe9.txt", os.O_CREAT | os.O_WRONLY))
    assert names(tmp_path) == ["caf\\xe9.txt"]
    assert list(find(tmp_path)[0].pieces()) == []


def test_a_name_that_looks_like_anothers_bytes_stays_apart(tmp_path):
    r"""One name holds the byte 0xff, the other the four characters \xff: they once could not be told apart, for ever."""
    (tmp_path / os.fsdecode(b"\xff.txt")).write_text("a byte")
    make(tmp_path, r"\xff.txt", r"\x.txt", r"back\slash.txt")
    assert names(tmp_path) == [r"\x.txt", r"\x5cxff.txt", r"back\slash.txt", r"\xff.txt"]


@pytest.mark.parametrize("inputs", ["", [""], ["a.txt", ""]])
def test_an_empty_path_is_not_the_current_folder(tmp_path, monkeypatch, inputs):
    monkeypatch.chdir(make(tmp_path, "a.txt"))
    with pytest.raises(TextError, match=r"inputs: expected a path, found an empty one; the current folder is '\.'"):
        find(inputs)
    with pytest.raises(TextError, match="inputs: expected paths, found 97"):
        find(b"a.txt")


def test_special_files_are_neither_read_nor_waited_for(tmp_path):
    make(tmp_path, "a.txt", "folder.txt/b.txt")
    os.mkfifo(tmp_path / "pipe.txt")
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(tmp_path / "socket.txt"))
        found = find(tmp_path)
    assert [source.name for source in found] == ["a.txt", "folder.txt/b.txt"]
    assert found.num_others == 2
    with pytest.raises(
        TextError, match=r"pipe.txt: expected a file or a folder, found a pipe, a socket or a device; save its text"
    ):
        find(tmp_path / "pipe.txt")
    with pytest.raises(TextError, match=r"/dev/null: expected a file or a folder, found a pipe"):
        find("/dev/null")


def test_what_is_not_there(tmp_path):
    make(tmp_path, "a.bin", "b.json")
    with pytest.raises(TextError, match=rf"^{tmp_path}/none: expected a file or a folder, found: No such file or directory$"):
        find([tmp_path / "a.bin", tmp_path / "none"])
    with pytest.raises(
        TextError, match=rf"^{tmp_path}: expected a folder with text, found no file with a suffix such as .* among 2; a file that"
    ):
        find(tmp_path)
    with pytest.raises(TextError, match="inputs: expected at least one file or folder, found none"):
        find([])
    with pytest.raises(TextError, match="expected a file or a folder, found: "):
        find("a\0b")


READ = """
import os, sys
from ladle.errors import TextError
from ladle.text import find
if os.getuid() == 0:
    os.setgid(65534)
    os.setuid(65534)
try:
    find(sys.argv[1])
except TextError as error:
    print(error)
"""


@pytest.mark.parametrize(
    ("locked", "message"),
    [
        ("a.txt", "{}: expected a file that can be read, found: permission denied"),
        ("sub", "{}: expected a folder that can be read, found: Permission denied"),
    ],
)
def test_what_may_not_be_read(locked, message):
    """In a process without privileges, since root may read anything."""
    with tempfile.TemporaryDirectory() as folder:  # pytest's own temporary folders are closed to others
        top = make(Path(folder), "a.txt", "sub/b.txt")
        top.chmod(0o755)
        (top / locked).chmod(0)
        child = subprocess.run([sys.executable, "-c", READ, folder], capture_output=True, text=True, timeout=60, check=True)
        (top / locked).chmod(0o755)
        assert child.stdout.strip() == message.format(top / locked)


def test_a_thousand_files_take_no_time(tmp_path):
    make(tmp_path, *(f"{folder}/{file}.txt" for folder in range(10) for file in range(100)))
    assert len(find(tmp_path)) == 1000
