"""How far a long pass has come: a bar on a terminal, plain lines elsewhere."""

from __future__ import annotations

import time
from types import TracebackType
from typing import Self, TextIO

from tqdm import tqdm

LINE_SECONDS = 5.0
MANY = 10_000_000


class Progress:
    """Call it with what was done since its last call. stream: where to draw, or None to draw nothing."""

    def __init__(self, label: str, total: int, stream: TextIO | None, *, unit: str = "B") -> None:
        """unit: of total; bytes are told in MB, anything else by number, or in millions where it is many."""
        self._label, self._total, self._stream = label, total, stream
        self._each = 1e6 if unit == "B" or total >= MANY else 1.0
        self._unit = "MB" if unit == "B" else f"million {unit}" if total >= MANY else unit
        self._done = 0
        self._start = self._last = time.monotonic()
        self._bar: tqdm[None] | None = None
        if stream is not None and stream.isatty():
            self._bar = tqdm(total=total, desc=label, unit=unit, unit_scale=True, file=stream, leave=False)

    def __call__(self, more: int) -> None:
        self._done += more
        if self._bar is not None:
            self._bar.update(more)
        elif self._stream is not None and time.monotonic() - self._last >= LINE_SECONDS:
            self._last = time.monotonic()
            speed = self._done / self._each / (self._last - self._start)
            print(
                f"{self._label}: {self._done / self._each:,.0f} of {self._total / self._each:,.0f} {self._unit}, "
                f"{speed:,.1f} {self._unit}/s",
                file=self._stream,
                flush=True,
            )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        if self._bar is not None:
            self._bar.close()
