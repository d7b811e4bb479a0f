"""One source's windows, ticked off: which targets were handed out in an epoch, one bit a window.

It reads the plan against the definition of the cut, and not against the code that made the plan.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from ladle.order.permutation import I64
from ladle.rows.windows import Windows

FAULTS = 20  # that are told one by one


@dataclass(frozen=True, slots=True)
class Taken:
    """Windows as they were handed out. int64 [k] each, in the source's own numbering.

    start: the first input. [first, last): the targets that count, but for exclusions. whole: whether these are all that lie
    between. excluded, padded: slots.
    """

    start: I64
    first: I64
    last: I64
    whole: I64
    excluded: I64
    padded: I64

    def part(self, which: slice | I64) -> Taken:
        """Some of them."""
        arrays = (self.start, self.first, self.last, self.whole, self.excluded, self.padded)
        return Taken(*(array[which] for array in arrays))

    def moved(self, by: int) -> Taken:
        """The same in another numbering of tokens."""
        return replace(self, start=self.start + by, first=self.first + by, last=self.last + by)


@dataclass(slots=True)
class Counts:
    """Sums over windows: how many, and of their slots those handed out as targets, those of them excluded, and padding."""

    units: int = 0
    handed: int = 0
    excluded: int = 0
    padded: int = 0

    def take(self, taken: Taken) -> None:
        """These windows too."""
        self.units += taken.start.size
        self.handed += int((taken.last - taken.first).sum())
        self.excluded += int(taken.excluded.sum())
        self.padded += int(taken.padded.sum())


class Ledger:
    """Takes a source's windows in the order in which they are handed out, and notes what its definition does not allow."""

    def __init__(self, windows: Windows, name: str = "") -> None:
        """name: the source's, for messages."""
        self.windows, self.name = windows, name
        self.counts, self.epoch = Counts(), 0
        self.partial = 0  # targets handed out in the epoch that has not ended
        self.faults: list[str] = []
        self.num_faults = 0
        self._in_epoch = self._ticked = 0
        self._bits = np.zeros(windows.count // 8 + 1, dtype=np.uint8)

    def take(self, taken: Taken) -> None:
        """The next windows of this source, however many epochs they span."""
        self.counts.take(taken)
        done = 0
        while done < taken.start.size:
            end = min(taken.start.size, done + self.windows.count - self._in_epoch)
            self._tick(taken.part(slice(done, end)))
            done = end
            if self._in_epoch == self.windows.count:
                self._close_epoch()

    def _tick(self, taken: Taken) -> None:
        count = taken.last - taken.first
        self._in_epoch += count.size
        self.partial += int(count.sum())
        M, W = self.windows.targets, self.windows.window
        outside = (taken.start < 0) | ((taken.start + W > M) & (self.windows.tail != "pad"))
        self._refuse(taken, outside, "reads past the source's ends")
        self._refuse(taken, taken.whole == 0, "leaves out or repeats targets between its rows")
        taken = taken.part(np.flatnonzero(count > 0))
        cell = self._cell(taken.first)
        first, last = self._borders(np.clip(cell, 0, self._cells - 1))
        wrong = (cell < 0) | (cell >= self._cells) | (taken.first != first) | (taken.last != last)
        self._refuse(taken, wrong, "does not own what the cut gives a window")
        cell = np.sort(cell[~wrong])
        again = np.zeros(cell.size, dtype=np.bool_)
        again[1:] = cell[1:] == cell[:-1]
        again |= (self._bits[cell >> 3] >> (cell & 7).astype(np.uint8)) & 1 != 0
        for one in cell[again][:FAULTS].tolist():
            self.fault(f"{self._targets(one)} were handed out again")
        self.num_faults += max(int(np.count_nonzero(again)) - FAULTS, 0)
        cell = cell[~again]
        self._ticked += cell.size
        np.add.at(self._bits, cell >> 3, np.left_shift(1, cell & 7).astype(np.uint8))  # none is set: to add is to set

    def _close_epoch(self) -> None:
        if self._ticked < self._cells:
            missing, found = self._cells - self._ticked, 0
            for low in range(0, self._bits.size, 1 << 16):
                bits = np.unpackbits(self._bits[low : low + (1 << 16)], bitorder="little")
                absent = np.flatnonzero(bits == 0) + low * 8
                for one in absent[absent < self._cells][: FAULTS - found].tolist():
                    self.fault(f"{self._targets(one)} were not handed out")
                    found += 1
                if found >= FAULTS:
                    break
            self.num_faults += missing - found
        self._bits[:] = 0
        self._in_epoch = self._ticked = self.partial = 0
        self.epoch += 1

    # --- the definition of the cut: SPEC section 1. A cell is what one window of the epoch owns. ---

    @property
    def dropped(self) -> int:
        """Targets an epoch that no window holds."""
        if self.windows.overlaps:
            return self.windows.targets - self._last_end
        return self.windows.targets - self.windows.count * self.windows.window if self.windows.tail == "drop" else 0

    @property
    def _last_end(self) -> int:
        W, S = self.windows.window, self.windows.stride or 0
        return min((self.windows.count - 1) * S, self.windows.targets - W) + W

    @property
    def _cells(self) -> int:
        """How many windows of this epoch own something."""
        if self.windows.overlaps or self.windows.tail == "drop":
            return self.windows.count
        return -(-(self.windows.targets - self.windows.offset(self.epoch)) // self.windows.window) + 1

    def _cell(self, first: I64) -> I64:
        W, S = self.windows.window, self.windows.stride or 0
        if not self.windows.overlaps:
            return (first - self._shift) // W
        return -(-first // S) if self.windows.score == "all" else np.where(first > 0, (first - W) // S + 1, 0)

    def _borders(self, cell: I64) -> tuple[I64, I64]:
        M, W, S = self.windows.targets, self.windows.window, self.windows.stride or 0
        if not self.windows.overlaps:
            first = self._shift + cell * W
            return np.maximum(first, 0), np.minimum(first + W, M)
        start = np.minimum(cell * S, M - W)
        if self.windows.score == "all":
            return start, start + W
        return np.where(cell > 0, (cell - 1) * S + W, 0), start + W

    @property
    def _shift(self) -> int:
        """Where cell 0 would begin if nothing were cut off."""
        offset = self.windows.offset(self.epoch)
        return offset if self.windows.tail == "drop" else offset - self.windows.window

    # --- what is told ---

    def _targets(self, cell: int) -> str:
        first, last = (int(edge[0]) for edge in self._borders(np.array([cell], dtype=np.int64)))
        return f"targets {first} to {last - 1}"

    def _refuse(self, taken: Taken, wrong: NDArray[np.bool_], why: str) -> None:
        places = np.flatnonzero(wrong)
        for place in places[:FAULTS].tolist():
            start, first, last = (int(array[place]) for array in (taken.start, taken.first, taken.last))
            self.fault(f"the window read from token {start}, which owns targets {first} to {last - 1}, {why}")
        self.num_faults += max(places.size - FAULTS, 0)

    def fault(self, what: str) -> None:
        """Note a fault of the epoch that is under way."""
        self.num_faults += 1
        if len(self.faults) < FAULTS:
            self.faults.append(f"{self.name + ', ' if self.name else ''}epoch {self.epoch}: {what}")
