"""`make demo`: text in, a trained model out, killed half-way and resumed bit for bit.

The text is the Python standard library's own source files, which every machine with Python has. Everything is made
through the command line, as a reader would; each command is printed before it runs.
"""

from __future__ import annotations

import argparse
import json
import os
import shlex
import shutil
import signal
import subprocess
import sys
import sysconfig
import time
from pathlib import Path

from ladle.train import compare

NOT_TEXT_OF_OURS = {"site-packages", "dist-packages", "test", "tests", "__pycache__", "lib2to3", "idlelib", "turtledemo"}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path("runs/demo"), help="folder for everything the demo makes (made anew)")
    parser.add_argument("--steps", type=int, default=600, help="updates of each training run (default 600)")
    options = parser.parse_args()
    began = time.monotonic()
    out: Path = options.out
    if out.exists():
        shutil.rmtree(out)
    out.mkdir(parents=True)
    corpus, whole, broken = out / "corpus", out / "run", out / "killed"

    title("1. Text becomes tokens")
    ladle("prepare", *standard_library(), corpus, "--tokenizer", "bytes", "--val-fraction", "0.02")
    say("The same text under GPT-2's vocabulary, one window moved by one: inputs above their targets.")
    ladle("show", "--windows", "--length", "6", "--stride", "6", "--limit", "2", "def next(feed): return feed.at(feed.position)")

    title("2. Tokens become batches, batches train a small GPT")
    # One thread: a model this small gains little from a second, and loses much where something else wants the core.
    train = ["train", corpus, "--preset", "demo", "--steps", options.steps, "--threads", "1"]
    ladle(*train, "--out", whole)

    title("3. A second run, killed with SIGKILL half-way")
    half = options.steps // 2 + 30  # some updates after a checkpoint, so that they are lost and made again
    ladle(*train, "--out", broken, "--sample-tokens", "0", kill_at=(broken / "log.jsonl", half))
    say(f"Killed after step {last_step(broken / 'log.jsonl')}. Resumed from its last checkpoint:")
    ladle(*train, "--out", broken, "--sample-tokens", "0", "--resume")

    title("4. Is it the same run?")
    if not same(whole / "log.jsonl", broken / "log.jsonl", options.steps):
        return 1
    title("5. Not only tokens: one row of a table in a hundred is the one that matters")
    python = [sys.executable, Path(__file__).with_name("imbalanced.py"), "--out", out / "imbalanced"]
    say(f"$ {shown(['python', *python[1:]])}")
    if code := subprocess.run(list(map(str, python)), check=False).returncode:
        return code

    title("What is left to look at")
    pictures = sorted(path for path in whole.iterdir() if path.suffix in {".svg", ".png"})
    for what, path in (("log, JSON lines", whole / "log.jsonl"), *(("loss curve", picture) for picture in pictures)):
        say(f"  {what:16} {path}")
    say(f"  {'corpus':16} {corpus}   (try: {shown(['ladle', 'inspect', corpus])})")
    say(f"\nDone in {time.monotonic() - began:.0f} s. Next: README.md, then docs/guide/.")
    return 0


def standard_library() -> list[Path]:
    """Its source files' folders, without tests, and without what was installed beside it."""
    root = Path(sysconfig.get_path("stdlib"))
    folders = [path for path in root.iterdir() if path.is_dir() and path.name not in NOT_TEXT_OF_OURS]
    return sorted([*root.glob("*.py"), *(path for path in folders if any(path.glob("*.py")))])


def ladle(*words: object, kill_at: tuple[Path, int] | None = None) -> None:
    """Run one command of Ladle's; with kill_at=(log, step), SIGKILL it once the log has reached that step."""
    say(f"\n$ {shown(['ladle', *words])}")
    command = [sys.executable, "-m", "ladle", *(str(word) for word in words)]
    with subprocess.Popen(command, start_new_session=kill_at is not None) as process:
        try:
            while kill_at is not None and process.poll() is None:
                if last_step(kill_at[0]) >= kill_at[1]:
                    os.killpg(process.pid, signal.SIGKILL)
                    break
                time.sleep(0.02)
            code = process.wait()
        except BaseException:
            process.kill()
            raise
    if kill_at is not None and code != -signal.SIGKILL:
        sys.exit(f"demo: the run was to be killed at step {kill_at[1]}, but it ended with exit code {code}")
    if kill_at is None and code:
        sys.exit(code)


def steps_of(log: Path) -> dict[int, dict[str, object]]:
    """The step lines of a log; a line that a kill cut short is not one yet."""
    lines: dict[int, dict[str, object]] = {}
    if log.exists():
        for line in log.read_text("utf-8").split("\n")[:-1]:
            entry = json.loads(line)
            if "loss" in entry and "step" in entry:
                lines[entry["step"]] = entry
    return lines


def last_step(log: Path) -> int:
    return max(steps_of(log), default=0)


def same(first: Path, second: Path, steps: int) -> bool:
    """Show a few steps of two logs side by side, and compare all of them; floats by their bits (JSON keeps them)."""
    a, b = steps_of(first), steps_of(second)
    say(f"{'step':>8} {'loss, uninterrupted':>24} {'loss, killed and resumed':>26}   batch digest")
    for step in sorted(a)[:: max(len(a) // 8, 1)]:
        other = b.get(step, {})
        mark = "equal" if a[step]["digest"] == other.get("digest") else "DIFFERS"
        say(f"{step:>8} {a[step]['loss']!r:>24} {other.get('loss')!r:>26}   {a[step]['digest']} {mark}")
    found = compare(first, second)
    equal = found.first is None and found.steps == len(a) == len(b) == steps
    say(f"{found}{', bit for bit.' if equal else f'; {steps} steps were expected in each.'}")
    return equal


def title(text: str) -> None:
    say(f"\n{text}\n{'-' * len(text)}")


def shown(words: list[object]) -> str:
    """A command as one would type it; a long list of inputs is cut."""
    texts = [
        shlex.quote(os.path.relpath(word) if isinstance(word, Path) and not word.is_absolute() else str(word)) for word in words
    ]
    return " ".join(texts if len(texts) <= 20 else [*texts[:4], f"... {len(texts) - 14} more ...", *texts[-6:]])


def say(text: str) -> None:
    print(text, flush=True)


if __name__ == "__main__":
    sys.exit(main())
