"""What a loader says of itself when it starts: counts, sizes, and why."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from ladle.batching.order import Drawn
from ladle.batching.tail import Cut
from ladle.batching.walk import Course, Given, Sliced


@dataclass(kw_only=True)
class Banner:
    """The facts, and what the first batch adds: bytes_a_sample."""

    course: Course | None  # None: an iterable dataset
    cut: Cut | None
    num_samples: int | None
    batch_size: int | None
    world_size: int
    seed: int
    training: bool
    workers: str
    pinning: str
    resume: str = ""
    bytes_a_sample: int | None = None
    notes: list[str] = field(default_factory=list)

    def __str__(self) -> str:
        lines = [
            ("samples", self._samples()),
            ("batch", self._batch()),
            ("epoch", self._epoch()),
            ("last batch", self._last()),
            ("workers", self.workers),
            ("pinning", self.pinning),
            ("seed", f"{self.seed}" + (f"; {self.resume}" if self.resume else "")),
            ("memory", self._memory()),
            *(("note", note) for note in self.notes),
        ]
        return "\n".join(f"ladle loader  {name:10}  {text}" for name, text in lines if text)

    def _samples(self) -> str:
        if self.num_samples is None:
            return "as many as the iterable dataset gives"
        kind = "" if self.course is None else f", {self.course.recipe()['kind']}"
        order = getattr(self.course, "order", None)
        drawn = f": {order.weighted}" if isinstance(order, Drawn) else ""
        return f"{self.num_samples:,}{kind}{drawn}"

    def _batch(self) -> str:
        if self.batch_size is None:
            return "of sizes that vary"
        each = f"{self.batch_size:,} samples"
        return each + (
            f" a rank, {self.batch_size * self.world_size:,} on {self.world_size} ranks" if self.world_size > 1 else ""
        )

    def _epoch(self) -> str:
        return "ends where the dataset does" if self.course is None else f"{self.course.batches(0):,} batches"

    def _last(self) -> str:
        if self.cut is None or not isinstance(self.course, Sliced):
            return self._left_out() if isinstance(self.course, Given) else ""
        size, batch = self.course.size(0), self.cut.batch
        rest = size % batch
        if not rest:
            return "full"
        near = f"; {_divisors(size, batch, self.world_size)}"
        if (lost := self.cut.dropped(size, size)) > 0:
            return f"dropped: {lost:,} of {size:,} samples an epoch are left out, {self._others()}{near}"
        if self.cut.tail == "even":
            batches = self.cut.batches(size, size)
            return f"as the others: batches of {size // batches:,} and {-(-size // batches):,}"
        if rest < self.cut.ranks:
            return f"{batch + rest:,} samples: {rest} are too few for {self.cut.ranks} ranks{near}"
        kept = " (kept: dropping would lose over 5 %)" if self.training and self.cut.tail == "auto" else ""
        return f"{rest:,} samples, weight {rest / batch:.3g}{kept}{near}"

    def _left_out(self) -> str:
        if self.course is None or self.course.replayed or self.num_samples is None:
            return ""
        lost = self.num_samples - getattr(self.course, "order").samples_before(0, self.course.batches(0))  # noqa: B009
        return f"dropped: {lost:,} of {self.num_samples:,} samples an epoch are left out, {self._others()}" if lost else ""

    def _others(self) -> str:
        return "others each epoch" if self.training else "the same each time"

    def _memory(self) -> str:
        if self.bytes_a_sample is None:
            return "known with the first batch"
        each = f"{_bytes(self.bytes_a_sample)} a sample"
        if self.num_samples is None:
            return each
        return (
            f"{each}, {_bytes(self.bytes_a_sample * self.num_samples)} if all were held; this process may have {_bytes(memory())}"
        )


def memory() -> int:
    """Bytes that this process may have: the machine's, or a cgroup's limit where that is less."""
    known = [os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")]
    for limit in ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes"):
        try:
            known.append(int(Path(limit).read_text("ascii")))
        except (OSError, ValueError):
            continue
    return min(known)


def _divisors(size: int, batch: int, world_size: int) -> str:
    """The batch sizes a rank near the one asked that divide the samples."""
    fits: Callable[[int], bool] = lambda each: size % (each * world_size) == 0  # noqa: E731
    asked = batch // world_size
    below = next((each for each in range(asked - 1, asked // 2, -1) if fits(each)), None)
    above = next((each for each in range(asked + 1, 2 * asked) if fits(each)), None)
    near = [f"{each:,}" for each in (below, above) if each is not None]
    return f"batch_size {' or '.join(near)} would divide them" if near else "no batch_size near divides them"


def _bytes(count: int) -> str:
    value = float(count)
    for unit in ("B", "KB", "MB", "GB", "TB"):
        if value < 1000 or unit == "TB":
            break
        value /= 1000
    return f"{value:.3g} {unit}"
