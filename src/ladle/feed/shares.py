"""What each source has given so far."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ladle.rows.stream import Units


@dataclass(frozen=True, slots=True, kw_only=True)
class Share:
    """slots: handed out from this source. share: of all slots. epochs: how many times that is the whole source."""

    slots: int
    share: float
    epochs: float


def shares(names: Sequence[str], stream: Units, position: int) -> dict[str, Share]:
    """Of each source, after `position` slots in all; the slots add up to it."""
    slots, whole = stream.handed_out(position).tolist(), stream.epoch_slots.tolist()
    return {
        name: Share(slots=had, share=had / position if position else 0.0, epochs=had / all_)
        for name, had, all_ in zip(names, slots, whole, strict=True)
    }
