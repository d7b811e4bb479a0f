"""The recipe (everything that decides the order) and the state (one integer, and proof that it belongs here)."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, replace

from ladle.errors import StateError
from ladle.order.permutation import LARGEST, ORDER_VERSION

STATE_FORMAT = 1


def recipe_json(settings: Mapping[str, object], defaults: Mapping[str, object]) -> str:
    """Canonical JSON: sorted keys, no spaces, settings equal to their default left out (new options change no old hash)."""
    said = {key: value for key, value in settings.items() if key not in defaults or value != defaults[key]}
    return json.dumps(said, sort_keys=True, separators=(",", ":"), ensure_ascii=True)


def recipe_hash(text: str) -> str:
    """32 hexadecimal digits of BLAKE2b over the recipe's JSON."""
    return hashlib.blake2b(text.encode(), digest_size=16).hexdigest()


@dataclass(frozen=True, slots=True, kw_only=True)
class FeedState:
    """Slots that the consumer has received, all ranks together. No rank, world size, batch size or queue depth.

    recipe: hash of what decides the order. corpus: fingerprint. seed, window: part of the recipe, kept apart so that
    an error can name them. unit: "slots". position: slots since the start.
    """

    recipe: str
    corpus: str
    seed: int
    window: int
    position: int
    unit: str = "slots"

    def to_dict(self) -> dict[str, object]:
        """Plain JSON values, the same on every rank, under 400 bytes."""
        return {
            "format": STATE_FORMAT,
            "order_version": ORDER_VERSION,
            "recipe": self.recipe,
            "corpus": self.corpus,
            "seed": self.seed,
            "window": self.window,
            "unit": self.unit,
            "position": self.position,
        }

    def at(self, position: int) -> FeedState:
        """The state of the same stream at another position."""
        return replace(self, position=position)

    def position_from(self, saved: Mapping[str, object]) -> int:
        """The position in `saved`, after a check that it belongs to this stream.

        Raises StateError naming the first of format, order version, corpus, unit, seed, window and recipe that differs.
        """
        if not isinstance(saved, Mapping):
            raise StateError(f"state: expected a feed's state_dict, found {type(saved).__name__}")
        mine = self.to_dict()
        for key, reason in WHY.items():
            if key not in saved:
                raise StateError(f"state: {key}: expected {mine[key]}, found nothing; it is not a feed's state_dict")
            if type(saved[key]) is not type(mine[key]) or saved[key] != mine[key]:
                raise StateError(f"state: {key}: expected {mine[key]}, found {saved[key]}; {reason}")
        position = saved.get("position")
        if type(position) is not int or not 0 <= position < LARGEST:
            raise StateError(f"state: position: expected 0 to 2**62 slots, found {position!r}")
        return position


WHY = {  # what is compared, in this order, and what a difference means
    "format": "it was saved by another version of Ladle",
    "order_version": "it was saved under another order version, which deals windows in another order",
    "corpus": "it belongs to other data (the fingerprints differ)",
    "unit": "it counts something else",
    "seed": "it belongs to another seed",
    "window": "windows are what is shuffled: pass window= from the start to change block_size later",
    "recipe": "order, stride, tail, epoch_offset, shuffle_block or score differ from the run that saved it",
}
