"""The loss curve, as SVG."""

from __future__ import annotations

from pathlib import Path

from ladle.errors import MissingExtra
from ladle.train import log


def draw(log_path: Path, out: Path) -> Path:
    """Plot a log's losses (each step, and the val split's) into an SVG file, without touching pyplot's global state.

    Raises MissingExtra without matplotlib.
    """
    try:
        from matplotlib.backends.backend_svg import FigureCanvasSVG
        from matplotlib.figure import Figure
    except ModuleNotFoundError as error:
        raise MissingExtra("a loss curve", error.name or "matplotlib", "train") from error
    lines = log.read(log_path)
    steps = [line for line in lines if "loss" in line]
    evaluations = [line for line in lines if "val_loss" in line]
    figure = Figure(figsize=(7, 4), layout="constrained")
    FigureCanvasSVG(figure)
    axes = figure.add_subplot(xlabel="step", ylabel="loss, nats a token")
    axes.plot([line["step"] for line in steps], [line["loss"] for line in steps], linewidth=0.8, label="train")
    if evaluations:
        axes.plot([line["step"] for line in evaluations], [line["val_loss"] for line in evaluations], marker="o", label="val")
    axes.legend()
    axes.grid(alpha=0.3)
    figure.savefig(out, format="svg", metadata={"Date": None})
    return out
