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
    """The rows as a Markdown table, which is as readable on a terminal."""
    head = ["", "µs a batch, median", "quartiles", "CPU µs", "tokens/s, millions", "times nanoGPT", "target"]
    lines = [head]
    for row in table:
        quartiles = " to ".join(f"{value:.1f}" for value in row["quartiles_us"])
        target = "" if "target" not in row else f"{row['target']}: {'met' if row['met'] else 'MISSED'}"
        lines.append(
            [
                str(row["name"]),
                f"{row['median_us']:.1f}",
                quartiles,
                f"{row['cpu_us']:.1f}",
                f"{row['tokens_per_s'] / 1e6:.1f}",
                f"{row['ratio']:.1f}",
                target,
            ]
        )
    widths = [max(len(line[i]) for line in lines) for i in range(len(head))]
    drawn = [
        "| "
        + " | ".join(cell.ljust(w) if i == 0 else cell.rjust(w) for i, (cell, w) in enumerate(zip(line, widths, strict=True)))
        + " |"
        for line in lines
    ]
    drawn.insert(1, "|" + "|".join("-" * (w + 2) if i == 0 else "-" * (w + 1) + ":" for i, w in enumerate(widths)) + "|")
    return "\n".join(drawn)
