"""The orders of many sources at once: for arrays of sources what `Order` is for one split.

A source's order is a function of its name, the seed and its own epoch: nothing that comes or goes beside it moves it.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from ladle.errors import ConfigError
from ladle.order.permutation import I64, SMALL, U64, counter_hash, hash_key, multiply_high, permute, whole_orders
from ladle.order.stream import Kind, Order

FEW = 64  # orders of fewer windows than this are sorted again rather than kept
NONE: tuple[int, NDArray[np.uint16]] = -1, np.empty(0, dtype=np.uint16)


class Orders:
    """The order of each source's n windows, for every epoch of its own. Integers only.

    May be shared between threads: what it remembers it replaces whole.
    """

    def __init__(self, kind: Kind, counts: Sequence[int], names: Sequence[str], seed: int) -> None:
        """kind: as Order's. counts: windows an epoch, or possible starts for "random", of each source; names: theirs."""
        self.kind = Order(kind=kind, n=max(counts), seed=seed).kind  # it refuses what cannot be right
        self._counts = np.array(counts, dtype=np.int64)
        self._keys = np.array([hash_key("source", seed, name) for name in names], dtype=np.uint64)
        self._kept: dict[int, tuple[int, NDArray[np.uint16]]] = {}  # of sources with few windows: (key, order) last used

    def windows(self, source: I64, own: I64) -> tuple[I64, I64]:
        """(epoch, window) of the sources' own units. int64 [k] each.

        For "random" the window is a start in [0, n), and every epoch is 0.
        """
        n = self._counts[source]
        if self.kind == "random":
            return np.zeros_like(own), multiply_high(counter_hash(own, self._keys[source]), n)
        epoch, place = np.divmod(own, n)
        if self.kind == "sequential":
            return epoch, place
        key = counter_hash(epoch, self._keys[source])
        kept = np.flatnonzero((n >= FEW) & (n <= SMALL))
        if not kept.size:
            return epoch, permute(place, n, key)
        rest = np.flatnonzero((n < FEW) | (n > SMALL))
        window = np.empty_like(place)
        window[rest] = permute(place[rest], n[rest], key[rest])
        window[kept] = self._from_kept(source[kept], place[kept], n[kept], key[kept])
        return epoch, window

    def units(self, source: int, epoch: int, windows: I64) -> I64:
        """The inverse: which of the source's own units hand out these windows in its epoch. int64 [k]."""
        if self.kind == "random":
            raise ConfigError("order='random' draws with replacement: a window has no one place to invert to")
        n = int(self._counts[source])
        if self.kind == "shuffled":
            key = counter_hash(epoch, self._keys[source])
            windows = permute(windows, n, key, inverse=True)
        return epoch * n + windows

    def _from_kept(self, source: I64, place: I64, n: I64, key: U64) -> I64:
        """permute(place, n, key), with each order sorted once an epoch: one source's units lie far apart among hundreds."""
        by_source = np.argsort(source.astype(np.uint16), kind="stable")  # MOST sources fit; NumPy sorts 16 bits by radix
        new = np.ones(source.size, dtype=np.bool_)
        new[1:] = (np.diff(source[by_source]) != 0) | (np.diff(key[by_source]) != 0)
        first = by_source[new]
        turns = list(zip(source[first].tolist(), key[first].tolist(), strict=True))
        orders = [self._kept.get(turn[0], NONE) for turn in turns]
        unknown = [i for i, (turn, kept) in enumerate(zip(turns, orders, strict=True)) if kept[0] != turn[1]]
        sizes = n[first]
        for i, order in zip(unknown, whole_orders(sizes[unknown], key[first[unknown]]), strict=True):
            self._kept[turns[i][0]] = orders[i] = (turns[i][1], order)
        begins = np.cumsum(sizes) - sizes
        window = np.empty_like(place)
        window[by_source] = np.concatenate([order for _, order in orders])[begins[np.cumsum(new) - 1] + place[by_source]]
        return window
