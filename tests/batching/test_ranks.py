"""Ranks: disjoint, complete, in step, and a change of their number changes nothing."""

import subprocess
import sys
import textwrap

import numpy as np
import pytest
import torch
from torch.utils.data import DistributedSampler

from ladle.batching import loader
from ladle.errors import ConfigError, StateError


def ranks(world_size, size=100, **options):
    options = {"batch_size": 4, "shuffle": True, "seed": 2, "verbose": False, **options}
    return [loader(range(size), rank=rank, world_size=world_size, **options) for rank in range(world_size)]


def steps(loaders):
    """What each step's global batch is; all ranks must have as many steps."""
    walks = [[batch.tolist() for batch in one] for one in loaders]
    assert len({len(walk) for walk in walks}) == 1
    assert all(len(walk) == len(one) for walk, one in zip(walks, loaders, strict=True))
    return [[index for part in parts for index in part] for parts in zip(*walks, strict=True)]


@pytest.mark.parametrize("world_size", [1, 2, 3, 4, 8])
@pytest.mark.parametrize("size", [96, 97, 100, 103])
@pytest.mark.parametrize("tail", [None, "even"])
def test_ranks_are_disjoint_complete_and_in_step(world_size, size, tail):
    """CASES A2-03, A2-14, A2-26: also where the last batch does not divide."""
    epoch = steps(ranks(world_size, size, drop_last=False if tail is None else "auto", tail=tail))
    assert sorted(index for batch in epoch for index in batch) == list(range(size))


@pytest.mark.parametrize("world_size", [1, 2, 4, 8])
def test_the_global_batches_do_not_depend_on_the_ranks(world_size):
    assert steps(ranks(world_size, batch_size=8 // world_size)) == steps(ranks(1, batch_size=8))


def test_too_few_samples_for_a_last_step_of_all_ranks_join_the_one_before():
    epoch = steps(ranks(4, 34, batch_size=4, drop_last=False))
    assert [len(batch) for batch in epoch] == [16, 18]


@pytest.mark.parametrize(("before", "after"), [(4, 2), (4, 8), (2, 1), (1, 8)])
def test_a_state_goes_on_exactly_with_other_ranks(before, after):
    """CASES A2-12: at a constant global batch the steps are the same; each state is the same on every rank (A2-13)."""
    whole = steps(ranks(1, batch_size=16)) + steps(ranks(1, batch_size=16))
    loaders = ranks(before, batch_size=16 // before)
    for one in loaders:
        it = iter(one)
        for _ in range(3):
            next(it)
    states = [one.state_dict() for one in loaders]
    assert all(state == states[0] for state in states)
    resumed = ranks(after, batch_size=16 // after)
    for one in resumed:
        one.load_state_dict(states[0])
    assert steps_of(resumed) == whole[3:6]


def steps_of(loaders):
    walks = [[batch.tolist() for batch in one] for one in loaders]
    return [[index for part in parts for index in part] for parts in zip(*walks, strict=True)]


def test_another_global_batch_too_sees_each_remaining_sample_once():
    loaders = ranks(4, drop_last=False)
    seen = []
    for one in loaders:
        it = iter(one)
        seen += [index for _ in range(3) for index in next(it).tolist()]
    resumed = ranks(2, batch_size=3, drop_last=False)
    for one in resumed:
        one.load_state_dict(loaders[0].state_dict())
    seen += [index for batch in steps_of(resumed) for index in batch]
    assert sorted(seen) == list(range(100))


def test_what_is_left_for_fewer_samples_than_ranks_is_said():
    one = loader(range(10), batch_size=8, verbose=False)
    next(iter(one))
    four = loader(range(10), batch_size=2, rank=0, world_size=4, verbose=False)
    with pytest.raises(
        StateError,
        match=r"^state: position: expected a place to go on from, found 8: 2 samples are left of epoch 0, fewer than the 4 ranks$",
    ):
        four.load_state_dict(one.state_dict())


def test_weights_and_lengths_are_shared_out_too():
    weights = np.arange(100.0)
    assert steps(ranks(4, weights=weights, shuffle=False, batch_size=2)) == steps(
        ranks(1, weights=weights, shuffle=False, batch_size=8)
    )
    lengths = np.random.default_rng(0).integers(1, 50, 100)
    parted = steps(ranks(4, lengths=lengths, batch_size=2, drop_last=False))
    assert sorted(index for batch in parted for index in batch) == list(range(100))
    assert parted == steps(ranks(2, lengths=lengths, batch_size=4, drop_last=False))


def test_a_short_batchs_weights_add_up_over_ranks():
    loaders = ranks(3, 20, batch_size=4, drop_last=False)
    for one in loaders:
        list(one)
    assert sum(one.weight for one in loaders) / 3 == pytest.approx(8 / 12)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"rank": 1}, r"^rank, world_size: expected both or neither, found rank=1, world_size=None$"),
        ({"rank": 4, "world_size": 4}, r"^rank: expected less than 4, found 4$"),
        (
            {"rank": 0, "world_size": 2, "sampler": DistributedSampler(range(10), num_replicas=2, rank=0)},
            r"^sampler: expected the samples of all ranks together, found a DistributedSampler for one of 2: ranks are the loader's",
        ),
        (
            {"rank": 0, "world_size": 2, "batch_sampler": [[0, 1], [2]]},
            r"^batch_sampler: in epoch 0: expected at least 2 samples a batch",
        ),
    ],
)
def test_ranks_that_cannot_be_right_are_named(options, message):
    with pytest.raises(ConfigError, match=message):
        list(loader(range(10), verbose=False, **options))


@pytest.mark.slow
def test_torch_distributed_is_asked_where_it_is_initialised(tmp_path):
    script = tmp_path / "ranks.py"
    script.write_text(
        textwrap.dedent(
            """
            import sys
            import torch
            import torch.distributed as dist
            from ladle.batching import loader

            rank, store = int(sys.argv[1]), sys.argv[2]
            dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=2)
            batches = loader(range(20), batch_size=5, shuffle=True, seed=1, verbose=False)
            seen = torch.cat(list(batches))
            both = [torch.empty_like(seen) for _ in range(2)]
            dist.all_gather(both, seen)
            assert sorted(torch.cat(both).tolist()) == list(range(20)), both
            dist.destroy_process_group()
            """
        )
    )
    runs = [
        subprocess.Popen([sys.executable, script, str(rank), tmp_path / "store"], stderr=subprocess.PIPE, text=True)
        for rank in range(2)
    ]
    for run in runs:
        _, errors = run.communicate(timeout=60)
        assert run.returncode == 0, errors


def test_world_size_one_is_the_whole():
    assert torch.cat(list(loader(range(7), 2, rank=0, world_size=1, verbose=False))).tolist() == list(range(7))
