"""Documents that no longer count: their targets are masked from a position on, and nothing moves."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from ladle.corpus.split import Split
from ladle.errors import ConfigError
from ladle.feed.arguments import integer
from ladle.order.permutation import I64, LARGEST

if TYPE_CHECKING:
    from ladle.feed.mixture import Mixture


@dataclass(frozen=True, slots=True)
class Layer:
    """What one position excludes.

    documents: {source: ascending numbers}; the one source of a split is "". first, last: the targets [first, last), in the
    numbering of all sources, ascending and apart, each with one more that lies past everything. before: how many
    targets the ranges below each hold.
    """

    from_position: int
    documents: dict[str, I64]
    first: I64
    last: I64
    before: I64

    def below(self, target: I64) -> I64:
        """How many of its targets lie below each target. int64 [...]."""
        place = np.searchsorted(self.last, target, side="right")
        below: I64 = self.before[place] + np.maximum(target - self.first[place], 0)
        return below


class Exclusions:
    """Which targets are masked from which position on. Immutable; false where there are none.

    A target is excluded when its label token lies in an excluded document: the model is not taught to write it.
    """

    def __init__(self, layers: tuple[Layer, ...] = ()) -> None:
        """layers: ascending positions, no document in two."""
        self.layers = layers

    def __bool__(self) -> bool:
        return bool(self.layers)

    def plus(self, source: Split | Mixture, documents: object, from_position: int) -> Exclusions:
        """These and more. A document that is excluded already keeps the earlier position.

        documents: numbers in the split; of a mixture {source's name: numbers}. Raises ConfigError.
        """
        wanted = {from_position: numbers_of(source, documents)}
        for layer in self.layers:
            there = wanted.setdefault(layer.from_position, {})
            for name, numbers in layer.documents.items():
                there[name] = np.union1d(there.get(name, numbers), numbers)
        seen: dict[str, I64] = {}
        layers = []
        for position in sorted(wanted):
            fresh = {name: np.setdiff1d(found, seen.get(name, [])) for name, found in sorted(wanted[position].items())}
            fresh = {name: found for name, found in fresh.items() if found.size}
            for name, found in fresh.items():
                seen[name] = np.union1d(seen.get(name, found), found)
            if fresh:
                layers.append(Layer(position, fresh, *_targets(source, fresh)))
        return Exclusions(tuple(layers))

    def count(self, start: I64, low: I64, high: I64, slot: I64) -> I64:
        """How many of the columns [low, high) of each row are excluded. int64 [rows] each.

        start: the token of the row's first input. slot: its first slot.
        """
        found = np.zeros(start.size, dtype=np.int64)
        for layer in self.layers:
            begin = np.minimum(np.maximum(low, layer.from_position - slot), high)
            found += layer.below(start + high) - layer.below(start + begin)
        return found

    def columns(self, start: I64, low: I64, high: I64, slot: I64) -> Iterator[tuple[int, int, int]]:
        """(row, first, last): the columns [first, last) that are excluded, among [low, high) of each row. All as for count."""
        for layer in self.layers:
            begin = start + np.minimum(np.maximum(low, layer.from_position - slot), high)
            first = np.searchsorted(layer.last, begin, side="right")
            after = np.searchsorted(layer.first, start + high, side="left")
            for row in np.flatnonzero(first < after).tolist():
                base = int(start[row])
                for place in range(int(first[row]), int(after[row])):
                    column = max(int(layer.first[place]), int(begin[row])) - base
                    yield row, column, min(int(layer.last[place]) - base, int(high[row]))

    def mask(self, y: NDArray[Any], start: I64, slot: I64, ignore_index: int) -> None:
        """Write ignore_index over the excluded targets of y, int64 [rows, T]. start, slot: as for count."""
        nothing = np.zeros_like(start)
        for row, first, last in self.columns(start, nothing, nothing + y.shape[1], slot):
            y[row, first:last] = ignore_index

    def to_list(self) -> list[dict[str, Any]]:
        """Plain JSON values: [{"from_position": p, "documents": numbers, or {source: numbers}}, ...]."""
        told: list[dict[str, Any]] = []
        for layer in self.layers:
            named: dict[str, Any] = {name: numbers.tolist() for name, numbers in layer.documents.items()}
            told.append({"from_position": layer.from_position, "documents": named.get("", named)})
        return told


NONE = Exclusions()


def numbers_of(source: Split | Mixture, documents: object) -> dict[str, I64]:
    """{source's name: ascending document numbers}, "" naming a split. Raises ConfigError for what cannot be meant."""
    if isinstance(source, Split):
        return {"": _ascending("documents", documents)}
    if not isinstance(documents, Mapping):
        raise ConfigError(f"documents: expected {{source: numbers}} in a mixture, found {documents!r}")
    if unknown := [name for name in documents if name not in source.names]:
        raise ConfigError(f"documents: expected sources among {', '.join(source.names)}, found {unknown[0]!r}")
    return {name: _ascending(f"documents: {name}", numbers) for name, numbers in documents.items()}


def _ascending(where: str, documents: object) -> I64:
    if isinstance(documents, str | bytes | Mapping) or not isinstance(documents, Iterable):
        raise ConfigError(f"{where}: expected document numbers, found {documents!r}")
    numbers = np.array([integer(where, number, 0) for number in documents], dtype=np.int64)
    different, times = np.unique(numbers, return_counts=True)
    if different.size < numbers.size:
        raise ConfigError(f"{where}: expected each number once, found {different[times > 1][0]} twice")
    return different


def _targets(source: Split | Mixture, documents: Mapping[str, I64]) -> tuple[I64, I64, I64]:
    """The targets whose label lies in these documents, as ranges that lie apart: see Layer."""
    parts = []
    for name, numbers in documents.items():
        place = 0 if isinstance(source, Split) else source.names.index(name)
        split, base = (source, 0) if isinstance(source, Split) else (source.splits[place], int(source.bases[place]))
        first, last = split.document_tokens(numbers)
        # The label of target t is token t + 1; the first token of a source is no target's label.
        parts.append((base + np.maximum(first - 1, 0), base + last - 1))
    first, last = (np.concatenate(part) for part in zip(*parts, strict=True))
    real = np.flatnonzero(first < last)
    order = real[np.argsort(first[real])]  # documents do not overlap, so neither do their ranges
    first, last = first[order], last[order]
    joins = np.flatnonzero(first[1:] == last[:-1])  # neighbours become one range
    first, last = np.delete(first, joins + 1), np.delete(last, joins)
    before = np.concatenate([[0], np.cumsum(last - first)])
    beyond = np.array([LARGEST], dtype=np.int64)
    return np.concatenate([first, beyond]), np.concatenate([last, beyond + 1]), before
