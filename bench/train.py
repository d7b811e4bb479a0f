"""Does the trainer learn? nanoGPT's published small CPU run, on the text it was run on.

    python -m bench.train tinyshakespeare.txt

prepares the text (1 115 394 characters: chars, the last tenth for validation), trains the preset `cpu-small` on it and
records the exact validation loss, the mean over every target. The published run (block 64, batch 12, 4 layers, 4 heads,
width 128, no dropout, 2000 steps) reached about 1.88, estimated over random batches.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from dataclasses import fields
from pathlib import Path

import torch

import ladle
from bench import results
from ladle.train import TrainConfig, log, train

TARGET = 1.90


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("text", type=Path, help="the text file")
    parser.add_argument("--preset", default="cpu-small")
    parser.add_argument("--learning-rate", type=float, help="instead of the preset's")
    parser.add_argument("--threads", type=int, default=1, help="of torch; two that must share their cores are slower (default 1)")
    parser.add_argument("--record", action="store_true", help="add the run to bench/results")
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    changes = {} if options.learning_rate is None else {"learning_rate": options.learning_rate}
    config = TrainConfig.preset(options.preset, **changes)
    with tempfile.TemporaryDirectory() as folder:
        corpus = ladle.prepare([options.text], Path(folder) / "corpus", tokenizer="chars", split="tail", val_fraction=0.1)
        with corpus:
            sizes = {name: split.num_tokens for name, split in corpus.splits.items()}
            report = train(corpus, Path(folder) / "run", config, writer=sys.stderr)
        evaluations = [line for line in log.read(report.log) if "val_loss" in line]
    print(report)
    if options.record:
        told = [options.text.name, *(f"--learning-rate {rate}" for rate in changes.values())]
        result = results.run(
            "train",
            [{"title": "Validation loss, mean over every target", "rows": evaluations}],
            command=" ".join(["python -m bench.train", *told, "--record"]),
            val_loss=report.val_loss,
            target=f"at most {TARGET}",
            parameters=report.parameters,
            tokens=sizes,
            seconds=round(report.seconds, 1),
            tokens_per_s=round(report.tokens_per_s),
            data_wait=f"{report.data_wait:.2%} of a step",
            threads=torch.get_num_threads(),
            config={f.name: getattr(config, f.name) for f in fields(config)},
        )
        print(results.append(result))
    return 0 if report.val_loss is not None and report.val_loss <= TARGET else 1


if __name__ == "__main__":
    sys.exit(main())
