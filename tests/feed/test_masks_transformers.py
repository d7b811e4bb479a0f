"""Hugging Face's models on packed rows: the loss they compute is ours, whichever attention they use."""

from __future__ import annotations

import shutil
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.nn.functional import cross_entropy, scaled_dot_product_attention
from torch.utils.data import DataLoader

import ladle
from ladle.errors import ConfigError
from ladle.feed.batch import Batch

transformers = pytest.importorskip("transformers")

VOCAB, T = 31, 24
SIZES = [9, 6, 5, 4, 13, 11, 1, 24, 7, 50, 3, 20]


@pytest.fixture(autouse=True)
def _one_thread() -> Any:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def feed_of(rows: int = 5, **how: Any) -> ladle.Feed:
    ids = np.random.default_rng(0).integers(0, VOCAB, sum(SIZES)).astype(np.uint16)
    split = ladle.from_ids(ids, vocab_size=VOCAB, document_ends=np.cumsum(SIZES))
    return ladle.Feed(split, batch_size=rows, block_size=T, prefetch=0, **({"pack": "best_fit"} | how))


def model_of(kind: str, attention: str) -> Any:
    """A small one with random weights, drawn from seed 0; nothing is downloaded."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        if kind == "llama":
            shape = transformers.LlamaConfig(
                vocab_size=VOCAB, hidden_size=64, intermediate_size=64, num_hidden_layers=2, num_attention_heads=4,
                num_key_value_heads=2, max_position_embeddings=T, initializer_range=0.3, attn_implementation=attention,
            )  # fmt: skip
            return transformers.LlamaForCausalLM(shape).eval()
        shape = transformers.GPT2Config(
            vocab_size=VOCAB, n_positions=T, n_embd=32, n_layer=2, n_head=4, initializer_range=0.3, attn_implementation=attention,
            resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0, bos_token_id=0, eos_token_id=0,
        )  # fmt: skip
        return transformers.GPT2LMHeadModel(shape).eval()


def alone(kind: str, batch: Batch) -> float:
    """Each document passed through the model by itself, without any of our arguments: the mean over all targets."""
    model, total = model_of(kind, "eager"), 0.0
    for row in range(len(batch.x)):
        for segment in range(int(batch.segments[row].max()) + 1):
            columns = batch.segments[row] == segment
            with torch.no_grad():
                logits = model(input_ids=batch.x[row, columns][None]).logits[0]
            total += cross_entropy(logits, batch.y[row, columns], ignore_index=-100, reduction="sum").item()
    return total / batch.num_targets


@pytest.mark.parametrize("how", [{}, {"pack": None, "mask_documents": True}], ids=["packs", "windows"])
@pytest.mark.parametrize("attention", ["sdpa", "eager"])
@pytest.mark.parametrize("kind", ["llama", "gpt2"])
def test_the_loss_is_ours(kind: str, attention: str, how: dict[str, Any]) -> None:
    """Rows that begin mid-document among them; one document is longer than the table of positions."""
    with feed_of(**how) as feed:
        batch = feed[0]
    assert batch.positions.max() >= T
    model = model_of(kind, attention)
    with torch.no_grad():
        assert model(**batch.for_transformers(attention)).loss.item() == pytest.approx(alone(kind, batch), rel=1e-5)
        leaky = model(input_ids=batch.x, labels=batch.y, shift_labels=batch.y).loss.item()
    assert leaky != pytest.approx(alone(kind, batch), rel=1e-3)


def by_lengths(module: Any, query: Any, key: Any, value: Any, attention_mask: Any, **how: Any) -> tuple[torch.Tensor, None]:
    """What flash-attention's variable-length function computes, in plain torch; it sees lengths and nothing else."""
    assert attention_mask is None
    ends = how["cu_seq_lens_q"].tolist()
    assert how["cu_seq_lens_k"].tolist() == ends
    assert how["max_length_q"] == how["max_length_k"] == max(np.diff(ends)) >= min(np.diff(ends)) > 0
    assert ends[-1] == query.shape[2]
    many = query.shape[1] // key.shape[1]
    key, value = key.repeat_interleave(many, 1), value.repeat_interleave(many, 1)
    parts = [
        scaled_dot_product_attention(query[:, :, a:b], key[:, :, a:b], value[:, :, a:b], is_causal=True, scale=how["scaling"])
        for a, b in pairwise(ends)
    ]
    return torch.cat(parts, 2).transpose(1, 2).contiguous(), None


