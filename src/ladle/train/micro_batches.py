"""How many rows an update has, and the micro-batches it passes through the model."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from torch import Tensor
from torch.utils._pytree import tree_flatten, tree_iter, tree_unflatten

from ladle.errors import ConfigError
from ladle.train.ranks import Ranks

IGNORE_INDEX = -100


def steps_per_epoch(num_batches: int, accumulation: int = 1) -> int:
    """Optimizer steps in an epoch of num_batches micro-batches a rank: the last, shorter group is a step too.

    A scheduler steps as often: 7 batches by 4 are 2 steps, in 3 epochs 6. Raises ConfigError.
    """
    _at_least("num_batches", num_batches, 0)
    _at_least("accumulation", accumulation, 1)
    return -(-num_batches // accumulation)


def accumulation_steps(global_batch: int, micro_batch_size: int, world_size: int | None = None) -> int:
    """Micro-batches a rank passes through the model in one update of global_batch rows.

    world_size: all ranks of all nodes; None: torch.distributed's where it is initialised, else 1. 512 rows by 4 on 2 nodes of
    8 ranks are 8. Raises ConfigError where they do not come out even, naming micro-batch sizes that do.
    """
    world_size = Ranks.current().world_size if world_size is None else world_size
    for name, value in (("global_batch", global_batch), ("micro_batch_size", micro_batch_size), ("world_size", world_size)):
        _at_least(name, value, 1)
    if global_batch % (micro_batch_size * world_size):
        even = [str(size) for size in range(micro_batch_size, 0, -1) if global_batch % (size * world_size) == 0][:3]
        hint = f"a micro_batch_size of {' or '.join(even)} does" if even else f"it is no multiple of {world_size}"
        raise ConfigError(
            f"global_batch: expected a multiple of {micro_batch_size} rows x {world_size} ranks, found {global_batch}; {hint}"
        )
    return global_batch // (micro_batch_size * world_size)


def effective_batch(micro_batch_size: int, accumulation: int = 1, world_size: int | None = None, *, quiet: bool = False) -> int:
    """The rows of one update, accumulation and ranks counted: what `scale_lr` is to be given. Prints the product.

    world_size: None is torch.distributed's where it is initialised, else 1. Raises ConfigError.
    """
    world_size = Ranks.current().world_size if world_size is None else world_size
    for name, value in (("micro_batch_size", micro_batch_size), ("accumulation", accumulation), ("world_size", world_size)):
        _at_least(name, value, 1)
    rows = micro_batch_size * accumulation * world_size
    if not quiet:
        print(f"effective batch {rows} = {micro_batch_size} a pass x {accumulation} passes x {world_size} ranks")
    return rows


def grouped(batches: Iterable[Any], accumulation: int) -> Iterator[list[Any]]:
    """The micro-batches of one update after another, as lists of `accumulation`; the last list may be shorter, never empty.

    Nothing is carried over the end, so an epoch's last update stands in that epoch. Raises ConfigError at once.
    """
    _at_least("accumulation", accumulation, 1)
    return _groups(batches, accumulation)


def _groups(batches: Iterable[Any], accumulation: int) -> Iterator[list[Any]]:
    group: list[Any] = []
    for batch in batches:
        group.append(batch)
        if len(group) == accumulation:
            yield group
            group = []
    if group:
        yield group


def cut(batch: Any, micro_batch_size: int) -> list[Any]:
    """One batch as micro-batches of at most that many rows, views of it: one update, however many pieces.

    batch: tensors of the same number of rows in tuples, lists or dicts; what is no tensor goes into each piece. Raises
    ConfigError where the numbers of rows differ, naming them.
    """
    _at_least("micro_batch_size", micro_batch_size, 1)
    leaves, shape = tree_flatten(batch)
    rows = {len(leaf) for leaf in leaves if isinstance(leaf, Tensor) and leaf.dim()}
    if len(rows) != 1:
        raise ConfigError(f"batch: expected tensors of one number of rows, found {sorted(rows) or 'none'}")
    return [
        tree_unflatten(
            [leaf[first : first + micro_batch_size] if isinstance(leaf, Tensor) and leaf.dim() else leaf for leaf in leaves],
            shape,
        )
        for first in range(0, rows.pop(), micro_batch_size)
    ]


def count_targets(batch: Any) -> int:
    """The targets that count in one micro-batch: labels that are not -100.

    batch: (x, y, ...) or a dict with "labels"; floating-point labels all count. Raises ConfigError where none are found.
    """
    labels = batch.get("labels") if isinstance(batch, dict) else batch[1] if isinstance(batch, tuple | list) else None
    if not isinstance(labels, Tensor):
        raise ConfigError(
            f"count: expected (x, y) or a dict with 'labels' to count the targets of, found {type(batch).__name__}; "
            "give num_targets, or a function as count"
        )
    return labels.numel() if labels.is_floating_point() else int((labels != IGNORE_INDEX).sum())


def count_samples(batch: Any) -> int:
    """The rows of one micro-batch: the length of its first tensor. Raises ConfigError where it has none."""
    for leaf in tree_iter(batch):
        if isinstance(leaf, Tensor) and leaf.dim():
            return len(leaf)
    raise ConfigError(f"count: expected a tensor with rows, found {type(batch).__name__}; give num_targets")


def _at_least(name: str, value: int, least: int) -> None:
    if isinstance(value, bool) or not isinstance(value, int) or value < least:
        raise ConfigError(f"{name}: expected a whole number >= {least}, found {value!r}")
