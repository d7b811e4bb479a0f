"""What padding costs, and what keeping documents whole gains: a small model on many short documents, fed in four ways.

    python -m bench.packing_loss [--seeds 3] [--epochs 3] [--tokens N] [--draw FILE.svg] [--record]

The documents are the functions of Python's standard library, byte by byte; every tenth is kept for validation. All
runs have the same model, schedule and number of targets; a seed gives the first weights and the order. The validation loss is
the mean over every target of the validation documents, each read by itself (its own positions, nothing before it). CPU, one
thread; times are the processor's, so that what else runs on the machine does not count.
"""

from __future__ import annotations

import argparse
import ast
import sysconfig
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import torch

import ladle
from bench import results
from ladle.corpus.split import Split
from ladle.feed.batch import Batch
from ladle.feed.masks import attention_mask, restarted
from ladle.nn import GPT, GPTConfig
from ladle.train.schedule import learning_rate

B, T = 8, 512
TOKENS, HELD_OUT = 200_000, 20_000  # of the training and the validation documents, at most
LOOKS = 8  # evaluations of a run
PEAK, FLOOR, WARMUP = 3e-3, 3e-4, 0.05
PADDED, PACKED, CUT, APART = "one document a row, padded", "packed", "cut windows", "cut windows, documents apart"
WAYS: dict[str, dict[str, object]] = {
    PADDED: {"pack": "single"},
    PACKED: {"pack": "best_fit"},
    CUT: {},
    APART: {"mask_documents": True},
}


def documents() -> Iterator[str]:
    """Functions of the standard library, module after module."""
    for file in sorted(Path(sysconfig.get_path("stdlib")).glob("*.py")):
        text = file.read_text("utf-8", errors="replace")
        lines = text.splitlines(keepends=True)
        for node in ast.walk(ast.parse(text)):
            if isinstance(node, ast.FunctionDef) and node.end_lineno is not None:
                yield "".join(lines[node.lineno - 1 : node.end_lineno])


def splits(num_tokens: int) -> tuple[Split, Split]:
    """(training, validation): every tenth document is held out; as many of each as fit."""
    parts: tuple[list[str], list[str]] = ([], [])
    left = [num_tokens, HELD_OUT]
    for number, text in enumerate(documents()):
        which = number % 10 == 0
        if (size := len(text.encode())) <= left[which]:
            parts[which].append(text)
            left[which] -= size
    return tuple(ladle.from_text(texts, "bytes") for texts in parts)  # type: ignore[return-value]


def loss_sum(model: GPT, batch: Batch, apart: bool) -> torch.Tensor:
    """The sum of a batch's losses. apart: documents do not see each other, and each counts its positions from 0."""
    segments = batch.segments if apart else None
    hidden = model.hidden(batch.x) if segments is None else model.hidden(batch.x, restarted(segments), attention_mask(segments))
    return model.loss(model.logits(hidden), batch.y, reduction="sum")


@torch.no_grad()
def evaluate(model: GPT, val: Split) -> float:
    """Nats a byte over the validation documents, each by itself."""
    model.eval()
    total = targets = 0.0
    with ladle.Feed(val, batch_size=B, block_size=T, pack="best_fit", order="sequential", epochs=1, prefetch=0) as feed:
        for batch in feed:
            total += float(loss_sum(model, batch, apart=True))
            targets += batch.num_targets
    model.train()
    return total / targets


def run(train: Split, val: Split, way: str, seed: int, budget: int) -> tuple[list[tuple[float, float, float]], dict[str, float]]:
    """[(targets so far, training seconds so far, validation loss)], and what a slot was worth."""
    model = GPT(GPTConfig(vocab_size=256, block_size=T, layers=2, heads=4, width=96), seed=seed)
    optimizer = torch.optim.AdamW(model.parameters(), weight_decay=0.1, betas=(0.9, 0.99))
    seconds, targets, slots, looks = 0.0, 0, 0, 0
    found = [(0.0, 0.0, evaluate(model, val))]
    with ladle.Feed(train, batch_size=B, block_size=T, seed=seed, prefetch=0, **WAYS[way]) as feed:  # type: ignore[arg-type]
        for batch in feed:
            begin = time.process_time()
            share = targets / budget
            for group in optimizer.param_groups:  # by targets, so that all ways have the same schedule
                step = int(share * 10_000)
                group["lr"] = learning_rate(
                    step, peak=PEAK, floor=FLOOR, warmup_steps=int(WARMUP * 10_000), decay_steps=10_000, steps=10_000
                )
            optimizer.zero_grad()
            (loss_sum(model, batch, way != CUT) / batch.num_targets).backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            seconds += time.process_time() - begin
            targets, slots = targets + batch.num_targets, slots + B * T
            if targets >= budget * (looks + 1) / LOOKS:
                looks += 1
                found.append((targets, seconds, evaluate(model, val)))
            if targets >= budget:
                break
    return found, {"fill": targets / slots, "targets/s": targets / seconds}


