"""The benchmark of packing, run as it is typed, on little; and its packers beside each other."""

import importlib.util
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

ROOT = Path(__file__).parents[2]


@pytest.fixture
def packing(monkeypatch):
    monkeypatch.syspath_prepend(str(ROOT))
    spec = importlib.util.spec_from_file_location("bench_packing", ROOT / "bench" / "packing.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_what_is_measured_is_what_it_is_called(packing):
    """Written by hand, in rows of 2048: 3000 is cut into 2048 and 952, and three rows of 4900 in all hold everything."""
    lengths = np.array([3000, 1000, 900])
    assert packing.classical(lengths) == {"rows": 3, "padded": 3 * 2048 - 4900, "lost": 0, "cut": 1}
    assert packing.ladle(lengths, "best_fit") == packing.classical(lengths)
    # The largest that fits is 1000, then 900; the 3000 is cropped to the 148 left, and 2852 are thrown away.
    assert packing.cropping(lengths) == {"rows": 1, "padded": 0, "lost": 2852, "cut": 1}
    assert packing.windows(lengths) == {"rows": 3, "padded": 0, "lost": 0, "cut": 2}


@pytest.mark.slow
def test_packing(tmp_path):
    words = ("--documents", "20000", "--rounds", "1", "--trl", "none", "--scratch", str(tmp_path))
    done = subprocess.run([sys.executable, "-m", "bench.packing", *words], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    rows = [line.split("|")[2].strip() for line in done.stdout.splitlines() if "best_fit |" in line or "document by" in line]
    assert rows == ["8,077", "8,077"]
    assert "missing: TRL: no none" in done.stdout
    assert "recorded" not in done.stdout
    assert not list(tmp_path.iterdir())
