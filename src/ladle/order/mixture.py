"""Which source feeds unit j: a mixture that is no lottery.

Weights become integers, and a Huffman tree of them splits the stream in two at each node as evenly as integers allow.
So at every prefix of i units each source has had its weight's share of i but for less than 1.68, for ever; any unit,
and the place of any source's k-th unit, is found by arithmetic. Method and bound: docs/order.md, "Mixtures".
"""

from __future__ import annotations

import heapq
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from math import isfinite

import numpy as np

from ladle.errors import ConfigError
from ladle.order.permutation import I64

TOTAL = 2**30  # the sum of the integer weights: 2 * TOTAL**2 still fits 64 bits


def integer_weights(weights: Mapping[str, float]) -> dict[str, int]:
    """Integers of sum 2**30 in proportion to the weights, by largest remainder, each at least 1; sorted by name.

    Raises ConfigError for no weights, and for one that is zero, negative, not finite or not a number.
    """
    if not weights:
        raise ConfigError("weights: expected at least one source, found none")
    for name, weight in weights.items():
        number = isinstance(weight, int | float | np.integer | np.floating) and not isinstance(weight, bool)
        if not number or not isfinite(weight) or weight <= 0:
            raise ConfigError(
                f"weights: {name}: expected a finite number above 0, found {weight!r}; leave a source out to stop it"
            )
    names = sorted(weights)
    exact = [Fraction(float(weights[name])) for name in names]
    shares = [TOTAL * share / sum(exact) for share in exact]
    integers = [int(share) for share in shares]
    by_remainder = sorted(range(len(names)), key=lambda i: (integers[i] - shares[i], i))
    for i in by_remainder[: TOTAL - sum(integers)]:
        integers[i] += 1
    for i in range(len(names)):  # a weight too small for an integer is raised to 1; the heaviest gives it
        if integers[i] == 0:
            integers[i] = 1
            integers[integers.index(max(integers))] -= 1
    return dict(zip(names, integers, strict=True))


