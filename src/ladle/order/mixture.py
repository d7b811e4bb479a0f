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
from itertools import pairwise
from math import isfinite, lcm
from numbers import Integral, Real

import numpy as np

from ladle.errors import ConfigError
from ladle.order.permutation import I64

TOTAL = 2**30  # the sum of the integer weights: 2 * TOTAL**2 still fits 64 bits
MOST = 2**15  # sources: if all but one were raised to 1, the heaviest would still have most of its weight


def integer_weights(weights: Mapping[str, float]) -> dict[str, int]:
    """Integers of sum 2**30 in proportion to the weights, by largest remainder, each at least 1; sorted by name.

    Raises ConfigError for no weights, and for one that is zero, negative, not finite or not a number.
    """
    if not weights:
        raise ConfigError("weights: expected at least one source, found none")
    if len(weights) > MOST:
        raise ConfigError(f"weights: expected at most {MOST} sources, found {len(weights)}")
    names = sorted(weights)
    exact = [_exact(name, weights[name]) for name in names]
    scale = lcm(*(weight.denominator for weight in exact))
    parts = [weight.numerator * (scale // weight.denominator) for weight in exact]
    whole = sum(parts)
    integers, remainders = map(list, zip(*(divmod(TOTAL * part, whole) for part in parts), strict=True))
    for i in sorted(range(len(names)), key=lambda i: (-remainders[i], i))[: TOTAL - sum(integers)]:
        integers[i] += 1
    heaviest = integers.index(max(integers))
    for i, integer in enumerate(integers):
        if not integer:  # too light for an integer: the heaviest gives it one, and at most MOST sources leave it some
            integers[i] = 1
            integers[heaviest] -= 1
    return dict(zip(names, integers, strict=True))


def _exact(name: str, weight: object) -> Fraction:
    if not isinstance(weight, bool) and isinstance(weight, Real):
        number = int(weight) if isinstance(weight, Integral) else float(weight)
        if number > 0 and (isinstance(number, int) or isfinite(number)):
            return Fraction(number)
    raise ConfigError(f"weights: {name}: expected a finite number above 0, found {weight!r}; leave a source out to stop it")


@dataclass(frozen=True, slots=True)
class Tree:
    """The splitting tree of one set of weights. Nodes 0 to S - 1 are the sources in name order, then the inner ones.

    weight, parent: of every node, the root being the last (parent -1). left, right: children of the inner nodes (of node
    S + i at place i). int64 each.
    """

    sources: int
    weight: I64
    parent: I64
    left: I64
    right: I64

    @staticmethod
    def of(weights: Sequence[int]) -> Tree:
        """The Huffman tree: of the two lightest nodes (by weight, then age) the second becomes the left child."""
        heap = [(weight, node) for node, weight in enumerate(weights)]
        heapq.heapify(heap)
        totals, left, right = list(weights), [], []
        parent = [-1] * (2 * len(weights) - 1)
        while len(heap) > 1:
            light, light_node = heapq.heappop(heap)
            heavy, heavy_node = heapq.heappop(heap)
            left.append(heavy_node)
            right.append(light_node)
            parent[heavy_node] = parent[light_node] = len(totals)
            heapq.heappush(heap, (light + heavy, len(totals)))
            totals.append(light + heavy)
        return Tree(len(weights), *(np.array(part, dtype=np.int64) for part in (totals, parent, left, right)))

    def split(self, units: I64) -> tuple[I64, I64]:
        """(source, which of the source's own units, from 0) of each unit. int64 [k] each."""
        if self.sources == 1:
            return np.zeros_like(units), units
        # All repeats after as many units as the root weighs: what follows is below the weight of the node it is at.
        total = int(self.weight[-1])
        cycle, count = units // total, units % total
        source, own = np.empty((2, units.size), dtype=np.int64)
        at = np.arange(units.size, dtype=np.int64)  # the units that are still on their way down
        inner = np.full(units.size, self.left.size - 1, dtype=np.int64)
        whole, half = 2 * self.weight[self.sources :], 2 * self.weight[self.left]
        child = np.stack((self.right, self.left), axis=1).reshape(-1)
        while at.size:
            double = whole[inner]
            before, rest = np.divmod(count * half[inner] + (double >> 1), double)  # to the left so far
            left = rest + half[inner] >= double  # with one unit more it would be one more
            count = np.where(left, before, count - before)
            node = child[2 * inner + left]
            arrived = node < self.sources
            if arrived.any():
                here, on_their_way = np.flatnonzero(arrived), np.flatnonzero(~arrived)
                source[at[here]], own[at[here]] = node[here], count[here]
                at, node, count = at[on_their_way], node[on_their_way], count[on_their_way]
            inner = node - self.sources
        return source, own + cycle * self.weight[source]

    def counts(self, units: int) -> I64:
        """How many of the first `units` units each source gets. int64 [sources]."""
        weight, left, right = self.weight.tolist(), self.left.tolist(), self.right.tolist()
        total = [0] * len(weight)
        total[-1] = units
        for node in range(len(weight) - 1, self.sources - 1, -1):  # parents come after their children
            heavy, light = left[node - self.sources], right[node - self.sources]
            total[heavy] = (2 * total[node] * weight[heavy] + weight[node]) // (2 * weight[node])
            total[light] = total[node] - total[heavy]
        return np.array(total[: self.sources], dtype=np.int64)

    def join(self, source: int, counts: I64) -> I64:
        """The inverse of split: the units that are this source's counts-th own ones. int64 [k]."""
        weight: list[int] = self.weight.tolist()
        cycle, count, node = counts // weight[source], counts % weight[source], source
        while (above := int(self.parent[node])) >= 0:
            # The count-th unit that goes this way is the one at which the rounded share passes count + 1/2.
            odd = (2 * count + 1) * weight[above]
            if node == int(self.left[above - self.sources]):
                count = -(-odd // (2 * weight[node])) - 1
            else:
                count = odd // (2 * weight[node])
            node = above
        return cycle * weight[-1] + count


@dataclass(frozen=True, slots=True)
class Stage:
    """Weights that hold from a unit on. Units are those of the whole stream, sources those of all stages.

    members: the sources that take part, ascending. before: the units each source has had by then, int64 [S].
    """

    first_unit: int
    tree: Tree
    members: I64
    before: I64

    def split(self, units: I64) -> tuple[I64, I64]:
        """As Tree.split; none of the units is before this stage."""
        member, counted = self.tree.split(units - self.first_unit)
        source = self.members[member]
        return source, counted + self.before[source]

    def counts(self, units: int) -> I64:
        """How many of the first `units` units each source gets, if this stage lasts so long. int64 [S]."""
        counts = self.before.copy()
        counts[self.members] += self.tree.counts(units - self.first_unit)
        return counts

    def join(self, source: int, own: I64) -> I64:
        """As Tree.join; -1 for a source that does not take part."""
        member = np.flatnonzero(self.members == source)
        if not member.size:
            return np.full(own.size, -1, dtype=np.int64)
        return self.first_unit + self.tree.join(int(member[0]), own - self.before[source])


class Stages:
    """Which source feeds which unit, through all stages. Sources are numbered in name order over all stages."""

    def __init__(self, names: Sequence[str], stages: Sequence[tuple[int, Mapping[str, int]]]) -> None:
        """names: every source, sorted. stages: (first unit, integer weights of its sources), the first at unit 0."""
        place = {name: i for i, name in enumerate(names)}
        self._stages: list[Stage] = []
        before = np.zeros(len(names), dtype=np.int64)
        for number, (first_unit, weights) in enumerate(stages):
            if number:
                last = self._stages[-1]
                if first_unit <= last.first_unit:
                    raise ConfigError(
                        f"stages: expected each to last at least one window, found stage {number - 1} to begin at window "
                        f"{last.first_unit} and stage {number} at window {first_unit}"
                    )
                before = last.counts(first_unit)
            members = np.array([place[name] for name in weights], dtype=np.int64)
            self._stages.append(Stage(first_unit, Tree.of(list(weights.values())), members, before))
        self._first_units = np.array([stage.first_unit for stage in self._stages], dtype=np.int64)
        self._before = np.stack([stage.before for stage in self._stages])

    def split(self, first_unit: int, count: int) -> tuple[I64, I64]:
        """(source, which of its own units) of units [first_unit, first_unit + count). int64 [count] each."""
        stop = first_unit + count
        borders = self._first_units[np.searchsorted(self._first_units, first_unit, side="right") :]
        cuts = [first_unit, *borders[borders < stop].tolist(), stop]
        parts = [self._at(low).split(np.arange(low, high, dtype=np.int64)) for low, high in pairwise(cuts)]
        if len(parts) == 1:
            return parts[0]
        source, own = (np.concatenate(part) for part in zip(*parts, strict=True))
        return source, own

    def counts(self, units: int) -> I64:
        """How many of the first `units` units each source feeds. int64 [S]."""
        return self._at(units).counts(units)

    def join(self, source: int, own: I64) -> I64:
        """The inverse of split: the units that are this source's own-th ones. int64 [k].

        A source that leaves for good never has some of them: those are -1.
        """
        own = np.asarray(own, dtype=np.int64)
        which = np.searchsorted(self._before[:, source], own, side="right") - 1  # the last stage not begun after it
        units = np.full(own.size, -1, dtype=np.int64)
        for number in np.unique(which).tolist():
            here = which == number
            units[here] = self._stages[number].join(source, own[here])
        return units

    def weights(self, unit: int) -> I64:
        """The integer weights that hold at a unit, of sum 2**30; 0 for a source that takes no part there. int64 [S]."""
        stage = self._at(unit)
        weights = np.zeros_like(stage.before)
        weights[stage.members] = stage.tree.weight[: stage.tree.sources]
        return weights

    def _at(self, unit: int) -> Stage:
        return self._stages[int(np.searchsorted(self._first_units, unit, side="right")) - 1]
