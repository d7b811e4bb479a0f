"""Ladle feeds language models: text in, tokens on disk, (x, y) batches on the device.

A training stream is a pure function: (corpus, recipe, seed, position) -> batch.

Importing this package does nothing: each public name is imported when it is first used.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ladle.corpus.memory import from_ids as from_ids
    from ladle.corpus.memory import from_text as from_text
    from ladle.corpus.open import open as open
    from ladle.corpus.prepare import prepare as prepare
    from ladle.feed.dataloader import GPTDataset as GPTDataset
    from ladle.feed.dataloader import create_dataloader as create_dataloader
    from ladle.feed.dataset import FeedDataset as FeedDataset
    from ladle.feed.feed import Feed as Feed
    from ladle.feed.get_batch import get_batch as get_batch
    from ladle.feed.mixture import Mixture as Mixture
    from ladle.train.batch_size import estimate_batch_size as estimate_batch_size
    from ladle.train.seeds import set_seed as set_seed

__version__ = "0.1.0"

_WHERE = {
    "Feed": "ladle.feed.feed",
    "FeedDataset": "ladle.feed.dataset",
    "GPTDataset": "ladle.feed.dataloader",
    "Mixture": "ladle.feed.mixture",
    "create_dataloader": "ladle.feed.dataloader",
    "estimate_batch_size": "ladle.train",
    "from_ids": "ladle.corpus.memory",
    "from_text": "ladle.corpus.memory",
    "get_batch": "ladle.feed.get_batch",
    "open": "ladle.corpus.open",
    "prepare": "ladle.corpus.prepare",
    "set_seed": "ladle.train",
}

__all__ = [
    "Feed",
    "FeedDataset",
    "GPTDataset",
    "Mixture",
    "__version__",
    "create_dataloader",
    "estimate_batch_size",
    "from_ids",
    "from_text",
    "get_batch",
    "open",
    "prepare",
    "set_seed",
]


def __getattr__(name: str) -> object:
    if name in _WHERE:
        import importlib

        return getattr(importlib.import_module(_WHERE[name]), name)
    raise AttributeError(f"module 'ladle' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)
