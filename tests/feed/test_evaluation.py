"""An evaluation pass is order="sequential", tail="cover", epochs=1: every target once, however it is shared out."""

from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import ladle

IGNORED = -100


def passes(source, *, batch_size, block_size, ranks, **options):
    """Every rank's pass over the source."""
    kept = {"framework": "numpy", "prefetch": 0} | options
    return [
        list(
            ladle.Feed(
                source,
                batch_size=max(batch_size, ranks),
                block_size=block_size,
                order="sequential",
                tail="cover" if source.num_tokens > block_size else "pad",
                epochs=1,
                rank=rank,
                world_size=ranks,
                **kept,
            )
        )
        for rank in range(ranks)
    ]


def loss(label):
    """A number for each target; exact, so that the order of adding cannot matter."""
    return Fraction(int(label) * 7919 % 1009, 1 + int(label) % 3)


@settings(max_examples=120, deadline=None)
@given(
    count=st.integers(2, 120),
    block=st.integers(1, 130),
    batch=st.integers(1, 20),
    ranks=st.integers(1, 5),
    shards=st.integers(1, 3),
    prefetch=st.sampled_from([0, 2]),
)
def test_every_target_once_with_its_true_weight(in_shards, count, block, batch, ranks, shards, prefetch):
    sizes = [len(part) for part in np.array_split(np.arange(count), shards)]
    source = in_shards(np.arange(count, dtype=np.uint16), [size for size in sizes if size])
    by_rank = passes(source, batch_size=batch, block_size=block, ranks=ranks, prefetch=prefetch)
    assert len({len(batches) for batches in by_rank}) == 1  # nobody waits for anybody
    seen, total = [], Fraction(0)
    weighted, weights = Fraction(0), 0
    for together in zip(*by_rank, strict=True):
        assert len({batch.num_targets for batch in together}) == 1  # global, known to each
        here = [label for batch in together for label in batch.y[batch.y != IGNORED].tolist()]
        assert len(here) == together[0].num_targets
        seen += here
        total += sum(map(loss, here))
        if here:  # the mean of a batch, times its weight
            weighted += sum(map(loss, here)) / len(here) * together[0].num_targets
            weights += together[0].num_targets
    assert sorted(seen) == list(range(1, count))
    assert sum(batch.num_targets for batch in by_rank[0]) == count - 1
    assert total / (count - 1) == weighted / weights == sum(map(loss, range(1, count))) / (count - 1)


def test_in_the_order_of_the_text_and_padded_with_masked_rows():
    (batches,) = passes(ladle.from_ids(np.arange(23, dtype=np.uint16)), batch_size=3, block_size=4, ranks=1)
    assert [batch.num_targets for batch in batches] == [12, 10]
    assert batches[1].x.tolist() == [[12, 13, 14, 15], [16, 17, 18, 19], [18, 19, 20, 21]]
    assert batches[1].y.tolist() == [[13, 14, 15, 16], [17, 18, 19, 20], [-100, -100, 21, 22]]
    (batches,) = passes(ladle.from_ids(np.arange(23, dtype=np.uint16)), batch_size=4, block_size=4, ranks=1)
    assert [batch.num_targets for batch in batches] == [16, 6]
    assert (batches[1].y[2:] == IGNORED).all()  # the shape is fixed, so the last rows are the next epoch's, wholly masked


@pytest.mark.parametrize("ranks", [1, 2, 3, 5])
def test_the_same_on_every_run(ranks):
    """Neither the seed nor any global random state plays a part, and the ranks' digests add up to one number."""
    source = ladle.from_ids(np.arange(500, dtype=np.uint16))

    def digests(seed):
        np.random.seed(seed)
        by_rank = passes(source, batch_size=6, block_size=8, ranks=ranks, seed=seed)
        return [sum(batch.digest for batch in together) % 2**64 for together in zip(*by_rank, strict=True)]

    (alone,) = passes(source, batch_size=6, block_size=8, ranks=1)
    assert digests(1) == digests(2) == [batch.digest for batch in alone]


def test_the_audit_certifies_it():
    feed = ladle.Feed(
        ladle.from_ids(np.arange(500, dtype=np.uint16)),
        batch_size=6,
        block_size=8,
        order="sequential",
        epochs=1,
        framework="numpy",
    )
    certificate = feed.audit()
    assert certificate.exact
    assert certificate.accounts[0].trained == 499
