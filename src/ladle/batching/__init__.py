"""Any dataset in batches: images, tables, arrays, texts of unequal length. Needs torch (`pip install 'ladle[torch]'`)."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

from ladle.errors import MissingExtra

if TYPE_CHECKING:
    from ladle.batching.arrays import Arrays as Arrays
    from ladle.batching.cache import cache as cache
    from ladle.batching.collate import Padded as Padded
    from ladle.batching.collate import pad as pad
    from ladle.batching.dataloader import loader as loader
    from ladle.batching.device import to_device as to_device
    from ladle.batching.face import Loader as Loader
    from ladle.batching.files import load_array as load_array
    from ladle.batching.files import load_image as load_image
    from ladle.batching.files import load_text as load_text
    from ladle.batching.folder import Folder as Folder
    from ladle.batching.keyed import generator as generator
    from ladle.batching.pairs import pair as pair
    from ladle.batching.table import Table as Table

_WHERE = {
    "load_text": "files",
    "load_image": "files",
    "load_array": "files",
    "cache": "cache",
    "Table": "table",
    "Folder": "folder",
    "Arrays": "arrays",
    "Loader": "face",
    "Padded": "collate",
    "generator": "keyed",
    "loader": "dataloader",
    "pad": "collate",
    "pair": "pairs",
    "to_device": "device",
}

__all__ = [
    "Arrays",
    "Folder",
    "Loader",
    "Padded",
    "Table",
    "cache",
    "generator",
    "load_array",
    "load_image",
    "load_text",
    "loader",
    "pad",
    "pair",
    "to_device",
]


def __getattr__(name: str) -> object:
    if name not in _WHERE:
        raise AttributeError(f"module 'ladle.batching' has no attribute {name!r}")
    try:
        found = getattr(importlib.import_module(f"ladle.batching.{_WHERE[name]}"), name)
    except ModuleNotFoundError as error:
        if error.name != "torch":
            raise
        raise MissingExtra(f"ladle.batching.{name}", error.name, "torch") from error
    globals()[name] = found  # else `ladle.batching.loader` would be the module once it is imported
    return found


def __dir__() -> list[str]:
    return sorted(__all__)
