"""Where batches are delivered: NumPy arrays as they are, torch's tensors on a device, or JAX's arrays over a mesh."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ladle.corpus.split import Split
from ladle.errors import ConfigError, MissingExtra
from ladle.feed.batch import Arrival
from ladle.feed.producer import Shape

Send = Callable[[NDArray[np.int64]], Arrival]


def delivery(framework: str, device: Any, shape: Shape, tokens: Split) -> tuple[Send, Callable[[], None]]:
    """(what begins to take an int64 block (2, rows, T) to the device, what frees the device's buffers).

    Raises ConfigError for a framework or a device that is not there, MissingExtra for one that is not installed.
    """
    if framework == "numpy":
        if device is not None:
            raise ConfigError(f"device: expected None with framework='numpy', found {device!r}")
        return _pair, _nothing
    if framework == "jax":
        return _jax().Placer(device, shape, tokens).send, _nothing
    if framework != "torch":
        raise ConfigError(f"framework: expected 'torch', 'numpy' or 'jax', found {framework!r}")
    try:
        from torch import from_numpy
    except ImportError as error:
        raise MissingExtra("a feed with framework='torch' (there is framework='numpy')", "torch", "torch") from error
    from ladle.feed.torch import Mover

    mover = Mover("cpu" if device is None else device)
    if mover.device.type == "cpu":
        return (lambda block: lambda: (from_numpy(block[0]), from_numpy(block[1]))), _nothing
    return mover.send, mover.close


def processes(framework: str) -> tuple[int | None, int | None]:
    """(this process's number, how many there are) where the framework knows its processes, else None."""
    return _jax().processes() if framework == "jax" else (None, None)


def _jax() -> Any:
    from ladle.feed import jax

    return jax


def _pair(block: NDArray[np.int64]) -> Arrival:
    return lambda: (block[0], block[1])


def _nothing() -> None:
    pass
