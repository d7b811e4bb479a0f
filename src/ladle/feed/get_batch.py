"""`get_batch`, for a training script that has a function of that name."""

from __future__ import annotations

import os
from collections.abc import Mapping
from types import TracebackType
from typing import Any, Literal, Self

from ladle.corpus.corpus import Corpus
from ladle.corpus.open import open as open_corpus
from ladle.errors import ClosedError, LadleError, StateError
from ladle.feed.arguments import integer
from ladle.feed.feed import Feed
from ladle.feed.ranks import topology


def get_batch(
    corpus: str | os.PathLike[str] | Corpus,
    *,
    batch_size: int,
    block_size: int,
    device: Any = None,
    seed: int = 0,
    order: Literal["random", "shuffled", "sequential"] = "random",
    rank: int | None = None,
    world_size: int | None = None,
    framework: Literal["torch", "numpy"] = "torch",
    prefetch: int | None = None,
) -> GetBatch:
    """A function split name -> (x, y) that replaces a script's own get_batch.

        get_batch = ladle.get_batch("data/books", batch_size=12, block_size=1024, device="cuda")
        x, y = get_batch("train")

    corpus: a folder that `ladle.open` reads, or an open Corpus (then its owner closes it). batch_size: rows per process
    and call; with several ranks a global batch has batch_size * world_size rows, and no two ranks draw the same.
    x, y: int64 (batch_size, block_size), contiguous, sharing no memory; y is the same one token later and never masked.
    order: "random" draws independent windows, every start from 0 to N - T - 1 alike; "shuffled" and "sequential" leave
    the tail out, so that no target is masked. prefetch: batches made ahead; None: 0 on the CPU, else 2.
    seed, device, framework, rank, world_size: as for `Feed`.
    Raises ConfigError where a split is too short, when it is first asked for.
    """
    return GetBatch(
        corpus,
        batch_size=batch_size,
        block_size=block_size,
        device=device,
        seed=seed,
        order=order,
        rank=rank,
        world_size=world_size,
        framework=framework,
        prefetch=prefetch,
    )


class GetBatch:
    """What `ladle.get_batch` returns: called with a split's name, it gives that split's next (x, y).

    Each split has its own counter: asking for "val" never moves "train". Has close() and works in `with`.
    """

    def __init__(
        self,
        corpus: str | os.PathLike[str] | Corpus,
        *,
        batch_size: int,
        block_size: int,
        device: Any,
        seed: int,
        order: Literal["random", "shuffled", "sequential"],
        rank: int | None,
        world_size: int | None,
        framework: Literal["torch", "numpy"],
        prefetch: int | None,
    ) -> None:
        self._rank, self._world_size = rank, world_size
        self._batch_size = integer("batch_size", batch_size, 1)
        integer("block_size", block_size, 1)
        topology(rank, world_size)
        if prefetch is None:
            prefetch = 0 if device is None or str(device).startswith("cpu") else 2
        self._owned = not isinstance(corpus, Corpus)
        self.corpus = corpus if isinstance(corpus, Corpus) else open_corpus(corpus)
        self._settings: dict[str, Any] = {
            "block_size": block_size,
            "device": device,
            "seed": seed,
            "order": order,
            "tail": "cover" if order == "random" else "drop",
            "framework": framework,
            "prefetch": prefetch,
        }
        self._feeds: dict[str, Feed] = {}
        self._closed = False

    def __call__(self, split: str) -> tuple[Any, Any]:
        """The split's next x and y, int64 (batch_size, block_size) each."""
        batch = next(self.feed(split))
        return batch.x, batch.y

    def feed(self, split: str) -> Feed:
        """The feed behind a split: its position, its batches by number, where their rows came from."""
        if self._closed:
            raise ClosedError("this get_batch is closed; make another and load its state_dict()")
        if split not in self._feeds:
            rank, world_size = topology(self._rank, self._world_size)  # now: torch.distributed may have begun since
            rows = self._batch_size * world_size
            self._feeds[split] = Feed(self.corpus[split], batch_size=rows, rank=rank, world_size=world_size, **self._settings)
        return self._feeds[split]

    def state_dict(self) -> dict[str, object]:
        """{split: its feed's state} for the splits used so far."""
        return {name: feed.state_dict() for name, feed in self._feeds.items()}

    def load_state_dict(self, state: Mapping[str, object]) -> None:
        """Continue each split in `state` where it was saved; splits not in it start anew.

        Raises StateError naming the split, and then moves none.
        """
        if not isinstance(state, Mapping):
            raise StateError(f"state: expected a get_batch's state_dict {{split: state}}, found {type(state).__name__}")
        before = self.state_dict()
        for name, saved in state.items():
            try:
                self.feed(name).load_state_dict(saved)  # type: ignore[arg-type]
            except LadleError as error:
                for other, position in before.items():
                    self._feeds[other].load_state_dict(position)  # type: ignore[arg-type]
                raise StateError(f"split {name!r}: {error}") from error
        for name in set(self._feeds) - set(state):
            self._feeds.pop(name).close()

    def close(self) -> None:
        """End the threads and, if this object opened the corpus, close it. Safe to call twice."""
        if not self._closed:
            self._closed = True
            for feed in self._feeds.values():
                feed.close()
            if self._owned:
                self.corpus.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None) -> None:
        self.close()
