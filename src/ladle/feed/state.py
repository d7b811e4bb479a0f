"""The state: one integer, and proof that it belongs to this stream."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from ladle.errors import StateError
from ladle.feed.recipe import History
from ladle.order.permutation import LARGEST, ORDER_VERSION

STATE_FORMAT = 1


@dataclass(frozen=True, slots=True)
class FeedState:
    """What the consumer has received, all ranks together. No rank, world size, batch size or queue depth."""

    history: History
    position: int

    def to_dict(self) -> dict[str, object]:
        """Plain JSON values, the same on every rank, under 400 bytes.

        recipe: the hash of what acts before the position. seed and window are part of it; they stand apart so that an
        error can name them.
        """
        recipe, corpus = self.history.at(self.position)
        return {
            "format": STATE_FORMAT,
            "order_version": ORDER_VERSION,
            "recipe": recipe,
            "corpus": corpus,
            "seed": self.history.recipe.seed,
            "window": self.history.recipe.window,
            "unit": self.history.recipe.unit,
            "position": self.position,
        }

    def at(self, position: int) -> FeedState:
        """The state of the same stream at another position."""
        return FeedState(self.history, position)

    def position_from(self, saved: Mapping[str, object]) -> int:
        """The position in `saved`, after a check that it belongs to this stream.

        Raises StateError naming the first of format, order version, unit, seed, window, corpus and recipe that differs.
        """
        if not isinstance(saved, Mapping):
            raise StateError(f"state: expected a feed's state_dict, found {type(saved).__name__}")
        self._compare(saved, "format", "order_version", "unit", "seed", "window")
        position = saved.get("position")
        if type(position) is not int or not 0 <= position < LARGEST:
            raise StateError(f"state: position: expected 0 to 2**62 {self.history.recipe.unit}, found {position!r}")
        self.at(position)._compare(saved, "corpus", "recipe")
        return position

    def _compare(self, saved: Mapping[str, object], *keys: str) -> None:
        mine = self.to_dict()
        for key in keys:
            if key not in saved:
                raise StateError(f"state: {key}: expected {mine[key]}, found nothing; it is not a feed's state_dict")
            if type(saved[key]) is not type(mine[key]) or saved[key] != mine[key]:
                raise StateError(f"state: {key}: expected {mine[key]}, found {saved[key]}; {WHY[key]}")


WHY = {  # what a difference means
    "format": "it was saved by another version of Ladle",
    "order_version": "it was saved under another order version, which deals windows in another order",
    "corpus": "it belongs to other data (the fingerprints differ)",
    "unit": "it counts something else",
    "seed": "it belongs to another seed",
    "window": "windows are what is shuffled: pass window= from the start to change block_size later",
    "recipe": "order, stride, tail, epoch_offset, shuffle_block, score, or weights, stages and exclusions before that position, "
    "differ from the run that saved it",
}
