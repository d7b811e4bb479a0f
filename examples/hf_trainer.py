"""Hugging Face's Trainer on a tiny GPT-2 from scratch: rows of T + 1 ids, labels not shifted, no target lost.

python examples/hf_trainer.py --out runs/hf --steps 60
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

import torch
from torch.utils.data import DataLoader
from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainerCallback, TrainingArguments

import ladle


class FeedTrainer(Trainer):
    """A Trainer whose training batches are a feed's: as they are, neither collated nor dealt out to ranks again."""

    feed_state: dict[str, object]

    def get_train_dataloader(self) -> DataLoader[Any]:
        # A generator of its own: else the loader would draw from torch's, and a resumed run's dropout would differ.
        workers = self.args.dataloader_num_workers
        return DataLoader(self.train_dataset, batch_size=None, num_workers=workers, generator=torch.Generator())

    def training_step(self, model: torch.nn.Module, inputs: Any, *rest: Any) -> torch.Tensor:
        loss = super().training_step(model, inputs, *rest)
        self.feed_state = inputs.state  # where the feed stands once this batch has been trained on
        line = {"step": self.state.global_step + 1, "loss": loss.item(), "digest": inputs.batch.digest}
        with open(Path(self.args.output_dir) / "log.jsonl", "a", encoding="utf-8") as log:
            print(json.dumps(line), file=log)
        return loss


class SaveFeed(TrainerCallback):
    """Adds the feed's state to each checkpoint: written last and at once, it also marks the checkpoint as whole."""

    def __init__(self, trainer: FeedTrainer) -> None:
        self.trainer = trainer

    def on_save(self, args: TrainingArguments, state: Any, *_: Any, **__: Any) -> None:
        path = Path(args.output_dir) / f"checkpoint-{state.global_step}" / "feed.json"
        path.with_suffix(".tmp").write_text(json.dumps(self.trainer.feed_state))
        path.with_suffix(".tmp").replace(path)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path("runs/hf"))
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument("--workers", type=int, default=0)
    options = parser.parse_args()
    out = options.out
    out.mkdir(parents=True, exist_ok=True)

    arguments = TrainingArguments(
        output_dir=str(out),
        max_steps=options.steps,
        learning_rate=1e-3,
        lr_scheduler_type="constant",
        save_steps=10,
        report_to=[],
        use_cpu=True,
        disable_tqdm=True,
        dataloader_num_workers=options.workers,
        ignore_data_skip=True,  # the feed resumes by itself, and replays nothing
    )
    with arguments.main_process_first():
        if arguments.process_index == 0:
            (out / "sums.txt").write_text("".join(f"{a} + {b} = {a + b}\n" for a in range(40) for b in range(40)))
        corpus = ladle.prepare(out / "sums.txt", out / "corpus", tokenizer="bytes")
    # The feed comes after the arguments, which start the ranks: it deals each its own rows.
    with corpus, ladle.Feed(corpus["train"], batch_size=8, block_size=64, seed=1) as feed:
        dataset = ladle.FeedDataset(feed, form="huggingface")
        torch.manual_seed(1)
        model = GPT2LMHeadModel(
            GPT2Config(
                vocab_size=corpus["train"].vocab_size,
                n_positions=65,  # a row is T + 1 ids
                n_embd=32,
                n_layer=2,
                n_head=2,
                bos_token_id=None,
                eos_token_id=None,
            )
        )
        trainer = FeedTrainer(model=model, args=arguments, train_dataset=dataset)
        trainer.add_callback(SaveFeed(trainer))
        whole = max(out.glob("checkpoint-*/feed.json"), key=lambda path: int(path.parent.name.split("-")[1]), default=None)
        if whole is not None:
            dataset.load_state_dict(json.loads(whole.read_text()))
        trainer.train(resume_from_checkpoint=str(whole.parent) if whole else None)


if __name__ == "__main__":
    main()
