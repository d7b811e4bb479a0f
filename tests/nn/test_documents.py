"""The reference GPT on packed rows: documents in one row are strangers, to the bit."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

import ladle
from ladle.errors import ConfigError
from ladle.feed.batch import Batch
from ladle.feed.masks import attention_mask, flatten, restarted
from ladle.nn import GPT, GPTConfig
from ladle.nn.config import POSITIONS

VOCAB, T = 31, 24
SIZES = [9, 6, 5, 4, 13, 11, 1, 24, 7, 10, 3, 20]


@pytest.fixture(autouse=True)
def _one_thread() -> Any:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def model_of(positions: str, layers: int = 2) -> GPT:
    """One whose attention matters: weights ten times as wide as at the start of a training."""
    model = GPT(GPTConfig(vocab_size=VOCAB, block_size=T, layers=layers, heads=2, width=32, positions=positions), seed=3).eval()
    with torch.no_grad():
        for p in model.parameters():
            p.add_(torch.randn(p.shape, generator=torch.Generator().manual_seed(p.numel())) * 0.2)
    return model


def batch_of(sizes: list[int] = SIZES, rows: int = 5, **how: Any) -> Batch:
    ids = np.random.default_rng(0).integers(0, VOCAB, sum(sizes)).astype(np.uint16)
    split = ladle.from_ids(ids, vocab_size=VOCAB, document_ends=np.cumsum(sizes))
    how = {"pack": "sequential", "order": "sequential"} | how
    with ladle.Feed(split, batch_size=rows, block_size=T, prefetch=0, **how) as feed:
        return feed[0]


def logits(model: GPT, batch: Batch, x: Tensor | None = None, *, mask: bool = True, places: bool = True) -> Tensor:
    with torch.no_grad():
        return model(
            batch.x if x is None else x,
            positions=batch.positions if places else None,
            attn_mask=batch.attention_mask() if mask else None,
        )[0]


def loss(model: GPT, batch: Batch, *, mask: bool = True, places: bool = True) -> float:
    with torch.no_grad():
        return model.loss(logits(model, batch, mask=mask, places=places), batch.y).item()


def alone(model: GPT, batch: Batch) -> float:
    """The token-weighted loss of the batch's documents, each passed through the model by itself."""
    total, targets = 0.0, 0
    for row in range(len(batch.x)):
        for segment in range(int(batch.segments[row].max()) + 1):
            columns = batch.segments[row] == segment
            x, y = batch.x[row, columns][None], batch.y[row, columns][None]
            with torch.no_grad():
                total += model(x, y, reduction="sum")[1].item()
            targets += int((y != -100).sum())
    return total / targets


def other(batch: Batch, segment: int) -> Tensor:
    """The batch's ids with those of one document of each row changed, every one of them."""
    return torch.where(batch.segments == segment, (batch.x + 5) % VOCAB, batch.x)


# --- one document changes, another does not notice ---


@pytest.mark.parametrize("positions", POSITIONS)
def test_another_document_in_the_row_changes_no_bit(positions: str) -> None:
    """Only by what the feed emits: positions and segments (A3-01)."""
    model, batch = model_of(positions), batch_of()
    before = logits(model, batch)
    for changed in range(3):
        after = logits(model, batch, other(batch, changed))
        there = batch.segments == changed
        assert there.any()
        assert torch.equal(after[~there], before[~there])
        assert not torch.isclose(after[there], before[there]).all(dim=-1).any()


@pytest.mark.parametrize("positions", POSITIONS)
def test_without_the_mask_it_does(positions: str) -> None:
    """The same test fails: positions that begin again do not stop attention."""
    model, batch = model_of(positions), batch_of()
    before, after = logits(model, batch, mask=False), logits(model, batch, other(batch, 0), mask=False)
    behind = batch.segments > 0
    assert not torch.isclose(after[behind], before[behind], atol=1e-4).all(dim=-1).any()


