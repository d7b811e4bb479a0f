"""The order of an epoch: a keyed bijection of [0, n) with a closed-form inverse and no memory.

Order version 1; docs/order.md specifies it so that another language could write it. A balanced Feistel network
over the mixed radix (a, b), a = ceil(sqrt n), b = ceil(n / a), six rounds, with cycle walking for the few images at or
above n; at n <= 1024, where a network of few rounds is measurably biased, a sort of hashes.
Not a cipher: it mixes, it keeps no secret.
"""

from __future__ import annotations

import hashlib
import itertools
import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from ladle.errors import ConfigError

ORDER_VERSION = 1  # changing any line below that alters an order means a new version, never an edit

ROUNDS = 6
SMALL = 1024  # up to here: the stable argsort of n hashes
BLOCK = 4096  # elements a pass works on: three scratch arrays stay in the second-level cache
LARGEST = 2**62

_GOLDEN = np.uint64(0x9E3779B97F4A7C15)
_MUL1 = 0xBF58476D1CE4E5B9
_MUL2 = 0x94D049BB133111EB
_MASK = 2**64 - 1
_STEPS = ((np.uint64(30), np.uint64(_MUL1)), (np.uint64(27), np.uint64(_MUL2)))  # NumPy scalars: converted once
_LAST = np.uint64(31)
_HALF = np.uint64(32)

U64 = NDArray[np.uint64]
I64 = NDArray[np.int64]
Word = np.uint64 | U64


def hash_key(purpose: str, *parts: int | str) -> int:
    """A 64-bit key for a purpose and its numbers: hashed, since sums such as seed + epoch collide."""
    text = ":".join([f"{purpose}-v{ORDER_VERSION}", *(str(part) for part in parts)])
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "little")


def epoch_key(seed: int, epoch: int) -> int:
    """The key of one epoch's order: the first 8 bytes, little-endian, of BLAKE2b("order-v1:{seed}:{epoch}")."""
    return hash_key("order", seed, epoch)


def mix64(value: U64, scratch: U64 | None = None) -> U64:
    """SplitMix64's finaliser, in place on uint64 [...]; returns its argument."""
    scratch = np.empty_like(value) if scratch is None else scratch
    for shift, factor in _STEPS:
        np.right_shift(value, shift, out=scratch)
        np.bitwise_xor(value, scratch, out=value)
        np.multiply(value, factor, out=value)
    np.right_shift(value, _LAST, out=scratch)
    return np.bitwise_xor(value, scratch, out=value)


def _mix_int(value: int) -> int:
    for shift, factor in ((30, _MUL1), (27, _MUL2)):
        value = ((value ^ value >> shift) * factor) & _MASK
    return value ^ value >> 31


def counter_hash(index: ArrayLike, key: int) -> U64:
    """mix64(key + (index + 1) * golden), the SplitMix64 stream of `key` read at any place. index: int64 [...]."""
    value = np.array(index).astype(np.uint64)  # a copy of our own
    value += np.uint64(1)
    value *= _GOLDEN
    value += np.uint64(key)
    return mix64(value)


def permute(index: ArrayLike, n: int | I64, key: int | U64, *, inverse: bool = False) -> I64:
    """Where each index goes in the order of `key` (or, with inverse, which index goes there).

    index: integers in [0, n), any shape. n: one size or one for each index, 1 <= n <= 2**62. key: one 64-bit key
    or one for each index (uint64). Returns int64 of the common shape, freshly owned.
    Raises ConfigError for an index outside [0, n) or an absurd n.
    Cost: about 25 ns an index in blocks; no memory grows with n.
    """
    places = np.asarray(index, dtype=np.int64)
    sizes, keys = np.asarray(n, dtype=np.int64), np.asarray(key, dtype=np.uint64)
    shape = np.broadcast_shapes(places.shape, sizes.shape, keys.shape)
    if sizes.size and (int(sizes.min()) < 1 or int(sizes.max()) > LARGEST):
        raise ConfigError(f"n: expected 1 to 2**62, found {int(sizes.min())} to {int(sizes.max())}")
    flat = np.broadcast_to(places, shape).reshape(-1)
    if flat.size and (int(flat.min()) < 0 or bool((places >= sizes).any())):
        wrong = np.broadcast_to((places < 0) | (places >= sizes), shape).reshape(-1)
        at = int(wrong.argmax())
        bound = int(np.broadcast_to(sizes, shape).reshape(-1)[at])
        raise ConfigError(f"index: expected 0 <= index < {bound}, found {int(flat[at])} at place {at}")
    if sizes.size == 1 and keys.size == 1:
        size, word = int(sizes.reshape(-1)[0]), int(keys.reshape(-1)[0])
        if size <= SMALL:
            return _small_order(size, word, inverse=inverse)[flat].reshape(shape)
        return _permute_large(flat, size, word, inverse=inverse).reshape(shape)
    out = np.empty(flat.size, dtype=np.int64)
    sizes, keys = np.broadcast_to(sizes, shape).reshape(-1), np.broadcast_to(keys, shape).reshape(-1)
    small = sizes <= SMALL
    if small.any():
        _many_small(flat, sizes, keys, np.flatnonzero(small), out, inverse=inverse)
    large = np.flatnonzero(~small)
    if large.size:
        out[large] = _permute_large(flat[large], sizes[large], keys[large], inverse=inverse)
    return out.reshape(shape)


