"""A plain training loop: x, y, loss, step; killed at any moment, it resumes with the very next batch.

python examples/nanogpt_style.py --out runs/plain --steps 60
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

import torch

import ladle
from ladle.nn import GPT, GPTConfig


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path("runs/plain"))
    parser.add_argument("--steps", type=int, default=60)
    options = parser.parse_args()
    out = options.out
    out.mkdir(parents=True, exist_ok=True)

    (out / "sums.txt").write_text("".join(f"{a} + {b} = {a + b}\n" for a in range(40) for b in range(40)))
    with (
        ladle.prepare(out / "sums.txt", out / "corpus", tokenizer="bytes") as corpus,
        ladle.Feed(corpus["train"], batch_size=8, block_size=64, seed=1) as feed,
        open(out / "log.jsonl", "a", encoding="utf-8") as log,
    ):
        model = GPT(GPTConfig(vocab_size=corpus["train"].vocab_size, block_size=64, layers=2, heads=2, width=32))
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
        step = 0
        if (out / "checkpoint.pt").exists():
            saved = torch.load(out / "checkpoint.pt", weights_only=True)
            model.load_state_dict(saved["model"])
            optimizer.load_state_dict(saved["optimizer"])
            feed.load_state_dict(saved["feed"])
            step = saved["step"]

        while step < options.steps:
            batch = next(feed)
            x, y = batch
            _, loss = model(x, y)
            loss.backward()
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)
            step += 1
            print(json.dumps({"step": step, "loss": loss.item(), "digest": batch.digest}), file=log, flush=True)
            if step % 10 == 0:
                state = {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "feed": batch.state, "step": step}
                torch.save(state, out / "checkpoint.tmp")
                (out / "checkpoint.tmp").replace(out / "checkpoint.pt")  # whole, or not at all


if __name__ == "__main__":
    main()
