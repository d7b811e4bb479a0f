"""Masks and flat rows: every form says the same about who may look at whom."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.nn.functional import scaled_dot_product_attention

import ladle
from ladle.corpus.memory import MemoryDocuments
from ladle.errors import ConfigError
from ladle.feed.batch import Batch
from ladle.feed.masks import attention_mask, block_mask, flatten, restarted

VOCAB = 31


def split_of(lengths: list[int], seed: int = 0) -> Any:
    ids = np.random.default_rng(seed).integers(0, VOCAB, sum(lengths)).astype(np.uint16)
    return ladle.from_ids(ids, vocab_size=VOCAB, document_ends=np.cumsum(lengths))


def batch_of(lengths: list[int], block_size: int, batch_size: int, number: int = 0, **how: Any) -> Batch:
    how = {"pack": "sequential", "order": "sequential"} | how
    with ladle.Feed(split_of(lengths), batch_size=batch_size, block_size=block_size, prefetch=0, **how) as feed:
        return feed[number]


def random_segments(rows: int, length: int, seed: int = 0) -> torch.Tensor:
    generator = np.random.default_rng(seed)
    segments = np.cumsum(generator.random((rows, length)) < 0.2, axis=1)
    segments -= segments[:, :1]
    for row, padded in enumerate(generator.integers(0, length // 2 + 1, rows)):
        segments[row, length - padded :] = -1
    return torch.from_numpy(segments.astype(np.int32))


# --- the boolean mask ---


def test_the_mask_by_hand() -> None:
    """Two documents of 2 and 1 tokens, and two slots of padding, each of which sees itself alone."""
    mask = attention_mask(torch.tensor([[0, 0, 1, -1, -1]]))
    assert mask.dtype == torch.bool
    assert mask.shape == (1, 1, 5, 5)
    assert mask[0, 0].int().tolist() == [
        [1, 0, 0, 0, 0],
        [1, 1, 0, 0, 0],
        [0, 0, 1, 0, 0],
        [0, 0, 0, 1, 0],
        [0, 0, 0, 0, 1],
    ]


@settings(deadline=None)
@given(seed=st.integers(0, 999), length=st.integers(1, 24))
def test_the_mask_is_the_rule(seed: int, length: int) -> None:
    segments = random_segments(3, length, seed)
    mask = attention_mask(segments)
    for row in range(3):
        for query in range(length):
            for key in range(length):
                same = segments[row, query] == segments[row, key] and segments[row, query] >= 0
                assert mask[row, 0, query, key] == ((key <= query and same) or key == query)


def test_no_softmax_over_nothing() -> None:
    """A row that is padding from end to end, and one with padding, have no NaN, forward or backward."""
    segments = torch.tensor([[0, 0, -1, -1], [-1, -1, -1, -1]])
    q = torch.randn(2, 1, 4, 8, generator=torch.Generator().manual_seed(0)).requires_grad_()
    out = scaled_dot_product_attention(q, q, q, attn_mask=attention_mask(segments))
    out.sum().backward()
    assert out.isfinite().all()
    assert q.grad is not None
    assert q.grad.isfinite().all()


def test_numpy_is_taken_and_a_wrong_shape_is_named() -> None:
    assert attention_mask(np.array([[0, 1]], dtype=np.int32)).shape == (1, 1, 2, 2)
    with pytest.raises(ConfigError, match=r"segments: expected two dimensions \(B, T\), found shape \(4,\)"):
        attention_mask(torch.zeros(4))


def test_the_feeds_segments_are_what_it_takes() -> None:
    """Documents of 3, 2 and 4 in rows of 6: 3 + 2 and a slot of padding, then 4 and two."""
    batch = batch_of([3, 2, 4], 6, 2)
    assert batch.segments.tolist() == [[0, 0, 0, 1, 1, -1], [0, 0, 0, 0, -1, -1]]
    assert torch.equal(batch.attention_mask(), attention_mask(batch.segments))
    assert batch.attention_mask().sum().item() == 6 + 3 + 1 + 10 + 2


# --- positions counted in the row ---


def test_restarted_by_hand() -> None:
    assert restarted(torch.tensor([[0, 0, 1, 1, 1, 2, -1, -1]])).tolist() == [[0, 1, 0, 1, 2, 0, 0, 0]]


@pytest.mark.parametrize("pack", ["best_fit", "sequential", "single"])
def test_restarted_equals_the_feeds_positions_of_whole_documents(pack: str) -> None:
    batch = batch_of([3, 9, 1, 4, 7, 2, 10, 5], 10, 4, pack=pack)
    assert torch.equal(restarted(batch.segments), batch.positions)


def test_restarted_stays_below_a_row_where_a_document_does_not() -> None:
    batch = batch_of([25], 10, 3)
    assert batch.positions.max() == 24
    assert restarted(batch.segments).tolist() == [list(range(10)), list(range(10)), [0, 1, 2, 3, 4, 0, 0, 0, 0, 0]]


# --- FlexAttention ---


@pytest.mark.parametrize("length", [96, 100, 256])
def test_block_mask_gives_the_boolean_masks_output(length: int) -> None:
    from torch.nn.attention.flex_attention import flex_attention

    segments = random_segments(3, length, length)
    q, k, v = (part.contiguous() for part in torch.randn(3, 3, 2, length, 16, generator=torch.Generator().manual_seed(1)))
    want = scaled_dot_product_attention(q, k, v, attn_mask=attention_mask(segments))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # unfused without torch.compile, it says
        got = flex_attention(q, k, v, block_mask=block_mask(segments, block_size=32))
    assert torch.allclose(got, want, atol=1e-5)


def test_block_mask_leaves_empty_blocks_out() -> None:
    """Four documents of 64 in a row of 256, in blocks of 64: the diagonal alone is looked at."""
    segments = torch.arange(4).repeat_interleave(64)[None]
    mask = block_mask(segments, block_size=64)
    assert mask.sparsity() == 75.0
    assert block_mask(torch.zeros(1, 256, dtype=torch.int32), block_size=64).sparsity() == 37.5


# --- rows laid end to end ---


def test_flat_by_hand() -> None:
    """Rows [3 + 2 + padding] and [4 + padding]: nine tokens, three segments, and nothing else."""
    batch = batch_of([3, 2, 4], 6, 2)
    flat = batch.flatten()
    ids = split_of([3, 2, 4]).read(0, 9).tolist()
    assert flat.x.tolist() == [ids]
    assert flat.y.tolist() == [[ids[1], ids[2], -100, ids[4], -100, ids[6], ids[7], ids[8], -100]]
    assert flat.positions.tolist() == [[0, 1, 2, 0, 1, 0, 1, 2, 3]]
    assert flat.segments.tolist() == [[0, 0, 0, 1, 1, 2, 2, 2, 2]]
    assert flat.cu_seqlens.tolist() == [0, 3, 5, 9]
    assert flat.cu_seqlens.dtype == torch.int32
    assert flat.max_seqlen == 4


def test_padding_is_no_document() -> None:
    """One document of 6 and two slots of padding: one segment of 6 (A3-14)."""
    batch = batch_of([6], 8, 1)
    assert batch.cu_seqlens.tolist() == [0, 6]
    assert batch.num_targets == 5
    flat = flatten(batch)
    assert (flat.x.shape, flat.cu_seqlens.tolist(), flat.max_seqlen) == ((1, 6), [0, 6], 6)


def test_a_row_that_begins_mid_document_has_its_lengths_all_the_same() -> None:
    """Position 300 where the batch begins, and no position 0 to find it by (A3-13)."""
    batch = batch_of([605], 300, 1, number=1)
    flat = flatten(batch)
    assert flat.positions[0, [0, -1]].tolist() == [300, 599]
    assert (flat.cu_seqlens.tolist(), flat.max_seqlen) == ([0, 300], 300)


def test_empty_documents_are_no_segments(in_shards: Any) -> None:
    """Lengths 0, 1, 0, 1 (A3-17)."""
    split = in_shards(np.array([97, 98], dtype=np.uint16), [2])
    split._documents = MemoryDocuments(np.array([0, 1, 1, 2], dtype=np.uint64))
    with ladle.Feed(split, batch_size=1, block_size=4, pack="sequential", prefetch=0) as feed:
        batch = feed[0]
    for how, cu_seqlens in (({}, [0, 1, 2]), ({"max_segments": 2}, [0, 1, 2, 5, 8])):
        flat = flatten(batch, **how)
        assert flat.cu_seqlens.tolist() == cu_seqlens
        assert flat.x[0, :2].tolist() == [97, 98]


@settings(deadline=None, max_examples=150)
@given(
    lengths=st.lists(st.integers(1, 12), min_size=1, max_size=30),
    block_size=st.integers(2, 9),
    pack=st.sampled_from(["best_fit", "sequential", "single"]),
    spare=st.integers(0, 9),
)
def test_fixed_shapes_are_fixed_and_hold_the_same(lengths: list[int], block_size: int, pack: str, spare: int) -> None:
    with ladle.Feed(split_of(lengths), batch_size=3, block_size=block_size, pack=pack, prefetch=0, epochs=1) as feed:
        batches = list(feed)
    most = max(len(batch.cu_seqlens) - 1 for batch in batches) + spare
    shapes = set()
    for batch in batches:
        plain, fixed = flatten(batch), flatten(batch, max_segments=max(most, 1))
        tokens, found = plain.x.shape[1], len(plain.cu_seqlens) - 1
        shapes.add((fixed.x.shape, fixed.y.shape, fixed.segments.shape, fixed.cu_seqlens.shape, fixed.max_seqlen))
        for name in ("x", "y", "positions", "segments"):
            assert torch.equal(getattr(fixed, name)[:, :tokens], getattr(plain, name))
        assert (fixed.y[:, tokens:] == -100).all()
        assert (fixed.segments[:, tokens:] == -1).all()
        assert torch.equal(fixed.cu_seqlens[: found + 1], plain.cu_seqlens)
        runs = fixed.cu_seqlens.diff()
        assert runs.min() >= 1
        assert runs.max() <= fixed.max_seqlen == block_size
        assert fixed.cu_seqlens[0] == 0
        assert fixed.cu_seqlens[-1] == fixed.x.shape[1]
    assert len(shapes) == 1


def test_max_tokens_makes_it_shorter() -> None:
    batch = batch_of([6, 2], 8, 2, pack="single")
    assert flatten(batch, max_segments=3, max_tokens=8).x.shape == (1, 8 + 3 + 2)
    assert flatten(batch, max_segments=3).x.shape == (1, 16 + 3 + 3)


def test_more_than_the_fixed_maximum_names_the_number_to_set() -> None:
    batch = batch_of([1] * 9, 5, 2)
    with pytest.raises(ConfigError) as caught:
        batch.flatten(max_segments=8)
    assert str(caught.value) == (
        "max_segments: expected at least 9, found 8: this batch has 9 segments, 9 tokens in all; "
        "set max_segments to the most that any batch may have, such as 16"
    )
    with pytest.raises(ConfigError, match="max_tokens: expected at least 9, found 8: this batch has 9 segments, 9 tokens in all"):
        flatten(batch, max_segments=9, max_tokens=8)
    with pytest.raises(ConfigError, match="max_tokens: expected with max_segments, found 8 alone"):
        flatten(batch, max_tokens=8)


def test_plain_windows_have_no_documents_to_lay() -> None:
    with (
        ladle.Feed(split_of([9, 9]), batch_size=2, block_size=4, prefetch=0) as feed,
        pytest.raises(ConfigError, match="mask_documents"),
    ):
        flatten(feed[0])


def test_cut_windows_are_laid_as_well() -> None:
    """Windows of 4 over documents of 3 and 6: no target lies in another document than its input."""
    batch = batch_of([3, 6], 4, 2, pack=None, mask_documents=True)
    flat = flatten(batch)
    assert flat.cu_seqlens.tolist() == [0, 3, 4, 8]
    ids = split_of([3, 6]).read(0, 9).tolist()
    assert flat.y.tolist() == [[ids[1], ids[2], -100, *ids[4:9]]]
    assert flat.positions.tolist() == [[0, 1, 2, 0, 1, 2, 3, 4]]


@pytest.mark.slow
def test_fixed_shapes_compile_once() -> None:
    """The reference GPT over flat batches: one compilation for all of them, where shapes that follow the batch need more."""
    from torch._dynamo.testing import CompileCounter

    from ladle.nn import GPT, GPTConfig

    model = GPT(GPTConfig(vocab_size=VOCAB, block_size=16, layers=1, heads=2, width=8))
    with ladle.Feed(split_of([5, 3, 9, 1, 16, 7, 2, 30, 4] * 4), batch_size=3, block_size=16, pack="best_fit", epochs=1) as feed:
        batches = list(feed)
    assert len({len(batch.cu_seqlens) for batch in batches}) > 1

    def loss(x: Any, y: Any, segments: Any, cu_seqlens: Any) -> Any:
        total = model(x, y, positions=restarted(segments), attn_mask=attention_mask(segments))[1]
        return total + 0 * cu_seqlens.sum()

    counts, sums = [], []
    for how in ({"max_segments": 32}, {}):
        torch._dynamo.reset()
        counter = CompileCounter()
        compiled = torch.compile(loss, backend=counter)
        flats = [flatten(batch, **how) for batch in batches]
        sums.append([compiled(f.x, f.y, f.segments, f.cu_seqlens).item() for f in flats])
        counts.append(counter.frame_count)
    torch._dynamo.reset()
    assert counts[0] == 1 < counts[1]
    assert sums[0] == pytest.approx(sums[1], rel=1e-5)