def _small_order(n: int, key: int, *, inverse: bool) -> I64:
    order = np.argsort(counter_hash(np.arange(n), key), kind="stable")
    return np.argsort(order, kind="stable") if inverse else order


def _many_small(flat: I64, sizes: I64, keys: U64, chosen: I64, out: I64, *, inverse: bool) -> None:
    """One sort for each different (n, key) among the chosen elements."""
    pairs = np.stack((sizes[chosen].astype(np.uint64), keys[chosen]), axis=1)
    different, group = np.unique(pairs, axis=0, return_inverse=True)
    by_group = np.argsort(group, kind="stable")
    borders = np.searchsorted(group[by_group], np.arange(len(different) + 1))
    for row, (low, high) in enumerate(itertools.pairwise(borders.tolist())):
        members = chosen[by_group[low:high]]
        order = _small_order(int(different[row, 0]), int(different[row, 1]), inverse=inverse)
        out[members] = order[flat[members]]


def _radices(n: int | I64) -> tuple[Word, Word]:
    """(a, b): a = ceil(sqrt n), b = ceil(n / a), so that a * b >= n with less than b to spare."""
    if isinstance(n, int):
        a = math.isqrt(n - 1) + 1
        return np.uint64(a), np.uint64(-(-n // a))
    root = np.ceil(np.sqrt(n.astype(np.float64))).astype(np.int64)
    root += root * root < n  # float64 rounds above 2**52
    root -= (root - 1) * (root - 1) >= n
    return root.astype(np.uint64), (-(-n // root)).astype(np.uint64)


@dataclass(frozen=True, slots=True)
class _Network:
    """Radices and round keys: one each (a NumPy scalar), or one for every element (uint64 arrays)."""

    a: Word
    b: Word
    keys: tuple[Word, ...]

    def part(self, which: slice | I64) -> _Network:
        """The network of some of the elements."""

        def cut(word: Word) -> Word:
            return word[which] if isinstance(word, np.ndarray) else word

        return _Network(cut(self.a), cut(self.b), tuple(cut(key) for key in self.keys))

    def run(self, image: U64, *, inverse: bool) -> U64:
        """One pass over image (uint64 [k]), in place; returns it."""
        left, right, word, scratch = (np.empty_like(image) for _ in range(4))
        np.floor_divide(image, self.b, out=left)
        np.multiply(left, self.b, out=word)
        np.subtract(image, word, out=right)
        for r in reversed(range(ROUNDS)) if inverse else range(ROUNDS):
            source, target, modulus = (right, left, self.a) if r % 2 == 0 else (left, right, self.b)
            np.bitwise_xor(source, self.keys[r], out=word)
            mix64(word, scratch)
            np.right_shift(word, _HALF, out=word)
            np.multiply(word, modulus, out=word)
            np.right_shift(word, _HALF, out=word)
            # target and word are below the modulus: one wrap at most, and the wrong one of the two candidates is
            # enormous as an unsigned number.
            if inverse:
                np.subtract(target, word, out=target)
                np.add(target, modulus, out=scratch)
            else:
                np.add(target, word, out=target)
                np.subtract(target, modulus, out=scratch)
            np.minimum(target, scratch, out=target)
        np.multiply(left, self.b, out=image)
        return np.add(image, right, out=image)


def _permute_large(index: I64, n: int | I64, key: int | U64, *, inverse: bool) -> I64:
    """The network over every index, in blocks; images at or above n walk on until they fall below it."""
    a, b = _radices(n)
    words = [_mix_int(r + 1) for r in range(ROUNDS)]
    keys: list[Word] = [
        mix64(np.array([key ^ word], dtype=np.uint64))[0] if isinstance(key, int) else mix64(key ^ np.uint64(word))
        for word in words
    ]
    network = _Network(a, b, tuple(keys))
    bound: Word = np.uint64(n) if isinstance(n, int) else n.astype(np.uint64)
    out = np.empty(index.size, dtype=np.int64)
    for low in range(0, index.size, BLOCK):
        block = slice(low, low + BLOCK)
        part = network.part(block)
        limit = bound[block] if isinstance(bound, np.ndarray) else bound
        image = part.run(index[block].astype(np.uint64), inverse=inverse)
        outside = np.flatnonzero(image >= limit)
        while outside.size:  # fewer than one in sqrt(n)
            image[outside] = part.part(outside).run(image[outside], inverse=inverse)
            outside = outside[image[outside] >= (limit[outside] if isinstance(limit, np.ndarray) else limit)]
        out[block] = image
    return out


def multiply_high(word: U64, bound: int) -> I64:
    """floor(word * bound / 2**64): a 64-bit hash spread over [0, bound), every value possible. bound <= 2**62."""
    low_word, high_word = word & np.uint64(0xFFFFFFFF), word >> np.uint64(32)
    low, high = np.uint64(bound & 0xFFFFFFFF), np.uint64(bound >> 32)
    middle = (low_word * low >> np.uint64(32)) + high_word * low
    carry = (middle & np.uint64(0xFFFFFFFF)) + low_word * high
    product: U64 = high_word * high + (middle >> _HALF) + (carry >> _HALF)
    return product.astype(np.int64)
