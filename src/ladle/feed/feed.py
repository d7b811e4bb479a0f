"""The feed: (corpus, recipe, seed, position) -> batch, and a consumer that walks along it."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from types import TracebackType
from typing import Any, Literal, Self

import numpy as np
from numpy.typing import NDArray

from ladle.corpus.split import Split
from ladle.errors import ClosedError, ConfigError, MissingExtra
from ladle.feed.batch import Batch
from ladle.feed.prefetch import Prefetcher
from ladle.feed.producer import Producer, Shape, Ticket
from ladle.feed.provenance import Span, spans
from ladle.feed.state import FeedState, recipe_hash, recipe_json
from ladle.order.permutation import ORDER_VERSION
from ladle.order.stream import Kind, Order
from ladle.rows.windows import Tail, Windows

DEFAULTS: dict[str, object] = {  # left out of the recipe, so that a new option changes no old hash
    "order": "shuffled",
    "stride": None,
    "tail": "cover",
    "epoch_offset": False,
    "shuffle_block": None,
    "score": "all",
}


class Feed:
    """Batches of one split, for ever, in an order that is a function of the seed and the position.

    source: a Split (`corpus["train"]`, `ladle.from_text(...)`, `ladle.from_ids(...)`); it stays the caller's to close.
    batch_size: rows of a global batch, all ranks together (B). block_size: targets a row (T).
    seed: any integer. order: "shuffled" (every window once an epoch, in a fresh order), "sequential" (as they lie), or
    "random" (independent windows, with replacement: no epochs).
    window: W, the unit that is shuffled; T divides it. None: T. Give it from the start to change T later.
    stride: targets from one window's start to the next, at most W (None: W). score: "all" | "new" targets of overlaps.
    tail: "cover" (the last window is moved back and masks what it repeats: every token but the first is a target
    exactly once an epoch), "drop" or "pad". epoch_offset: shift the cuts each epoch. shuffle_block: see `Order`.
    ignore_index: what y holds where a target does not count. epochs, total_tokens: make the feed finite (slots).
    rank, world_size: this process's slice of the global batch; None: from torch.distributed where it is initialised.
    framework: "torch" or "numpy". device: where x and y are delivered (torch).
    prefetch: batches made ahead by one thread; 0 makes them in the caller's.
    max_mapped: bytes of mapped pages that may stay resident (None: 4 GiB or a quarter of memory).

    Raises ConfigError for arguments that cannot be right, before the first batch. Has close() and works in `with`.
    """

    def __init__(
        self,
        source: Split,
        *,
        batch_size: int,
        block_size: int,
        seed: int = 0,
        order: Kind = "shuffled",
        window: int | None = None,
        stride: int | None = None,
        score: Literal["all", "new"] = "all",
        tail: Tail = "cover",
        epoch_offset: bool = False,
        shuffle_block: int | None = None,
        ignore_index: int = -100,
        epochs: int | None = None,
        total_tokens: int | None = None,
        rank: int | None = None,
        world_size: int | None = None,
        device: Any = None,
        framework: Literal["torch", "numpy"] = "torch",
        prefetch: int = 2,
        max_mapped: int | None = None,
    ) -> None:
        if not isinstance(source, Split):
            found = type(source).__name__  # type: ignore[unreachable]
            raise ConfigError(f"source: expected a split, found {found}; use ladle.open(path)['train'] or ladle.from_ids(array)")
        _at_least(0, prefetch=prefetch, max_mapped=max_mapped)
        _at_least(1, batch_size=batch_size, block_size=block_size, window=window, epochs=epochs, total_tokens=total_tokens)
        if isinstance(seed, bool) or not hasattr(seed, "__index__"):
            raise ConfigError(f"seed: expected an integer, found {seed!r}")
        seed, window = int(seed), window or block_size
        rank, world_size = topology(rank, world_size)
        if world_size > batch_size:
            raise ConfigError(f"batch_size: expected at least a row for each of {world_size} ranks, found {batch_size} rows")
        self.source, self.seed = source, seed
        self.shape = Shape(batch_size=batch_size, block_size=block_size, rank=rank, world_size=world_size)
        self.windows = Windows(
            num_tokens=source.num_tokens,
            window=window,
            stride=None if stride == window else stride,
            tail=tail,
            epoch_offset=epoch_offset,
            seed=seed,
            score=score,
            where=source.where,
        )
        n = self.windows.targets - window + 1 if order == "random" else self.windows.count
        if order == "random" and (n < 1 or epochs is not None):
            raise ConfigError("order='random' has no epochs and pads nothing; use total_tokens= and a smaller block_size")
        self.order = Order(kind=order, n=n, seed=seed, shuffle_block=shuffle_block)
        settings: dict[str, object] = {
            "order": order,
            "stride": self.windows.stride,
            "tail": tail,
            "epoch_offset": epoch_offset,
            "shuffle_block": shuffle_block,
            "score": score,
            "order_version": ORDER_VERSION,
            "seed": seed,
            "window": window,
            "corpus": source.fingerprint,
        }
        self.recipe = recipe_hash(recipe_json(settings, DEFAULTS))
        self._state = FeedState(recipe=self.recipe, corpus=source.fingerprint, seed=seed, window=window, position=0)
        ends = [] if epochs is None else [epochs * self.slots_per_epoch]
        ends += [] if total_tokens is None else [total_tokens]
        self._end = min(ends, default=None)
        send, self._close_device = _sender(framework, device)

        def producer(*, advise: bool) -> Producer:
            return Producer(
                source,
                self.order,
                self.windows,
                self.shape,
                ignore_index=ignore_index,
                state=self._state,
                send=send,
                max_mapped=max_mapped,
                advise=advise,
            )

        self._look, self._walk = producer(advise=False), producer(advise=True)
        self._prefetcher: Prefetcher[Ticket, Batch] | None = None
        if prefetch:
            shape = self.shape

            def following(ticket: Ticket) -> Ticket | None:
                after = ticket.next_position(shape)
                return None if after == ticket.limit else Ticket(after, ticket.limit)

            self._prefetcher = Prefetcher(self._walk, following, prefetch)
        self._closed = False

    # --- the walk ---

    @property
    def position(self) -> int:
        """Slots received so far, all ranks together."""
        return self._state.position

    @property
    def slots_per_epoch(self) -> int:
        """n * W. Raises ConfigError for order="random", which has no epochs."""
        if self.order.kind == "random":
            raise ConfigError("order='random' has no epochs: it draws independent windows for ever; use total_tokens=")
        return self.windows.count * self.windows.window

    @property
    def batches_per_epoch(self) -> int:
        """Batches from one epoch's border to the next at this batch and block size; the last may be partly masked."""
        return -(-self.slots_per_epoch // self.shape.slots)

    def __len__(self) -> int:
        """Batches from position 0 to the end of a finite feed."""
        if self._end is None:
            hint = "" if self.order.kind == "random" else f" (feed.batches_per_epoch is {self.batches_per_epoch})"
            raise TypeError(f"this feed is endless: pass epochs= or total_tokens= to end it{hint}")
        return (self._end + self.shape.slots - 1) // self.shape.slots

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> Batch:
        return self._take(self._end)

    def _take(self, limit: int | None) -> Batch:
        self._check_open()
        ticket = Ticket(self.position, limit)
        if limit is not None and ticket.position >= limit:
            raise StopIteration
        batch = self._prefetcher.take(ticket) if self._prefetcher is not None else self._walk(ticket)
        self._move(batch.next_position)
        return batch

    def epoch(self) -> Iterator[Batch]:
        """Batches up to the next epoch's border, at fixed shape: rows past it are wholly masked. Then the feed stands at it."""
        border = (self.position // self.slots_per_epoch + 1) * self.slots_per_epoch
        limit = border if self._end is None else min(border, self._end)
        while self.position < limit:
            yield self._take(limit)

    # --- looking, without moving ---

    def at(self, position: int) -> Batch:
        """The batch that begins at this position (slots). A pure function: nothing moves."""
        self._check_open()
        if isinstance(position, bool) or not hasattr(position, "__index__") or not 0 <= int(position) < 2**62:
            raise ConfigError(f"position: expected 0 to 2**62 slots, found {position!r}")
        if self._end is not None and position >= self._end:
            raise IndexError(f"position: expected below the feed's end at {self._end} slots, found {position}")
        return self._look(Ticket(int(position), self._end))

    def __getitem__(self, step: int) -> Batch:
        """Batch number `step` counted from position 0 at this batch and block size."""
        if isinstance(step, bool) or not hasattr(step, "__index__"):
            raise ConfigError(f"step: expected an integer, found {step!r}; a feed has no slices")
        number = int(step)
        if number < 0:
            if self._end is None:
                raise ConfigError(f"step: expected >= 0 (the feed is endless), found {number}")
            number += len(self)
        if self._end is not None and not 0 <= number < len(self):
            raise IndexError(f"step: expected 0 to {len(self) - 1}, found {step}")
        return self.at(number * self.shape.slots)

    def where(self, step: int, row: int) -> list[Span]:
        """The documents in a row of the global batch number `step`, in order, with their provenance."""
        B, T = self.shape.batch_size, self.shape.block_size
        if not 0 <= row < B:
            raise ConfigError(f"row: expected 0 to {B - 1}, found {row}")
        whole = self._look.rows(step * B, B)
        return spans(self.source, int(whole.start[row]), T + 1)

    # --- state ---

    def state_dict(self) -> dict[str, object]:
        """Where the consumer stands: plain JSON values, under 400 bytes, the same on every rank."""
        return self._state.to_dict()

    def load_state_dict(self, state: Mapping[str, object]) -> None:
        """Continue from a saved state, also under another batch size, block size, rank or prefetch depth.

        Takes effect at once, before or after iteration has begun. Raises StateError if it belongs to another stream.
        """
        self._check_open()
        self._move(self._state.position_from(state))

    def _move(self, position: int) -> None:
        self._state = replace(self._state, position=position)

    # --- lifetime ---

    def close(self) -> None:
        """End the thread and free the device's buffers. The source stays open. Safe to call twice."""
        if not self._closed:
            self._closed = True
            if self._prefetcher is not None:
                self._prefetcher.close()
            self._close_device()

    def _check_open(self) -> None:
        if self._closed:
            raise ClosedError("this feed is closed; make another from the same source and load its state_dict()")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None) -> None:
        self.close()

    def __repr__(self) -> str:
        B, T = self.shape.batch_size, self.shape.block_size
        return f"Feed({self.source.where}, batch_size={B}, block_size={T}, order={self.order.kind!r}, position={self.position})"


def _at_least(least: int, **values: int | None) -> None:
    for name, value in values.items():
        if value is None:
            continue
        if isinstance(value, bool) or not hasattr(value, "__index__") or not least <= int(value) < 2**62:
            raise ConfigError(f"{name}: expected an integer >= {least}, found {value!r}")


def topology(rank: int | None, world_size: int | None) -> tuple[int, int]:
    """(rank, world size): as given, else torch.distributed's where it is initialised, else (0, 1)."""
    distributed = sys.modules.get("torch.distributed")
    running = distributed is not None and distributed.is_available() and distributed.is_initialized()
    known = (distributed.get_rank(), distributed.get_world_size()) if distributed is not None and running else None
    if rank is None and world_size is None:
        return known or (0, 1)
    if rank is None or world_size is None:
        raise ConfigError(f"rank and world_size go together: found rank={rank}, world_size={world_size}")
    _at_least(0, rank=rank)
    _at_least(1, world_size=world_size)
    if rank >= world_size:
        raise ConfigError(f"rank: expected 0 to {world_size - 1} in a world of {world_size}, found {rank}")
    if known is not None and known[1] > 1 and known != (rank, world_size):
        raise ConfigError(f"rank, world_size: expected torch.distributed's {known}, found {(rank, world_size)}")
    return int(rank), int(world_size)


def _sender(framework: str, device: Any) -> tuple[Callable[[NDArray[np.int64]], Any], Callable[[], None]]:
    """(what takes an int64 block (2, rows, T) to the device, what frees it)."""
    if framework == "numpy":
        if device is not None:
            raise ConfigError(f"device: expected None with framework='numpy', found {device!r}")
        return (lambda block: block), (lambda: None)
    if framework != "torch":
        raise ConfigError(f"framework: expected 'torch' or 'numpy', found {framework!r}")
    try:
        import torch  # noqa: F401
    except ImportError as error:
        raise MissingExtra("a feed with framework='torch' (there is framework='numpy')", "torch", "torch") from error
    from ladle.feed.torch import Mover

    mover = Mover("cpu" if device is None else device)
    return mover, mover.close
