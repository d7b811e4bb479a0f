"""Arguments that are integers: NumPy's are taken, booleans and floats are not, and what comes out is an int."""

from __future__ import annotations

from typing import SupportsIndex

from ladle.errors import ConfigError
from ladle.order.permutation import LARGEST


def integer(name: str, value: object, low: int = -LARGEST, high: int = LARGEST) -> int:
    """value as an int, low <= value < high. Raises ConfigError naming the argument, what was expected and what was found."""
    if isinstance(value, bool) or not isinstance(value, SupportsIndex):
        raise ConfigError(f"{name}: expected an integer, found {value!r}")
    try:
        number = value.__index__()
    except TypeError:  # an array of one element has the method, and refuses
        raise ConfigError(f"{name}: expected an integer, found {value!r}") from None
    if number < low:
        raise ConfigError(f"{name}: expected at least {low}, found {number}")
    if number >= high:
        raise ConfigError(f"{name}: expected less than {high}, found {number}")
    return number


def flag(name: str, value: object) -> bool:
    """value, where it is True or False. Raises ConfigError."""
    if not isinstance(value, bool):
        raise ConfigError(f"{name}: expected True or False, found {value!r}")
    return value
