"""One file -> one sample: arrays, images, texts; float32 by default."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor

from ladle.errors import ConfigError, FormatError, MissingExtra

Load = Callable[[str], Any]
IMAGES = frozenset({".png", ".jpg", ".jpeg", ".bmp", ".gif", ".webp", ".tif", ".tiff", ".ppm"})
TEXTS = frozenset({".txt", ".text", ".md"})


def load_array(path: str, dtype: str | None = "float32") -> Tensor:
    """An .npy file as a tensor. dtype: of floating-point arrays; integers stay as they are, and None keeps all.

    Raises FormatError for a file of pickled objects, or of no array; OSError as it is.
    """
    try:
        array = np.load(path, allow_pickle=False)
    except (ValueError, EOFError) as error:
        raise FormatError(path, None, "array", "an .npy file of numbers", str(error).split("\n", 1)[0]) from error
    if not isinstance(array, np.ndarray):
        array.close()
        raise FormatError(path, None, "array", "one array (.npy)", "an archive of several (.npz)")
    return tensor(array, dtype)


def load_image(path: str, size: tuple[int, int] | int | None = None, mode: str = "RGB") -> Tensor:
    """An image as float32 (channels, height, width), 0 to 1. size: (height, width), or one for both, to resize to (bilinear).

    mode: Pillow's, "RGB" or "L" as a rule. Raises MissingExtra without Pillow, OSError for a file that is no image.
    """
    try:
        from PIL import Image
    except ModuleNotFoundError as error:
        raise MissingExtra("ladle.batching.load_image", "PIL", "images") from error
    with Image.open(path) as image:
        found = image.convert(mode)
        if size is not None:
            height, width = (size, size) if isinstance(size, int) else size
            found = found.resize((width, height), Image.Resampling.BILINEAR)
        pixels = np.asarray(found, dtype=np.float32) / 255
    pixels = pixels[None] if pixels.ndim == 2 else pixels.transpose(2, 0, 1)
    return torch.from_numpy(np.ascontiguousarray(pixels))


def load_text(path: str) -> str:
    """A text file, UTF-8. Raises FormatError where it is not."""
    content = Path(path).read_bytes()
    try:
        return content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise FormatError(path, error.start, "text", "UTF-8", f"the byte {content[error.start]:#04x}") from error


def load_by_suffix(path: str) -> Any:
    """What the file's suffix says: .npy, an image, or a text. Raises ConfigError for another one."""
    suffix = os.path.splitext(path)[1].lower()
    if suffix == ".npy":
        return load_array(path)
    if suffix in IMAGES:
        return load_image(path)
    if suffix in TEXTS:
        return load_text(path)
    raise ConfigError(
        f"load: expected .npy, an image or .txt to load by themselves, found {path!r}; pass load=, a function of a path"
    )


def loader_of(load: Load | Literal["auto"]) -> Load:
    """The function that loads a file. Raises ConfigError for what is none."""
    if load == "auto":
        return load_by_suffix
    if not callable(load):
        raise ConfigError(f"load: expected 'auto', or a function of a path, found {load!r}")
    return load


OURS: tuple[Load, ...] = (load_array, load_image, load_text, load_by_suffix)


def tensor(array: Any, dtype: str | None = "float32") -> Tensor:
    """An array of one's own as a tensor: floating-point values as dtype (None keeps theirs), integers as they are."""
    found = np.asarray(array)
    if dtype is not None and found.dtype.kind == "f":
        found = found.astype(dtype, copy=False)
    if found.dtype.kind == "u" and found.dtype.itemsize > 1:  # torch hardly computes with unsigned integers above uint8
        found = found.astype(np.int64)
    if not found.flags.writeable or not found.flags.c_contiguous or not found.dtype.isnative:
        found = found.astype(found.dtype.newbyteorder("="), order="C", copy=True)
    return torch.from_numpy(found)


class Skips:
    """Which samples could not be made, shared by all processes: one byte a sample, so that counting twice changes nothing."""

    def __init__(self, samples: int) -> None:
        self._seen = torch.zeros(samples, dtype=torch.uint8).share_memory_()  # type: ignore[no-untyped-call]

    def note(self, index: int) -> None:
        """This sample could not be made."""
        self._seen[index] = 1

    @property
    def count(self) -> int:
        """How many different samples could not be made so far, in any process."""
        return int(self._seen.sum(dtype=torch.int64))

    @property
    def indices(self) -> list[int]:
        """Which ones."""
        return torch.nonzero(self._seen).flatten().tolist()


def unreadable(path: str, where: str, error: Exception) -> FormatError:
    """The error that names the sample and its file, for whatever its loading raised."""
    reason = str(error).split("\n", 1)[0] or type(error).__name__
    return FormatError(path, None, where, "a file that can be loaded", f"{type(error).__name__}: {reason}")
