"""NumPy blocks -> JAX arrays: on one device, or as global arrays over a mesh. Imported late, by whoever delivers to JAX."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from ladle.corpus.split import Split
from ladle.errors import ConfigError, MissingExtra, TokenError
from ladle.feed.batch import Arrival

try:
    import jax
except ModuleNotFoundError as error:
    raise MissingExtra("a feed with framework='jax'", "jax", "jax") from error

if TYPE_CHECKING:
    from ladle.feed.producer import Shape

WIDEST = 2**31  # ids are int32, JAX's own width


def processes() -> tuple[int, int]:
    """(this process's number, how many there are), as JAX knows them."""
    return jax.process_index(), jax.process_count()


class Placer:
    """Takes blocks of ids to JAX: x and y are int32 and begin their copy in the thread that sends them.

    device: None (JAX's default), a jax.Device, or a jax.sharding.Sharding. Over a sharding x and y are global arrays
    (B, T), of which this process places the rows that its devices hold: they must be the rows of its rank.
    Raises ConfigError for a sharding that does not divide the batch or holds other rows, TokenError for ids above int32.
    """

    def __init__(self, device: Any, shape: Shape, split: Split) -> None:
        self._device = device
        self._whole = shape.batch_size, shape.block_size
        self._sharded = isinstance(device, jax.sharding.Sharding)
        if not self._sharded and device is not None and not isinstance(device, jax.Device):
            raise ConfigError(f"device: expected a jax.Device or a jax.sharding.Sharding with framework='jax', found {device!r}")
        if self._sharded:
            _check_rows(device, self._whole, shape.slice)
        self._narrow = (split.max_id is not None and split.max_id < WIDEST) or split.dtype.itemsize == 2
        self._where = split.where

    def send(self, block: NDArray[np.int64]) -> Arrival:
        """Begin to take an int64 block (2, rows, T) over; what comes back gives x and y."""
        if not self._narrow and (largest := int(block.max())) >= WIDEST:
            raise TokenError(f"{self._where}: id: expected below 2**31, as JAX's int32 holds, found {largest}")
        ids = block.astype(np.int32)
        if self._sharded:
            place = jax.make_array_from_process_local_data
            pair = tuple(place(self._device, part, self._whole) for part in ids)  # type: ignore[no-untyped-call]
        else:
            pair = tuple(jax.device_put(part, self._device) for part in ids)
        return lambda: pair


def placed_like(array: NDArray[Any], x: Any) -> Any:
    """An array (rows, T) of this process's rows, placed as x is; another one whole, on x's first device here."""
    if x.is_fully_addressable:
        same = array.shape == x.shape
        return jax.device_put(array, x.sharding if same else min(x.devices(), key=lambda device: device.id))
    if array.ndim != x.ndim:
        return jax.device_put(array, min(x.sharding.addressable_devices, key=lambda device: device.id))
    return jax.make_array_from_process_local_data(x.sharding, array, x.shape)  # type: ignore[no-untyped-call]


def _check_rows(sharding: Any, whole: tuple[int, int], mine: slice) -> None:
    try:
        sharding.shard_shape(whole)
    except ValueError as error:
        reason = str(error).split("\n", 1)[0]
        raise ConfigError(f"device: expected a sharding that divides a batch of {whole}, found {sharding}: {reason}") from error
    held: set[int] = set()
    for index in sharding.addressable_devices_indices_map(whole).values():
        held.update(range(*index[0].indices(whole[0])))
    if held != set(range(mine.start, mine.stop)):
        found = f"rows {min(held)} to {max(held)}" if held else "none"
        raise ConfigError(
            f"rank, world_size: expected this process to make rows {mine.start} to {mine.stop - 1} of the global batch's "
            f"{whole[0]}, found a mesh whose devices here hold {found}; order the mesh by process, or pass rank= and world_size="
        )
