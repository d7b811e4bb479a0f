"""Without an optional package: one line that says which, and what still works."""

from __future__ import annotations

import subprocess
import sys

import pytest

HIDE = "import sys; sys.modules[{package!r}] = None\n"


def run(package: str, code: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", HIDE.format(package=package) + code, *arguments], capture_output=True, text=True, timeout=120
    )


@pytest.mark.parametrize("package", ["torch", "safetensors"])
def test_the_command_line_names_what_is_missing(package: str) -> None:
    done = run(package, "from ladle.cli import main; sys.exit(main(['train', 'data', '--out', 'run']))")
    assert done.returncode == 2
    assert done.stderr == (
        f"ladle: ladle.train.train needs the package '{package}', which is not installed; pip install 'ladle[train]'\n"
    )


def test_the_model_names_torch() -> None:
    done = run("torch", "import ladle.nn\ntry:\n    ladle.nn.GPT\nexcept ImportError as error:\n    print(error)")
    assert done.stdout == "ladle.nn.GPT needs the package 'torch', which is not installed; pip install 'ladle[torch]'\n"


def test_shapes_and_configurations_need_no_torch() -> None:
    done = run("torch", "import ladle.nn, ladle.train\nprint(ladle.nn.GPT2['gpt2-xl'].width, ladle.train.TrainConfig().steps)")
    assert done.stdout == "1600 2000\n"


@pytest.mark.slow
def test_a_run_without_matplotlib_draws_no_curve(tmp_path) -> None:
    code = """
import numpy, ladle
from ladle.train import TrainConfig, train
split = ladle.from_ids(numpy.arange(99, dtype=numpy.uint16) % 7, vocab_size=7)
report = train({"train": split}, sys.argv[1], TrainConfig(layers=1, heads=1, width=8, block_size=8, steps=1))
print(report.curve, "|", [line for line in str(report).splitlines() if line.startswith("curve")][0])
"""
    done = run("matplotlib", code, str(tmp_path))
    assert done.stdout == "None | curve       not drawn: pip install 'ladle[train]'\n", done.stderr
