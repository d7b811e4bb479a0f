"""The processes that train one model together."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta

import torch
import torch.distributed as dist
from torch import Tensor

from ladle.errors import ConfigError
from ladle.feed.ranks import topology


@dataclass(frozen=True, slots=True)
class Ranks:
    """This process's place among them; alone by default. Collectives block until every rank has called them."""

    rank: int = 0
    world_size: int = 1

    @property
    def first(self) -> bool:
        """Whether this rank writes what is written once."""
        return self.rank == 0

    def add_up(self, tensor: Tensor) -> None:
        """In place, the sum over all ranks; int64 wraps at 2**64."""
        if self.world_size > 1:
            dist.all_reduce(tensor)

    def share(self, tensor: Tensor) -> None:
        """In place, rank 0's values."""
        if self.world_size > 1:
            dist.broadcast(tensor, src=0)

    def least(self, number: int) -> int:
        """The smallest of the ranks' numbers."""
        return self._reduced(number, dist.ReduceOp.MIN)

    def total(self, number: int) -> int:
        """The sum of the ranks' numbers."""
        return self._reduced(number, dist.ReduceOp.SUM)

    def _reduced(self, number: int, operation: dist.ReduceOp.RedOpType) -> int:
        if self.world_size == 1:
            return number
        device = torch.device("cuda", torch.cuda.current_device()) if dist.get_backend() == "nccl" else torch.device("cpu")
        shared = torch.tensor(number, device=device)
        dist.all_reduce(shared, op=operation)
        return int(shared.item())

    @classmethod
    def current(cls) -> Ranks:
        """torch.distributed's, where it is initialised; else alone."""
        return cls(*topology(None, None))


@contextmanager
def joined(*, rank: int, world_size: int, address: str, port: int, backend: str, timeout_s: float = 1800) -> Iterator[Ranks]:
    """Join the other ranks at address:port (what torchrun hands out), and leave at the end.

    backend: "gloo" or "nccl". Raises ConfigError when they cannot be reached.
    """
    try:
        dist.init_process_group(
            backend,
            init_method=f"tcp://{address}:{port}",
            rank=rank,
            world_size=world_size,
            timeout=timedelta(seconds=timeout_s),
        )
    except (RuntimeError, ValueError) as error:
        raise ConfigError(f"ranks: expected {world_size} processes to meet at {address}:{port}, found {error}") from error
    try:
        yield Ranks(rank, world_size)
        # gloo's threads let go of a collective's tensors a moment after it has returned; an interpreter that ends in that
        # moment aborts. A barrier holds none of ours, and none of the others is needed after it.
        dist.barrier()
    finally:
        dist.destroy_process_group()
