"""Samplers of torch's and functions of the user's: the same orders for any worker, resumed by replay."""

import numpy as np
import pytest
import torch
from torch.utils.data import BatchSampler, RandomSampler, Sampler, SequentialSampler, SubsetRandomSampler, WeightedRandomSampler

from ladle.batching import loader
from ladle.errors import ConfigError


def make(workers=0, **options):
    return loader(range(20), workers=workers, **{"seed": 4, "verbose": False, **options})


def flat(batches):
    return [batch.tolist() for batch in batches]


class Own(Sampler):
    """A sampler with a generator of its own, whose epochs differ in size."""

    def __init__(self):
        self.generator = torch.Generator().manual_seed(3)
        self.epoch = 0

    def __iter__(self):
        self.epoch += 1
        return iter(torch.randperm(20, generator=self.generator)[: 9 + self.epoch].tolist())

    def __len__(self):
        return 20


def samplers():
    return {
        "random": RandomSampler(range(20)),
        "generator": RandomSampler(range(20), generator=torch.Generator().manual_seed(1)),
        "weighted": WeightedRandomSampler([1.0] * 10 + [0.0] * 10, 15),
        "subset": SubsetRandomSampler([1, 3, 5, 7, 9]),
        "own": Own(),
        "list": [3, 1, 2, 2],
    }


@pytest.mark.parametrize("name", list(samplers()))
@pytest.mark.parametrize("step", [1, 4, 7])
def test_a_sampler_is_resumed_by_replay(name, step):
    batches = make(sampler=samplers()[name], batch_size=3, drop_last=False)
    whole = [batch for _ in range(5) for batch in flat(batches)]
    begun = make(sampler=samplers()[name], batch_size=3, drop_last=False)
    taken = []
    while len(taken) < step:
        for batch in begun:
            taken.append(batch.tolist())
            if len(taken) == step:
                break
    again = make(2, sampler=samplers()[name], batch_size=3, drop_last=False)
    again.load_state_dict(begun.state_dict())
    rest = [batch for _ in range(2) for batch in flat(again)]
    assert taken + rest == whole[: len(taken + rest)]
    assert "resumed by drawing the sampler's epochs again" in again.banner()
    again.close()


def test_an_earlier_epoch_can_be_gone_back_to():
    batches = make(sampler=Own(), batch_size=3, drop_last=False)
    start = batches.state_dict()
    epochs = [flat(batches) for _ in range(3)]
    assert [sum(map(len, epoch)) for epoch in epochs] == [10, 11, 12]
    batches.load_state_dict(start)
    assert [flat(batches) for _ in range(3)] == epochs


def test_nothing_outside_moves_neither_the_sampler_nor_global_generators():
    sampler, before = Own(), torch.get_rng_state()
    own = sampler.generator.get_state()
    list(make(sampler=sampler))
    list(make(sampler=RandomSampler(range(20))))
    assert sampler.epoch == 0
    assert torch.equal(sampler.generator.get_state(), own)
    assert torch.equal(torch.get_rng_state(), before)


def test_a_sampler_without_a_generator_follows_the_seed():
    orders = [flat(make(sampler=RandomSampler(range(20)), seed=seed)) for seed in (4, 4, 5)]
    assert orders[0] == orders[1] != orders[2]


def test_a_sampler_that_is_told_its_epoch_is_told():
    class Told(SequentialSampler):
        epoch = None

        def set_epoch(self, epoch):
            self.epoch = epoch

        def __iter__(self):
            return iter([self.epoch])

    batches = make(sampler=Told(range(20)))
    assert [flat(batches) for _ in range(3)] == [[[0]], [[1]], [[2]]]


def test_samples_drawn_twice_differ_where_they_are_random():
    class Noise(list):
        seed_samples = True

        def __getitem__(self, index):
            return np.random.rand()

    drawn = torch.cat(list(loader(Noise(range(3)), sampler=[0, 0, 1, 1], verbose=False)))
    assert len(set(drawn.tolist())) == 4


# --- functions ---


def backwards(seed, epoch, position):
    return (seed + epoch - position) % 20


def test_a_function_is_asked_for_each_place():
    batches = make(sampler=backwards, batch_size=8, drop_last=False)
    assert flat(batches)[0] == [4, 3, 2, 1, 0, 19, 18, 17]
    assert flat(batches)[0][0] == 5
    batches.load_state_dict({**batches.state_dict(), "position": 38})
    assert flat(batches) == [[(4 + 1 - 18) % 20, (4 + 1 - 19) % 20]]


def test_batches_of_torchs_batch_sampler():
    batches = make(2, batch_sampler=BatchSampler(RandomSampler(range(20)), 6, drop_last=False))
    epochs = [flat(batches), flat(batches)]
    assert [len(batch) for batch in epochs[0]] == [6, 6, 6, 2]
    assert len(batches) == 4
    assert epochs[0] != epochs[1]
    batches.load_state_dict({**batches.state_dict(), "position": 26, "epoch": 1, "epoch_start": 20})
    assert flat(batches) == epochs[1][1:]
    batches.close()


def test_a_function_gives_batches_until_it_gives_none():
    def growing(seed, epoch, number):
        return range(number + 1) if number < 3 + epoch else None

    batches = make(batch_sampler=growing)
    assert flat(batches) == [[0], [0, 1], [0, 1, 2]]
    assert len(batches) == 4
    assert len(flat(batches)) == 4


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"sampler": [1, 20]}, r"^sampler: in epoch 0: expected samples from 0 to 19, found 20 as number 1$"),
        ({"sampler": [0.5]}, r"^sampler: in epoch 0: expected integers, one a sample, found \[0.5\]$"),
        ({"sampler": ["a", [1]]}, r"^sampler: in epoch 0: expected integers"),
        ({"sampler": []}, r"^sampler: expected at least one index in every epoch, found none in epoch 0$"),
        (
            {"sampler": lambda seed, epoch, position: -1},
            r"^sampler: of epoch 0, from position 0 on: expected samples from 0 to 19, found -1",
        ),
        ({"batch_sampler": []}, r"^batch_sampler: expected at least one batch in every epoch, found none in epoch 0$"),
        (
            {"batch_sampler": [[]]},
            r"^batch_sampler: in epoch 0: expected at least 1 samples a batch \(one for each rank\), found 0 in batch 0$",
        ),
        ({"batch_sampler": [[0], [25]]}, r"^batch_sampler: in epoch 0: expected samples from 0 to 19, found 25"),
        ({"batch_sampler": lambda seed, epoch, number: None}, r"^batch_sampler: expected at least one batch in every epoch"),
    ],
)
def test_orders_that_cannot_be_right_are_named(options, message):
    with pytest.raises(ConfigError, match=message):
        list(make(**options))


def test_a_generator_has_one_epoch_and_the_next_says_so():
    batches = make(sampler=(index for index in range(4)), batch_size=2)
    assert flat(batches) == [[0, 1], [2, 3]]
    with pytest.raises(ConfigError, match=r"^sampler: expected at least one index in every epoch, found none in epoch 1$"):
        flat(batches)
