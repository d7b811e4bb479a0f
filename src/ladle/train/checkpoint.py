"""Checkpoints: a folder that appears whole or not at all.

    step-00000500/
        model.safetensors       the parameters, by name
        optimizer.safetensors   "<parameter>.exp_avg", "<parameter>.exp_avg_sq", "<parameter>.step"
        state.json              format, step, the run's state, size and CRC-32 of the two files

It is written beside its place under a name that begins with a dot, synced, then renamed; nothing in it is a pickle. A
process killed at any moment leaves the older checkpoints as they were, and at most one folder with a dot, which the
next save removes.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import zlib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import UnionType
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from ladle.errors import FormatError

FORMAT = 1
MODEL, OPTIMIZER, STATE = "model.safetensors", "optimizer.safetensors", "state.json"
_NAME = re.compile(r"step-(\d{8,})")
_LARGEST_STATE = 64 << 20  # bytes; a vocabulary of characters is far below


def save(
    folder: Path, step: int, model: nn.Module, optimizer: torch.optim.Optimizer, state: Mapping[str, Any], *, keep: int
) -> Path:
    """Write folder/step-<step> (which must not be there yet), then remove all but the newest `keep`.

    state: plain JSON values. Returns the checkpoint's path. Raises FormatError when it cannot be written (a full disk, a
    read-only folder); then nothing has changed.
    """
    place = folder / f"step-{step:08d}"
    temp = folder / f".{place.name}.{os.getpid()}.tmp"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        _remove_leftovers(folder)
        temp.mkdir()
        try:
            _write(temp, step, model, optimizer, state)
            temp.rename(place)
            _sync(folder)
        finally:
            _remove_leftovers(folder)
        for old in list_checkpoints(folder)[:-keep]:
            hidden = old.with_name(f".{old.name}.{os.getpid()}.old.tmp")
            old.rename(hidden)  # gone at once and whole, so that a kill leaves no half of it under its own name
            shutil.rmtree(hidden)
    except (OSError, SafetensorError) as error:
        raise FormatError(
            place, None, "checkpoint", "room and permission to write it", error, "the older ones are whole"
        ) from error
    return place


def list_checkpoints(folder: Path) -> list[Path]:
    """The checkpoints in a folder, oldest first."""
    if not folder.is_dir():
        return []
    found = [(int(match[1]), path) for path in folder.iterdir() if (match := _NAME.fullmatch(path.name)) and path.is_dir()]
    return [path for _, path in sorted(found)]


@dataclass(frozen=True, slots=True)
class Saved:
    """A checkpoint whose files have been found whole. run: the state given to `save`."""

    path: Path
    step: int
    run: dict[str, Any]

    def load_into(self, model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
        """Copy its values into the model and the optimizer.

        Raises FormatError, before anything has changed, for files that hold other tensors than these.
        """
        parameters = dict(model.named_parameters())
        weights = _read_tensors(self.path / MODEL, {name: p.shape for name, p in parameters.items()})
        kept = _read_tensors(self.path / OPTIMIZER, _slots(parameters, optimizer))
        with torch.no_grad():
            for name, parameter in parameters.items():
                parameter.copy_(weights[name])
        names = _names(parameters)
        for p in _optimized(optimizer):
            slot = {key: kept[f"{names[p]}.{key}"].to(p.device) for key in ("exp_avg", "exp_avg_sq")}
            step = kept[f"{names[p]}.step"]
            optimizer.state[p] = slot | {"step": step.to(p.device) if p.device.type == "cuda" else step}


def read(path: Path, expect: Mapping[str, type | UnionType] | None = None) -> Saved:
    """Open a checkpoint: its state is read, its two files are compared with the sizes and checksums in it.

    expect: fields that its run must have, with their types. Raises FormatError naming the file, expected and found.
    """
    file = path / STATE
    state = _read_json(file)
    _check_fields(file, state, {"format": int, "step": int, "files": dict, "run": dict})
    if state["format"] != FORMAT:
        raise FormatError(file, None, "format", FORMAT, state["format"], "it was saved by another version of Ladle")
    if path.name != f"step-{state['step']:08d}":
        raise FormatError(file, None, "step", path.name, state["step"], "the folder was renamed")
    _check_fields(file, state["run"], expect or {})
    for name in (MODEL, OPTIMIZER):
        wanted, found = state["files"].get(name), _sizes(path / name)
        if not isinstance(wanted, dict) or wanted != found:
            hint = f"it is damaged: remove {path} to resume from an older one"
            raise FormatError(path / name, None, "bytes and CRC-32", wanted, found, hint)
    return Saved(path, state["step"], state["run"])


def _check_fields(file: Path, values: Mapping[str, Any], expect: Mapping[str, type | UnionType]) -> None:
    for field, kind in expect.items():
        if not isinstance(values.get(field), kind) or isinstance(values.get(field), bool):
            name = kind.__name__ if isinstance(kind, type) else str(kind)
            raise FormatError(file, None, field, f"a value of type {name}", repr(values.get(field))[:60])


def _slots(parameters: Mapping[str, Tensor], optimizer: torch.optim.Optimizer) -> dict[str, torch.Size]:
    wanted = set(_optimized(optimizer))
    return {
        f"{name}.{key}": p.shape if key != "step" else torch.Size([])
        for name, p in parameters.items()
        if p in wanted
        for key in ("exp_avg", "exp_avg_sq", "step")
    }


def _names(parameters: Mapping[str, Tensor]) -> dict[Tensor, str]:
    return {p: name for name, p in parameters.items()}


def _optimized(optimizer: torch.optim.Optimizer) -> list[Tensor]:
    return [p for group in optimizer.param_groups for p in group["params"]]


def _write(folder: Path, step: int, model: nn.Module, optimizer: torch.optim.Optimizer, state: Mapping[str, Any]) -> None:
    parameters = dict(model.named_parameters())
    names = _names(parameters)
    slots = {
        f"{names[p]}.{key}": torch.as_tensor(optimizer.state[p][key]).float().contiguous()
        for p in _optimized(optimizer)
        for key in ("exp_avg", "exp_avg_sq", "step")
    }
    save_file({name: p.detach().contiguous() for name, p in parameters.items()}, folder / MODEL, {"format": "pt"})
    save_file(slots, folder / OPTIMIZER, {"format": "pt"})
    files = {name: _sizes(folder / name) for name in (MODEL, OPTIMIZER)}
    text = json.dumps({"format": FORMAT, "step": step, "files": files, "run": state}, indent=1)
    (folder / STATE).write_text(text + "\n", encoding="utf-8")
    for name in (MODEL, OPTIMIZER, STATE):
        _sync(folder / name)
    _sync(folder)


def _sync(path: Path) -> None:
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def _sizes(path: Path) -> dict[str, int] | None:
    """Size and CRC-32 of a file, or None where there is none."""
    checksum, size = 0, 0
    try:
        with path.open("rb") as file:
            while block := file.read(1 << 22):
                checksum, size = zlib.crc32(block, checksum), size + len(block)
    except FileNotFoundError:
        return None
    return {"bytes": size, "crc32": checksum}


def _read_json(file: Path) -> dict[str, Any]:
    try:
        if (size := file.stat().st_size) > _LARGEST_STATE:
            raise FormatError(file, None, "size", f"at most {_LARGEST_STATE} bytes", size)
        value = json.loads(file.read_bytes())
    except (OSError, ValueError, RecursionError) as error:
        if isinstance(error, FormatError):
            raise
        raise FormatError(file, None, "state", "a JSON object", error) from error
    if not isinstance(value, dict):
        raise FormatError(file, 0, "state", "a JSON object", type(value).__name__)
    return value


def _read_tensors(file: Path, wanted: Mapping[str, torch.Size]) -> dict[str, Tensor]:
    """The tensors of a file, which must be exactly those wanted, in float32."""
    try:
        tensors: dict[str, Tensor] = load_file(file)
    except (OSError, SafetensorError) as error:
        raise FormatError(file, None, "tensors", "a safetensors file", error) from error
    for name in sorted(wanted.keys() ^ tensors.keys()):
        expected, found = ("a tensor", "none") if name in wanted else ("none", "a tensor")
        raise FormatError(file, None, name, expected, found, "it belongs to another model")
    for name, shape in wanted.items():
        tensor = tensors[name]
        if tensor.shape != shape or tensor.dtype != torch.float32:
            found = f"{tensor.dtype} {list(tensor.shape)}"
            raise FormatError(file, None, name, f"torch.float32 {list(shape)}", found, "it belongs to another model")
    return tensors


def _remove_leftovers(folder: Path) -> None:
    """What killed saves left behind."""
    for path in folder.glob(".step-*.tmp"):
        shutil.rmtree(path, ignore_errors=True)
