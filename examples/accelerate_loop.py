"""Hugging Face Accelerate: prepare the model and the optimizer, and leave the batches to the feed.

    accelerate launch examples/accelerate_loop.py --out runs/accelerate --steps 60

A feed deals each rank its own rows, so its loader must not be sharded a second time: it is not passed to `prepare`.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

import torch
from accelerate import Accelerator
from torch.utils.data import DataLoader

import ladle
from ladle.nn import GPT, GPTConfig


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path("runs/accelerate"))
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument("--workers", type=int, default=0)
    options = parser.parse_args()
    out = options.out
    out.mkdir(parents=True, exist_ok=True)

    accelerator = Accelerator(cpu=not torch.cuda.is_available())
    with accelerator.main_process_first():
        if accelerator.is_main_process:
            (out / "sums.txt").write_text("".join(f"{a} + {b} = {a + b}\n" for a in range(40) for b in range(40)))
        corpus = ladle.prepare(out / "sums.txt", out / "corpus", tokenizer="bytes")
    rank = {"rank": accelerator.process_index, "world_size": accelerator.num_processes}
    feed = ladle.Feed(corpus["train"], batch_size=8, block_size=64, seed=1, **rank)
    dataset = ladle.FeedDataset(feed)
    progress = Progress(dataset)
    model = GPT(GPTConfig(vocab_size=corpus["train"].vocab_size, block_size=64, layers=2, heads=2, width=32))
    model, optimizer = accelerator.prepare(model, torch.optim.AdamW(model.parameters(), lr=1e-3))
    accelerator.register_for_checkpointing(progress)
    if saved := sorted(out.glob("step-*/finished")):
        accelerator.load_state(str(saved[-1].parent))

    with open(out / f"log-{accelerator.process_index}.jsonl", "a", encoding="utf-8") as log:
        while progress.step < options.steps:
            # One epoch. batch_size=None: the items are batches already.
            for batch in DataLoader(dataset, batch_size=None, num_workers=options.workers):
                x, y = batch.to(accelerator.device)
                _, loss = model(x, y, reduction="sum")
                # Each rank has its own number of targets: with the global one, the ranks' mean is the global mean.
                accelerator.backward(loss * accelerator.num_processes / batch.num_targets)
                optimizer.step()
                optimizer.zero_grad()
                progress.step, progress.state = progress.step + 1, batch.state
                print(json.dumps({"step": progress.step, "loss": loss.item(), "digest": batch.digest}), file=log, flush=True)
                if progress.step % 10 == 0:
                    place = out / f"step-{progress.step:06}"
                    accelerator.save_state(str(place))
                    accelerator.wait_for_everyone()
                    (place / "finished").touch()
                if progress.step == options.steps:
                    break
    accelerator.end_training()
    feed.close()
    corpus.close()


class Progress:
    """What Accelerate saves with the model: the step, and the feed's state after it."""

    def __init__(self, dataset: ladle.FeedDataset) -> None:
        self.dataset, self.step, self.state = dataset, 0, dataset.state_dict()

    def state_dict(self) -> dict[str, object]:
        return {"step": self.step, "feed": self.state}

    def load_state_dict(self, saved: dict[str, object]) -> None:
        self.step, self.state = saved["step"], saved["feed"]
        self.dataset.load_state_dict(self.state)


if __name__ == "__main__":
    main()
