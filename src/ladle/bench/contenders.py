"""Who is compared: Ladle's gather and feed, nanoGPT's published algorithm, and a Dataset under torch's DataLoader."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray

from ladle.bench.rounds import I64, Contender
from ladle.corpus.split import Split
from ladle.feed.feed import Feed
from ladle.feed.gather import gather

NANOGPT = "nanoGPT's algorithm"


class NanoGPT:
    """The algorithm nanoGPT publishes, written anew from its description.

    The file is mapped again for each batch; starts are drawn by torch.randint; each row is one slice of the map for x and,
    again, one for y, each cast to int64; the rows are stacked. Every start from 0 to N - T - 1 may be drawn.
    """

    def __init__(self, path: Path, dtype: np.dtype[Any], batch_size: int, block_size: int) -> None:
        self._path, self._dtype, self._shape = path, dtype, (batch_size, block_size)

    def __call__(self) -> tuple[torch.Tensor, torch.Tensor]:
        B, T = self._shape
        tokens = self._map()
        return self._rows(tokens, torch.randint(len(tokens) - T, (B,)))

    def at(self, starts: I64) -> tuple[torch.Tensor, torch.Tensor]:
        return self._rows(self._map(), torch.from_numpy(starts))

    def _map(self) -> NDArray[Any]:
        return np.memmap(self._path, dtype=self._dtype, mode="r")

    def _rows(self, tokens: NDArray[Any], starts: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        T = self._shape[1]
        x = torch.stack([torch.from_numpy(tokens[i : i + T].astype(np.int64)) for i in starts])
        y = torch.stack([torch.from_numpy(tokens[i + 1 : i + 1 + T].astype(np.int64)) for i in starts])
        return x, y


def nanogpt(path: Path, dtype: np.dtype[Any]) -> Contender:
    """path: the bare tokens. dtype: theirs."""

    @contextmanager
    def opened(batch_size: int, block_size: int) -> Iterator[NanoGPT]:
        yield NanoGPT(path, dtype, batch_size, block_size)

    return Contender(name=NANOGPT, open=opened)


class Windows(torch.utils.data.Dataset[Any]):
    """Windows of T targets, back to back, over one map that stays: item i is x and y as int64."""

    def __init__(self, path: Path, dtype: np.dtype[Any], block_size: int) -> None:
        self._tokens, self._T = np.memmap(path, dtype=dtype, mode="r"), block_size

    def __len__(self) -> int:
        return (len(self._tokens) - 1) // self._T

    def __getitem__(self, index: int) -> tuple[torch.Tensor, torch.Tensor]:
        return self.window(index * self._T)

    def window(self, start: int) -> tuple[torch.Tensor, torch.Tensor]:
        row = torch.from_numpy(self._tokens[start : start + self._T + 1].astype(np.int64))
        return row[:-1], row[1:]


class Loader:
    """Whatever can be iterated to (x, y), for ever: the next pass begins where one ends."""

    at = None

    def __init__(self, loader: Any, read: Callable[[Any], tuple[Any, Any]] = tuple) -> None:
        self._loader, self._read, self._batches = loader, read, iter(loader)

    def __call__(self) -> tuple[Any, Any]:
        batch = next(self._batches, None)
        if batch is None:
            self._batches = iter(self._loader)
            batch = next(self._batches)
        return self._read(batch)


def dataloader(path: Path, dtype: np.dtype[Any]) -> Contender:
    """torch's DataLoader without workers, its own collate, shuffled."""

    @contextmanager
    def opened(batch_size: int, block_size: int) -> Iterator[Loader]:
        windows = Windows(path, dtype, block_size)
        yield Loader(torch.utils.data.DataLoader(windows, batch_size=batch_size, shuffle=True, drop_last=True))

    return Contender(name="DataLoader, 0 workers", open=opened)


class Gather:
    """feed/gather.py on random starts, drawn 4 096 or a batch at a time: x and y contiguous in one allocation."""

    def __init__(self, split: Split, batch_size: int, block_size: int) -> None:
        self._split, self._shape, self._random = split, (batch_size, block_size), np.random.default_rng(0)
        self._starts: Iterator[I64] = iter(())

    def __call__(self) -> tuple[Any, Any]:
        B, T = self._shape
        if (starts := next(self._starts, None)) is None:
            drawn = self._random.integers(0, self._split.num_tokens - T, (max(1, 4096 // B), B))
            self._starts = iter(drawn)
            starts = next(self._starts)
        return self.at(starts)

    def at(self, starts: I64) -> tuple[Any, Any]:
        x, y = gather(self._split, starts, self._shape[1])
        return x, y


def ladle_gather(split: Split) -> Contender:
    """split: open, and staying so."""

    @contextmanager
    def opened(batch_size: int, block_size: int) -> Iterator[Gather]:
        yield Gather(split, batch_size, block_size)

    return Contender(name="Ladle, gather alone", open=opened)


class Fed:
    """next(feed), everything on."""

    at = None

    def __init__(self, feed: Feed) -> None:
        self._feed = feed

    def __call__(self) -> tuple[Any, Any]:
        batch = next(self._feed)
        return batch.x, batch.y


def ladle_feed(split: Split, order: Literal["random", "shuffled"], prefetch: int | None) -> Contender:
    """prefetch: batches made ahead; None for the feed's default."""

    @contextmanager
    def opened(batch_size: int, block_size: int) -> Iterator[Fed]:
        options: dict[str, Any] = {} if prefetch is None else {"prefetch": prefetch}
        if order == "shuffled":
            options["tail"] = "drop"  # nothing masked, so that y can be checked against the corpus
        with Feed(split, batch_size=batch_size, block_size=block_size, seed=1, order=order, **options) as feed:
            yield Fed(feed)

    ahead = "default prefetch" if prefetch is None else f"prefetch {prefetch}"
    return Contender(name=f"Ladle, next(feed), {order}, {ahead}", open=opened)
