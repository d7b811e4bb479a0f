"""The trainer: batches in, a trained model out. One function, resumable at any step."""

from __future__ import annotations

import math
import os
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Literal, TextIO, cast

import torch
from torch import Tensor

import ladle
from ladle.corpus.corpus import Corpus
from ladle.corpus.open import open as open_corpus
from ladle.corpus.split import Split
from ladle.errors import ConfigError, MissingExtra, TokenError
from ladle.feed.batch import Batch
from ladle.feed.feed import Feed
from ladle.feed.masks import attention_mask, restarted
from ladle.feed.torch import Mover
from ladle.nn.generation import generate
from ladle.nn.gpt import GPT
from ladle.order.permutation import hash_key
from ladle.train import checkpoint, curve, optimizer
from ladle.train.config import TrainConfig
from ladle.train.evaluation import evaluate, inputs
from ladle.train.gradient import Gradient, accumulate
from ladle.train.log import Log
from ladle.train.ranks import Ranks
from ladle.train.report import Progress, Report, banner
from ladle.train.schedule import learning_rate, scale_lr
from ladle.train.vocabulary import find_splits

_SAVED = {"feed": dict, "config": dict, "made_with": dict, "val_loss": float | None, "log_bytes": int}


def train(
    corpus: Corpus | Mapping[str, Split] | str | os.PathLike[str],
    out: str | os.PathLike[str],
    config: TrainConfig,
    *,
    resume: bool = False,
    ranks: Ranks | None = None,
    writer: TextIO | None = None,
) -> Report:
    """Train a GPT on corpus["train"], evaluate it on corpus["val"] where there is one.

    corpus: an open one (it stays the caller's), a path, or splits by name. out: a folder for log.jsonl, loss.svg and
    checkpoints/. resume: continue from the newest checkpoint there (from the start where there is none yet), also with
    another number of ranks or another batch size. ranks: by default torch.distributed's. writer: where the banner and
    the progress go; None: nowhere.

    A run killed at any moment and resumed with the same ranks, micro-batches, threads and build of torch ends, on the CPU,
    with the uninterrupted run's log and weights, to the bit. Global random state is left as it was.
    Raises ConfigError for a folder that already holds a run, StateError for a configuration or a corpus that may not
    change within a run, TokenError for ids beyond the model's vocabulary, FormatError for damaged checkpoints; ConfigError
    when the loss is no longer finite.
    """
    ranks = ranks or Ranks.current()
    with ExitStack() as stack:
        if isinstance(corpus, str | os.PathLike):
            corpus = stack.enter_context(open_corpus(corpus))
        device = _device(config.device)
        stack.enter_context(torch.random.fork_rng(devices=[device] if device.type == "cuda" else []))
        run = _Run(
            corpus,
            Path(out),
            config,
            ranks=ranks,
            device=device,
            writer=writer if ranks.first else None,
            resume=resume,
            stack=stack,
        )
        try:
            run.walk()
        except KeyboardInterrupt:
            run.progress.close()
            saved = checkpoint.list_checkpoints(run.checkpoints)
            kept = f"{saved[-1]} is whole" if saved else "there is no checkpoint yet"
            run.progress.say(f"interrupted at step {run.step}; {kept}; the same command with --resume continues")
            raise
        return run.report()


