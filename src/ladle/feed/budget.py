"""A budget of tokens a batch: whole documents, one a row, in batches of like lengths, padded to the batch's longest.

A sample is a document, or a part of one that is longer than a row may be; the position counts samples. Which sample stands where
is decided by rows/buckets.py, whatever the ranks, and a batch never crosses an epoch's border.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from ladle.corpus.split import Split
from ladle.errors import ConfigError
from ladle.feed.advise import Reads
from ladle.feed.batch import Batch
from ladle.feed.mixture import Mixture
from ladle.feed.pack_cache import packs_of
from ladle.feed.pieces import PieceProducer
from ladle.feed.producer import Shape, Ticket
from ladle.feed.recipe import Recipe
from ladle.order.permutation import I64
from ladle.rows.buckets import Buckets
from ladle.rows.packs import Packs
from ladle.rows.pieces import Pieces

AT_ONCE = 2**20  # samples looked at together


class BudgetStream:
    """Place -> sample. A PackedStream whose unit is one sample; its row is as long as the longest of its batch."""

    window = 1
    scattered = whole_rows = True

    def __init__(self, packs: Packs, buckets: Buckets) -> None:
        """packs: one piece a row, and counts that know the padding. buckets: of the pieces' lengths."""
        self.packs, self.buckets, self.num_tokens = packs, buckets, packs.num_tokens
        self.epoch_slots = np.array([buckets.num_samples], dtype=np.int64)

    @property
    def units_per_epoch(self) -> int:
        return self.buckets.num_samples

    def samples(self, first: int, count: int) -> I64:
        """Which samples stand at the places [first, first + count). int64 [count]."""
        n, found, place = self.units_per_epoch, [np.empty(0, dtype=np.int64)], first
        while place < first + count:
            epoch, inside = divmod(place, n)
            number = self.buckets.batch_at(epoch, inside)
            batch = self.buckets.batch(epoch, number)[inside - self.buckets.samples_before(epoch, number) :]
            found.append(batch[: first + count - place])
            place += batch.size
        return np.concatenate(found)

    def pieces(self, first_unit: int, count: int) -> Pieces:
        samples = self.samples(first_unit, count)
        return self.packs.pieces(samples, np.zeros_like(samples))

    def own_pieces(self, source: int, first: int, count: int) -> Pieces:
        del source  # there is one
        return self.pieces(first, count)

    def holding(self, source: int, first: int, last: int, epoch: int) -> I64:
        del source  # there is one
        return np.sort(epoch * self.units_per_epoch + self.buckets.places(epoch, self.packs.holding(first, last, epoch)))

    def handed_out(self, position: int) -> I64:
        return np.array([position], dtype=np.int64)

    def slots(self, epoch: int, batches: int | None = None) -> int:
        """Slots of the first batches of an epoch (None: of all), padding included."""
        return int((self.buckets.padded_lengths(epoch) * self.buckets.sizes(epoch))[:batches].sum())


def budget_stream(recipe: Recipe, source: Split | Mixture, cache: Any = None) -> BudgetStream:
    """The stream of a split's documents. cache: as of packs_of. Raises ConfigError for a document longer than the budget."""
    packing = recipe.packing
    if isinstance(source, Mixture) or packing is None:
        raise ConfigError(f"batch_tokens: expected one split, found {type(source).__name__}: lengths are sorted within a split")
    packs = packs_of(source, packing, cache)
    lengths = np.empty(packs.num_rows, dtype=np.int64)
    for low in range(0, packs.num_rows, AT_ONCE):
        rows = np.arange(low, min(low + AT_ONCE, packs.num_rows), dtype=np.int64)
        lengths[rows] = packs.pieces(rows, np.zeros_like(rows)).length
    shuffle = recipe.order == "shuffled"
    buckets = Buckets(
        lengths, batch_tokens=recipe.batch_tokens, seed=recipe.seed, shuffle=shuffle, longest_first=shuffle, tail="even"
    )
    stream = BudgetStream(packs, buckets)
    slots = stream.slots(0)
    packs.counts = replace(packs.counts, slots=slots, padded=slots - int(lengths.sum()))
    return stream


def refuse_with_budget(*, framework: str, window: int, block_size: int, total_tokens: int | None) -> None:
    """Raise ConfigError for what a feed with batch_tokens= cannot have."""
    if framework == "jax":
        raise ConfigError("framework: expected 'torch' or 'numpy' with batch_tokens=, found 'jax': its arrays are of one shape")
    if window != block_size:
        raise ConfigError(f"window: expected block_size ({block_size}) with batch_tokens=, found {window}: a row is a document")
    if total_tokens is not None:
        raise ConfigError(f"total_tokens: expected None with batch_tokens=, found {total_tokens}: its position counts samples")


@dataclass(frozen=True, slots=True, kw_only=True)
class Budget(Shape):
    """Batches of as many samples as the budget holds. batch_size: of the largest; block_size: the longest row there can be."""

    buckets: Buckets

    @classmethod
    def of(cls, stream: BudgetStream, block_size: int, rank: int, world_size: int) -> Budget:
        """The shape of a stream's batches. Raises ConfigError where a batch has no row for each rank."""
        stream.buckets.require(world_size)
        return cls(
            batch_size=stream.buckets.largest, block_size=block_size, rank=rank, world_size=world_size, buckets=stream.buckets
        )

    @property
    def slots(self) -> int:
        """Samples of the largest batch: what a position counts."""
        return self.batch_size

    def after(self, position: int, batches: int = 1) -> int:
        epoch, number = divmod(self._number(position) + batches, self.buckets.num_batches)
        return epoch * self.buckets.num_samples + self.buckets.samples_before(epoch, number)

    def batches(self, position: int) -> int:
        return self._number(position) + (self.after(position, 0) < position)

    def rows(self, position: int) -> range:
        begin = self.after(position, 0)
        if begin != position:
            raise ConfigError(
                f"position: expected where a batch begins, found {position}: the batch that holds it begins at {begin}"
            )
        return range(position, self.after(position))

    def place(self, row: int) -> tuple[int, int, int]:
        return self._number(row), row - self.after(row, 0), row

    def _number(self, position: int) -> int:
        """The batch that holds this place, counted from the start."""
        epoch, inside = divmod(position, self.buckets.num_samples)
        return epoch * self.buckets.num_batches + self.buckets.batch_at(epoch, inside)


class BudgetProducer(PieceProducer):
    """Makes such batches from tickets. Its advisor counts every batch as the largest."""

    def __call__(self, ticket: Ticket) -> Batch:
        place = self._shape.rows(ticket.position)
        rows = self._plan.rows(place.start, len(place))
        return self._batch(ticket, self._own(len(place), int(rows.pieces.length.max())), place.start, rows)

    def _own(self, rows: int, longest: int) -> Shape:
        """The shape of one batch."""
        shape = self._shape
        return Shape(batch_size=rows, block_size=longest, rank=shape.rank, world_size=shape.world_size)

    def _advised(self, first_row: int) -> int:
        return self._shape.batches(first_row) * self._shape.batch_size

    def _reads(self, first_row: int) -> Reads:
        place = self._shape.rows(self._shape.after(0, first_row // self._shape.batch_size))
        mine = self._own(len(place), 1).slice
        return self._read_by(self._plan.rows(place.start, len(place)).part(mine.start, mine.stop))
