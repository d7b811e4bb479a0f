"""From a recipe and its source to the stream of rows, and to what makes batches of them."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from ladle.corpus.split import Split
from ladle.errors import ConfigError
from ladle.feed.budget import BudgetProducer, BudgetStream, budget_stream
from ladle.feed.mixture import Mixture
from ladle.feed.pack_cache import packs_of
from ladle.feed.pieces import CutRows, PackedRows, PieceProducer
from ladle.feed.plan import Plan
from ladle.feed.producer import Producer, Shape
from ladle.feed.recipe import Recipe
from ladle.order.permutation import I64
from ladle.rows.packs import Packs
from ladle.rows.stream import MixedPackStream, PackedStream, PackStream, Stream

if TYPE_CHECKING:
    from typing_extensions import TypeIs

MakeBatches = Callable[..., Producer | PieceProducer]


def stream_of(recipe: Recipe, source: Split | Mixture, cache: Any = None) -> Stream | PackedStream:
    """The stream of a source's windows or packs. cache: where plans of packs are kept (packs_of). Raises ConfigError."""
    packing = recipe.packing
    if recipe.batch_tokens is not None:
        return budget_stream(recipe, source, cache)
    if packing is None:
        if cache is not None:
            raise ConfigError(f"pack_cache: expected None without pack=, found {cache!r}: windows have no plan to keep")
        return source.stream(recipe) if isinstance(source, Mixture) else recipe.stream(source)
    if isinstance(source, Split):
        return recipe.packed(packs_of(source, packing, cache))
    return source.packed(recipe, [packs_of(split, packing, cache) for split in source.splits])


def is_packed(stream: Stream | PackedStream) -> TypeIs[PackedStream]:
    """Whether its units are packed rows."""
    return isinstance(stream, PackStream | MixedPackStream | BudgetStream)


def packs_in(stream: Stream | PackedStream) -> list[Packs]:
    """The plans of a stream of packs, one for each source; none where it is of windows."""
    if isinstance(stream, PackStream | BudgetStream):
        return [stream.packs]
    return list(stream.packs) if isinstance(stream, MixedPackStream) else []


def batches_of(recipe: Recipe, source: Split | Mixture, stream: Stream | PackedStream, shape: Shape, **how: Any) -> MakeBatches:
    """What makes a producer of the stream's batches; how: as Producer's. Raises ConfigError for a loss mask that is not there."""
    tokens = source.joined if isinstance(source, Mixture) else source
    for split in source.splits if isinstance(source, Mixture) else [source]:
        if recipe.loss_mask and not split.has_loss_mask:
            raise ConfigError(
                f"loss_mask: expected a corpus that was prepared with one, found none in {split.where}; prepare it with "
                f"train_spans_field= or chat_field="
            )
    masked = uses_loss_mask(recipe, tokens)
    packed = is_packed(stream)
    rows: Callable[[int], Any]
    if is_packed(stream):
        rows = partial(PackedRows, stream)
    elif not (masked or recipe.mask_documents):
        return partial(Producer, tokens, stream, shape, **how)
    else:
        ends = document_ends(source) if recipe.mask_documents else None
        rows = partial(_cut, stream, shape.block_size, ends)
    return partial(
        BudgetProducer if isinstance(stream, BudgetStream) else PieceProducer,
        tokens,
        rows,
        shape,
        packed=packed,
        documents=packed or recipe.mask_documents,
        loss_mask=masked,
        scattered=stream.scattered,
        **how,
    )


def uses_loss_mask(recipe: Recipe, split: Split) -> bool:
    """Whether the split has a mask of targets of its own, and the recipe does not ignore it."""
    return split.has_loss_mask and recipe.loss_mask is not False


def _cut(stream: Stream, block_size: int, ends: I64 | None, ahead: int) -> CutRows:
    return CutRows(Plan(stream, block_size, ahead), ends, ahead)


def document_ends(source: Split | Mixture) -> I64:
    """Where documents end, in the numbering of all sources: int64, ascending; the last is N."""
    if isinstance(source, Split):
        return source.document_ends().view(np.int64)  # of one shard the mapped file itself
    parts = [
        split.document_ends().view(np.int64) + base for split, base in zip(source.splits, source.bases.tolist(), strict=False)
    ]
    return np.concatenate(parts)
