"""The benchmarks beside the package, run as they are typed, on little; and where their figures go."""

import importlib.util
import json
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("torch")
ROOT = Path(__file__).parents[2]
ROW = {
    "name": "one",
    "median_us": 2.0,
    "quartiles_us": [1.0, 3.0],
    "cpu_us": 2.5,
    "tokens_per_s": 8_000_000,
    "ratio": 1.0,
    "turns": 3,
    "batches": 9,
}


@pytest.fixture
def results(tmp_path, monkeypatch):
    spec = importlib.util.spec_from_file_location("bench_results", ROOT / "bench" / "results.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    monkeypatch.setattr(module, "FOLDER", tmp_path / "results")
    monkeypatch.setattr(module, "commit", lambda: "abc1234")
    monkeypatch.setattr(sys, "argv", ["bench/feed.py", "--scratch", "/some/place", "--rounds", "3"])
    return module


def test_runs_are_appended_and_drawn_the_latest_first(results):
    for title in ("first", "second"):
        shown = results.append(results.run("feed", [{"title": title, "rows": [ROW]}], corpus="small"))
    runs = json.loads(shown.with_suffix(".json").read_text("utf-8"))
    assert [run["tables"][0]["title"] for run in runs] == ["first", "second"]
    assert runs[0]["command"] == "python -m bench.feed --scratch FOLDER --rounds 3"
    assert runs[0]["commit"] == "abc1234"
    assert shown.name.startswith("feed_")
    assert shown.name.endswith(f"_{runs[0]['date'][:10]}.md")
    text = shown.read_text("utf-8")
    assert text.index("## second") < text.index("## first")
    assert "| one |" in text
    assert "corpus: small" in text


def script(name, *words):
    done = subprocess.run([sys.executable, "-m", f"bench.{name}", *words], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "recorded" not in done.stdout
    return done.stdout


@pytest.mark.slow
def test_feed(tmp_path):
    out = script("feed", "--tokens", "200000", "--rounds", "1", "--shapes", "4x64,2x128", "--scratch", str(tmp_path))
    assert out.count("nanoGPT's algorithm") == out.count("Ladle, gather alone") == 3
    assert "added to a training step of 5 ms" in out
    assert not list(tmp_path.iterdir())


@pytest.mark.slow
def test_cold(tmp_path):
    out = script("cold", "--tokens", "20000000", "--rounds", "1", "--scratch", str(tmp_path))
    assert "bytes read / bytes wanted" in out
    assert out.count("Ladle, next(feed)") == 8
    assert not list(tmp_path.iterdir())


@pytest.mark.slow
def test_memory(tmp_path):
    out = script("memory", "--tokens", "2000000", "--batches", "600", "--scratch", str(tmp_path))
    assert "max_mapped=268435456" in out
    assert not list(tmp_path.iterdir())


@pytest.mark.slow
def test_start(tmp_path):
    out = script("start", "--repeats", "1", "--scratch", str(tmp_path))
    assert "first batch, 10^12 tokens, shuffled" in out
    assert not list(tmp_path.iterdir())


@pytest.mark.slow
def test_mixture(tmp_path):
    out = script("mixture", "--tokens", "9000000", "--rounds", "1", "--scratch", str(tmp_path))
    assert out.count("| 300 sources |") == out.count("| 2 sources |") == 2
    assert "300 sources, skewed weights, 900 to 1,024 windows each, epoch_offset" in out
    assert not list(tmp_path.iterdir())


@pytest.mark.slow
def test_resume(tmp_path):
    words = ("--tokens", "2000000", "--repeats", "1", "--steps", "5,40", "--scratch", str(tmp_path))
    out = script("resume", *words)
    assert "| Ladle |" in out
    assert "| NO |" not in out
    assert "1,000,000,000" in out
    assert not list(tmp_path.iterdir())


@pytest.mark.slow
def test_weights():
    out = script("weights", "--rounds", "1", "--samples", "100000")
    assert out.count("torch's WeightedRandomSampler, without replacement") == 3
    assert "| Ladle | 33." in out


@pytest.mark.slow
def test_lengths():
    out = script("lengths", "--rounds", "1", "--samples", "1000", "--batches", "4")
    assert "Hugging Face's group_by_length" in out
    assert "Ladle, batch_tokens=" in out


@pytest.mark.slow
def test_loss(tmp_path):
    pytest.importorskip("matplotlib")
    out = script("loss", "--tokens", "20481", "--seeds", "1", "--epochs", "1", "--draw", str(tmp_path / "orders.svg"))
    assert "| overlapping windows, stride T/2 | 1 |" in out
    assert "| shuffled windows | 1 | 100.0% |" in out
    assert "random starts" in (tmp_path / "orders.svg").read_text("utf-8")


@pytest.mark.slow
def test_batch_size():
    out = script("batch_size", "--models", "convolution", "--finders", "Ladle", "--extra", "150")
    ours = next(line for line in out.splitlines() if line.startswith("| Ladle |"))
    assert 60.0 <= float(ours.split("|")[3].strip().rstrip("%")) <= 140.0, out


@pytest.mark.slow
@pytest.mark.peer
def test_loader(tmp_path):
    out = script("loader", "--samples", "200000", "--rounds", "1", "--scratch", str(tmp_path))
    assert "| Ladle | yes | yes | yes | yes | yes, yes, yes, yes | yes, yes, yes, yes |" in out
    assert "| DataLoader | no | no |" in out  # it begins anew: the question can be answered with no
