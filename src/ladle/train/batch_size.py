"""The largest batch that fits, and the fastest: sizes that ran, in a process that could not harm this one."""

from __future__ import annotations

import gc
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from ladle.errors import ConfigError
from ladle.train.full_step import FullStep, MakeOptimizer, usual_loss
from ladle.train.isolation import Died, TooSlow, isolated, pickled
from ladle.train.kept import kept
from ladle.train.memory import MIB, mapped, meter
from ladle.train.micro_batches import effective_batch
from ladle.train.prediction import Line, Prediction
from ladle.train.ranks import Ranks
from ladle.train.sample import batch_maker
from ladle.train.search import search
from ladle.train.trial import Attempt, Trial

SHARE = 0.7  # of the device, by default
HOW = ("auto", "fork", "spawn", "none")
_KILLED = -9


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchSizes:
    """What was found. str() is a table.

    largest: the largest size that ran within the budget, on every rank. fastest: of those, the one with the most samples a
    second (the first of equals); often not the largest. trials: every size tried, in order of size. budget: bytes; of:
    what they are of, in words. reason: why the search ended where it did. line: the prediction, None where there is none.
    global_batch: as asked for; micro_batch_size: the fastest size that divides a rank's part of it; accumulation:
    micro-batches a rank passes in one update; None without a global batch.
    """

    largest: int
    fastest: int
    trials: tuple[Trial, ...]
    budget: int
    of: str
    reason: str
    line: Line | None = None
    global_batch: int | None = None
    micro_batch_size: int | None = None
    accumulation: int | None = None
    world_size: int = 1

    def trial(self, batch_size: int) -> Trial:
        """The trial of that size. Raises ConfigError for one that was not tried."""
        for trial in self.trials:
            if trial.batch_size == batch_size:
                return trial
        tried = ", ".join(str(trial.batch_size) for trial in self.trials)
        raise ConfigError(f"batch_size: expected one that was tried ({tried}), found {batch_size}")

    def __str__(self) -> str:
        lines = [f"{'batch size':>10}  {'peak MiB':>9}  {'predicted':>9}  {'ms a step':>9}  {'samples/s':>10}"]
        for trial in self.trials:
            peak, predicted = (f"{value / MIB:,.0f}" if value else "" for value in (trial.peak, trial.predicted))
            time = f"{trial.seconds * 1e3:,.1f}" if trial.seconds else ""
            speed = f"{trial.samples_per_s:,.0f}" if trial.seconds else ""
            marks = [mark for mark, size in (("largest", self.largest), ("fastest", self.fastest)) if size == trial.batch_size]
            note = ", ".join(marks) if trial.fits else f"no: {trial.why}"
            lines.append(f"{trial.batch_size:>10}  {peak:>9}  {predicted:>9}  {time:>9}  {speed:>10}  {note}".rstrip())
        lines.append(f"budget {self.budget / MIB:,.0f} MiB of {self.of}; {self.reason}")
        if self.micro_batch_size is not None and self.accumulation is not None:
            rows = effective_batch(self.micro_batch_size, self.accumulation, self.world_size, quiet=True)
            lines.append(
                f"global batch {rows} = {self.micro_batch_size} a pass x {self.accumulation} passes x {self.world_size} ranks"
            )
        return "\n".join(lines)

    def draw(self, out: str | Path) -> Path:
        """The curves of memory and speed as an SVG file. Raises MissingExtra without matplotlib."""
        from ladle.train.size_curve import draw

        return draw(self, Path(out))


