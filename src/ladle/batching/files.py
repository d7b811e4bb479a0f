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
MODES = ("RGB", "L", "RGBA", "LA", "CMYK", "YCbCr", "HSV", "LAB")
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
    """An image as float32 (channels, height, width), 0 to 1. size: (height, width), or one for both, to resize to (bilinear,
    averaging where it shrinks).

    mode: Pillow's; one of MODES. Grey images of 16 bits keep them. The camera's note of how it was held is not followed.
    To choose: `load=functools.partial(load_image, size=224)`. Raises MissingExtra without Pillow, ConfigError for another size
    or mode, OSError for a file that is no image, FormatError for one of more bits.
    """
    try:
        from PIL import Image
    except ModuleNotFoundError as error:
        raise MissingExtra("ladle.batching.load_image", "PIL", "images") from error
    if mode not in MODES:
        raise ConfigError(f"mode: expected one of {', '.join(MODES)}, found {mode!r}")
    height, width = (size, size) if isinstance(size, int) or size is None else size
    if size is not None and min(height or 0, width or 0) < 1:
        raise ConfigError(f"size: expected at least 1 pixel each way, found {size!r}")
    with Image.open(path) as image:
        deep = image.mode.startswith("I;16")
        if image.mode in {"I", "F"} or (deep and mode not in {"L", "RGB"}):
            raise FormatError(path, None, "pixels", f"8 bits a channel for {mode}, or 16 for L and RGB", f"mode {image.mode}")
        found: Image.Image = image
        if deep:
            found = found.convert("F")  # else Pillow cuts off at 255
        elif "transparency" in found.info and found.mode == "P":
            found = found.convert("RGBA").convert(mode)
        else:
            found = found.convert(mode)
        if height is not None and width is not None:
            found = found.resize((width, height), Image.Resampling.BILINEAR)
        pixels = np.asarray(found, dtype=np.float32) / np.float32(65535 if deep else 255)
    pixels = np.repeat(pixels[None], 3 if mode == "RGB" else 1, axis=0) if pixels.ndim == 2 else pixels.transpose(2, 0, 1)
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
