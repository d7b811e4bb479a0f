"""Two logs: since which step do the runs differ?"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ladle.errors import FormatError
from ladle.train.log import read

WHAT = {  # in the order in which one causes the next
    "position": "the runs stand at different positions",
    "digest": "the batches differ",
    "loss": "the batches are equal, the losses are not",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Difference:
    """steps: how many both logs have. first: the first step at which they part, or None.

    field: "position" (another batch size, say), "digest" (other batches) or "loss" (equal batches, other numbers), or None.
    values: what each log says there.
    """

    steps: int
    first: int | None = None
    field: str | None = None
    values: tuple[Any, Any] = (None, None)

    def __str__(self) -> str:
        if self.field is None:
            return f"{self.steps} steps in both: positions, batch digests and losses are equal"
        return (
            f"step {self.first}: {WHAT[self.field]} ({self.field} {self.values[0]!r} and {self.values[1]!r}); "
            f"the steps before it that both logs have are equal"
        )


def compare(first: Path, second: Path) -> Difference:
    """Compare the steps that two logs of training (JSON lines) share. Floats are equal when their bits are.

    Raises FormatError for a log that is not one, or two that share no step.
    """
    left, right = _steps(first), _steps(second)
    both = sorted(left.keys() & right.keys())
    if not both:
        raise FormatError(second, None, "steps", f"some of the {len(left)} in {first}", f"none of them among {len(right)}")
    for step in both:
        for field in WHAT:
            values = left[step].get(field), right[step].get(field)
            if repr(values[0]) != repr(values[1]):  # repr tells apart every two floats, and nan equals nan
                return Difference(steps=len(both), first=step, field=field, values=values)
    return Difference(steps=len(both))


def _steps(path: Path) -> dict[int, dict[str, Any]]:
    """The step lines of a log, the last one where a step was logged twice."""
    return {entry["step"]: entry for entry in read(path) if isinstance(entry.get("step"), int) and "loss" in entry}
