"""What a run says: a banner at the start, its progress, a report at the end."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self, TextIO

import torch
from tqdm import tqdm

from ladle.corpus.split import Split
from ladle.feed.feed import Feed
from ladle.feed.streams import packs_in
from ladle.feed.tally import Tallies
from ladle.nn.gpt import GPT
from ladle.train.config import TrainConfig
from ladle.train.ranks import Ranks

LONGEST_SILENCE_S = 30.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """A finished run. loss: of the last update (None when nothing was left to do). val_loss: exact, None without a val split.

    tokens_per_s (of targets that count), data_wait (share of a step): over this process's own updates. log, curve, checkpoint:
    files; curve is None where matplotlib is not installed. sample: text the model wrote, None where the corpus has no tokenizer.
    """

    steps: int
    position: int
    parameters: int
    loss: float | None
    val_loss: float | None
    seconds: float
    tokens_per_s: float
    data_wait: float
    log: Path
    curve: Path | None
    checkpoint: Path
    sample: str | None

    def __str__(self) -> str:
        lines = [
            ("trained", f"{self.steps:,} updates, {self.position:,} slots, {self.seconds:.1f} s"),
            ("loss", "nothing was left to do" if self.loss is None else f"{self.loss:.4f} at the last update"),
            ("val loss", "no val split" if self.val_loss is None else f"{self.val_loss:.4f}, the mean over every target"),
            ("speed", f"{self.tokens_per_s:,.0f} tokens/s; waiting for data {self.data_wait:.1%} of a step"),
            ("log", str(self.log)),
            ("curve", "not drawn: pip install 'ladle[train]'" if self.curve is None else str(self.curve)),
            ("checkpoint", str(self.checkpoint)),
        ]
        text = table(lines)
        return text if self.sample is None else f"{text}\nsample\n{self.sample}"


def banner(
    config: TrainConfig, *, model: GPT, feed: Feed, splits: Mapping[str, Split], device: torch.device, ranks: Ranks
) -> str:
    """What is about to happen, in a dozen lines."""
    B, T = config.batch_size, config.block_size
    passes, rows = config.passes(ranks.world_size), -(-B // ranks.world_size)
    shape = f"{config.layers} layers, {config.heads} heads, width {config.width}, {config.positions} positions"
    threads = f", {torch.get_num_threads()} threads" if device.type == "cpu" else ""
    ways = f"{config.micro_batch_size or rows} a pass x {passes} passes x {ranks.world_size} ranks"
    lines = [
        ("corpus", ", ".join(f"{name} {split.num_tokens:,} tokens" for name, split in splits.items())),
        ("model", f"{model.num_parameters():,} parameters: {shape}, vocabulary {model.config.vocab_size:,}"),
    ]
    if config.order == "random":
        lines.append(("samples", f"independent random windows of {T}; no epochs"))
    else:
        slots = feed.slots_per_epoch
        kind = "windows" if config.pack is None else "packed rows"
        lines += [
            ("samples", f"{slots // T:,} {kind} of {T} an epoch, {config.order}"),
            ("epoch", f"{feed.batches_per_epoch:,} batches, {slots:,} {'tokens' if config.pack is None else 'slots'}"),
            *kept_apart(feed),
        ]
    lines += [
        ("batch size", f"{B} rows an update ({ways}), {B * T:,} tokens"),
        ("updates", f"{config.steps:,}, {config.steps * B * T:,} tokens"),
        ("prefetch", f"{config.prefetch} batches"),
        ("device", f"{device}, {config.dtype}{threads}{', compiled' if config.compile else ''}"),
    ]
    return table(lines)


def kept_apart(feed: Feed) -> list[tuple[str, str]]:
    """What an epoch does with documents, and with its slots; nothing for plain windows."""
    lines = [("documents", str(packs.counts)) for packs in packs_in(feed.stream)]
    tally = Tallies(feed, 0).until(feed.slots_per_epoch) if lines or feed.recipe.mask_documents else None
    if tally is not None:
        masked = {
            "last tokens of documents": tally.boundary,
            "left out by the corpus's mask": tally.unlearned,
            "repeated": tally.repeated,
            "padded": tally.padded,
        }
        told = ", ".join(f"{count:,} {why}" for why, count in masked.items() if count)
        lines.append(("targets", f"{tally.trained:,} an epoch, in {tally.slots:,} slots; masked: {told or 'none'}"))
    return lines


class Progress:
    """A bar on a terminal, a line now and then elsewhere, nothing without a writer. Has close() and works in `with`."""

    def __init__(self, writer: TextIO | None, *, start: int, steps: int) -> None:
        self._writer, self._steps = writer, steps
        self._every, self._said = max(1, steps // 20), time.monotonic()
        on_terminal = writer is not None and writer.isatty()
        self._bar = _Bar(total=steps, initial=start, file=writer, unit="step", dynamic_ncols=True) if on_terminal else None

    def step(self, record: Mapping[str, Any]) -> None:
        """One update's line of the log."""
        if self._bar is not None:
            self._bar.set_postfix_str(f"loss {record['loss']:.3f}, {record['tokens_per_s']:,.0f} tokens/s", refresh=False)
            self._bar.update()
        elif (
            record["step"] % self._every == 0
            or record["step"] == self._steps - 1
            or time.monotonic() - self._said > LONGEST_SILENCE_S
        ):
            self._said = time.monotonic()
            self.say(
                f"step {record['step']}/{self._steps}  loss {record['loss']:.4f}  lr {record['lr']:.2e}  "
                f"{record['tokens_per_s']:,.0f} tokens/s  waiting for data {record['data_wait']:.1%}"
            )

    def say(self, line: str) -> None:
        """A line above the bar."""
        if self._bar is not None:
            self._bar.write(line, file=self._writer)
        elif self._writer is not None:
            print(line, file=self._writer, flush=True)

    def close(self) -> None:
        """Safe to call twice."""
        if self._bar is not None:
            self._bar.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class _Bar(tqdm):  # type: ignore[misc]
    monitor_interval = 0  # no thread of tqdm's own


def table(lines: list[tuple[str, str]]) -> str:
    """Two columns."""
    return "\n".join(f"{name:<11} {text}" for name, text in lines)