@pytest.mark.parametrize(
    "how", [{}, {"pack": "single"}, {"pack": None, "mask_documents": True}], ids=["packs", "single", "windows"]
)
def test_flash_attention_is_told_lengths(how: dict[str, Any]) -> None:
    """Explicit ones: position_ids of a row that begins mid-document hold no place to guess them from (A3-13)."""
    transformers.AttentionInterface.register("by_lengths", by_lengths)
    with feed_of(**how) as feed:
        batch = feed[0]
    told = batch.for_transformers("flash_attention_2")
    assert told["input_ids"].shape == (1, int((batch.segments >= 0).sum()))
    with torch.no_grad():
        got = model_of("llama", "by_lengths")(**told).loss.item()
    assert got == pytest.approx(alone("llama", batch), rel=1e-5)


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("g++") is None, reason="torch.compile needs a C++ compiler here")
@pytest.mark.filterwarnings("ignore")
def test_flex_attention_takes_the_block_mask() -> None:
    with feed_of() as feed:
        batch = feed[0]
    with torch.no_grad():
        got = model_of("llama", "flex_attention")(**batch.for_transformers("flex_attention")).loss.item()
    assert got == pytest.approx(alone("llama", batch), rel=1e-5)


def test_parts_of_a_batch_add_up_to_its_mean() -> None:
    """Two ranks, each of which divides by the targets of both; one rank has none, and gives 0."""
    with feed_of() as feed:
        whole = alone("gpt2", feed[0])
    model, parts = model_of("gpt2", "sdpa"), []
    for rank in (0, 1):
        with feed_of(rank=rank, world_size=2) as feed, torch.no_grad():
            parts.append(model(**feed[0].for_transformers()).loss.item())
    assert sum(parts) == pytest.approx(whole, rel=1e-5)
    ones = ladle.from_ids(np.arange(3, dtype=np.uint16), vocab_size=VOCAB, document_ends=np.arange(1, 4))
    with ladle.Feed(ones, batch_size=2, block_size=T, pack="best_fit", prefetch=0) as feed, torch.no_grad():
        assert model(**feed[0].for_transformers()).loss.item() == 0.0


def test_another_attention_is_named() -> None:
    with (
        feed_of() as feed,
        pytest.raises(ConfigError, match="attention: expected sdpa, eager, flex_attention or a flash_attention"),
    ):
        feed[0].for_transformers("xformers")


@pytest.mark.parametrize("workers", [0, 1])
def test_the_dataset_keeps_documents_apart_too(workers: int) -> None:
    """What a Trainer is fed of a packed feed: never rows whose documents see each other."""
    with feed_of() as feed:
        batch = feed[0]
        loader = DataLoader(ladle.FeedDataset(feed, form="huggingface", attention="eager"), batch_size=None, num_workers=workers)
        rows = next(iter(loader))
        assert torch.equal(rows["input_ids"], batch.x)
        with torch.no_grad():
            got = model_of("gpt2", "eager")(**rows).loss.item()
    assert got == pytest.approx(alone("gpt2", batch), rel=1e-5)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
def test_the_trainer_counts_targets_as_we_do(tmp_path: Path) -> None:
    """transformers' own Trainer, two micro-batches an update: the mean over the targets of both."""
    with feed_of(rows=3, order="sequential") as feed:
        two = [feed[0], feed[1]]
        assert two[0].num_targets != two[1].num_targets
        own = sum(alone("gpt2", batch) * batch.num_targets for batch in two) / sum(batch.num_targets for batch in two)

        class FeedTrainer(transformers.Trainer):
            def get_train_dataloader(self) -> Any:
                return DataLoader(self.train_dataset, batch_size=None)

        arguments = transformers.TrainingArguments(
            output_dir=str(tmp_path), max_steps=1, gradient_accumulation_steps=2, logging_steps=1, report_to=[], use_cpu=True,
            disable_tqdm=True, save_strategy="no", learning_rate=1e-9,
        )  # fmt: skip
        dataset = ladle.FeedDataset(feed, form="huggingface")
        trainer = FeedTrainer(model=model_of("gpt2", "sdpa"), args=arguments, train_dataset=dataset)
        trainer.train()
    assert trainer.state.log_history[0]["loss"] == pytest.approx(own, rel=1e-3)  # it is logged with a few digits
