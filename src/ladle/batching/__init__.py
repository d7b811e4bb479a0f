"""Any dataset in batches: images, tables, arrays, texts of unequal length. Needs torch (`pip install 'ladle[torch]'`).

Any torch Dataset will do. One may say more of itself, by attributes that Table, Folder and Arrays have, and any other may:

    describe(index) -> str   what stands there, a file's path for instance: named in errors
    labels                   one label a sample, as an array: for balance="class", and to warn of batches of one class
    in_memory (bool)         samples come without reading or decoding: workers="auto" then starts none
    seed_samples (bool)      samples draw random numbers (by default they may): False saves seeding each of them
    on_error                 "skip": samples may be None, and are left out of their batch
    fingerprint (str)        a hash of what it lists: by it `cache` knows its own
    __getitems__(indices)    several samples at once, used where seed_samples is False
"""

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
    from ladle.batching.reading import drop_missing as drop_missing
    from ladle.batching.table import Table as Table

_WHERE = {
    "load_text": "files",
    "load_image": "files",
    "load_array": "files",
    "cache": "cache",
    "drop_missing": "reading",
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
    "drop_missing",
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
