"""Fixtures that several parts' tests share."""

from collections.abc import Callable, Sequence

import numpy as np
import pytest

from ladle.corpus.shard import ArrayShard
from ladle.corpus.split import Split


@pytest.fixture(scope="session")
def in_shards() -> Callable[[np.ndarray, Sequence[int]], Split]:
    """ids (uint16 or uint32 [N]) as one split in memory, cut into shards of these sizes."""

    def make(ids: np.ndarray, sizes: Sequence[int]) -> Split:
        cuts = np.cumsum(sizes)[:-1]
        return Split(
            name="train",
            where="memory",
            shards=[ArrayShard(part) for part in np.split(ids, cuts)],
            dtype=ids.dtype,
            fingerprint=lambda: f"ids of {len(ids)}",
        )

    return make
