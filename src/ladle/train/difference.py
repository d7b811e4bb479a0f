"""Two logs: since which step do the runs differ?"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ladle.errors import FormatError
from ladle.train.log import read

WHAT = ("position", "digest", "loss")  # in the order in which one causes the next


@dataclass(frozen=True, slots=True, kw_only=True)
class Difference:
    """steps: how many both logs have. first: the first step at which they part, or None.

    field: "position" (another batch size or resume), "digest" (other batches) or "loss" (equal batches, other numbers).
    values: what each log says there. only: steps that one log has and the other lacks, below the other's last.
    """

    steps: int
    first: int | None = None
    field: str | None = None
    values: tuple[Any, Any] | None = None
    only: tuple[tuple[int, ...], tuple[int, ...]] = ((), ())

    def __str__(self) -> str:
        if self.first is None:
            return f"{self.steps} steps in both: positions, batch digests and losses are equal"
        told = {
            "position": "the runs stand at different positions",
            "digest": "the batches differ",
            "loss": "the batches are equal, the losses are not",
        }
        left, right = self.values or (None, None)
        return (
            f"step {self.first}: {told[str(self.field)]} ({self.field} {left!r} and {right!r}); "
            f"the steps before it that both logs have are equal"
        )

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON values."""
        return {"steps": self.steps, "first": self.first, "field": self.field, "values": self.values, "only": self.only}


def compare(first: Path, second: Path, *, fields: Sequence[str] = WHAT) -> Difference:
    """Compare the steps of two logs (JSON lines with "step"). Floats are equal when their bits are.

    Raises FormatError for a log that is not one, or two that share no step.
    """
    left, right = _steps(first), _steps(second)
    both = sorted(left.keys() & right.keys())
    if not both:
        raise FormatError(second, None, "steps", f"some of {len(left)} in {first}", f"none of them among {len(right)}")
    last = min(max(left), max(right))
    only = tuple(
        tuple(sorted(step for step in mine.keys() - theirs.keys() if step < last))
        for mine, theirs in ((left, right), (right, left))
    )
    for step in both:
        for field in fields:
            values = left[step].get(field), right[step].get(field)
            if repr(values[0]) != repr(values[1]):  # repr tells apart every two floats, and nan equals nan
                return Difference(steps=len(both), first=step, field=field, values=values, only=only)  # type: ignore[arg-type]
    return Difference(steps=len(both), only=only)  # type: ignore[arg-type]


def _steps(path: Path) -> dict[int, dict[str, Any]]:
    """The step lines of a log, the last one where a step was logged twice."""
    return {entry["step"]: entry for entry in read(path) if isinstance(entry.get("step"), int) and "loss" in entry}
