"""Contenders side by side: turn by turn in one process, and only after their batches have been checked.

A shared machine drifts, so contenders are never timed one after the other: each round gives every contender one turn
of consecutive batches, and a turn's time a batch is one observation. Medians and quartiles are over the rounds.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from ladle.corpus.split import Split

I64 = NDArray[np.int64]
HEAD = 8  # ids that a document's piece is looked up by


class UnequalOutput(RuntimeError):  # noqa: N818  it names what is wrong
    """A contender whose batches are not the corpus's: its speed is of no interest."""


class Draw(Protocol):
    """One contender, opened at one shape."""

    def __call__(self) -> tuple[Any, Any]:
        """Its next batch: x and y, (B, T) each."""

    @property
    def at(self) -> Callable[[I64], tuple[Any, Any]] | None:
        """starts -> the batch whose rows start at these tokens; None where its order is its own affair."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Contender:
    """open: (batch_size, block_size) -> a context that gives a Draw. afresh: open it anew for each turn.

    joins: its rows are whole documents in an order of its own, one after the other, the first and the last one cut.
    """

    name: str
    open: Callable[[int, int], AbstractContextManager[Draw]]
    afresh: bool = False
    joins: bool = False


@dataclass(slots=True)
class Timing:
    """What one contender took. seconds, cpu_seconds, bytes_read: a batch, one value a turn; cpu counts every thread."""

    name: str
    batch_size: int
    block_size: int
    seconds: list[float] = field(default_factory=list)
    cpu_seconds: list[float] = field(default_factory=list)
    bytes_read: list[float] = field(default_factory=list)
    batches: int = 0

    @property
    def median(self) -> float:
        """Seconds a batch."""
        return float(np.median(self.seconds))

    @property
    def quartiles(self) -> tuple[float, float]:
        """The first and third quartile, seconds a batch."""
        low, high = np.percentile(self.seconds, [25, 75])
        return float(low), float(high)

    @property
    def tokens_per_s(self) -> float:
        """Input tokens a second, at the median."""
        return self.batch_size * self.block_size / self.median


def compare(
    contenders: Sequence[Contender],
    split: Split,
    *,
    batch_size: int,
    block_size: int,
    rounds: int = 30,
    turn_seconds: float = 0.03,
    batches: dict[str, int] | None = None,
    settle: int = 4,
    hold: bool = False,
    before: Callable[[], None] = lambda: None,
    work: Callable[[], object] | None = None,
    seed: int = 0,
) -> list[Timing]:
    """Check every contender, then time them in turns. The timings come in the order of the contenders.

    split: the corpus all of them read. turn_seconds: how long a turn of each should take; batches: by name, instead, how
    many batches a turn has. settle: batches at a turn's beginning that are not timed (they empty what was made ahead while
    others ran). hold: keep each batch until the next has come, as `x, y = next(...)` in a loop does, so that two share the
    processor's caches; else each is let go first. before: called before each turn, when the one before has been closed.
    work: what a training step would do with each batch; it is not timed, so that what remains is the wait for the data.
    Raises UnequalOutput naming the contender, the row, what was expected and what was found, before anything is timed.
    """
    timings = [Timing(c.name, batch_size, block_size) for c in contenders]
    rng = np.random.default_rng(seed)
    counts: dict[str, int] = {}
    with ExitStack() as stack:
        opened: dict[str, Draw] = {}
        for contender in contenders:
            with ExitStack() as own:
                draw = own.enter_context(contender.open(batch_size, block_size))
                check(contender, draw, split, batch_size=batch_size, block_size=block_size, rng=rng)
                counts[contender.name] = (batches or {}).get(contender.name) or _count(draw, turn_seconds)
                if not contender.afresh:
                    opened[contender.name] = draw
                    stack.push(own.pop_all())
        for _ in range(rounds):
            for contender, timing in zip(contenders, timings, strict=True):
                with ExitStack() as own:
                    before()
                    draw = opened.get(contender.name) or own.enter_context(contender.open(batch_size, block_size))
                    _turn(draw, timing, counts[contender.name], settle=settle, hold=hold, work=work)
    return timings


def check(contender: Contender, draw: Draw, split: Split, *, batch_size: int, block_size: int, rng: np.random.Generator) -> None:
    """One batch of the contender's own order, and two of given starts where it takes them. Raises UnequalOutput."""
    name = contender.name
    if (at := draw.at) is not None:
        last = split.num_tokens - block_size
        for edge in (0, last - 1):  # the first and the last start there are
            starts = np.append(edge, rng.integers(0, last, batch_size - 1))
            rows = np.stack([split.read(int(s), block_size + 1) for s in starts]).astype(np.int64)
            given = at(starts)
            _same(f"{name}: x of given starts", np.asarray(given[0]), rows[:, :-1])
            _same(f"{name}: y of given starts", np.asarray(given[1]), rows[:, 1:])
    x, y = map(np.asarray, draw())
    for part, found in (("x", x), ("y", y)):
        if found.dtype != np.int64 or found.shape != (batch_size, block_size) or not found.flags.c_contiguous:
            expected = f"contiguous int64 {(batch_size, block_size)}"
            raise UnequalOutput(
                f"{name}: {part}: expected {expected}, found {found.dtype} {found.shape}, strides {found.strides}"
            )
    if np.shares_memory(x, y):
        raise UnequalOutput(f"{name}: x, y: expected memory of their own, found that they share it")
    _same(f"{name}: y, one token later than x", y[:, :-1], x[:, 1:])
    for row in sorted({0, batch_size - 1}):
        ids = np.append(x[row], y[row, -1])
        if not np.array_equal(ids, ids.astype(split.dtype)) or not _occurs(
            split, ids.astype(split.dtype), joined=contender.joins
        ):
            raise UnequalOutput(f"{name}: row {row}: expected a stretch of {split.where}, found ids that do not stand there")


