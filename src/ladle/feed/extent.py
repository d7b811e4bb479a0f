"""How far a feed reaches: its epochs' borders and its end, by arithmetic on positions."""

from __future__ import annotations

from dataclasses import dataclass, replace

from ladle.errors import ConfigError
from ladle.feed.arguments import integer
from ladle.feed.producer import Shape
from ladle.feed.recipe import INDEPENDENT
from ladle.rows.stream import Units

UNMIXED = "a mixture has no epochs: each of its sources has its own; use total_tokens="
ENDLESS = "order='random' has no epochs: it draws independent windows for ever; use total_tokens="


@dataclass(frozen=True, slots=True, kw_only=True)
class Extent:
    """epoch: from one border to the next, or None where there are no epochs, and `why` says so. end: None: endless.

    Both count what a position counts.
    """

    epoch: int | None
    why: str
    end: int | None = None

    @classmethod
    def of(cls, stream: Units, epochs: int | None, total_tokens: int | None, *, mixed: bool) -> Extent:
        """Of a stream, that of a mixture or another, which ends after so many epochs and slots. Raises ConfigError."""
        units = stream.units_per_epoch
        if units is None and not mixed and epochs is not None:
            raise ConfigError(f"epochs: expected None with order='random', found {epochs!r}: {INDEPENDENT}")
        extent = cls(epoch=None if units is None else units * stream.window, why=UNMIXED if mixed else ENDLESS)
        ends = [] if epochs is None else [integer("epochs", epochs, 1) * extent.slots_per_epoch]
        ends += [] if total_tokens is None else [integer("total_tokens", total_tokens, 1)]
        return replace(extent, end=integer("epochs: the feed's slots", min(ends), 1)) if ends else extent

    @property
    def slots_per_epoch(self) -> int:
        """From one border to the next. Raises ConfigError where there are no epochs."""
        if self.epoch is None:
            raise ConfigError(self.why)
        return self.epoch

    def iteration_end(self, position: int) -> int | None:
        """Where an iteration that begins here ends: at the next border, or at the end; None: never."""
        if self.epoch is None:
            return self.end
        border = (position // self.epoch + 1) * self.epoch
        return border if self.end is None else min(border, self.end)

    def batches(self, shape: Shape) -> int:
        """Batches from position 0 to the end. Raises TypeError where there is none."""
        if self.end is not None:
            return shape.batches(self.end)
        if self.epoch is None:
            raise TypeError("this feed is endless: pass total_tokens= to end it")
        hint = f"(feed.batches_per_epoch is {shape.batches(self.epoch)})"
        raise TypeError(f"this feed is endless: pass epochs= or total_tokens= to end it {hint}")
