"""The log: JSON lines, cut back to a checkpoint."""

from __future__ import annotations

from pathlib import Path

import pytest

from ladle.errors import ConfigError, FormatError
from ladle.train.log import Log, read


def test_append_cut_and_go_on(tmp_path: Path) -> None:
    path = tmp_path / "log.jsonl"
    with Log(path) as log:
        log.write(step=0, loss=1.5)
        size = log.sync()
        log.write(step=1, loss=1.25)
    with path.open("ab") as file:
        file.write(b'{"step": 2, "lo')  # killed in the middle of a line
    assert read(path) == [{"step": 0, "loss": 1.5}, {"step": 1, "loss": 1.25}]
    with Log(path, size=size) as log:
        log.write(step=1, loss=9.0)
    assert read(path) == [{"step": 0, "loss": 1.5}, {"step": 1, "loss": 9.0}]
    assert path.read_text() == '{"step": 0, "loss": 1.5}\n{"step": 1, "loss": 9.0}\n'


def test_a_line_is_there_as_soon_as_it_is_written(tmp_path: Path) -> None:
    with Log(tmp_path / "log.jsonl") as log:
        log.write(step=0)
        assert read(log.path) == [{"step": 0}]


def test_a_log_that_lost_lines_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "log.jsonl"
    path.write_text('{"step": 0}\n')
    with pytest.raises(
        FormatError, match=r"log.jsonl @ byte 12: size: expected at least 40 bytes, as the checkpoint says, found 12"
    ):
        Log(path, size=40)
    with pytest.raises(FormatError, match=r"@ byte 4: log: expected the end of a line, as the checkpoint says, found b'e'"):
        Log(path, size=5)
    assert path.read_text() == '{"step": 0}\n'


def test_one_writer_at_a_time(tmp_path: Path) -> None:
    path = tmp_path / "log.jsonl"
    with Log(path) as log:
        log.write(step=0)
        with pytest.raises(ConfigError, match="expected to be the only one writing, found another process training here"):
            Log(path)
        assert read(path) == [{"step": 0}]
    Log(path, size=12).close()


@pytest.mark.parametrize("line", ["nonsense", "[1]", "\x00"])
def test_reading_a_damaged_log(tmp_path: Path, line: str) -> None:
    path = tmp_path / "log.jsonl"
    path.write_text('{"step": 0}\n' + line + "\n")
    with pytest.raises(FormatError, match="@ byte 12: line: expected a JSON object"):
        read(path)
