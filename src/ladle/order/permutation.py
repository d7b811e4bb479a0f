"""The order of an epoch: a keyed bijection of [0, n) with a closed-form inverse and no memory.

Order version 1; docs/order.md specifies it so that another language could write it. A balanced Feistel network
over the mixed radix (a, b), a = ceil(sqrt n), b = ceil(n / a), six rounds, with cycle walking for the few images at or
above n; at n <= 1024, where a network of few rounds is measurably biased, a sort of hashes.
Not a cipher: it mixes, it keeps no secret.
"""

from __future__ import annotations

import hashlib
from typing import TypeVar

import numpy as np
from numpy import add, bitwise_xor, floor_divide, minimum, multiply, right_shift, subtract
from numpy.typing import ArrayLike, NDArray

from ladle.errors import ConfigError

ORDER_VERSION = 1  # changing any line below that alters an order means a new version, never an edit

ROUNDS = 6
SMALL = 1024  # up to here: a sort of n hashes
BLOCK = 16384  # elements a pass works on: five arrays of them stay in the second-level cache
LARGEST = 2**62

U64 = NDArray[np.uint64]
I64 = NDArray[np.int64]
Array = TypeVar("Array", I64, U64)

_MASK = 2**64 - 1
_GOLDEN, _MUL1, _MUL2 = 0x9E3779B97F4A7C15, 0xBF58476D1CE4E5B9, 0x94D049BB133111EB


def _word(value: int) -> U64:
    """A constant as NumPy takes it fastest: an array without dimensions."""
    return np.array(value & _MASK, dtype=np.uint64)


_27, _30, _31, _32, _54, _60, _62 = (_word(shift) for shift in (27, 30, 31, 32, 54, 60, 62))
_M1, _M2, _G = _word(_MUL1), _word(_MUL2), _word(_GOLDEN)
_M1_INVERSE, _M2_INVERSE, _G_INVERSE = (_word(pow(odd, -1, 2**64)) for odd in (_MUL1, _MUL2, _GOLDEN))


def hash_key(purpose: str, *parts: int | str) -> int:
    """A 64-bit key for a purpose and its numbers: hashed, since sums such as seed + epoch collide.

    The first 8 bytes, little-endian, of BLAKE2b-64 over "{purpose}-v1:{part}:{part}...". Free text goes last.
    """
    text = ":".join([f"{purpose}-v{ORDER_VERSION}", *(str(part) for part in parts)])
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "little")


def epoch_key(seed: int, epoch: int) -> int:
    """The key of one epoch's order: hash_key("order", seed, epoch)."""
    return hash_key("order", seed, epoch)


def mix64(value: U64) -> U64:
    """SplitMix64's finaliser (Steele, Lea and Flood 2014), in place on uint64 [...]; returns its argument."""
    scratch = np.empty_like(value)
    right_shift(value, _30, out=scratch)
    bitwise_xor(value, scratch, out=value)
    return _finish(value, scratch)


def _finish(value: U64, scratch: U64) -> U64:
    """mix64 after its first shift, in place."""
    multiply(value, _M1, out=value)
    right_shift(value, _27, out=scratch)
    bitwise_xor(value, scratch, out=value)
    multiply(value, _M2, out=value)
    right_shift(value, _31, out=scratch)
    return bitwise_xor(value, scratch, out=value)


def _unmix64(value: U64) -> U64:
    """The inverse of mix64, in place."""
    value ^= (value >> _31) ^ (value >> _62)
    value *= _M2_INVERSE
    value ^= (value >> _27) ^ (value >> _54)
    value *= _M1_INVERSE
    value ^= (value >> _30) ^ (value >> _60)
    return value


def counter_hash(index: ArrayLike, key: int | U64) -> U64:
    """mix64(key + (index + 1) * golden), the SplitMix64 stream of `key` read at any place. index: int64 [...]."""
    value = np.array(index).astype(np.uint64)  # a copy of our own
    value += np.uint64(1)
    value *= _G
    return mix64(np.asarray(value + np.asarray(key, dtype=np.uint64)))


