"""Batches are nests of dicts, lists, tuples, named tuples and dataclasses; here their leaves are visited and replaced."""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Callable, Iterator, Mapping, MutableMapping
from typing import Any

Kind = type | tuple[type, ...]


def replaced(value: Any, kind: Kind, change: Callable[[Any], Any]) -> Any:  # noqa: PLR0911  a kind of nest each
    """The same nest with change(leaf) for every leaf of that kind; what holds none is the same object."""
    if isinstance(value, kind):
        return change(value)
    if isinstance(value, Mapping):
        new = {key: replaced(part, kind, change) for key, part in value.items()}
        if _same(new.values(), value.values()):
            return value
        if type(value) is dict or not isinstance(value, MutableMapping):
            return new
        clone: Any = copy.copy(value)  # a mapping of its own kind, with what else it carries
        clone.update(new)
        return clone
    if isinstance(value, list | tuple):
        parts = [replaced(part, kind, change) for part in value]
        if _same(parts, value):
            return value
        if hasattr(value, "_fields"):
            return type(value)(*parts)
        return parts if type(value) is list else tuple(parts) if type(value) is tuple else type(value)(parts)
    fields = _fields(value)
    new = {name: replaced(part, kind, change) for name, part in fields.items()}
    if _same(new.values(), fields.values()):
        return value
    clone = copy.copy(value)
    for name, part in new.items():
        object.__setattr__(clone, name, part)  # frozen ones too
    return clone


def leaves(value: Any, kind: Kind) -> Iterator[Any]:
    """The leaves of that kind, in the order in which `replaced` visits them."""
    if isinstance(value, kind):
        yield value
    elif isinstance(value, Mapping):
        for part in value.values():
            yield from leaves(part, kind)
    elif isinstance(value, list | tuple):
        for part in value:
            yield from leaves(part, kind)
    else:
        for part in _fields(value).values():
            yield from leaves(part, kind)


def _fields(value: Any) -> dict[str, Any]:
    """The fields of a dataclass; of anything else none."""
    if not dataclasses.is_dataclass(value) or isinstance(value, type):
        return {}
    return {field.name: getattr(value, field.name) for field in dataclasses.fields(value) if hasattr(value, field.name)}


def _same(new: Any, old: Any) -> bool:
    return all(one is other for one, other in zip(new, old, strict=True))