class _Run:
    """The parts of one run, and its walk along the steps."""

    def __init__(
        self,
        corpus: Corpus | Mapping[str, Split],
        out: Path,
        config: TrainConfig,
        *,
        ranks: Ranks,
        device: torch.device,
        writer: TextIO | None,
        resume: bool,
        stack: ExitStack,
    ) -> None:
        self.config, self.ranks, self.device, self.out = config, ranks, device, out
        self.checkpoints = out / "checkpoints"
        found = self._place(resume)
        self.splits = find_splits(corpus, config.vocab_size)
        self.tokenizer = self.splits["train"].tokenizer
        self.model = GPT(config.shape(self.splits["train"].vocab_size or 0), device=device, seed=config.seed)
        self.optimizer = optimizer.make(self.model, config)
        self.feed = stack.enter_context(self._make_feed(config.prefetch, device))
        self.step, self.val_loss = 0, cast("float | None", None)
        log_bytes, notes = 0, []
        if found is not None:
            saved = checkpoint.read(found, _SAVED)
            changed = config.check_resumes(saved.run["config"])
            self.feed.load_state_dict(saved.run["feed"])
            saved.load_into(self.model, self.optimizer)
            self.step, self.val_loss, log_bytes = saved.step, saved.run["val_loss"], saved.run["log_bytes"]
            then = saved.run["made_with"]
            changed += [name for name, value in _made_with(ranks).items() if then.get(name) != value]
            notes.append(f"resumed from {found}")
            if "batch_size" in changed:
                notes.append(f"changed since: {', '.join(changed)}; the rows are the same, from the next one on in other batches")
            elif changed:
                notes.append(f"changed since: {', '.join(changed)}; the batches are the same, the losses only to rounding")
        for p in self.model.parameters():
            ranks.share(p.data)
        self.first_step = self.step
        self.gradient = Gradient(self.model)
        self.loss_sum = _compiled(self._loss_sum) if config.compile else self._loss_sum
        self.lags = _works_ahead(device)
        # A batch's digest would wait for such a device: the host looks the same batch up for itself.
        self.look = stack.enter_context(self._make_feed(0, None)) if self.lags else None
        self.log = None
        if ranks.first:
            out.mkdir(parents=True, exist_ok=True)
            self.log = stack.enter_context(Log(out / "log.jsonl", size=log_bytes))
        self.progress = stack.enter_context(Progress(writer, start=self.step, steps=config.steps))
        if writer is not None:
            self.progress.say(banner(config, model=self.model, feed=self.feed, splits=self.splits, device=device, ranks=ranks))
        for note in notes:
            self.progress.say(note)
        self.pending: tuple[dict[str, Any], Tensor, Tensor, Tensor] | None = None
        self.loss: float | None = None
        self.seconds, self.waited, self.targets = 0.0, 0.0, 0

    # --- the walk ---

    def walk(self) -> None:
        """Evaluate, save and update until the last step."""
        config = self.config
        while True:
            at_end = self.step == config.steps
            if self.step > self.first_step or not self.first_step:
                if at_end or _due(self.step, config.eval_every):
                    self._evaluate()
                if self.step and (at_end or _due(self.step, config.checkpoint_every)):
                    self._save()
            if self.step >= config.steps:
                return
            self._update()
            self.step += 1

    def _update(self) -> None:
        config = self.config
        started = time.perf_counter()
        batch = next(self.feed)
        waited = time.perf_counter() - started
        rate = self._rate()
        for group in self.optimizer.param_groups:
            group["lr"] = rate
        self.gradient.clear()
        part = accumulate(self.loss_sum, self._micro_batches(batch), batch.num_targets)
        loss = self.gradient.add_up(part, self.ranks)
        norm = self.gradient.clip(config.grad_clip)
        self.optimizer.step()
        digest = self._digest(batch)
        if self.lags:
            self._settle()  # the update before this one: its numbers have arrived, so nothing waits
        seconds = time.perf_counter() - started
        self.seconds, self.waited, self.targets = self.seconds + seconds, self.waited + waited, self.targets + batch.num_targets
        record = {
            "step": self.step,
            "position": batch.position,
            "loss": None,
            "lr": rate,
            "tokens_per_s": round(batch.num_targets / seconds, 1),
            "data_wait": round(waited / seconds, 5),
        }
        self.pending = (record, loss, norm, digest)
        if not self.lags:
            self._settle()

    def _micro_batches(self, batch: Batch) -> Iterator[tuple[Tensor, ...]]:
        """This rank's rows, a few at a time; before each, chance (dropout) is set from where the rows stand in the stream."""
        size = self.config.micro_batch_size or len(batch.rows)
        parts = inputs(batch)
        for first in range(0, len(batch.rows), size):
            position = batch.rows[first] * self.config.block_size
            torch.manual_seed(hash_key("dropout", self.config.seed, position, self.ranks.rank))
            yield tuple(part[first : first + size] for part in parts)

    def _loss_sum(self, x: Tensor, y: Tensor, segments: Tensor | None = None) -> Tensor:
        """segments: where documents are kept apart; the mask of T * T is then made for this micro-batch alone."""
        kept = {} if segments is None else {"positions": restarted(segments), "attn_mask": attention_mask(segments)}
        with torch.autocast(self.device.type, torch.bfloat16, enabled=self.config.dtype == "bfloat16"):
            return self.model.loss(self.model.logits(self.model.hidden(x, **kept)), y, reduction="sum")

    def _rate(self) -> float:
        config = self.config
        rate = learning_rate(
            self.step,
            peak=config.learning_rate,
            floor=config.min_learning_rate,
            warmup_steps=config.warmup_steps,
            decay_steps=config.last_decay_step,
            steps=config.steps,
        )
        if config.scale_rate == "none":
            return rate
        return scale_lr(rate, config.base_batch_size, config.batch_size, config.scale_rate)

    def _digest(self, batch: Batch) -> Tensor:
        """The global batch's digest as a signed int64, on a device that can add it up over the ranks."""
        digest = batch.digest if self.look is None else self.look.at(batch.position).digest
        signed = torch.tensor(digest - 2**64 if digest >= 2**63 else digest, dtype=torch.int64)
        if self.ranks.world_size > 1:
            signed = signed.to(self.device)
            self.ranks.add_up(signed)
        return signed

    def _settle(self) -> None:
        """Read a past update's numbers, check them and log them."""
        if self.pending is None:
            return
        record, loss, norm, digest = self.pending
        self.pending = None
        record |= {"loss": loss.item(), "digest": f"{digest.item() % 2**64:016x}", "grad_norm": norm.item()}
        self.loss = record["loss"]
        if not (math.isfinite(record["loss"]) and math.isfinite(record["grad_norm"])):
            raise ConfigError(
                f"step {record['step']}: expected a finite loss and gradient, found {record['loss']} and {record['grad_norm']}; "
                f"the batch is feed.at({record['position']}), digest {record['digest']}; try a lower learning_rate"
            )
        if self.log is not None:
            self.log.write(**record)
            self.progress.step(record)

    def _evaluate(self) -> None:
        self._settle()
        if "val" not in self.splits:
            return
        self.model.eval()
        try:
            self.val_loss = evaluate(
                self.loss_sum,
                self.splits["val"],
                block_size=self.config.block_size,
                batch_size=self.config.eval_batch_size,
                device=self.device,
                ranks=self.ranks,
                **self.config.documents,
            )
        finally:
            self.model.train()
        if self.log is not None:
            self.log.write(step=self.step, position=self.feed.position, val_loss=self.val_loss)
            self.progress.say(f"step {self.step}/{self.config.steps}  val loss {self.val_loss:.4f}")

    def _save(self) -> None:
        self._settle()
        if self.log is not None:
            state = {
                "feed": self.feed.state_dict(),
                "config": self.config.to_dict(),
                "vocab_size": self.model.config.vocab_size,
                "tokenizer": None if self.tokenizer is None else self.tokenizer.identity(),
                "val_loss": self.val_loss,
                "log_bytes": self.log.sync(),
                "made_with": _made_with(self.ranks),
            }
            checkpoint.save(self.checkpoints, self.step, self.model, self.optimizer, state, keep=self.config.keep)

    # --- the beginning and the end ---

    def _place(self, resume: bool) -> Path | None:
        """The checkpoint to resume from, the same on every rank. Raises ConfigError for a folder that must not be used."""
        found = checkpoint.list_checkpoints(self.checkpoints)
        if not resume and self.ranks.first and (found or (self.out / "log.jsonl").exists()):
            raise ConfigError(
                f"{self.out}: expected a folder without a run, found one; --resume (resume=True) continues it; "
                "or name another folder"
            )
        if not resume:
            return None
        newest = torch.tensor(int(found[-1].name.split("-")[1]) if found else -1)
        if self.ranks.world_size > 1:
            newest = newest.to(self.device)
            self.ranks.share(newest)
        step = int(newest.item())
        return None if step < 0 else self.checkpoints / f"step-{step:08d}"

    def _make_feed(self, prefetch: int, device: torch.device | None) -> Feed:
        return Feed(
            self.splits["train"],
            batch_size=self.config.batch_size,
            block_size=self.config.block_size,
            order=cast("Literal['shuffled', 'sequential', 'random']", self.config.order),
            deal=cast("Literal['fixed', 'fresh']", self.config.deal),
            **self.config.documents,
            seed=self.config.seed,
            rank=self.ranks.rank,
            world_size=self.ranks.world_size,
            device=device,
            framework="numpy" if device is None else "torch",
            prefetch=prefetch,
        )

    def report(self) -> Report:
        """Draw the curve, write a sample, and say how it went."""
        log = self.out / "log.jsonl"
        drawn = None
        if self.ranks.first:
            try:
                drawn = curve.draw(log, self.out / "loss.svg")
            except MissingExtra:
                drawn = None
        return Report(
            steps=self.step,
            position=self.feed.position,
            parameters=self.model.num_parameters(),
            loss=self.loss,
            val_loss=self.val_loss,
            seconds=self.seconds,
            tokens_per_s=self.targets / self.seconds if self.seconds else 0.0,
            data_wait=self.waited / self.seconds if self.seconds else 0.0,
            log=log,
            curve=drawn,
            checkpoint=self.checkpoints / f"step-{self.step:08d}",
            sample=self._sample() if self.ranks.first else None,
        )

    def _sample(self) -> str | None:
        """Text the model continues from an end of text, a line's end, or the train split's first token."""
        if self.tokenizer is None or not self.config.sample_tokens:
            return None
        start = self.tokenizer.end_of_text
        if start is None:
            try:
                start = int(self.tokenizer.encode("\n")[0])
            except TokenError:
                start = int(self.splits["train"].read(0, 1)[0])
        ids = torch.tensor([[start]], device=self.device)
        written = generate(self.model, ids, self.config.sample_tokens, temperature=0.8)
        return self.tokenizer.decode(written[0, 1:].tolist())


