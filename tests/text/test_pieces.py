"""Bytes to text, a piece at a time."""

import gc
import hashlib
import os
import subprocess
import sys

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from ladle.errors import ClosedError, ConfigError, TextError
from ladle.text import find


def source(tmp_path, contents):
    path = tmp_path / "a.txt"
    path.write_bytes(contents)
    return find(path)[0]


def digest(contents):
    return hashlib.blake2b(contents, digest_size=16).hexdigest()


slow_fixtures = settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)


@given(text=st.text(st.sampled_from("a\r\n\0é字😀\ufeff\ufffd")), size=st.integers(1, 9), bom=st.booleans())
@slow_fixtures
def test_the_pieces_are_the_text(tmp_path, text, size, bom):
    contents = (b"\xef\xbb\xbf" if bom else b"") + text.encode()
    bom = bom or text.startswith("\ufeff")
    pieces = source(tmp_path, contents).pieces(piece_bytes=size)
    assert pieces.first_byte == (3 if bom else 0)
    found = list(pieces)
    assert "".join(found) == contents.decode("utf-8-sig")
    assert all(found)
    assert all(len(piece) <= size + 3 for piece in found)
    text = contents[3:] if bom else contents
    assert (pieces.num_bytes, pieces.digest, pieces.num_replaced) == (len(contents), digest(text), 0)


@given(contents=st.binary(max_size=40), size=st.integers(1, 9))
@slow_fixtures
def test_what_is_no_utf8_is_named_to_the_byte(tmp_path, contents, size):
    pieces = source(tmp_path, contents).pieces(piece_bytes=size)
    try:
        text = contents.decode("utf-8-sig")
    except UnicodeDecodeError:
        with pytest.raises(UnicodeDecodeError) as expected:
            contents.decode("utf-8")
        with pytest.raises(
            TextError,
            match=f"a.txt @ byte {expected.value.start}: expected UTF-8 text, found the byte 0x{contents[expected.value.start]:02x};",
        ):
            list(pieces)
    else:
        assert "".join(pieces) == text


@given(
    contents=st.lists(st.sampled_from([b"a", b"\xff", b"\xe5", b"\xad", b"\x97", b"\xef", b"\xbf", b"\xbd", b"\xf0\x9f"])).map(
        b"".join
    ),
    size=st.integers(1, 9),
)
@slow_fixtures
def test_replaced_bytes_are_counted(tmp_path, contents, size):
    """U+FFFD that the file itself holds is text, not a replacement."""
    pieces = source(tmp_path, contents).pieces(piece_bytes=size, encoding_errors="replace")
    text = "".join(pieces)
    assert text == contents.decode("utf-8", errors="replace")
    assert pieces.num_replaced == text.count("\ufffd") - contents.count("\ufffd".encode())
    assert (pieces.num_bytes, pieces.digest) == (len(contents), digest(contents))


def test_the_message_says_what_to_do(tmp_path):
    latin = source(tmp_path, b"caf\xe9 au lait")
    with pytest.raises(TextError) as raised:
        list(latin.pieces())
    assert str(raised.value) == (
        f"{tmp_path}/a.txt @ byte 3: expected UTF-8 text, found the byte 0xe9; convert the file, leave it out, or read it with "
        f"encoding_errors='replace', which puts U+FFFD for what is no UTF-8 and counts it"
    )
    assert list(latin.pieces(encoding_errors="replace")) == ["caf\ufffd au lait"]


def test_crlf_nul_and_the_mark(tmp_path):
    pieces = source(tmp_path, b"\xef\xbb\xbfhi\r\nx\0\xef\xbb\xbfy").pieces()
    assert list(pieces) == ["hi\r\nx\0\ufeffy"]
    assert (pieces.first_byte, pieces.num_bytes) == (3, 13)


@pytest.mark.parametrize("contents", [b"", b"\xef\xbb\xbf"])
def test_an_empty_text_has_no_pieces(tmp_path, contents):
    pieces = source(tmp_path, contents).pieces()
    assert list(pieces) == []
    assert (pieces.num_bytes, pieces.digest) == (len(contents), digest(b""))


def test_utf8_whatever_the_locale(tmp_path):
    path = tmp_path / "字.txt"
    path.write_bytes("café 字".encode())
    code = "import sys; from ladle.text import find; s = find(sys.argv[1])[0]; print(ascii([s.name, *s.pieces()]))"
    env = {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}
    child = subprocess.run(
        [sys.executable, "-c", code, tmp_path], env=env, capture_output=True, text=True, check=True, timeout=60
    )
    assert child.stdout.strip() == ascii(["字.txt", "café 字"])


def test_a_file_that_shrinks_or_grows_is_an_error(tmp_path):
    found = source(tmp_path, b"x" * 100)
    with (tmp_path / "a.txt").open("ab") as file:
        file.write(b"y" * 100)
    with pytest.raises(
        TextError, match=r"a.txt: size: expected 100 bytes as when it was found, found at least 103; prepare from files"
    ):
        list(found.pieces(piece_bytes=10, encoding_errors="strict"))
    pieces = find(tmp_path)[0].pieces(piece_bytes=10)
    next(pieces)
    os.truncate(tmp_path / "a.txt", 50)
    with pytest.raises(TextError, match=r"a.txt: size: expected 200 bytes as when it was found, found its end after 50"):
        list(pieces)


def test_what_took_the_files_place(tmp_path):
    found = source(tmp_path, b"text")
    path = tmp_path / "a.txt"
    path.unlink()
    with pytest.raises(TextError, match=r"a.txt: expected a file that can be read, found: No such file or directory"):
        found.pieces()
    os.mkfifo(path)
    with pytest.raises(TextError, match=r"a.txt: expected a regular file, found something else"):
        found.pieces()


def open_files():
    return [os.readlink(f"/proc/self/fd/{fd}") for fd in os.listdir("/proc/self/fd") if os.path.exists(f"/proc/self/fd/{fd}")]


def test_the_file_is_closed_on_every_way_out(tmp_path):
    found = source(tmp_path, b"abcdef\xff")
    path = str(found.path)
    pieces = found.pieces(piece_bytes=2)
    assert path in open_files()
    with pytest.raises(TextError):
        list(pieces)
    assert path not in open_files()

    with found.pieces(piece_bytes=2) as pieces:
        assert next(pieces) == "abcde"
    assert path not in open_files()
    with pytest.raises(ClosedError, match=r"a.txt: its pieces were closed after 5 bytes"):
        next(pieces)

    whole = source(tmp_path, b"abc").pieces()
    assert list(whole) == ["abc"]
    assert path not in open_files()
    assert list(whole) == []
    gc.collect()


def test_options(tmp_path):
    found = source(tmp_path, b"a")
    with pytest.raises(ConfigError, match="encoding_errors: expected 'strict' or 'replace', found 'ignore'"):
        found.pieces(encoding_errors="ignore")
    with pytest.raises(ConfigError, match="piece_bytes: expected >= 1, found 0"):
        found.pieces(piece_bytes=0)
