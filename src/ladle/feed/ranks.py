"""Which rank this process is, and of how many. The environment is not asked."""

from __future__ import annotations

import sys

from ladle.errors import ConfigError
from ladle.feed.arguments import integer


def topology(rank: int | None, world_size: int | None) -> tuple[int, int]:
    """(rank, world size): as given, else torch.distributed's where it is initialised, else (0, 1).

    Raises ConfigError where only one is given, where the rank is outside the world, or where torch.distributed differs.
    """
    known = _distributed()
    if rank is None and world_size is None:
        return known or (0, 1)
    if rank is None or world_size is None:
        raise ConfigError(f"rank, world_size: expected both or neither, found rank={rank}, world_size={world_size}")
    world_size = integer("world_size", world_size, 1)
    rank = integer("rank", rank, 0, world_size)
    if known is not None and known[1] > 1 and known != (rank, world_size):
        raise ConfigError(f"rank, world_size: expected torch.distributed's {known}, found {(rank, world_size)}")
    return rank, world_size


def _distributed() -> tuple[int, int] | None:
    """torch.distributed's (rank, world size) where somebody has initialised it; torch is not imported for it."""
    module = sys.modules.get("torch.distributed")
    if module is None or not module.is_available() or not module.is_initialized():
        return None
    return module.get_rank(), module.get_world_size()
