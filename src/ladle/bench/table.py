"""Timings as a table."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from ladle.bench.rounds import Timing


def rows(timings: Sequence[Timing], reference: str, targets: Mapping[str, float] | None = None) -> list[dict[str, Any]]:
    """One JSON object a contender. reference: whose median the ratios are to. targets: least ratio wanted, by name."""
    base = next(t.median for t in timings if t.name == reference)
    out = []
    for timing in timings:
        low, high = timing.quartiles
        ratio = base / timing.median
        row: dict[str, Any] = {
            "name": timing.name,
            "median_us": round(timing.median * 1e6, 2),
            "quartiles_us": [round(low * 1e6, 2), round(high * 1e6, 2)],
            "cpu_us": round(sorted(timing.cpu_seconds)[len(timing.cpu_seconds) // 2] * 1e6, 2),
            "tokens_per_s": round(timing.tokens_per_s),
            "ratio": round(ratio, 2),
            "turns": len(timing.seconds),
            "batches": timing.batches,
        }
        if targets and timing.name in targets:
            row |= {"target": targets[timing.name], "met": ratio >= targets[timing.name]}
        out.append(row)
    return out


def markdown(table: Sequence[Mapping[str, Any]]) -> str:
    """The rows as a Markdown table, which is as readable on a terminal; the targets only where there are any."""
    head = ["", "µs a batch, median", "quartiles", "CPU µs", "tokens/s, millions", "times nanoGPT", "target"]
    lines = [head, *map(_line, table)]
    if not any(line[-1] for line in lines[1:]):
        lines = [line[:-1] for line in lines]
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    lines.insert(1, ["-" * widths[0], *("-" * (width - 1) + ":" for width in widths[1:])])
    return "\n".join("| " + " | ".join(map(_cell, line, widths, range(len(widths)))) + " |" for line in lines)


def _line(row: Mapping[str, Any]) -> list[str]:
    return [
        row["name"],
        f"{row['median_us']:.1f}",
        " to ".join(f"{value:.1f}" for value in row["quartiles_us"]),
        f"{row['cpu_us']:.1f}",
        f"{row['tokens_per_s'] / 1e6:.1f}",
        f"{row['ratio']:.1f}",
        "" if "target" not in row else f"{row['target']}: {'met' if row['met'] else 'MISSED'}",
    ]


def _cell(text: str, width: int, column: int) -> str:
    return text.rjust(width) if column else text.ljust(width)