def draw(measured: dict[str, list[np.ndarray]], facts: dict[str, list[dict[str, float]]], path: Path) -> None:
    """Three panels: the loss by targets, the loss by time, and the share of slots that are targets."""
    import matplotlib as mpl
    from matplotlib.backends.backend_svg import FigureCanvasSVG
    from matplotlib.figure import Figure

    colors = dict(zip(WAYS, ("#c0504d", "#1f77b4", "#7f9f3f", "#111111"), strict=True))
    with mpl.rc_context({"svg.hashsalt": "ladle", "svg.fonttype": "none", "font.size": 9}):
        figure = Figure(figsize=(10.5, 3.6), layout="constrained")
        FigureCanvasSVG(figure)
        by_target, by_time, shares = figure.subplots(1, 3)
        for way, runs in measured.items():
            mean = np.mean(runs, axis=0)[2:]
            by_target.plot(mean[:, 0] / 1e6, mean[:, 2], color=colors[way], linewidth=1.4, label=way)
            by_time.plot(mean[:, 1], mean[:, 2], color=colors[way], linewidth=1.4)
        fills = [100 * float(np.mean([fact["fill"] for fact in facts[way]])) for way in measured]
        shares.bar(range(len(fills)), fills, color=[colors[way] for way in measured])
        shares.set_xticks(range(len(fills)), ["padded", "packed", "cut", "cut, apart"][: len(fills)])
        by_target.set(title="validation loss, nats a byte", xlabel="targets trained, millions")
        by_time.set(title="the same, by time", xlabel="seconds of the processor")
        shares.set(title="slots that are targets, %", ylim=(0, 103))
        for axes in (by_target, by_time, shares):
            axes.grid(alpha=0.3)
        figure.legend(loc="outside lower center", ncols=4, frameon=False)
        path.parent.mkdir(parents=True, exist_ok=True)
        figure.savefig(path, format="svg", metadata={"Date": None})


def main() -> None:
    """Train, print, and with --record keep the result."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--epochs", type=int, default=3, help="sizes of the corpus to train on")
    parser.add_argument("--tokens", type=int, default=TOKENS, help="of the training documents")
    parser.add_argument("--draw", type=Path, help="an SVG of the curves")
    parser.add_argument("--record", action="store_true", help="append to bench/results")
    args = parser.parse_args()
    torch.set_num_threads(1)
    train, val = splits(args.tokens)
    budget = args.epochs * (train.num_tokens - int(train.num_documents or 0))
    measured: dict[str, list[np.ndarray]] = {way: [] for way in WAYS}
    facts: dict[str, list[dict[str, float]]] = {way: [] for way in WAYS}
    for seed in range(args.seeds):
        for way in WAYS:
            curve, fact = run(train, val, way, seed, budget)
            measured[way].append(np.array(curve))
            facts[way].append(fact)
            print(
                f"seed {seed}, {way}: {curve[-1][2]:.4f}, {fact['targets/s']:,.0f} targets/s, {fact['fill']:.1%} full", flush=True
            )
    base = np.median([fact["targets/s"] for fact in facts[PADDED]])
    rows = []
    for way, runs in measured.items():
        losses = [float(one[-1, 2]) for one in runs]
        rates = [fact["targets/s"] for fact in facts[way]]
        rows.append(
            {
                "fed": way,
                "slots that are targets": f"{np.mean([fact['fill'] for fact in facts[way]]):.1%}",
                "targets/s, median": f"{np.median(rates):,.0f}",
                "least to most": f"{min(rates):,.0f} to {max(rates):,.0f}",
                "times the padded": f"{np.median(rates) / base:.2f}",
                "validation loss, mean": f"{np.mean(losses):.4f}",
                "of the seeds": f"{min(losses):.4f} to {max(losses):.4f}",
            }
        )
    lengths = np.diff(train.document_ends().astype(np.int64), prepend=0)
    told = [
        {
            "title": f"{args.seeds} seeds, {budget:,} targets each, rows of {T}; {lengths.size:,} documents, median "
            f"{np.median(lengths):.0f}, 90th percentile {np.percentile(lengths, 90):.0f}, longest {lengths.max():,} tokens",
            "rows": rows,
        }
    ]
    print(results.plain(rows))
    if args.draw:
        draw(measured, facts, args.draw)
    if args.record:
        print(f"recorded in {results.append(results.run('packing_loss', told, threads='1'))}")


if __name__ == "__main__":
    main()
