"""Where figures go: bench/results/[theme]_[hardware]_[date].json, a list of runs, and the same as tables beside it."""

from __future__ import annotations

import datetime as dt
import json
import shlex
import subprocess
import sys
from collections.abc import Mapping, Sequence
from itertools import pairwise
from pathlib import Path

from ladle.bench.machine import line, machine, slug
from ladle.bench.table import markdown

FOLDER = Path(__file__).parent / "results"
PACKAGES = ("ladle", "numpy", "torch", "grain", "litdata", "megatron-core", "torchdata", "accelerate", "lightning")


def run(theme: str, tables: Sequence[Mapping[str, object]], **facts: object) -> dict[str, object]:
    """One run: what was measured, on what, when, by which command. tables: {"title", "rows"} each."""
    words = ["FOLDER" if before == "--scratch" else word for before, word in pairwise(sys.argv)]
    return {
        "theme": theme,
        "date": dt.datetime.now(dt.UTC).strftime("%Y-%m-%dT%H:%MZ"),
        "commit": commit(),
        "command": shlex.join(["python", "-m", f"bench.{Path(sys.argv[0]).stem}", *words]),
        "machine": machine(PACKAGES),
        **facts,
        "tables": list(tables),
    }


def commit() -> str:
    """The commit measured, and whether the tree had other changes."""

    def git(*words: str) -> str:
        return subprocess.run(["git", *words], cwd=FOLDER.parent, capture_output=True, text=True, check=True).stdout.strip()

    changed = [line for line in git("status", "--porcelain", "--", "../src", ".").splitlines() if "results/" not in line]
    return git("rev-parse", "--short", "HEAD") + (" and uncommitted changes" if changed else "")


def append(result: Mapping[str, object]) -> Path:
    """Add a run to its file, draw the tables anew, and return the table's path."""
    facts: dict[str, object] = result["machine"]  # type: ignore[assignment]
    stem = f"{result['theme']}_{slug(facts)}_{str(result['date'])[:10]}"
    path = FOLDER / f"{stem}.json"
    FOLDER.mkdir(exist_ok=True)
    runs = json.loads(path.read_text("utf-8")) if path.exists() else []
    runs.append(result)
    path.write_text(json.dumps(runs, indent=1) + "\n", "utf-8")
    shown = path.with_suffix(".md")
    shown.write_text("\n\n".join(map(page, reversed(runs))) + "\n", "utf-8")
    return shown


def page(result: Mapping[str, object]) -> str:
    """One run as Markdown; the latest comes first in its file."""
    facts: dict[str, object] = result["machine"]  # type: ignore[assignment]
    lines = [
        f"# {result['theme']}, {result['date']}, commit {result['commit']}",
        f"`{result['command']}`",
        line(facts),
    ]
    lines += [
        f"{key}: {value}"
        for key, value in result.items()
        if key not in {"theme", "date", "commit", "command", "machine", "tables"}
    ]
    for table in result["tables"]:  # type: ignore[attr-defined]
        lines.append(f"## {table['title']}")
        lines.append(markdown(table["rows"]) if "median_us" in table["rows"][0] else plain(table["rows"]))
    return "\n\n".join(lines)


def plain(rows: Sequence[Mapping[str, object]]) -> str:
    """Any other rows, one column a key."""
    head = list(rows[0])
    lines = [head, ["---"] * len(head), *([str(row.get(key, "")) for key in head] for row in rows)]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)
