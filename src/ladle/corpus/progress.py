"""How far a long pass over bytes has come: a bar on a terminal, plain lines elsewhere."""

from __future__ import annotations

import time
from types import TracebackType
from typing import Self, TextIO

from tqdm import tqdm

LINE_SECONDS = 5.0


class Progress:
    """Call it with the bytes done since its last call. stream: where to draw, or None to draw nothing."""

    def __init__(self, label: str, total: int, stream: TextIO | None) -> None:
        self._label, self._total, self._stream = label, total, stream
        self._done = 0
        self._start = self._last = time.monotonic()
        self._bar: tqdm[None] | None = None
        if stream is not None and stream.isatty():
            self._bar = tqdm(total=total, desc=label, unit="B", unit_scale=True, file=stream, leave=False)

    def __call__(self, num_bytes: int) -> None:
        self._done += num_bytes
        if self._bar is not None:
            self._bar.update(num_bytes)
        elif self._stream is not None and time.monotonic() - self._last >= LINE_SECONDS:
            self._last = time.monotonic()
            speed = self._done / 1e6 / (self._last - self._start)
            print(
                f"{self._label}: {self._done / 1e6:,.0f} of {self._total / 1e6:,.0f} MB, {speed:.1f} MB/s",
                file=self._stream,
                flush=True,
            )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        if self._bar is not None:
            self._bar.close()
