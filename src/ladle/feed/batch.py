"""A batch: x, y and where they stand in the stream."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from ladle.errors import ConfigError
from ladle.feed.boundaries import Boundaries, like
from ladle.feed.state import FeedState
from ladle.order.permutation import I64

DIGEST_MODULUS = 2**64
PLACE = ("position", "next_position", "num_targets", "num_local_targets", "rows", "starts")

Arrival = Callable[[], Any]  # gives what unpacks to x and y, in the thread that will use them


class Batch:
    """One rank's rows of a global batch; `x, y = batch` unpacks.

    x, y: int64 (rows, T), contiguous, sharing no element; y is x one token later, `ignore_index` where a target does
    not count. They are the user's own: nothing writes into them again.
    position: slots handed out before this batch, all ranks together; next_position: after it.
    num_targets: targets that count in the global batch, over all ranks. num_local_targets: those of this rank's rows.
    rows: numbers of this rank's rows in the stream (a range). starts: int64 (rows,), read-only, the token index in the
    split of each row's first input.
    Of feeds that keep documents apart (pack=, mask_documents=True), else ConfigError: positions, segments, cu_seqlens and
    max_seqlen, where x lives.
    """

    __slots__ = (
        "_arrival",
        "_boundaries",
        "_digest",
        "_made",
        "_stream",
        "next_position",
        "num_local_targets",
        "num_targets",
        "position",
        "rows",
        "starts",
        "x",
        "y",
    )

    def __init__(
        self,
        arrival: Arrival,
        *,
        position: int,
        next_position: int,
        num_targets: int,
        num_local_targets: int,
        rows: range,
        starts: I64,
        stream: FeedState | Mapping[str, object],
        boundaries: Boundaries | None = None,
    ) -> None:
        """arrival: gives x and y once `arrive` is called. stream: a state of the feed, at any position; or `state` itself.
        boundaries: of the documents in these rows, where the feed keeps them apart."""
        self._arrival: Arrival | None = arrival
        self.x: Any = None
        self.y: Any = None
        self.position, self.next_position = position, next_position
        self.num_targets, self.num_local_targets = num_targets, num_local_targets
        self._boundaries, self._made = boundaries, dict[str, Any]()
        self.rows, self.starts, self._stream = rows, starts, stream
        self._digest: int | None = None

    def arrive(self) -> Self:
        """Take x and y over, in the thread that will use them; the feed does it before it hands the batch out."""
        if self._arrival is not None:
            self.x, self.y = self._arrival()
            self._arrival = None
        return self

    @property
    def state(self) -> dict[str, object]:
        """The feed's state_dict() once this batch has been received: what to save with the step it trained."""
        stream = self._stream
        return stream.at(self.next_position).to_dict() if isinstance(stream, FeedState) else dict(stream)

    def __iter__(self) -> Iterator[Any]:
        return iter((self.x, self.y))

    # --- where documents begin and end, computed when asked for ---

    @property
    def apart(self) -> bool:
        """Whether documents are kept apart, so that the batch knows where they begin and end."""
        return self._boundaries is not None

    @property
    def boundaries(self) -> Boundaries:
        """The documents' pieces in this rank's rows, as arrays of NumPy. Raises ConfigError where they are not kept apart."""
        if self._boundaries is None:
            raise ConfigError(
                "batch: expected a feed that keeps documents apart, found plain windows; make the feed with "
                "mask_documents=True, or with pack="
            )
        return self._boundaries

    @property
    def positions(self) -> Any:
        """int64 (rows, T): each token's place in its document, also where a row begins within one; padding has 0."""
        return self._delivered("positions")

    @property
    def segments(self) -> Any:
        """int32 (rows, T): which document of its row a token belongs to, from 0; padding has -1."""
        return self._delivered("segments")

    @property
    def cu_seqlens(self) -> Any:
        """int32 [documents' parts + 1], strictly increasing from 0: where they end, all rows laid end to end, without padding."""
        return self._delivered("cu_seqlens")

    @property
    def max_seqlen(self) -> int:
        """The length of the longest document's part, in tokens."""
        return self.boundaries.max_seqlen

    # Their forms for attention, from ladle.feed.masks: made anew each time, with torch.

    def restarted(self) -> Any:
        """Positions from 0 where a document's part begins in its row: int64 (rows, T), below T, as a learned table wants them."""
        from ladle.feed.masks import restarted

        return restarted(self.segments)

    def attention_mask(self) -> Any:
        """For scaled_dot_product_attention: bool (rows, 1, T, T), causal and within documents."""
        from ladle.feed.masks import attention_mask

        return attention_mask(self.segments)

    def block_mask(self, *, block_size: int = 128) -> Any:
        """For FlexAttention: the same as a BlockMask."""
        from ladle.feed.masks import block_mask

        return block_mask(self.segments, block_size=block_size)

    def flatten(self, **how: Any) -> Any:
        """For flash-attention's variable-length form: the rows laid end to end; how: see ladle.feed.masks.flatten."""
        from ladle.feed.masks import flatten

        return flatten(self, **how)

    def for_transformers(self, attention: str = "sdpa") -> dict[str, Any]:
        """For a causal model of Hugging Face's transformers: see ladle.feed.masks.for_transformers."""
        from ladle.feed.masks import for_transformers

        return for_transformers(self, attention)

    def _delivered(self, name: str) -> Any:
        if name not in self._made:
            self._made[name] = like(getattr(self.boundaries, name), self.x)
        return self._made[name]

    @property
    def digest(self) -> int:
        """The sum of the row digests mod 2**64, so that the digests of all ranks add up to the global batch's.

        A row's digest is the first 8 bytes, little-endian, of BLAKE2b (digest size 8) over row number as uint64, x as
        uint32 and y as int32, all little-endian. Computed when first asked for: ask before writing into x or y.
        """
        if self._digest is None:
            x, y = (self._on_host(part) for part in self)
            total = 0
            for row, inputs, targets in zip(self.rows, x.astype("<u4"), y.astype("<i4"), strict=True):
                hashed = hashlib.blake2b(row.to_bytes(8, "little"), digest_size=8)
                hashed.update(inputs.data)
                hashed.update(targets.data)
                total += int.from_bytes(hashed.digest(), "little")
            self._digest = total % DIGEST_MODULUS
        return self._digest

    def _on_host(self, part: Any) -> NDArray[Any]:
        """This rank's rows of x or y."""
        if getattr(part, "is_fully_addressable", True):
            return np.asarray(part.cpu() if hasattr(part, "cpu") else part)
        whole = np.zeros(part.shape, np.int64)  # a global array of JAX's, of which other processes hold the other rows
        for shard in part.addressable_shards:
            whole[shard.index] = shard.data
        first = self.rows.start - self.position // part.shape[1]
        return whole[first : first + len(self.rows)]

    # --- what frameworks ask of a batch ---

    def to(self, device: Any, non_blocking: bool = False) -> Batch:
        """The batch on another torch device; itself where it is there already."""
        x, y = (part.to(device, non_blocking=non_blocking) for part in self)
        return self if x is self.x and y is self.y else self._with(lambda: (x, y))

    def pin_memory(self) -> Batch:
        """The batch in page-locked memory, as torch's DataLoader asks for."""
        x, y = (part.pin_memory() for part in self)
        return self._with(lambda: (x, y))

    def _with(self, arrival: Arrival) -> Batch:
        place = {name: getattr(self, name) for name in PLACE}
        return Batch(arrival, **place, stream=self._stream, boundaries=self._boundaries).arrive()

    def __reduce__(self) -> tuple[Any, ...]:
        """A batch crosses to another process as bytes, narrow where the ids allow, and never through shared memory.

        So any number of batches may be kept. What arrives is torch's where it was, else NumPy's.
        """
        place = {name: getattr(self, name) for name in PLACE} | {"boundaries": self._boundaries}
        packed = _packed(*(self._on_host(part) for part in self))
        return _arrived, (hasattr(self.x, "cpu"), packed, place, self.state, self._digest)

    def __repr__(self) -> str:
        rows, T = self.x.shape
        return f"Batch(position={self.position}, rows={rows}, block_size={T}, num_targets={self.num_targets})"


