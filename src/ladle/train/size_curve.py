"""Memory and speed over the batch size, as SVG."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from ladle.errors import MissingExtra
from ladle.train.memory import MIB

if TYPE_CHECKING:
    from ladle.train.batch_size import BatchSizes


def draw(found: BatchSizes, out: Path) -> Path:
    """Two curves over one axis, without touching pyplot's global state. Raises MissingExtra without matplotlib."""
    try:
        from matplotlib.backends.backend_svg import FigureCanvasSVG
        from matplotlib.figure import Figure
    except ModuleNotFoundError as error:
        raise MissingExtra("a picture of the batch sizes", error.name or "matplotlib", "train") from error
    ran = [trial for trial in found.trials if trial.seconds]
    sizes = [trial.batch_size for trial in ran]
    figure = Figure(figsize=(7, 5), layout="constrained")
    FigureCanvasSVG(figure)
    memory, speed = figure.subplots(2, 1, sharex=True)
    memory.plot(sizes, [(trial.peak or 0) / MIB for trial in ran], marker="o", label="measured")
    if found.line is not None:
        memory.plot(sizes, [(trial.predicted or 0) / MIB for trial in ran], linestyle="--", label="predicted")
    memory.axhline(found.budget / MIB, color="grey", linewidth=0.8, label="budget")
    memory.set(ylabel=f"peak {found.of}, MiB", xscale="log")
    speed.plot(sizes, [trial.samples_per_s for trial in ran], marker="o")
    speed.axvline(found.fastest, color="grey", linewidth=0.8)
    speed.annotate(f" fastest: {found.fastest}", (found.fastest, 0))
    speed.set(xlabel="batch size", ylabel="samples/s")
    memory.legend()
    for axes in (memory, speed):
        axes.grid(alpha=0.3)
    figure.savefig(out, format="svg", metadata={"Date": None})
    return out