def _same(what: str, found: NDArray[Any], expected: NDArray[Any]) -> None:
    if found.shape != expected.shape:
        raise UnequalOutput(f"{what}: expected shape {expected.shape}, found {found.shape}")
    for row, column in np.argwhere(found != expected)[:1].tolist():
        raise UnequalOutput(f"{what}: row {row}, column {column}: expected {expected[row, column]}, found {found[row, column]}")


def _occurs(split: Split, ids: NDArray[Any], *, joined: bool) -> bool:
    """Whether these ids stand in the split in a row; joined: or are documents' pieces, each but the last up to its end."""
    if not joined:
        return next(_places(split, ids), None) is not None
    return _pieces(split, ids, split.document_ends())


def _pieces(split: Split, ids: NDArray[Any], ends: NDArray[Any]) -> bool:
    for k in range(min(HEAD, ids.size), 0, -1):  # a document may end within the first few ids
        for start in _places(split, ids[:k]):
            count = min(ids.size, int(ends[np.searchsorted(ends, start, side="right")]) - start)
            if np.array_equal(split.read(start, count), ids[:count]) and (count == ids.size or _pieces(split, ids[count:], ends)):
                return True
    return False


def _places(split: Split, ids: NDArray[Any]) -> Iterator[int]:
    """Every token from which these ids stand in the split: text repeats itself, so the first may not be the one meant."""
    wanted, step, size = ids.tobytes(), 1 << 24, split.dtype.itemsize
    for start in range(0, split.num_tokens, step):
        piece = split.read(start, min(step + ids.size - 1, split.num_tokens - start)).tobytes()
        place = piece.find(wanted)
        while place >= 0:
            if place % size == 0:
                yield start + place // size
            place = piece.find(wanted, place + 1)


def _bytes_read() -> int:
    """Bytes that all threads of this process have fetched from storage; 0 where the system does not say."""
    try:
        lines = Path("/proc/self/io").read_text("ascii").splitlines()
    except OSError:
        return 0
    return next((int(line.split()[1]) for line in lines if line.startswith("read_bytes:")), 0)


def _count(draw: Draw, turn_seconds: float) -> int:
    """How many batches fill a turn: 3 to 2 000."""
    begin, done = time.perf_counter(), 0
    while time.perf_counter() - begin < turn_seconds or done < 3:
        draw()
        done += 1
    return min(done, 2000)


def _turn(draw: Draw, timing: Timing, batches: int, *, settle: int, hold: bool, work: Callable[[], object] | None) -> None:
    held: deque[Any] = deque(maxlen=int(hold))  # of length 0 it lets each batch go at once
    for _ in range(settle):
        held.append(draw())
    read, seconds, cpu_seconds = _bytes_read(), 0.0, 0.0
    for count in [batches] if work is None else [1] * batches:
        if work is not None:
            work()
        cpu, begin = time.process_time(), time.perf_counter()
        for _ in range(count):
            held.append(draw())
        seconds += time.perf_counter() - begin
        cpu_seconds += time.process_time() - cpu
    timing.seconds.append(seconds / batches)
    timing.cpu_seconds.append(cpu_seconds / batches)
    timing.bytes_read.append((_bytes_read() - read) / batches)
    timing.batches += batches