def _packed(x: NDArray[Any], y: NDArray[Any]) -> tuple[NDArray[Any], NDArray[np.intp], NDArray[Any]]:
    """x and y, (rows, T) each, as (rows of T + 1 ids, where y is not its row's next id, what y is there)."""
    rows = np.concatenate([x, np.maximum(y[:, -1:], 0)], axis=1)
    places = np.flatnonzero(y != rows[:, 1:])
    low, high = (int(rows.min()), int(rows.max())) if rows.size else (0, 0)
    return rows.astype(np.min_scalar_type(high) if low >= 0 else np.int64), places, y.reshape(-1)[places]


def _arrived(
    torch: bool,
    packed: tuple[NDArray[Any], NDArray[np.intp], NDArray[Any]],
    place: Mapping[str, Any],
    state: Mapping[str, object],
    digest: int | None,
) -> Batch:
    ids, places, values = packed
    block = np.empty((2, ids.shape[0], ids.shape[1] - 1), dtype=np.int64)
    block[0], block[1] = ids[:, :-1], ids[:, 1:]
    block[1].reshape(-1)[places] = values
    x, y = block[0], block[1]
    if torch:
        from torch import from_numpy

        x, y = from_numpy(x), from_numpy(y)
    batch = Batch(lambda: (x, y), **place, stream=state).arrive()
    batch._digest = digest
    return batch
