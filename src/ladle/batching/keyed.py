"""Randomness inside samples, keyed by the seed and the sample's own number: no worker, rank or batch size moves it.

A sample's number is its epoch's first plus its index (plus its place, where an order may draw a sample twice), so it is used
once in a run. Both ways from a number to a seed are bijections: two samples never share a stream. The cost is measured in
docs/benchmarks.md; `loader(..., seed_samples=False)` saves it where nothing is drawn.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

import numpy as np
import torch

from ladle.errors import ConfigError
from ladle.order.permutation import I64, counter_hash, hash_key, permute

TORCH_SEEDS = 2**32  # torch's CPU generator takes no more of a seed


class Sample:
    """The sample under way: its key, and its own Generator once it was asked for."""

    __slots__ = ("_generator", "_key")

    def __init__(self, key: int) -> None:
        self._key = key
        self._generator: np.random.Generator | None = None

    @property
    def generator(self) -> np.random.Generator:
        if self._generator is None:
            self._generator = np.random.Generator(np.random.Philox(key=self._key))
        return self._generator


_under_way: ContextVar[Sample | None] = ContextVar("ladle.batching.sample", default=None)


def generator() -> np.random.Generator:
    """The random generator of the sample that a loader is making in this thread: the same object until the sample is made.

    Raises ConfigError where no sample is under way.
    """
    sample = _under_way.get()
    if sample is None:
        raise ConfigError(
            "generator: expected to be called inside a dataset's __getitem__ (or __iter__) while a loader makes a sample, "
            "found none under way"
        )
    return sample.generator


class Keys:
    """The seeds of the samples of one request, drawn from as each is made."""

    def __init__(self, seed: int, numbers: I64, *, everywhere: bool) -> None:
        """numbers: int64 [k], the samples' numbers in the run. everywhere: seed the global generators too."""
        self._keys = counter_hash(numbers, hash_key("sample", seed)).tolist()
        self._torch = self._words = None
        if everywhere:
            self._torch = permute(numbers % TORCH_SEEDS, TORCH_SEEDS, hash_key("sample torch", seed)).tolist()
            words = counter_hash(numbers, hash_key("sample numpy", seed))
            self._words = words.view(np.uint32).reshape(-1, 2)

    def begin(self, number: int) -> None:
        """Sample `number` of the request is made next."""
        _under_way.set(Sample(self._keys[number]))
        if self._torch is not None and self._words is not None:
            random.seed(self._keys[number])
            np.random.seed(self._words[number])
            torch.default_generator.manual_seed(self._torch[number])  # CUDA's are left alone

    @staticmethod
    def end() -> None:
        """No sample is under way."""
        _under_way.set(None)


@contextmanager
def put_back() -> Iterator[None]:
    """The global generators of `random`, NumPy and torch (CPU) are afterwards what they were before."""
    python, numpy, ours = random.getstate(), np.random.get_state(legacy=False), torch.default_generator.get_state()
    try:
        yield
    finally:
        random.setstate(python)
        np.random.set_state(numpy)
        torch.default_generator.set_state(ours)


@contextmanager
def seeded(purpose: str, *parts: int) -> Iterator[None]:
    """The global generators seeded by a purpose and its numbers, and put back afterwards."""
    with put_back():
        try:
            Keys(hash_key(purpose, *parts), np.zeros(1, dtype=np.int64), everywhere=True).begin(0)
            yield
        finally:
            Keys.end()
