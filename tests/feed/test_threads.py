"""One feed, several threads: each batch goes to one of them, and closing it ends them all."""

import threading
import time

import numpy as np
import pytest

import ladle
from ladle.errors import ClosedError, ConfigError


def feed(**more):
    split = ladle.from_ids(np.arange(20_001) % 1000)
    return ladle.Feed(split, batch_size=4, block_size=16, framework="numpy", **more)


@pytest.mark.parametrize("prefetch", [0, 2])
def test_threads_that_share_a_feed_get_each_batch_once(prefetch):
    """Without turns they were handed the same batches again (prefetch=0), or waited for ever (prefetch=2)."""
    taken, done = [], []

    def walk(shared):
        taken.extend((batch.position, batch.digest) for batch in shared)
        done.append(True)

    with feed(prefetch=prefetch, epochs=1) as shared:
        threads = [threading.Thread(target=walk, args=(shared,), daemon=True) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(30)
        assert len(done) == 4
        assert sorted(taken) == [(batch.position, batch.digest) for batch in (shared[step] for step in range(len(shared)))]


def walk(shared, errors):
    """Take batches until an error."""
    try:
        for _ in shared:
            pass
    except Exception as error:
        errors.append((type(error), str(error)))


@pytest.mark.parametrize("prefetch", [0, 2])
def test_closing_ends_a_thread_that_walks(prefetch):
    """It was left waiting for a batch that nobody would make, or met an IndexError."""
    for turn in range(20):
        errors, shared = [], feed(prefetch=prefetch, seed=turn)
        thread = threading.Thread(target=walk, args=(shared, errors), daemon=True)
        thread.start()
        time.sleep(0.001 * turn)
        shared.close()
        thread.join(10)
        assert errors == [(ClosedError, "this feed is closed; make another from the same source and load its state_dict()")]


def test_prefetch_is_bounded():
    """Every batch that is asked for ahead has its memory."""
    with pytest.raises(ConfigError, match="prefetch: expected less than 4097, found 1000000000"):
        feed(prefetch=10**9)