def find_batch_size(
    step: nn.Module | Callable[[Any], object],
    sample: Any,
    *,
    loss: Callable[[nn.Module, Any], Tensor] | None = None,
    optimizer: torch.optim.Optimizer | MakeOptimizer = torch.optim.AdamW,
    max_memory: int | None = None,
    max_batch_size: int = 8192,
    num_samples: int | None = None,
    start: int = 1,
    precision: float = 0.02,
    candidates: Sequence[int] | None = None,
    global_batch: int | None = None,
    isolate: str = "auto",
    keep: Sequence[Any] = (),
    device: torch.device | str | None = None,
    timeout_s: float = 600.0,
) -> BatchSizes:
    """Find the largest batch that trains within max_memory, by full steps that really ran, and the fastest.

    step: a model, trained by `loss` (a function (model, batch) -> scalar; `usual_loss` by default) and `optimizer` (one over
    the model's parameters, or a class; AdamW, the hungriest of the usual, by default); or a function step(batch) that
    makes one whole step of your own: forward, backward, optimizer. sample: one sample as `dataset[i]` gives it, without a
    batch's dimension: tensors, arrays, numbers in tuples, lists or dicts; or a function size -> batch. For texts give the
    longest. device: of the batches; by default the model's, the CPU for a function.

    max_memory: bytes; by default 70 % of the device (of this machine or container, on the CPU), and never more than is free.
    On the CPU it is the process's whole resident memory, the interpreter and what you have loaded included; on CUDA what
    torch has reserved. max_batch_size, num_samples (of the dataset): no size above either is tried. start: the first size
    tried; too large is fine. precision: the answer is within max(1, precision * size) of the first size that failed.
    candidates: try only these, upwards, until one fails. global_batch: rows of an update over all ranks; one more size is
    then tried, if need be, that divides it. timeout_s: a trial that takes longer does not fit, nor does one
    that takes 5 times as long as the sizes before let expect.

    How: the step is walked with fake tensors, which cost nothing, to predict where the limit lies; then each size is tried
    in a child process by at least two whole steps (Adam's moments exist only after the first), so that this process's model,
    optimizer, buffers and random states are not touched and no memory is lost. On the CPU the kernel refuses memory beyond
    the budget (RLIMIT_DATA), so that the step fails with an error and the OOM killer has no cause.

    isolate="fork" is the way where no CUDA device is present: nothing needs to pickle. With one, "spawn": what you give must
    pickle, and a script must have its `if __name__ == "__main__":`. isolate="none": in this process; the model, the optimizer
    and what `keep` names (anything with a state_dict) are copied and put back. "auto" takes the first of these that works.

    On the CPU memory need not grow evenly: C's allocator keeps and splits blocks below 32 MiB, so that a process may hold two
    or three times its tensors, and less at a larger batch: an epoch's last, smaller batch may need more than a whole one
    (drop_last), and later steps may hold somewhat more than the first few, which the 30 % left over are for.

    With torch.distributed initialised all ranks must call this; the answer is the smallest of theirs. A DistributedDataParallel
    model is tried without its reductions. Its buckets (as large as the gradients, once more) are then not in the figure.

    Raises ConfigError where not even one sample fits, or an argument cannot be; an error of the step that is not about
    memory is raised as itself.
    """
    ranks = Ranks.current()
    finder = _Finder(step, sample, loss or usual_loss, optimizer, isolate, keep, device, max_memory, timeout_s)
    most = _whole("max_batch_size", max_batch_size)
    reason = f"max_batch_size is {most}"
    if num_samples is not None and num_samples < most:
        most, reason = _whole("num_samples", num_samples), f"the dataset has {num_samples} samples"
    share = None
    if global_batch is not None:
        if _whole("global_batch", global_batch) % ranks.world_size:
            raise ConfigError(f"global_batch: expected a multiple of {ranks.world_size} ranks, found {global_batch}")
        share = global_batch // ranks.world_size
        if share < most:
            most, reason = share, f"a rank's part of the global batch is {share}"
    if not 0.0 <= precision < 1.0:
        raise ConfigError(f"precision: expected a share from 0 to 1, found {precision}")
    sizes = None if candidates is None else sorted({_whole("candidates", size) for size in candidates if size <= most})
    if sizes == []:
        raise ConfigError(f"candidates: expected a size of at most {most}, found {list(candidates or [])}")
    start = min(_whole("start", start), most)
    with ExitStack() as stack:
        _together(ranks, partial(finder.walk, stack, start, most, precision, sizes))
        if sizes is not None:
            most, reason = sizes[-1], f"{sizes[-1]} is the last candidate"
        return finder.result(ranks, reason, most, share, global_batch)


def estimate_batch_size(
    model: nn.Module,
    sample_feature: Any,
    sample_label: Any,
    max_memory_mb: float | None = None,
    candidates: Sequence[int] = (8, 16, 32, 64, 128, 256),
) -> int:
    """The largest of `candidates` that trains within max_memory_mb (MiB), each tried by full steps of AdamW; prints a table.

    sample_feature, sample_label: one sample, without a batch's dimension; the label a class (cross-entropy) or floats (squared
    error). max_memory_mb: None is 70 % of the device; on the CPU it counts the whole process. This is `find_batch_size` at its
    simplest; the model stays as it is. Raises ConfigError where not even the smallest fits.
    """
    most = None if max_memory_mb is None else int(max_memory_mb * MIB)
    found = find_batch_size(model, (sample_feature, sample_label), max_memory=most, candidates=candidates)
    print(found)
    return found.largest


