"""Randomness inside samples: a function of (seed, epoch, sample), and nothing outside moves."""

import random

import numpy as np
import pytest
import torch
from torch.utils.data import Dataset, Subset, TensorDataset

from ladle.batching import generator, loader
from ladle.batching.keyed import scatter, seeded
from ladle.errors import ConfigError


def globals_now():
    return random.getstate(), np.random.get_state(), torch.get_rng_state()


def same(one, other):
    return (
        one[0] == other[0]
        and all(np.array_equal(a, b) for a, b in zip(one[1], other[1], strict=True))
        and torch.equal(one[2], other[2])
    )


class Noise(Dataset):
    def __init__(self, size=24):
        self.size = size

    def __len__(self):
        return self.size

    def __getitem__(self, index):
        return torch.tensor([random.random(), np.random.rand(), torch.rand(()).item(), generator().random()], dtype=torch.float64)


def rows(batches):
    return [tuple(row) for batch in batches for row in batch.tolist()]


@pytest.mark.parametrize("workers", [0, 2])
def test_no_global_generator_is_moved(workers):
    np.random.normal()  # leaves half a pair cached
    before = globals_now()
    with loader(Noise(), batch_size=5, shuffle=True, workers=workers, verbose=False) as batches:
        it = iter(batches)
        next(it)
        assert same(globals_now(), before)
        list(it)
    assert same(globals_now(), before)


def test_they_are_put_back_when_a_sample_raises():
    class Broken(Noise):
        def __getitem__(self, index):
            random.random()
            raise ValueError("no")

    before = globals_now()
    with pytest.raises(ValueError, match="no"):
        next(iter(loader(Broken(), verbose=False)))
    assert same(globals_now(), before)
    with pytest.raises(ConfigError, match=r"^generator: expected to be called inside a dataset's __getitem__"):
        generator()


def test_no_stream_repeats_between_samples_epochs_and_ranks():
    seen = []
    for rank in range(2):
        batches = loader(Noise(), batch_size=4, shuffle=True, rank=rank, world_size=2, verbose=False)
        seen += rows(batches) + rows(batches)
    assert len(seen) == 48
    for source in range(4):
        assert len({row[source] for row in seen}) == 48


def test_seeds_do_not_collide_by_sums():
    """CASES A2-15: seed 0 in epoch 1 is not seed 1 in epoch 0."""
    zero, one = (loader(Noise(), batch_size=4, training=True, seed=seed, verbose=False) for seed in (0, 1))
    first = rows(one)
    rows(zero)
    assert not set(rows(zero)) & set(first)


def test_a_samples_randomness_is_its_own_not_its_places():
    shuffled = loader(TwoParts(), batch_size=5, shuffle=True, verbose=False)
    by_index = {
        index: value for indices, values in shuffled for index, value in zip(indices.tolist(), values.tolist(), strict=True)
    }
    plain = loader(TwoParts(), batch_size=3, verbose=False)
    assert {
        index: value for indices, values in plain for index, value in zip(indices.tolist(), values.tolist(), strict=True)
    } == by_index


class TwoParts(Dataset):
    def __len__(self):
        return 20

    def __getitem__(self, index):
        return index, np.random.rand()


def test_seeds_never_collide_although_they_have_32_bits():
    seeds = scatter(np.arange(2**20), 5)
    assert len(np.unique(seeds)) == 2**20
    assert abs(float(seeds.mean()) / 2**32 - 0.5) < 0.002
    assert (scatter(np.arange(1000), 6) != seeds[:1000]).all()
    assert scatter(np.array([2**32 + 3]), 5) == seeds[3]


def test_the_generator_is_one_object_for_the_whole_sample():
    class Twice(Noise):
        def __getitem__(self, index):
            return generator() is generator(), generator().random() != generator().random()

    assert all(all(batch[0]) and all(batch[1]) for batch in loader(Twice(), verbose=False))


def test_golden_streams():
    """Written once: augmentations that a run has seen are seen again under every later version."""
    with seeded("test", 1):
        drawn = [random.random(), float(np.random.rand()), torch.rand(()).item(), float(generator().random())]
    assert drawn == pytest.approx(GOLDEN, abs=1e-7)


GOLDEN = [0.5526121838406228, 0.22632287931881223, 0.08876198530197144, 0.8320386588396205]


def test_python_and_numpy_draw_from_different_streams():
    with seeded("test", 2):
        assert len({random.random(), np.random.random_sample(), torch.rand((), dtype=torch.float64).item()}) == 3


# --- switched off ---


class Whole(Noise):
    def __getitems__(self, indices):
        return [torch.full((2,), float(index)) for index in indices]


def test_switched_off_the_datasets_own_getitems_is_used():
    on, off = (next(iter(loader(Whole(), batch_size=2, seed_samples=told, verbose=False))) for told in (True, False))
    assert on.shape == (2, 4)
    assert off.tolist() == [[0.0, 0.0], [1.0, 1.0]]


def test_switched_off_the_generator_is_keyed_all_the_same():
    def last(told, workers):
        with loader(Noise(), batch_size=5, shuffle=True, seed_samples=told, workers=workers, verbose=False) as batches:
            return [row[3] for row in rows(batches)]

    assert last(False, 0) == last(True, 0) == last(False, 2)


@pytest.mark.parametrize(
    "dataset", [TensorDataset(torch.arange(4)), Subset(TensorDataset(torch.arange(4)), [0, 1]), [1, 2], np.arange(3)]
)
def test_what_draws_nothing_is_not_seeded(dataset):
    assert not loader(dataset, verbose=False)._maker.everywhere


def test_a_dataset_may_say_that_it_draws_nothing():
    class Plain(Noise):
        seed_samples = False

    assert not loader(Plain(), verbose=False)._maker.everywhere
    assert loader(Noise(), verbose=False)._maker.everywhere
