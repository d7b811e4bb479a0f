"""A step's peak memory before anything is allocated: the step is walked with fake tensors, which have shapes and no data."""

from __future__ import annotations

import copy
import weakref
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from torch import Tensor
from torch._subclasses.fake_tensor import FakeCopyMode, FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_iter


@dataclass(frozen=True, slots=True)
class Line:
    """Bytes of tensors at the peak of a step: max(least, base + each * batch_size).

    Small batches peak in the optimizer's step (`least`: parameters, gradients, moments, what the step makes beside them), large
    ones in the backward pass, where the memory grows with the batch by a straight line.
    """

    least: int
    base: float
    each: float

    def __call__(self, batch_size: int) -> int:
        return max(self.least, round(self.base + self.each * batch_size))


@dataclass(frozen=True, slots=True)
class Prediction:
    """A call that draws the line from probes at size 1 and at two large sizes; None where the step cannot be walked so
    (it reads a value, say by loss.item(), or its model does not copy)."""

    step: Callable[[Any], object]
    batch_of: Callable[[int], Any]
    sizes: tuple[int, int]

    def __call__(self) -> Line | None:
        """Does not change the step's model if the step can be copied, and changes it badly if not: call it in a process apart."""
        small, large = self.sizes
        try:
            least, below, above = (self._peak(size) for size in (1, small, large))
        except Exception:  # noqa: BLE001  whatever a model does that needs real values
            return None
        each = (above - below) / (large - small)
        return Line(least, above - each * large, each)

    def _peak(self, size: int) -> int:
        fakes = FakeTensorMode(allow_non_fake_inputs=True)
        with FakeCopyMode(fakes):
            step = copy.deepcopy(self.step)
        live = Live()
        with fakes, live:
            batch = self.batch_of(size)
            step(batch)
            step(batch)
        return live.peak


class Live(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Bytes of all storages that its operations have seen and that are still alive, now and at most."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.now = self.peak = 0
        self._seen: set[int] = set()

    def __torch_dispatch__(
        self, operation: Callable[..., Any], types: Any, args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        self._count((args, kwargs))
        result = operation(*args, **(kwargs or {}))
        self._count(result)
        return result

    def _count(self, tree: Any) -> None:
        for tensor in tree_iter(tree):
            if isinstance(tensor, Tensor):
                self._count_one(tensor)

    def _count_one(self, tensor: Tensor) -> None:
        storage = tensor.untyped_storage()
        key, size = storage._cdata, storage.nbytes()
        if key in self._seen:
            return
        self._seen.add(key)
        self.now += size
        self.peak = max(self.peak, self.now)
        weakref.finalize(storage, self._gone, key, size)

    def _gone(self, key: int, size: int) -> None:
        self._seen.discard(key)
        self.now -= size