class _Finder:
    """The trials of one search."""

    def __init__(  # noqa: PLR0917  find_batch_size's
        self,
        step: Any,
        sample: Any,
        loss: Callable[[nn.Module, Any], Tensor],
        optimizer: torch.optim.Optimizer | MakeOptimizer,
        isolate: str,
        keep: Sequence[Any],
        device: torch.device | str | None,
        max_memory: int | None,
        timeout_s: float,
    ) -> None:
        if isolate not in HOW:
            raise ConfigError(f"isolate: expected one of {', '.join(HOW)}, found {isolate!r}")
        if not callable(step):
            raise ConfigError(f"step: expected a model or a function of a batch, found {type(step).__name__}")
        self.keep = list(keep)
        if isinstance(step, nn.parallel.DistributedDataParallel):
            step = step.module
        if isinstance(step, nn.Module):
            device = device or next((p.device for p in step.parameters()), "cpu")
            self.keep += [step, *([optimizer] if isinstance(optimizer, torch.optim.Optimizer) else [])]
            step = FullStep(step, loss, optimizer)
        self.step, self.device, self.timeout_s = step, torch.device(device or "cpu"), timeout_s
        self.gauge = meter(self.device)
        self.batch_of: Any = batch_maker(sample, self.device)
        self.how = self._choose(isolate)
        self.budget = self._budget(max_memory)
        self.trials: dict[int, Trial] = {}
        self.line: Line | None = None
        self.lasted: tuple[int, float] | None = None  # the last size that fitted, and the seconds its trial took
        # What is no tensor of the step: the interpreter, libraries, data. Measured by the first trial that fits.
        self.over = self.gauge.held() if self.how in {"fork", "none"} else 0

    def _choose(self, isolate: str) -> str:
        """How a trial is kept apart. A process that has seen CUDA cannot fork and go on with it, nor with autograd."""
        cuda = self.device.type == "cuda" or torch.cuda.is_available()
        if isolate == "fork" and self.device.type == "cuda":
            raise ConfigError(
                "isolate: expected 'spawn' or 'none' for a CUDA device, which does not survive a fork, found 'fork'"
            )
        if isolate != "auto":
            return isolate
        if not cuda:
            return "fork"
        try:
            pickled(Attempt(self.step, self.batch_of, self.device, 1, 0))
        except ConfigError:
            if not self.keep:
                raise
            return "none"
        return "spawn"

    def _budget(self, max_memory: int | None) -> int:
        wanted = int(SHARE * self.gauge.total) if max_memory is None else _whole("max_memory", max_memory)
        return min(wanted, self.gauge.room())

    def walk(self, stack: ExitStack, start: int, most: int, precision: float, sizes: list[int] | None) -> None:
        """This rank's own search. Raises ConfigError where nothing fits."""
        if self.how == "none":
            stack.enter_context(kept(self.keep))
        self.line = self._predict(most)
        if sizes is None:
            predict = None if self.line is None else self.predicted
            search(self.run, start=start, most=most, budget=self.budget, precision=precision, predict=predict)
        else:
            for size in sizes:
                if not self.run(size).fits:
                    break
        if not any(trial.fits for trial in self.trials.values()):
            least = min(self.trials)
            trial = self.trials[least]
            held = f", where the process held {trial.peak / MIB:,.0f} MiB at most" if trial.peak else ""
            raise ConfigError(
                f"batch size {least}: expected a step within {self.budget / MIB:,.0f} MiB of {self.gauge.what}, "
                f"found {trial.why}{held}; raise max_memory, or train a smaller model"
            )

    def _predict(self, most: int) -> Line | None:
        """The line of fake tensors. A function of the caller's is walked only where it cannot do harm: it may not copy."""
        if self.how == "none" and not isinstance(self.step, FullStep):
            return None
        sizes = (max(2, most // 2), max(3, most)) if self.batch_of.stacked else (8, 16)
        try:
            return isolated(Prediction(self.step, self.batch_of, sizes), self.how, self.timeout_s)
        except (Died, TooSlow):
            return None

    def run(self, size: int) -> Trial:
        """One trial, in the way chosen. A process that the system killed did not fit; any other end is an error."""
        files = mapped() if self.how == "fork" else 0
        attempt = Attempt(self.step, self.batch_of, self.device, size, self.budget, files)
        begin = time.monotonic()
        try:
            trial = isolated(attempt, self.how, self._patience(size))
            if trial.fits:
                self.lasted = (size, time.monotonic() - begin)
        except TooSlow as error:
            trial = Trial(batch_size=size, fits=False, why=str(error))
        except Died as error:
            if error.args[0] != _KILLED:
                raise ConfigError(f"batch size {size}: {error}") from error
            trial = Trial(batch_size=size, fits=False, why="killed, as the system does when memory runs out")
        if self.how == "none":
            gc.collect()
            self.gauge.release()
        if self.line is not None:
            trial = replace(trial, predicted=self.predicted(size))
            if trial.peak is not None and trial.fits and not self._fitting():
                self.over = trial.peak - self.line(size)
        self.trials[size] = trial
        return trial

    def _patience(self, size: int) -> float:
        """Seconds: at the edge of memory a library may work without its buffers, many times slower, and be of no use."""
        if self.lasted is None:
            return self.timeout_s
        known, seconds = self.lasted
        return min(self.timeout_s, 5 + 5 * seconds * max(1.0, size / known))

    def predicted(self, size: int) -> int:
        """Bytes, with what the process holds beside."""
        return (0 if self.line is None else self.line(size)) + self.over

    def result(self, ranks: Ranks, reason: str, most: int, share: int | None, global_batch: int | None) -> BatchSizes:
        """The answer of all ranks: what is largest, fastest and a divisor everywhere, tried where it had not been."""
        largest = self._agreed(ranks, max(self._fitting()))
        fastest = self._agreed(ranks, max(self._fitting(largest), key=lambda size: self.trials[size].samples_per_s))
        micro = None
        if share is not None:
            divisor = next(size for size in range(largest, 0, -1) if share % size == 0)
            divisor = self._agreed(ranks, divisor, share)
            even = [size for size in self._fitting(largest) if share % size == 0]
            micro = self._agreed(ranks, max(even, key=lambda size: self.trials[size].samples_per_s, default=divisor), share)
        if largest < most:
            failed = min((size for size, trial in self.trials.items() if not trial.fits and size > largest), default=None)
            reason = "another rank has no more" if failed is None else f"{failed} did not fit"
        return BatchSizes(
            largest=largest,
            fastest=fastest,
            trials=tuple(self.trials[size] for size in sorted(self.trials)),
            budget=self.budget,
            of=self.gauge.what,
            reason=reason,
            line=self.line,
            global_batch=global_batch,
            micro_batch_size=micro,
            accumulation=None if share is None or micro is None else share // micro,
            world_size=ranks.world_size,
        )

    def _fitting(self, most: int | None = None) -> list[int]:
        return [size for size, trial in sorted(self.trials.items()) if trial.fits and (most is None or size <= most)]

    def _known(self, size: int) -> Trial:
        return self.trials[size] if size in self.trials else self.run(size)

    def _agreed(self, ranks: Ranks, size: int, divides: int | None = None) -> int:
        """The smallest of the ranks' sizes, once it has run on each of them; smaller ones where it did not. Every rank's call."""
        while True:
            size = ranks.least(size)
            if ranks.least(int(_together(ranks, partial(self._known, size)).fits)):
                return size
            if size == 1:
                raise ConfigError("batch size 1: expected it to fit on every rank, found that it does not")
            size = max(1, size - 1 if divides is None else next(s for s in range(size - 1, 0, -1) if divides % s == 0))


def _together(ranks: Ranks, call: Callable[[], Any]) -> Any:
    """call(), of which no rank goes on alone if another has raised. Raises its own error, or ConfigError for another's."""
    failure: BaseException | None = None
    answer = None
    try:
        answer = call()
    except Exception as error:  # noqa: BLE001  it is raised again, after the other ranks know
        failure = error
    others = ranks.least(int(failure is None))
    if failure is not None:
        raise failure
    if not others:
        raise ConfigError("ranks: expected a batch size on every rank, found an error on another; see what it says")
    return answer


def _whole(name: str, value: Any) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise ConfigError(f"{name}: expected a whole number >= 1, found {value!r}")
    return value
