"""Randomness inside samples, keyed by the seed and the sample's own number: no worker, rank or batch size moves it.

A sample's number is its epoch's first plus its index (plus its place, where an order may draw a sample twice), so it is used
once in a run. Each way from a number to a generator's seed is a bijection: two samples never share a stream (torch's and
NumPy's seeds have 32 bits: not among 2**32 numbers). It costs about 8 us a sample and 0.1 ms a batch, which
`loader(..., seed_samples=False)` saves where nothing is drawn.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Self

import numpy as np
import torch
from numpy.typing import NDArray

from ladle.errors import ConfigError
from ladle.order.permutation import I64, counter_hash, hash_key

U32 = NDArray[np.uint32]

_under_way: ContextVar[Keys | None] = ContextVar("ladle.batching.samples", default=None)


def generator() -> np.random.Generator:
    """The random generator of the sample that a loader is making in this thread: the same object until the sample is made.

    Raises ConfigError where no sample is under way.
    """
    keys = _under_way.get()
    if keys is None:
        raise ConfigError(
            "generator: expected to be called inside a dataset's __getitem__ (or __iter__) while a loader makes a sample, "
            "found none under way"
        )
    return keys.generator()


class Keys:
    """The seeds of the samples of one request. In a `with`, the sample begun last is the one under way."""

    def __init__(self, seed: int, numbers: I64, *, everywhere: bool) -> None:
        """numbers: int64 [k], the samples' numbers in the run. everywhere: seed the global generators too."""
        self._keys: list[int] = counter_hash(numbers, hash_key("sample", seed)).tolist()
        self._now, self._drawing = 0, -1
        self._generator: np.random.Generator | None = None
        self._torch: list[int] = []
        self._numpy: list[int] = []
        if everywhere:
            self._torch = scatter(numbers, hash_key("sample torch", seed)).tolist()
            self._numpy = scatter(numbers, hash_key("sample numpy", seed)).tolist()

    def begin(self, number: int) -> None:
        """Sample `number` of the request is made next."""
        self._now = number
        if self._torch:
            random.seed(self._keys[number])
            np.random.seed(self._numpy[number])
            torch.default_generator.manual_seed(self._torch[number])  # CUDA's are left alone

    def generator(self) -> np.random.Generator:
        """The sample's own."""
        if self._generator is None or self._drawing != self._now:
            self._generator, self._drawing = np.random.Generator(np.random.Philox(key=self._keys[self._now])), self._now
        return self._generator

    def __enter__(self) -> Self:
        self._before = _under_way.set(self)
        return self

    def __exit__(self, *_: object) -> None:
        _under_way.reset(self._before)


def scatter(numbers: I64, key: int) -> U32:
    """A keyed bijection of the integers below 2**32, into which the numbers are taken. int64 [k] to uint32 [k].

    Three times: xor with a word of the key, then MurmurHash3's 32-bit finaliser (Appleby 2011), itself a bijection.
    """
    value = (numbers & 0xFFFFFFFF).astype(np.uint32)
    for word in counter_hash(np.arange(3), key).astype(np.uint32):
        value ^= word
        value ^= value >> 16
        value *= np.uint32(0x85EBCA6B)
        value ^= value >> 13
        value *= np.uint32(0xC2B2AE35)
        value ^= value >> 16
    return value


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
    with put_back(), Keys(hash_key(purpose, *parts), np.zeros(1, dtype=np.int64), everywhere=True) as keys:
        keys.begin(0)
        yield