@dataclass(frozen=True, slots=True)
class Tree:
    """The splitting tree of one set of weights. Nodes 0 to S - 1 are the sources in name order, then the inner ones.

    weight: of every node. left, right: children of the inner nodes (index node - S). root: the last node.
    """

    sources: int
    weight: I64
    left: I64
    right: I64

    @staticmethod
    def of(weights: Sequence[int]) -> Tree:
        """The Huffman tree: of the two lightest nodes (by weight, then age) the second becomes the left child."""
        heap = [(weight, node) for node, weight in enumerate(weights)]
        heapq.heapify(heap)
        totals, left, right = list(weights), [], []
        while len(heap) > 1:
            light, light_node = heapq.heappop(heap)
            heavy, heavy_node = heapq.heappop(heap)
            left.append(heavy_node)
            right.append(light_node)
            heapq.heappush(heap, (light + heavy, len(totals)))
            totals.append(light + heavy)
        return Tree(len(weights), *(np.array(part, dtype=np.int64) for part in (totals, left, right)))

    def split(self, units: I64) -> tuple[I64, I64]:
        """(source, which of the source's own units, from 0) of each unit. int64 [k] each."""
        node = np.full(units.size, self.weight.size - 1, dtype=np.int64)
        count = units.copy()
        live = np.arange(units.size) if self.left.size else np.empty(0, dtype=np.int64)
        while live.size:
            inner = node[live] - self.sources
            here = count[live]
            whole, half = self.weight[node[live]], self.weight[self.left[inner]]
            before = _left_of(here, whole, half)
            goes_left = _left_of(here + 1, whole, half) > before
            count[live] = np.where(goes_left, before, here - before)
            node[live] = np.where(goes_left, self.left[inner], self.right[inner])
            live = live[node[live] >= self.sources]
        return node, count

    def counts(self, units: int) -> I64:
        """How many of the first `units` units each source gets. int64 [sources]."""
        total = np.zeros(self.weight.size, dtype=np.int64)
        total[-1] = units
        for inner in range(self.left.size - 1, -1, -1):  # parents come after their children
            node = inner + self.sources
            whole, half = self.weight[node], self.weight[self.left[inner]]
            total[self.left[inner]] = _left_of(total[node], whole, half)
            total[self.right[inner]] = total[node] - total[self.left[inner]]
        return total[: self.sources]

    def join(self, source: int, counts: I64) -> I64:
        """The inverse of split: the units that are this source's counts-th own ones. int64 [k]."""
        parent = np.full(self.weight.size, -1, dtype=np.int64)
        parent[self.left] = parent[self.right] = np.arange(self.left.size) + self.sources
        node, count = source, np.asarray(counts, dtype=np.int64)
        while (above := int(parent[node])) >= 0:
            whole, mine = int(self.weight[above]), int(self.weight[node])
            cycle, place = np.divmod(count, mine)
            # The count-th unit that goes this way is the one at which the rounded share passes count + 1/2.
            odd = (2 * place + 1) * whole
            if node == int(self.left[above - self.sources]):
                count = cycle * whole + -(-odd // (2 * mine)) - 1
            else:
                count = cycle * whole + odd // (2 * mine)
            node = above
        return count


def _left_of(units: I64, whole: I64, half: I64) -> I64:
    """floor((2 * units * half + whole) / (2 * whole)), without leaving 64 bits: the units sent to the left child."""
    cycle, place = np.divmod(units, whole)
    return cycle * half + (2 * place * half + whole) // (2 * whole)


@dataclass(frozen=True, slots=True)
class Stage:
    """Weights that hold from a unit on. before: the units each source (of all) has had by then, int64 [S]."""

    first_unit: int
    tree: Tree
    members: I64  # the sources that take part, as places among all of them, ascending
    before: I64


class Stages:
    """Which source feeds which unit, through all stages. Sources are numbered in name order over all stages."""

    def __init__(self, names: Sequence[str], stages: Sequence[tuple[int, Mapping[str, int]]]) -> None:
        """names: every source, sorted. stages: (first unit, integer weights of its sources), the first at unit 0."""
        self.stages: list[Stage] = []
        place = {name: i for i, name in enumerate(names)}
        before = np.zeros(len(names), dtype=np.int64)
        for number, (first_unit, weights) in enumerate(stages):
            if number:
                last = self.stages[-1]
                if first_unit <= last.first_unit:
                    raise ConfigError(
                        f"stages: expected each to last at least one window, found stage {number - 1} to begin at window "
                        f"{last.first_unit} and stage {number} at window {first_unit}"
                    )
                before = last.before.copy()
                before[last.members] += last.tree.counts(first_unit - last.first_unit)
            members = np.array([place[name] for name in weights], dtype=np.int64)
            self.stages.append(Stage(first_unit, Tree.of(list(weights.values())), members, before))
        self._first_units = np.array([stage.first_unit for stage in self.stages], dtype=np.int64)

    def split(self, first_unit: int, count: int) -> tuple[I64, I64]:
        """(source, which of its own units) of units [first_unit, first_unit + count). int64 [count] each."""
        source, own = np.empty(count, dtype=np.int64), np.empty(count, dtype=np.int64)
        for number, stage in enumerate(self.stages):
            last = self.stages[number + 1].first_unit if number + 1 < len(self.stages) else first_unit + count
            low, high = max(first_unit, stage.first_unit), min(first_unit + count, last)
            if low < high:
                part = slice(low - first_unit, high - first_unit)
                member, counted = stage.tree.split(np.arange(low, high, dtype=np.int64) - stage.first_unit)
                source[part] = stage.members[member]
                own[part] = counted + stage.before[source[part]]
        return source, own

    def counts(self, units: int) -> I64:
        """How many of the first `units` units each source feeds. int64 [S]."""
        stage = self.stages[max(int(np.searchsorted(self._first_units, units, side="right")) - 1, 0)]
        counts = stage.before.copy()
        counts[stage.members] += stage.tree.counts(units - stage.first_unit)
        return counts

    def join(self, source: int, own: I64) -> I64:
        """The inverse of split: the units that are this source's own-th ones. int64 [k].

        A source that leaves for good never has some of them: those are -1.
        """
        begins = np.array([stage.before[source] for stage in self.stages], dtype=np.int64)
        which = np.searchsorted(begins, own, side="right") - 1
        units = np.full(own.size, -1, dtype=np.int64)
        for number in np.unique(which).tolist():
            stage, chosen = self.stages[number], which == number
            member = np.flatnonzero(stage.members == source)
            if member.size:
                units[chosen] = stage.first_unit + stage.tree.join(int(member[0]), own[chosen] - stage.before[source])
        return units