def _due(step: int, every: int) -> bool:
    return bool(every) and step % every == 0


def _works_ahead(device: torch.device) -> bool:
    """Whether the host only queues the device's work, so that reading a number back would make it wait."""
    return device.type != "cpu"


def _device(name: str) -> torch.device:
    """The device of that name, or the best there is. Raises ConfigError for one that this machine lacks."""
    if name == "auto":
        name = "cuda" if torch.cuda.is_available() else "mps" if torch.backends.mps.is_available() else "cpu"
    with Mover(name) as mover:
        return mover.device


def _compiled(function: Callable[..., Tensor]) -> Callable[..., Tensor]:
    """torch.compile, whose failure (no C++ compiler, say) is an error of ours."""
    compiled = torch.compile(function)

    def call(*parts: Tensor) -> Tensor:
        try:
            return compiled(*parts)
        except torch._dynamo.exc.TorchDynamoException as error:
            found = str(error).strip().split("\n", 1)[0]
            raise ConfigError(f"compile: expected a model that torch.compile can build here, found {found}") from error

    return call


def _made_with(ranks: Ranks) -> dict[str, Any]:
    """What must be the same for a resumed run to be equal to the bit."""
    return {
        "ladle": ladle.__version__,
        "torch": torch.__version__,
        "threads": torch.get_num_threads(),
        "world_size": ranks.world_size,
    }
