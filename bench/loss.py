"""The loss of a small model at equal tokens on random starts, on shuffled windows (two ways) and on overlapping windows.

    python -m bench.loss [--seeds 5] [--epochs 4] [--tokens N] [--draw FILE.svg] [--record]

The text is the source of Python's standard library, byte by byte; every tenth module is kept for validation. All runs have
the same model, schedule and number of tokens; a seed gives the first weights and the order. Each loss is the mean over every
target of the validation text. Targets that a run has been taught are counted as it goes. CPU, one thread.
"""

from __future__ import annotations

import argparse
import sysconfig
import time
from pathlib import Path

import numpy as np
import torch

import ladle
from bench import results
from ladle.corpus.split import Split
from ladle.nn import GPT, GPTConfig
from ladle.train.evaluation import evaluate
from ladle.train.schedule import learning_rate

B, T = 32, 64
TOKENS, HELD_OUT = 400 * 1024 + 1, 64 * 1024  # of the training and the validation text
EACH = 25  # steps between evaluations in the first epoch; four times as many after it
PEAK, FLOOR, WARMUP = 3e-3, 3e-4, 40
PLAIN = "shuffled windows"
ORDERS: dict[str, dict[str, object]] = {
    "random starts": {"order": "random"},
    PLAIN: {"order": "shuffled"},
    "shuffled windows, cut elsewhere each epoch": {"order": "shuffled", "epoch_offset": True},
    "overlapping windows, stride T/2": {"order": "shuffled", "stride": T // 2, "tail": "drop"},
}


def texts(num_tokens: int) -> tuple[Split, Split]:
    """(training, validation): modules by name, every tenth one held out, each cut to its size."""
    files = sorted(Path(sysconfig.get_path("stdlib")).glob("*.py"))
    modules = [file.read_text("utf-8", errors="replace") for file in files]
    rest = [text for number, text in enumerate(modules) if number % 10]
    parts = (ladle.from_text(rest, "bytes"), ladle.from_text(modules[::10], "bytes"))
    return tuple(  # type: ignore[return-value]
        ladle.from_ids(part.read(0, size), part.vocab_size) for part, size in zip(parts, (num_tokens, HELD_OUT), strict=True)
    )


def run(train: Split, val: Split, options: dict[str, object], seed: int, looks: list[int]) -> list[tuple[float, float]]:
    """(validation loss, share of the targets taught at least once) after so many steps, of which the last ends the run."""
    steps = looks[-1]
    torch.manual_seed(seed)
    model = GPT(GPTConfig(vocab_size=256, block_size=T, layers=2, heads=4, width=96), seed=seed)
    optimizer = torch.optim.AdamW(model.parameters(), weight_decay=0.1, betas=(0.9, 0.99))
    taught = np.zeros(train.num_tokens, dtype=np.bool_)

    def loss_sum(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return model.loss(model.logits(model.hidden(x)), y, reduction="sum")

    found = []
    with ladle.Feed(train, batch_size=B, block_size=T, seed=seed, prefetch=0, **options) as feed:  # type: ignore[arg-type]
        for step, batch in zip(range(steps + 1), feed, strict=False):
            if step in looks:
                model.eval()
                found.append((evaluate(loss_sum, val, block_size=T), float(taught[1:].mean())))
                model.train()
            if step == steps:
                break
            for group in optimizer.param_groups:
                group["lr"] = learning_rate(step, peak=PEAK, floor=FLOOR, warmup_steps=WARMUP, decay_steps=steps, steps=steps)
            optimizer.zero_grad()
            (loss_sum(batch.x, batch.y) / batch.num_targets).backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            columns = batch.starts[:, None] + np.arange(1, T + 1)
            taught[columns[batch.y.numpy() >= 0]] = True
    return found


def draw(measured: dict[str, np.ndarray], epochs: np.ndarray, path: Path) -> None:
    """measured: {order: [seeds, looks, 2]}. Three panels: the loss; how it differs from shuffled windows; the share taught."""
    import matplotlib as mpl
    from matplotlib.backends.backend_svg import FigureCanvasSVG
    from matplotlib.figure import Figure

    later = epochs >= 0.45
    with mpl.rc_context({"svg.hashsalt": "ladle", "svg.fonttype": "none", "font.size": 9}):
        figure = Figure(figsize=(10.5, 3.6), layout="constrained")
        FigureCanvasSVG(figure)
        losses, less, shares = figure.subplots(1, 3)
        for color, (name, runs) in zip(("#c0504d", "#1f77b4", "#111111", "#7f9f3f"), measured.items(), strict=True):
            beyond = runs[:, later, 0] - measured[PLAIN][:, later, 0]
            losses.plot(epochs[later], runs[:, later, 0].mean(axis=0), color=color, linewidth=1.4, label=name)
            less.plot(epochs[later], beyond.mean(axis=0), color=color, linewidth=1.4)
            less.fill_between(epochs[later], beyond.min(axis=0), beyond.max(axis=0), color=color, alpha=0.12, linewidth=0)
            shares.plot(epochs, 100 * runs[:, :, 1].mean(axis=0), color=color, linewidth=1.4)
        losses.set(title="validation loss, nats a byte")
        less.set(title=f"more than {PLAIN}, seed by seed", ylim=(-0.06, 0.06))
        shares.set(title="targets taught at least once, %", ylim=(0, 103))
        for axes in (losses, less, shares):
            axes.set_xlabel("tokens trained on, in sizes of the corpus")
            axes.grid(alpha=0.3)
        figure.legend(loc="outside lower center", ncols=4, frameon=False)
        path.parent.mkdir(parents=True, exist_ok=True)
        figure.savefig(path, format="svg", metadata={"Date": None})


def tables(measured: dict[str, np.ndarray], looks: list[int], per_epoch: int) -> list[dict[str, object]]:
    """At whole epochs, and the means all along."""
    base, rows = measured[PLAIN][:, :, 0], []
    for name, runs in measured.items():
        for at, step in enumerate(looks):
            if step % per_epoch or not step or step // per_epoch == 3:
                continue
            losses, more = runs[:, at, 0], runs[:, at, 0] - base[:, at]
            rows.append(
                {
                    "order": name,
                    "tokens, in sizes of the corpus": step // per_epoch,
                    "taught at least once": f"{runs[:, at, 1].mean():.1%}",
                    "validation loss, mean": f"{losses.mean():.4f}",
                    "least to most of the seeds": f"{losses.min():.4f} to {losses.max():.4f}",
                    f"more than {PLAIN}, seed by seed": f"{more.mean():+.4f} ({more.min():+.4f} to {more.max():+.4f})",
                }
            )
    means = [
        {"step": step, **{name: f"{runs[:, at, 0].mean():.4f}" for name, runs in measured.items()}}
        for at, step in enumerate(looks)
    ]
    return [
        {"title": f"{len(base)} seeds, {per_epoch} steps of ({B}, {T}) a corpus", "rows": rows},
        {"title": "Validation loss, means over the seeds", "rows": means},
    ]


def main() -> None:
    """Train, print, and with --record keep the result."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--epochs", type=int, default=4, help="sizes of the corpus to train on")
    parser.add_argument("--tokens", type=int, default=TOKENS, help="of the training text")
    parser.add_argument("--draw", type=Path, help="an SVG of the curves")
    parser.add_argument("--record", action="store_true", help="append to bench/results")
    args = parser.parse_args()
    torch.set_num_threads(1)
    train, val = texts(args.tokens)
    per_epoch = (train.num_tokens - 1) // (B * T)
    steps = args.epochs * per_epoch
    looks = sorted({*range(0, per_epoch + 1, EACH), *range(per_epoch, steps + 1, per_epoch // 2), steps})
    epochs = np.array(looks) / per_epoch
    found: dict[str, list[list[tuple[float, float]]]] = {name: [] for name in ORDERS}
    for seed in range(args.seeds):
        for name, options in ORDERS.items():
            begin = time.perf_counter()
            found[name].append(run(train, val, options, seed, looks))
            loss, share = found[name][-1][-1]
            print(f"seed {seed}, {name}: {loss:.4f}, {share:.2%} taught, {time.perf_counter() - begin:.0f} s", flush=True)
    measured = {name: np.array(runs) for name, runs in found.items()}
    told = tables(measured, looks, per_epoch)
    print(results.plain(told[0]["rows"]))  # type: ignore[arg-type]
    if args.draw:
        draw(measured, epochs, args.draw)
    if args.record:
        print(f"recorded in {results.append(results.run('loss', told, threads='1'))}")


if __name__ == "__main__":
    main()
