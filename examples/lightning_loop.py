"""Lightning: a FeedDataset is a loader as it is, and its state travels in Lightning's own checkpoints.

python examples/lightning_loop.py --out runs/lightning --steps 60
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

import lightning
import torch
from lightning.pytorch.callbacks import ModelCheckpoint

import ladle
from ladle.nn import GPT, GPTConfig


class Model(lightning.LightningModule):
    def __init__(self, vocab_size: int, log: Path) -> None:
        super().__init__()
        self.gpt = GPT(GPTConfig(vocab_size=vocab_size, block_size=64, layers=2, heads=2, width=32))
        self.lines = log

    def training_step(self, batch: Any, _: int) -> torch.Tensor:
        x, y = batch
        _, loss = self.gpt(x, y)
        with self.lines.open("a", encoding="utf-8") as log:
            print(json.dumps({"step": self.global_step + 1, "loss": loss.item(), "digest": batch.digest}), file=log)
        return loss

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.AdamW(self.parameters(), lr=1e-3)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path("runs/lightning"))
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument("--workers", type=int, default=0)
    options = parser.parse_args()
    out = options.out
    out.mkdir(parents=True, exist_ok=True)

    (out / "sums.txt").write_text("".join(f"{a} + {b} = {a + b}\n" for a in range(40) for b in range(40)))
    with (
        ladle.prepare(out / "sums.txt", out / "corpus", tokenizer="bytes") as corpus,
        ladle.Feed(corpus["train"], batch_size=8, block_size=64, seed=1) as feed,
    ):
        loader: Any = ladle.FeedDataset(feed)  # its len, an epoch's batches, keeps Lightning from looking a batch ahead
        if options.workers:
            from torchdata.stateful_dataloader import StatefulDataLoader

            loader = StatefulDataLoader(loader, batch_size=None, num_workers=options.workers)
        trainer = lightning.Trainer(
            accelerator="cpu",
            max_steps=options.steps,
            max_epochs=-1,
            callbacks=[ModelCheckpoint(out, save_last=True, every_n_train_steps=10)],
            default_root_dir=out,
            logger=False,
            enable_progress_bar=False,
            enable_model_summary=False,
        )
        last = out / "last.ckpt"
        model = Model(corpus["train"].vocab_size, out / "log.jsonl")
        trainer.fit(model, loader, ckpt_path=str(last) if last.exists() else None, weights_only=True)


if __name__ == "__main__":
    main()