def permute(index: ArrayLike, n: int | I64, key: int | U64, *, inverse: bool = False) -> I64:
    """Where each index goes in the order of `key` (or, with inverse, which index goes there).

    index: integers in [0, n), any shape. n: one size or one for each index, 1 <= n <= 2**62. key: one 64-bit key
    or one for each index (uint64). Returns int64 of the common shape, freshly owned.
    Raises ConfigError for an index outside [0, n), an absurd n, or numbers that are not integers.
    Cost, measured: docs/order.md. No memory grows with n.
    """
    places, sizes, keys = _integers("index", index), _integers("n", n), np.asarray(key, dtype=np.uint64)
    shape = np.broadcast_shapes(places.shape, sizes.shape, keys.shape)
    if sizes.size and (int(sizes.min()) < 1 or int(sizes.max()) > LARGEST):
        raise ConfigError(f"n: expected 1 to 2**62, found {int(sizes.min())} to {int(sizes.max())}")
    wrong = places.view(np.uint64) >= sizes.view(np.uint64)  # below 0 is enormous
    if wrong.any():
        at = int(np.broadcast_to(wrong, shape).argmax())
        found, bound = (int(np.broadcast_to(array, shape).flat[at]) for array in (places, sizes))
        raise ConfigError(f"index: expected 0 <= index < {bound}, found {found} at place {at}")
    places = _flat(places, shape)
    # One size or key for all stays an array without dimensions, which every step below broadcasts.
    sizes = sizes.reshape(()) if sizes.size == 1 else _flat(sizes, shape)
    keys = keys.reshape(()) if keys.size == 1 else _flat(keys, shape)
    small = sizes <= SMALL
    if small.all():
        return _sort(places, sizes, keys, inverse=inverse).reshape(shape)
    if not small.any():
        return _walk(places, sizes, keys, inverse=inverse).reshape(shape)
    out = np.empty(places.size, dtype=np.int64)
    for way, chosen in ((_sort, np.flatnonzero(small)), (_walk, np.flatnonzero(~small))):
        out[chosen] = way(places[chosen], sizes[chosen], _part(keys, chosen), inverse=inverse)
    return out.reshape(shape)


def _integers(name: str, value: ArrayLike | I64) -> I64:
    array = np.asarray(value)
    if array.dtype.kind not in "iu" and array.size:
        raise ConfigError(f"{name}: expected integers, found {array.dtype}")
    return array.astype(np.int64, copy=False)


def _flat(array: Array, shape: tuple[int, ...]) -> Array:
    """One element for each of `shape`, in a row."""
    return (array if array.shape == shape else np.broadcast_to(array, shape)).reshape(-1)


def _part(word: Array, which: slice | I64) -> Array:
    """Some elements of `word`, or the one that stands for all."""
    return word[which] if word.ndim else word


# --- n > 1024: the network ---

_ROUND_WORDS = mix64(np.arange(1, ROUNDS + 1, dtype=np.uint64))


def _walk(index: I64, n: I64, key: U64, *, inverse: bool) -> I64:
    """The network over index (int64 [k]), again for the images at or above n: fewer than one in sqrt(n) each time."""
    image, bound = index.astype(np.uint64), n.astype(np.uint64)
    words = (*_radices(n), _round_keys(key)) if n.ndim == key.ndim == 0 else None
    _pass(image, n, key, words, inverse=inverse)
    outside = np.flatnonzero(image >= bound)
    while outside.size:
        again = image[outside]
        _pass(again, _part(n, outside), _part(key, outside), words, inverse=inverse)
        image[outside] = again
        outside = outside[again >= _part(bound, outside)]
    return image.view(np.int64)


def _pass(image: U64, n: I64, key: U64, words: tuple[U64, U64, U64] | None, *, inverse: bool) -> None:
    """The network once over image (uint64 [k]), in place and in blocks. words: radices and round keys, where all share them."""
    scratch = np.empty((4, min(BLOCK, image.size)), dtype=np.uint64)
    for low in range(0, image.size, BLOCK):
        block = slice(low, low + BLOCK)
        a, b, keys = words or (*_radices(_part(n, block)), _round_keys(_part(key, block)))
        _network(image[block], a, b, keys, scratch, inverse=inverse)