def test_the_gradient_too_stays_at_home() -> None:
    """The loss of document 1 reaches no embedded token of document 0 or 2; without the mask it does."""
    model, batch = model_of("rotary"), batch_of()
    for mask, reached in ((batch.attention_mask(), False), (None, True)):
        vectors = model.embed.wte(batch.x).detach().requires_grad_()
        x = vectors
        for block in model.h:
            x = block(x, model.embed.angles(batch.x, batch.positions), mask)
        y = batch.y.masked_fill(batch.segments != 1, -100)
        model.loss(model.logits(model.ln_f(x)), y, reduction="sum").backward()
        assert vectors.grad is not None
        assert bool(vectors.grad[batch.segments == 1].any())
        assert bool(vectors.grad[batch.segments == 0].any()) is reached
        assert not vectors.grad[batch.segments == 2].any()


# --- the loss is the documents' own ---


@pytest.mark.parametrize("positions", POSITIONS)
@pytest.mark.parametrize("pack", ["best_fit", "sequential", "single"])
def test_a_packed_rows_loss_is_its_documents_alone(positions: str, pack: Any) -> None:
    model, batch = model_of(positions), batch_of(pack=pack)
    assert loss(model, batch) == pytest.approx(alone(model, batch), rel=1e-6)


@pytest.mark.parametrize("positions", ["learned", "rotary"])
def test_a_window_that_cuts_documents_too(positions: str) -> None:
    """Rows that begin and end in the middle of documents: each part counts as if alone, its places counted in the row."""
    model, batch = model_of(positions), batch_of([10, 30, 7, 49], pack=None, mask_documents=True, rows=4)
    assert batch.positions[1, 0] > 0
    with torch.no_grad():
        given = model(batch.x, batch.y, restarted(batch.segments), batch.attention_mask())[1].item()
    assert given == pytest.approx(alone(model, batch), rel=1e-6)


@pytest.mark.parametrize("positions", ["learned", "sinusoidal", "rotary"])
def test_half_of_it_is_half_the_work(positions: str) -> None:
    """A mask without positions that begin again, and positions without a mask, both train on something else.

    Rotary ones are the exception: attention sees differences of places only, so that a mask suffices.
    """
    model, batch = model_of(positions), batch_of()
    own = alone(model, batch)
    assert loss(model, batch) == pytest.approx(own, rel=1e-6)
    assert loss(model, batch, mask=False) != pytest.approx(own, rel=1e-4)
    assert loss(model, batch, mask=False, places=False) != pytest.approx(own, rel=1e-4)
    masked_alone = loss(model, batch, places=False)
    assert (masked_alone == pytest.approx(own, rel=1e-5)) == (positions == "rotary")
    assert positions == "rotary" or masked_alone != pytest.approx(own, rel=1e-4)


# --- the other forms of the mask ---


@pytest.mark.parametrize("positions", ["learned", "rotary"])
def test_rows_laid_end_to_end(positions: str) -> None:
    """The same loss from one long row, with and without fixed shapes."""
    model, batch = model_of(positions), batch_of()
    for how in ({}, {"max_segments": 20}):
        flat = flatten(batch, **how)
        with torch.no_grad():
            got = model(flat.x, flat.y, flat.positions, attention_mask(flat.segments))[1].item()
        assert got == pytest.approx(alone(model, batch), rel=1e-6)


@pytest.mark.parametrize("positions", ["learned", "rotary"])
def test_a_block_mask_is_taken(positions: str) -> None:
    model, batch = model_of(positions), batch_of()
    with warnings.catch_warnings(), torch.no_grad():
        warnings.simplefilter("ignore")  # unfused without torch.compile, it says
        got = model(batch.x, batch.y, batch.positions, batch.block_mask(block_size=8))[1].item()
        assert got == pytest.approx(alone(model, batch), rel=1e-6)
        model.h[0].attn.dropout = 0.1
        model.eval()
        assert model(batch.x, batch.y, batch.positions, batch.block_mask())[1].item() == pytest.approx(got, rel=1e-6)
        with pytest.raises(ConfigError, match="dropout: expected 0 with a BlockMask, found 0"):
            model.train()(batch.x, positions=batch.positions, attn_mask=batch.block_mask())
