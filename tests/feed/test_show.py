"""Windows drawn: inputs above targets, columns that line up, no character cut silently."""

import json
import re
import subprocess
import sys
import unicodedata

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ladle.cli import main
from ladle.errors import ConfigError
from ladle.feed.picture import Picture, columns_of, pad, show
from ladle.tokens import tokenizer


def picture(text, length, stride, *, spec="gpt2", **options):
    coder = tokenizer(spec, text=[text])
    return Picture(coder.encode(text), coder, length=length, stride=stride, **options)


def test_inputs_stand_above_the_targets_that_follow_them():
    assert str(picture("In the heart of the city", 4, 1)) == (
        "gpt2: 6 tokens, 2 windows of 4, one every 1; of 5 targets: 2 once, 3 twice\n"
        "\n"
        "window 0: inputs are tokens 0 to 3, targets 1 to 4\n"
        "  inputs   In    ␣the    ␣heart  ␣of\n"
        "           818   262     2612    286\n"
        "  targets  ␣the  ␣heart  ␣of     ␣the\n"
        "           262   2612    286     262\n"
        "\n"
        "window 1: inputs are tokens 1 to 4, targets 2 to 5\n"
        "  inputs   ␣the    ␣heart  ␣of   ␣the\n"
        "           262     2612    286   262\n"
        "  targets  ␣heart  ␣of     ␣the  ␣city\n"
        "           2612    286     262   1748"
    )


def test_a_part_of_a_character_is_shown_as_its_bytes():
    assert str(picture("a你\n", 3, 3)) == (
        "gpt2: 4 tokens, 1 window of 3, one every 3; of 3 targets: 3 once\n"
        "\n"
        "window 0: inputs are tokens 0 to 2, targets 1 to 3\n"
        "  inputs   a        <E4 BD>  <A0>\n"
        "           64       19526    254\n"
        "  targets  <E4 BD>  <A0>     \\n\n"
        "           19526    254      198\n"
        "\n"
        "<E4 BD> stands for bytes that are no whole character: the token holds a part of one"
    )


def test_wide_characters_take_two_columns():
    lines = str(picture("世a界😀b", 4, 4, spec="chars")).split("\n")
    assert lines[3:] == [
        "  inputs   世  a   界  😀",
        "           2   0   3   4",
        "  targets  a   界  😀  b",
        "           0   3   4   1",
    ]


def test_a_long_window_is_broken_into_bands_no_wider_than_the_page():
    drawn = str(picture("word " * 100, 40, 40, limit=1, width=50)).split("\n")
    bands = [line for line in drawn if line.startswith("  inputs")]
    assert len(bands) > 1
    assert all(columns_of(line) <= 50 for line in drawn if line.startswith("  "))
    assert sum(line.count("word") for line in bands) == 40
    one_column = str(picture("word " * 9, 4, 4, limit=1, width=1)).split("\n")  # a page too narrow still gets every column
    assert sum(line.startswith("  inputs") for line in one_column) == 4


def test_the_limit_says_how_many_more_there_are():
    drawn = str(picture("abcdefghij", 2, 2, spec="bytes", limit=3))
    assert drawn.count("window ") == 3
    assert drawn.endswith("\n\nand 1 more window")
    assert "more" not in str(picture("abcdefghij", 2, 2, spec="bytes", limit=4))
    with pytest.raises(ConfigError, match=r"^limit: expected >= 1 windows, found 0$"):
        picture("abcdefghij", 2, 2, spec="bytes", limit=0)


def test_a_text_too_short_is_the_datasets_error():
    with pytest.raises(ConfigError, match=r"^text: expected more than max_length = 4 tokens, found 2: "):
        picture("Hello world", 4, 1)


def test_as_json_values():
    drawn = picture("a你\n", 3, 1, limit=1).to_dict()
    assert json.loads(json.dumps(drawn)) == drawn
    assert drawn["windows"] == [
        {
            "start": 0,
            "inputs": [
                {"id": 64, "text": "a", "bytes": "61"},
                {"id": 19526, "text": None, "bytes": "e4 bd"},
                {"id": 254, "text": None, "bytes": "a0"},
            ],
            "targets": [
                {"id": 19526, "text": None, "bytes": "e4 bd"},
                {"id": 254, "text": None, "bytes": "a0"},
                {"id": 198, "text": "\n", "bytes": "0a"},
            ],
        }
    ]
    assert (drawn["num_tokens"], drawn["num_windows"], drawn["times_a_target"]) == (4, 1, {"1": 3})


# --- one token ---


def test_columns_are_a_terminals():
    assert [columns_of(text) for text in ("", "a", "世", "😀", "e\u0301", "か\u3099", "ａ", "é")] == [0, 1, 2, 2, 1, 2, 2, 1]


@pytest.mark.parametrize(
    ("token", "shown"),
    [
        (b"the", "the"),
        (b" the", "␣the"),
        (b"\n\t\r\0\x1b", r"\n\t\r\x00\x1b"),
        ("\u2028\u200d\u202e\xa0\xad\u3000".encode(), r"\u2028\u200d\u202e\xa0\xad\u3000"),
        (b"\\n", r"\\n"),
        ("␣".encode(), r"\u2423"),
        (b"\xe4\xbd", "<E4 BD>"),
        (b" \xf0\x9f\x98", "␣<F0 9F 98>"),
        (b"\xa0a\xe4", "<A0>a<E4>"),
        (b"\xed\xa0\x80", "<ED A0 80>"),  # a surrogate in UTF-8 is no character
        (b"<E4 BD>", r"\x3cE4␣BD>"),
        (b"<A0>", r"\x3cA0>"),
        (b"<a0> <b> <E4", "<a0>␣<b>␣<E4"),
        ("e\u0301".encode(), "e\u0301"),
        ("\u0301e".encode(), r"\u0301e"),
        (" \u0301".encode(), r"␣\u0301"),
        ("☁\ufe0f".encode(), r"☁\ufe0f"),
        ("か\u3099".encode(), "か\u3099"),
        ("世界".encode(), "世界"),
        (b"", ""),
    ],
)
def test_a_token_is_shown_as_printable_text(token, shown):
    assert show(token) == shown


