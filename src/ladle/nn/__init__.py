"""Ids to vectors: token and position embeddings, and a small reference GPT. Needs torch (`pip install 'ladle[torch]'`)."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

from ladle.errors import MissingExtra

if TYPE_CHECKING:
    from ladle.nn.config import GPT2 as GPT2
    from ladle.nn.config import GPTConfig as GPTConfig
    from ladle.nn.embedding import Embedding as Embedding
    from ladle.nn.embedding import check_ids as check_ids
    from ladle.nn.generation import generate as generate
    from ladle.nn.gpt import GPT as GPT

_WHERE = {
    "GPT": "gpt",
    "GPT2": "config",
    "Embedding": "embedding",
    "GPTConfig": "config",
    "check_ids": "embedding",
    "generate": "generation",
}

__all__ = ["GPT", "GPT2", "Embedding", "GPTConfig", "check_ids", "generate"]


def __getattr__(name: str) -> object:
    if name not in _WHERE:
        raise AttributeError(f"module 'ladle.nn' has no attribute {name!r}")
    try:
        return getattr(importlib.import_module(f"ladle.nn.{_WHERE[name]}"), name)
    except ModuleNotFoundError as error:
        if error.name != "torch":
            raise
        raise MissingExtra(f"ladle.nn.{name}", "torch", "torch") from error


def __dir__() -> list[str]:
    return sorted(__all__)
