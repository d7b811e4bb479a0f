"""A loader's state: where its consumer stands, and proof that it belongs to this order over this dataset."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ladle.batching.walk import Course, Place
from ladle.errors import StateError
from ladle.feed.recipe import canonical, digest
from ladle.order.permutation import LARGEST, ORDER_VERSION

STATE_FORMAT = 1


class LoaderState:
    """Turns places into states and back. Plain JSON values; no rank, world size, batch size, worker or prefetch depth."""

    def __init__(self, course: Course, *, seed: int, num_samples: int | None, fingerprint: str | None = None) -> None:
        """num_samples: the dataset's length; None where it has none. fingerprint: of its contents, where it has one."""
        self._course = course
        told = {**course.recipe(), "seed": seed, "samples": num_samples, "order_version": ORDER_VERSION}
        self._identity: dict[str, Any] = {
            "format": STATE_FORMAT,
            "order_version": ORDER_VERSION,
            "unit": "samples",
            "samples": num_samples,
            **({} if fingerprint is None else {"dataset": fingerprint}),
            "seed": seed,
            "kind": told["kind"],
            "recipe": digest(canonical(told)),
        }

    def to_dict(self, place: Place) -> dict[str, Any]:
        """position: samples since the start, all ranks together, those a dropped tail left out included.

        Where epochs may differ in size, or nobody knows it, "epoch" and "epoch_start" (a position) stand beside it.
        """
        beside = {"epoch": place.epoch, "epoch_start": place.start} if self._course.replayed else {}
        return {**self._identity, "position": place.position, **beside}

    def place(self, saved: Mapping[str, Any]) -> Place:
        """The place in `saved`. Raises StateError naming the first thing that differs, with both values."""
        if not isinstance(saved, Mapping):
            raise StateError(f"state: expected a loader's state_dict, found {type(saved).__name__}")
        for key, mine in self._identity.items():
            if key not in saved:
                raise StateError(f"state: {key}: expected {mine}, found nothing; it is not a loader's state_dict")
            if type(saved[key]) is not type(mine) or saved[key] != mine:
                raise StateError(f"state: {key}: expected {mine}, found {saved[key]}; {WHY[key]}")
        position = _whole(saved, "position")
        if self._course.replayed:
            epoch, start = _whole(saved, "epoch"), _whole(saved, "epoch_start")
        else:
            epoch = position // self._course.size(0)
            start = epoch * self._course.size(0)
        place = Place(epoch, start, position - start)
        if place.offset < 0:
            raise StateError(f"state: epoch_start: expected at most the position {position}, found {start}")
        if why := self._course.refuse(place):
            raise StateError(f"state: position: expected a place to go on from, found {position}: {why}")
        return place


def _whole(saved: Mapping[str, Any], key: str) -> int:
    value = saved.get(key)
    if type(value) is not int or not 0 <= value < LARGEST:
        raise StateError(f"state: {key}: expected 0 to 2**62, found {value!r}")
    return value


WHY = {  # what a difference means
    "format": "it was saved by another version of Ladle",
    "order_version": "it was saved under another order version, which deals samples in another order",
    "unit": "it counts something else",
    "samples": "the dataset has another length than when it was saved: a new order begins with a new state",
    "dataset": "the dataset's contents differ from when it was saved (its fingerprint says so)",
    "seed": "it belongs to another seed",
    "kind": "it belongs to another kind of order",
    "recipe": "weights, lengths, batch_tokens, the sampler, or with buckets the global batch size, differ",
}
