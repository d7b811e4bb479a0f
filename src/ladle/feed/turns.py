"""Which iteration a DataLoader's workers are in, in memory that they share."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch
from numpy.typing import NDArray

from ladle.errors import ConfigError

WORKERS = 1024


class Turns:
    """Notes where each worker's iteration began, so that the next one follows it.

    A DataLoader starts the workers of every iteration from the same copy of its dataset and tells that copy nothing, so
    what the workers know lies in memory shared by all processes. A note is (loader, start, check), int64: `loader` names the
    workers that began together (torch's seed for them), `start` is in slots, and a note whose check fails is half written.
    """

    def __init__(self) -> None:
        self._shared = torch.zeros((1 + WORKERS, 3), dtype=torch.int64)
        self._shared.share_memory_()  # type: ignore[no-untyped-call]

    def reset(self, start: int | None = None) -> None:
        """Forget all iterations: the next one begins at `start`, also for workers that live on; None: where they stand."""
        self._notes[:] = 0
        if start is not None:
            self._write(0, 0, start)

    def last(self) -> int | None:
        """Where the iteration that workers began last began, or None."""
        return max((start for _, start in self._known().values()), default=None)

    def begin(self, worker: int, loader: int, here: int, following: Callable[[int], int]) -> int:
        """Note that a worker begins an iteration, and say where: the same for all workers that begin it.

        here: where the dataset stands. following: from an iteration's start to the next one's.
        """
        known = self._known()
        if worker in known and known[worker][0] == loader:  # it lives on, or this loader was seeded like the last
            start = following(known[worker][1])
        else:
            fellows = [start for name, start in known.values() if name == loader]
            others = [start for _, start in known.values()]
            first = self._read(0)
            start = fellows[0] if fellows else following(max(others)) if others else here if first is None else first[1]
        self.note(worker, loader, start)
        return start

    def note(self, worker: int, loader: int, start: int) -> None:
        """Note that a worker's iteration begins at `start`. Raises ConfigError for more workers than there is room for."""
        if worker >= WORKERS:
            raise ConfigError(f"num_workers: expected at most {WORKERS}, found a worker {worker}")
        self._write(1 + worker, loader, start)

    def holds(self, worker: int, loader: int) -> bool:
        """Whether the worker's note is still there: a reset, in whichever process, takes it away."""
        note = self._read(1 + worker)
        return note is not None and note[0] == loader

    def _known(self) -> dict[int, tuple[int, int]]:
        """{worker: (loader, start)} of those that have begun."""
        written = np.flatnonzero(self._notes[1:].any(axis=1)).tolist()
        return {worker: note for worker in written if (note := self._read(1 + worker)) is not None}

    @property
    def _notes(self) -> NDArray[np.int64]:
        notes: NDArray[np.int64] = self._shared.numpy()
        return notes

    def _write(self, place: int, loader: int, start: int) -> None:
        self._notes[place] = loader, start, ~(loader ^ start)

    def _read(self, place: int) -> tuple[int, int] | None:
        for _ in range(1000):  # half written for a moment; for ever, if its writer was killed in that moment
            loader, start, check = self._notes[place].tolist()
            if check == ~(loader ^ start):
                return loader, start
            if not (loader or start or check):
                break
        return None