@given(st.binary(max_size=20) | st.text(max_size=12).map(lambda text: text.encode("utf-8", "surrogatepass")))
def test_whatever_the_bytes_the_picture_is_printable_and_of_known_width(token):
    shown = show(token)
    assert all(character == " " or unicodedata.category(character)[0] not in "CZ" for character in shown)
    assert re.sub(r"<[0-9A-F ]+>", "", shown).count(" ") == 0  # a plain blank stands only between bytes
    assert columns_of(pad(shown, columns_of(shown) + 3)) == columns_of(shown) + 3
    if shown:
        assert columns_of(shown) > 0


@given(st.lists(st.sampled_from([b" ", b"\\", b"<", b"E4", b">", b"\xe4", b"a", b"\n", "␣".encode(), b"x"]), max_size=6))
def test_no_two_tokens_look_alike(parts):
    """What is shown can be read back: nothing written in a text passes for bytes, an escape or a space."""
    token = b"".join(parts)
    assert read_back(show(token)) == token


def read_back(shown: str) -> bytes:
    out, place = b"", 0
    while place < len(shown):
        rest = shown[place:]
        if rest[0] == "\\":
            size = {"x": 4, "u": 6, "U": 10}.get(rest[1], 2)
            out += rest[:size].encode().decode("unicode_escape").encode()
            place += size
        elif (
            rest[0] == "<"
            and (end := rest.find(">")) > 0
            and all(len(pair) == 2 and set(pair) <= set("0123456789ABCDEF") for pair in rest[1:end].split(" "))
        ):
            out += bytes.fromhex(rest[1:end])
            place += end + 1
        else:
            out += b" " if rest[0] == "␣" else rest[0].encode()
            place += 1
    return out


def test_every_gpt2_token_can_be_shown():
    coder = tokenizer("gpt2")
    for token in coder.token_bytes(np.arange(coder.vocab_size)):
        assert read_back(show(token)) == token


# --- the command ---


def run(*arguments, **options):
    return subprocess.run(
        [sys.executable, "-m", "ladle", "show", *arguments], capture_output=True, timeout=60, check=False, **options
    )


def test_the_command_draws(capsys):
    assert main(["show", "--windows", "--length", "4", "--stride", "1", "In the heart of the city"]) == 0
    assert capsys.readouterr().out == str(picture("In the heart of the city", 4, 1)) + "\n"
    assert main(["show", "--windows", "--length", "3", "abcdefg", "--tokenizer", "bytes", "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == picture("abcdefg", 3, 3, spec="bytes").to_dict()
    assert main(["show", "--windows", "--length=2", "--tokenizer=chars", "--limit=1", "abab"]) == 0
    assert "\x1b" not in capsys.readouterr().out  # no colour


def test_the_marker_is_text_unless_allowed(capsys):
    line = ["show", "--windows", "--length", "2", "a<|endoftext|>b", "--json"]

    def ids():
        return [token["id"] for token in json.loads(capsys.readouterr().out)["windows"][0]["inputs"]]

    assert main(line) == 0
    assert ids() == [64, 27]
    assert main([*line, "--allow-special", "<|endoftext|>"]) == 0
    assert ids() == [64, 50256]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--length", "4", "Hello world"], "text: expected more than max_length = 4 tokens, found 2: no window"),
        (["--length", "0", "Hello world"], "max_length: expected at least 1, found 0"),
        (["--stride", "-1", "Hello world"], "stride: expected at least 1, found -1"),
        (["--stride", "1" + "0" * 24, "Hello world"], "stride: expected less than 4611686018427387904"),
        (["--limit", "0", "Hello world"], "limit: expected >= 1 windows, found 0"),
        (["--tokenizer", "gpt9", "Hello world"], "tokenizer: expected 'bytes'"),
        ([""], "text: expected more than max_length = 8 tokens, found 0"),
    ],
)
def test_bad_input_is_one_line_and_exit_code_2(arguments, message, capsys):
    assert main(["show", "--windows", *arguments]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith(f"ladle: {message}")
    assert err.count("\n") == 1


def test_standard_input_and_a_terminal_without_the_letters():
    """As its own process: bytes in, and an output encoding that knows neither ␣ nor 世."""
    line = ["--windows", "--length", "2", "--tokenizer", "chars", "-"]
    done = run(*line, input="世 ab".encode(), env={"PYTHONIOENCODING": "utf-8"})
    assert (done.returncode, done.stderr) == (0, b"")
    assert "  inputs   世  ␣".encode() in done.stdout
    done = run(*line, input="世 ab".encode(), env={"PYTHONIOENCODING": "ascii"})
    assert (done.returncode, done.stderr) == (0, b"")
    assert rb"\u4e16" in done.stdout
    done = run(*line, input=b"ab\xffcd")
    assert (done.returncode, done.stderr) == (2, b"ladle: standard input @ byte 2: expected UTF-8, found 0xff\n")