def _radices(n: I64) -> tuple[U64, U64]:
    """(a, b): a = ceil(sqrt n), b = ceil(n / a), so that a * b >= n with less than b to spare."""
    root = np.ceil(np.sqrt(n.astype(np.float64))).astype(np.int64)
    root = root + (root * root < n)  # float64 rounds above 2**52
    root = root - ((root - 1) * (root - 1) >= n)
    return np.asarray(root, dtype=np.uint64), np.asarray(-(-n // root), dtype=np.uint64)


def _round_keys(key: U64) -> U64:
    """k_r = mix64(key xor mix64(r + 1)), with mix64's first shift done ahead: k_r xor (k_r >> 30). uint64 [6, ...]."""
    keys = mix64(key ^ _ROUND_WORDS.reshape(-1, *(1,) * key.ndim))
    return keys ^ (keys >> _30)


def _network(image: U64, a: U64, b: U64, keys: U64, scratch: U64, *, inverse: bool) -> None:
    """Six rounds over image (uint64 [k]), in place. scratch: uint64 [4, >= k]. NumPy's cost a pass is what counts here."""
    left, right, word, other = scratch[:, : image.size]
    wide = bool(a.max() > 2**30)
    floor_divide(image, b, out=left)
    multiply(left, b, out=word)
    subtract(image, word, out=right)
    for r in reversed(range(ROUNDS)) if inverse else range(ROUNDS):
        source, target, modulus = (right, left, a) if r % 2 == 0 else (left, right, b)
        # Shift and xor are linear over xor: (v ^ k) ^ ((v ^ k) >> 30) is v ^ (v >> 30) with the key's part done ahead,
        # and v >> 30 is nothing below 2**30.
        bitwise_xor(source, keys[r], out=word)
        if wide:
            right_shift(source, _30, out=other)
            bitwise_xor(word, other, out=word)
        _finish(word, other)
        right_shift(word, _32, out=word)
        multiply(word, modulus, out=word)
        right_shift(word, _32, out=word)
        # target and word are below the modulus: one wrap at most, and of the two candidates the wrong one is
        # enormous as an unsigned number.
        if inverse:
            subtract(target, word, out=target)
            add(target, modulus, out=other)
        else:
            add(target, word, out=target)
            subtract(target, modulus, out=other)
        minimum(target, other, out=target)
    multiply(left, b, out=image)
    add(image, right, out=image)


# --- n <= 1024: the sort ---


def _sort(index: I64, n: I64, key: U64, *, inverse: bool) -> I64:
    """Place i holds the number whose hash is the i-th smallest of counter_hash(0 .. n - 1). index: int64 [k].

    One row of sorted hashes for each different (n, key). mix64 and an odd factor can be undone, so hashes of one key
    never tie, and a sorted hash tells the number it came from: no index is sorted along.
    """
    if n.ndim == key.ndim == 0:
        return _from_rows(index, np.zeros(index.size, dtype=np.int64), n.reshape(1), key.reshape(1), inverse=inverse)
    n, key = np.broadcast_to(n, index.shape), np.broadcast_to(key, index.shape)
    by_pair = np.lexsort((key, n))
    n, key = n[by_pair], key[by_pair]
    new = np.ones(index.size, dtype=np.bool_)
    new[1:] = (n[1:] != n[:-1]) | (key[1:] != key[:-1])
    first = np.flatnonzero(new)  # of each pair, ascending in n, so that rows sorted together waste little
    row = np.cumsum(new) - 1
    out = np.empty(index.size, dtype=np.int64)
    rows_at_once = BLOCK // int(n[-1]) if n.size else 1
    for low in range(0, first.size, rows_at_once):
        pairs = first[low : low + rows_at_once]
        high = first[low + rows_at_once] if low + rows_at_once < first.size else index.size
        members = slice(pairs[0], high)
        out[by_pair[members]] = _from_rows(index[by_pair[members]], row[members] - low, n[pairs], key[pairs], inverse=inverse)
    return out


def _from_rows(index: I64, row: I64, n: I64, key: U64, *, inverse: bool) -> I64:
    """index, row: int64 [k], the row being a place in n and key (one of each for every row of hashes)."""
    hashes = _sorted_hashes(n, key)
    if not inverse:
        return _numbers(hashes[row, index], key[row])
    wanted = counter_hash(index, key[row])
    place = np.zeros(index.size, dtype=np.int64)  # how many of the row's hashes are smaller, by halving
    step = SMALL
    while step:
        further = minimum(place + step, hashes.shape[1])
        place = np.where(hashes[row, further - 1] < wanted, further, place)
        step //= 2
    return place


def whole_orders(n: I64, key: U64) -> list[NDArray[np.uint16]]:
    """permute(arange(n), n, key) for each n and its key, every n at most 1 024. n: int64 [k]; key: uint64 [k]."""
    orders: list[NDArray[np.uint16]] = [np.empty(0, np.uint16)] * n.size
    by_size = np.argsort(n, kind="stable")  # rows sorted together then waste little
    rows_at_once = BLOCK // SMALL
    for low in range(0, n.size, rows_at_once):
        some = by_size[low : low + rows_at_once]
        numbers = _numbers(_sorted_hashes(n[some], key[some]), key[some, np.newaxis]).astype(np.uint16)
        for place, row in zip(some.tolist(), numbers, strict=True):
            orders[place] = row[: n[place]].copy()
    return orders


def _sorted_hashes(n: I64, key: U64) -> U64:
    """counter_hash(0 .. n - 1) of each key, ascending: uint64 [k, largest n]; what follows a row's own n is the largest word."""
    numbers = np.arange(int(n.max()))
    hashes = counter_hash(numbers, key[:, np.newaxis])
    least = int(n.min())
    hashes[:, least:][numbers[least:] >= n[:, np.newaxis]] = _MASK  # no hash is larger
    hashes.sort(axis=1)
    return hashes


def _numbers(hashes: U64, key: U64) -> I64:
    """The numbers that these are counter_hash of."""
    value = _unmix64(hashes)
    value -= key
    value *= _G_INVERSE
    return (value - np.uint64(1)).view(np.int64)


def multiply_high(word: U64, bound: int | I64) -> I64:
    """floor(word * bound / 2**64): a 64-bit hash spread over [0, bound), every value possible. bound <= 2**62."""
    low_word, high_word = word & np.uint64(0xFFFFFFFF), word >> _32
    whole = np.asarray(bound, dtype=np.uint64)
    low, high = whole & np.uint64(0xFFFFFFFF), whole >> _32
    middle = (low_word * low >> _32) + high_word * low
    carry = (middle & np.uint64(0xFFFFFFFF)) + low_word * high
    product: U64 = high_word * high + (middle >> _32) + (carry >> _32)
    return product.astype(np.int64)
