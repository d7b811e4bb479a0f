"""A batch's segments for the attentions people use. All needs torch.

One rule lies behind every form: a token looks at itself and at what stands before it in its own segment. A slot of padding
(segment -1) looks at itself alone: no document sees it, and no softmax is taken over nothing, which would be NaN.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from ladle.errors import ConfigError
from ladle.feed.boundaries import PADDING

if TYPE_CHECKING:
    from torch.nn.attention.flex_attention import BlockMask

    from ladle.feed.batch import Batch


def attention_mask(segments: Any) -> Tensor:
    """For `scaled_dot_product_attention(attn_mask=)`: bool (B, 1, T, T), True where a query (third axis) may look at a key.

    segments: integers (B, T), of one row's documents from 0, -1 for padding (`batch.segments`). It is causal already, and as
    large as it says: make it for a micro-batch, not for a batch that is passed in several.
    """
    apart = _apart(segments)
    return (apart[:, None, :, None] == apart[:, None, None, :]).tril_()


def block_mask(segments: Any, *, block_size: int = 128) -> BlockMask:
    """For `flex_attention(block_mask=)`: the same mask, with blocks of block_size x block_size that are empty left out.

    segments: as for attention_mask; the heads share one mask. Making it passes over B * T * T places; with long rows compile
    that once (`torch.compile(block_mask)`), as torch's documentation has it for create_block_mask.
    """
    from torch.nn.attention.flex_attention import create_block_mask

    apart = _apart(segments)
    rows, length = apart.shape

    def looks(row: Tensor, _head: Tensor, query: Tensor, key: Tensor) -> Tensor:
        return (query >= key) & (apart[row, query] == apart[row, key])

    return create_block_mask(looks, rows, None, length, length, device=apart.device, BLOCK_SIZE=block_size)


def restarted(segments: Any) -> Tensor:
    """Positions counted from 0 where a segment begins in its row: int64 (B, T), below T; 0 for padding.

    `batch.positions` count from where the document begins, so they have no bound when long documents are split. Use these for
    a learned table of T positions; for rotary ones both are alike, since attention stays within the segment.
    """
    apart = _apart(segments)
    column = torch.arange(apart.shape[1], device=apart.device)
    begins = torch.ones_like(apart, dtype=torch.bool)
    begins[:, 1:] = apart[:, 1:] != apart[:, :-1]
    return column - (column * begins).cummax(dim=1).values


def _apart(segments: Any) -> Tensor:
    """int64 (B, T): segments, with a negative number of its own for each slot of padding."""
    given = torch.as_tensor(segments)
    if given.dim() != 2:
        raise ConfigError(f"segments: expected two dimensions (B, T), found shape {tuple(given.shape)}")
    column = torch.arange(given.shape[1], device=given.device)
    return torch.where(given == PADDING, -1 - column, given.long())


@dataclass(frozen=True, slots=True, kw_only=True)
class Flat:
    """A batch's rows laid end to end as one, in flash-attention's variable-length form.

    x, y, positions: int64 (1, total). segments: int32 (1, total), numbered through the whole batch, -1 for padding.
    cu_seqlens: int32 [runs + 1], strictly increasing from 0 to total. max_seqlen: no run is longer. All where the batch lives.
    For queries of shape (total, heads, width): `flash_attn_varlen_func(q, k, v, cu_seqlens_q=flat.cu_seqlens,
    cu_seqlens_k=flat.cu_seqlens, max_seqlen_q=flat.max_seqlen, max_seqlen_k=flat.max_seqlen, causal=True)`; torch's own
    `varlen_attn(q, k, v, flat.cu_seqlens, flat.cu_seqlens, flat.max_seqlen, flat.max_seqlen, window_size=(-1, 0))` is alike.
    """

    x: Tensor
    y: Tensor
    positions: Tensor
    segments: Tensor
    cu_seqlens: Tensor
    max_seqlen: int


def flatten(batch: Batch, *, max_segments: int | None = None, max_tokens: int | None = None, ignore_index: int = -100) -> Flat:
    """Lay a batch's rows end to end, without their padding.

    max_segments: None gives exactly the batch's tokens and segments, other shapes each time. A number gives every batch of
    this many rows the same shapes (and the same max_seqlen, T), so that torch.compile compiles once: the rest is padding, in
    as many runs of at least one token as there are segments to spare, since attention takes no empty one.
    max_tokens: with max_segments, the most tokens a batch can have (None: its slots, which always suffices).
    ignore_index: the padding's target.
    Raises ConfigError for a batch with more, naming the number to set; and for one that does not know its documents.
    """
    bounds = batch.boundaries
    kept = np.flatnonzero(bounds.segments.reshape(-1) != PADDING)
    ends = bounds.cu_seqlens[1:].astype(np.int64)
    tokens, found, most = kept.size, ends.size, bounds.max_seqlen
    total, spare = tokens, 0
    if max_segments is not None:
        most = bounds.block_size
        max_tokens = batch.x.shape[0] * most if max_tokens is None else max_tokens
        if most < 2:
            raise ConfigError(f"block_size: expected >= 2 for fixed shapes, found {most}: a row of 1 is one segment")
        for name, limit, need in (("max_segments", max_segments, found), ("max_tokens", max_tokens, tokens)):
            if limit < max(need, 1):
                raise ConfigError(
                    f"{name}: expected at least {max(need, 1)}, found {limit}: this batch has {found} segments, {tokens} tokens "
                    f"in all; set {name} to the most that any batch may have, such as {1 << max(need, 1).bit_length()}"
                )
        # Enough runs of padding that none needs to be longer than a row, whatever the batch holds.
        runs = max_segments + -(-max_tokens // (most - 1))
        spare, total = runs - found, max_tokens + runs
    elif max_tokens is not None:
        raise ConfigError(f"max_tokens: expected with max_segments, found {max_tokens} alone: it would fix half a shape")
    filler = (total - tokens) * np.arange(1, spare + 1, dtype=np.int64) // max(spare, 1)
    cu_seqlens = np.concatenate([[0], ends, tokens + filler]).astype(np.int32)
    segments = np.full(total, PADDING, dtype=np.int32)
    segments[:tokens] = np.repeat(np.arange(found, dtype=np.int32), np.diff(ends, prepend=0))
    x, y = torch.as_tensor(batch.x), torch.as_tensor(batch.y)
    places = torch.from_numpy(kept).to(x.device)
    return Flat(
        x=_laid(x, places, total, 0),
        y=_laid(y, places, total, ignore_index),
        positions=_laid(torch.as_tensor(batch.positions), places, total, 0),
        segments=torch.from_numpy(segments).to(x.device)[None],
        cu_seqlens=torch.from_numpy(cu_seqlens).to(x.device),
        max_seqlen=most,
    )


def _laid(values: Tensor, places: Tensor, total: int, padding: int) -> Tensor:
    """(1, total): the values at these places, then padding."""
    laid = values.new_full((1, total), padding)
    torch.index_select(values.reshape(-1), 0, places, out=laid[0, : places.numel()])
    return laid


def for_transformers(batch: Batch, attention: str = "sdpa") -> dict[str, Any]:
    """Keyword arguments for a causal language model of Hugging Face's transformers: `model(**for_transformers(batch)).loss`.

    attention: what the model was made with (`model.config._attn_implementation`): "sdpa", "eager", "flex_attention", or one of
    flash-attention's names, for which the rows are laid end to end. Documents are told by masks or lengths, never left to
    be guessed from position_ids; these restart in each segment, so they stay below T.
    Their models move labels by one place themselves, unless they are given shift_labels: y goes in as both. The loss is the
    sum over this batch's targets divided by batch.num_targets, so that ranks' losses add up to the mean (under DDP,
    which takes the mean of gradients, multiply it by the world size). The feed's ignore_index must be -100.
    Raises ConfigError for another attention, and for a batch that does not know its documents.
    """
    labels = {"num_items_in_batch": max(batch.num_targets, 1)}
    if "flash" in attention:
        flat = flatten(batch)
        return labels | {
            "input_ids": flat.x,
            "position_ids": restarted(flat.segments),
            "labels": flat.y,
            "shift_labels": flat.y,
            "cu_seq_lens_q": flat.cu_seqlens,
            "cu_seq_lens_k": flat.cu_seqlens,
            "max_length_q": flat.max_seqlen,
            "max_length_k": flat.max_seqlen,
        }
    segments = torch.as_tensor(batch.segments)
    match attention:
        case "sdpa":
            mask: Any = attention_mask(segments)
        case "eager":  # it adds its mask to the scores
            seen = attention_mask(segments)
            mask = torch.zeros(seen.shape, device=seen.device).masked_fill(~seen, float("-inf"))
        case "flex_attention":
            mask = block_mask(segments)
        case _:
            raise ConfigError(
                f"attention: expected sdpa, eager, flex_attention or a flash_attention of transformers, found {attention!r}"
            )
    x, y = torch.as_tensor(batch.x), torch.as_tensor(batch.y)
    return labels | {
        "input_ids": x,
        "position_ids": restarted(segments),
        "attention_mask": mask,
        "labels": y,
        "shift_labels": y,
    }
