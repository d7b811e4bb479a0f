"""The loader: the same batches for any number of workers, resumed anywhere, and a real DataLoader."""

import json
import random

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader, Dataset, TensorDataset

from ladle.batching import Loader, generator, loader
from ladle.errors import ConfigError, StateError


class Drawing(Dataset):
    """Sample i is (i, what each source of random numbers says while it is made)."""

    def __init__(self, size: int) -> None:
        self.size = size

    def __len__(self) -> int:
        return self.size

    def __getitem__(self, index: int):
        drawn = [random.random(), np.random.rand(), torch.rand(()).item(), generator().random()]
        return index, torch.tensor(drawn, dtype=torch.float64)


def make(size=103, workers=0, **options):
    options = {"batch_size": 10, "shuffle": True, "seed": 5, "verbose": False, **options}
    return loader(Drawing(size), workers=workers, **options)


def flat(batches):
    return [(indices.tolist(), drawn.tolist()) for indices, drawn in batches]


@pytest.fixture(scope="module")
def two_epochs():
    """Two epochs without workers: what every other way must give."""
    with make() as batches:
        return [flat(batches), flat(batches)]


# --- the same batches ---


@pytest.mark.parametrize(("workers", "prefetch"), [(1, None), (2, 1), (2, 5), (4, None)])
def test_batches_and_augmented_samples_do_not_depend_on_workers_or_prefetch(workers, prefetch, two_epochs):
    with make(workers=workers, prefetch_factor=prefetch) as batches:
        assert [flat(batches), flat(batches)] == two_epochs


def test_an_epoch_holds_every_sample_once_and_the_next_has_another_order(two_epochs):
    with make(drop_last=False) as batches:
        epochs = [[index for indices, _ in batches for index in indices.tolist()] for _ in range(3)]
    for epoch in epochs:
        assert sorted(epoch) == list(range(103))
    assert epochs[0] != epochs[1] != epochs[2] != epochs[0]
    assert [indices for indices, _ in two_epochs[0]] == [epochs[0][low : low + 10] for low in range(0, 100, 10)]


def test_order_v1_golden():
    """Written once; if it breaks, a new order version, never an edit."""
    batches = loader(range(10), batch_size=4, shuffle=True, seed=7, verbose=False, drop_last=False)
    assert [batch.tolist() for batch in batches] == GOLDEN[0]
    assert [batch.tolist() for batch in batches] == GOLDEN[1]


GOLDEN = [[[8, 9, 3, 5], [4, 0, 1, 6], [7, 2]], [[6, 5, 4, 1], [3, 0, 2, 7], [8, 9]]]


def test_it_is_torchs_dataloader_with_what_people_read_of_it():
    batches = make(size=103, workers=2, drop_last=False)
    assert isinstance(batches, DataLoader)
    assert isinstance(batches, Loader)
    assert len(batches) == 11 == len(batches.batch_sampler)
    assert (batches.batch_size, batches.num_workers, batches.drop_last) == (10, 2, False)
    assert len(batches.dataset) == 103
    assert callable(batches.collate_fn)
    assert batches.timeout == 0
    batches.close()


def test_the_batch_sampler_shows_the_batches_to_come():
    batches = make()
    expected = list(batches.batch_sampler)
    assert [indices.tolist() for indices, _ in batches] == expected
    it = iter(batches)
    next(it)
    assert list(batches.batch_sampler) == [indices.tolist() for indices, _ in it]


def test_who_takes_it_apart_gets_a_fresh_order_each_epoch_too(two_epochs):
    """As accelerate does: a DataLoader of its own, of the dataset and the batch sampler."""
    batches = make()
    parts = DataLoader(range(103), batch_sampler=batches.batch_sampler)
    del batches
    epochs = [[indices.tolist() for indices in parts] for _ in range(2)]
    assert epochs == [[indices for indices, _ in epoch] for epoch in two_epochs]
    evaluation = make(shuffle=False)
    assert list(evaluation.batch_sampler) == list(evaluation.batch_sampler)


def test_tensors_lists_and_arrays_are_datasets_too():
    x, y = torch.arange(12.0).reshape(6, 2), torch.arange(6)
    for batch in loader(TensorDataset(x, y), batch_size=3, verbose=False):
        assert batch[0].shape == (3, 2)
    assert [batch.tolist() for batch in loader(list(range(5)), 2, verbose=False)] == [[0, 1], [2, 3], [4]]
    assert [batch.tolist() for batch in loader(np.arange(4.0), 2, verbose=False)] == [[0.0, 1.0], [2.0, 3.0]]


# --- loops that stop, and loops that begin again ---


def test_a_training_loop_left_early_goes_on_where_it_stopped(two_epochs):
    batches = make(workers=2)
    it = iter(batches)
    begun = flat(next(it) for _ in range(4))
    assert begun + flat(batches) == two_epochs[0]
    assert flat(batches) == two_epochs[1]
    batches.close()


@pytest.mark.parametrize("workers", [0, 2])
def test_an_evaluation_loop_begins_anew_and_sees_the_same_samples(workers):
    """Also after a break, and whatever global generators did in between."""
    batches = make(workers=workers, shuffle=False)
    first = flat(batches)
    torch.manual_seed(1)
    next(iter(batches))
    assert flat(batches) == first
    assert [indices for indices, _ in first][-1] == [100, 101, 102]
    assert batches.state_dict()["position"] == 0
    batches.close()


def test_training_may_be_told():
    batches = make(shuffle=False, training=True)
    first, second = flat(batches), flat(batches)
    assert [indices for indices, _ in first] == [indices for indices, _ in second]
    assert [drawn for _, drawn in first] != [drawn for _, drawn in second]  # another epoch: other augmentations


def test_an_older_iteration_is_refused_once_another_has_begun():
    batches = make()
    old = iter(batches)
    next(old)
    next(iter(batches))
    with pytest.raises(
        StateError, match=r"^loader: expected its latest iteration, found an older one: a loader has one at a time$"
    ):
        next(old)


def test_an_iteration_that_has_ended_stays_ended():
    batches = make()
    it = iter(batches)
    for _ in it:
        pass
    next(iter(batches))
    with pytest.raises(StopIteration):
        next(it)


# --- state ---


@pytest.mark.parametrize("step", [0, 1, 7, 10, 13, 20])
@pytest.mark.parametrize(("before", "after"), [(0, 2), (2, 1), (2, 0)])
def test_a_state_goes_on_exactly_with_other_workers(step, before, after, two_epochs):
    with make(workers=before) as batches:
        taken = []
        while len(taken) < step:
            for batch in batches:
                taken += flat([batch])
                if len(taken) == step:
                    break
        state = json.loads(json.dumps(batches.state_dict()))
    assert state["unit"] == "samples"
    whole = [batch for epoch in two_epochs for batch in epoch]
    assert taken == whole[:step]
    with make(workers=after) as batches:
        batches.load_state_dict(state)
        assert (taken + flat(batches) + (flat(batches) if step < 10 else []))[: len(whole)] == whole


def test_a_state_at_an_epochs_end_is_the_next_epoch_whole():
    """CASES A2-08: two whole epochs, then the third order."""
    batches = make()
    epochs = [flat(batches) for _ in range(3)]
    again = make()
    for _ in range(2):
        for _ in again:
            pass
    state = again.state_dict()
    assert state["position"] == 206
    resumed = make(workers=2)
    resumed.load_state_dict(state)
    assert flat(resumed) == epochs[2]
    resumed.close()


def test_later_epochs_after_a_resume_are_whole():
    """CASES A2-06."""
    batches = make()
    batches.load_state_dict({**batches.state_dict(), "position": 70})
    assert len(list(batches)) == 3
    assert [len(list(batches)) for _ in range(2)] == [10, 10]


def test_a_state_saved_soon_after_a_resume_is_exact(two_epochs):
    """CASES A2-09: 4 workers, resume, 2 batches, save, resume."""
    with make(workers=4) as batches:
        it = iter(batches)
        for _ in range(3):
            next(it)
        state = batches.state_dict()
    with make(workers=4) as batches:
        batches.load_state_dict(state)
        it = iter(batches)
        for _ in range(2):
            next(it)
        state = batches.state_dict()
    assert state["position"] == 50
    with make(workers=4) as batches:
        batches.load_state_dict(state)
        assert flat(batches) == two_epochs[0][5:]


@pytest.mark.parametrize("workers", [0, 2])
def test_a_state_loaded_into_an_iteration_under_way_takes_effect(workers, two_epochs):
    """CASES A2-11."""
    with make(workers=workers) as batches:
        it = iter(batches)
        batches.load_state_dict({**batches.state_dict(), "position": 30})
        assert flat([next(it)]) == two_epochs[0][3:4]
        assert batches.state_dict()["position"] == 40
        batches.load_state_dict({**batches.state_dict(), "position": 80})
        assert flat(it) == two_epochs[0][8:]


def test_the_state_is_what_was_received_not_what_workers_made():
    with make(workers=2, prefetch_factor=4) as batches:
        it = iter(batches)
        assert batches.state_dict()["position"] == 0
        next(it)
        assert batches.state_dict()["position"] == 10 == batches.position
        assert batches.epoch == 0


def test_a_changed_batch_size_goes_on_with_the_next_sample():
    """CASES A2-25: 8 steps of 4, then batches of 2: the next is sample 33 of the order."""
    order = [index for indices, _ in make(batch_size=1) for index in indices.tolist()]
    four = make(batch_size=4)
    it = iter(four)
    for _ in range(8):
        next(it)
    two = make(batch_size=2)
    two.load_state_dict(four.state_dict())
    rest = [indices.tolist() for indices, _ in two]
    assert rest[0] == order[32:34]
    assert [index for batch in rest for index in batch] == order[32:102]


def test_an_evaluation_resumes_once_and_is_whole_afterwards():
    batches = make(shuffle=False)
    batches.load_state_dict({**batches.state_dict(), "position": 40})
    assert next(iter(batches))[0].tolist() == list(range(40, 50))
    assert len(list(batches)) == 11


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"samples": 102}, r"^state: samples: expected 103, found 102; the dataset has another length"),
        ({"seed": 6}, r"^state: seed: expected 5, found 6; it belongs to another seed$"),
        ({"kind": "sequential"}, r"^state: kind: expected shuffled, found sequential; it belongs to another kind of order$"),
        ({"recipe": "0" * 32}, r"^state: recipe: expected [0-9a-f]{32}, found 0{32}; weights,"),
        ({"unit": "slots"}, r"^state: unit: expected samples, found slots; it counts something else$"),
        ({"format": 2}, r"^state: format: expected 1, found 2;"),
        ({"order_version": 9}, r"^state: order_version: expected 1, found 9;"),
        ({"position": -1}, r"^state: position: expected 0 to 2\*\*62, found -1$"),
        ({"position": "7"}, r"^state: position: expected 0 to 2\*\*62, found '7'$"),
        ({"position": True}, r"^state: position: expected 0 to 2\*\*62, found True$"),
    ],
)
def test_a_foreign_state_is_refused_with_both_values(change, message):
    batches = make()
    with pytest.raises(StateError, match=message):
        batches.load_state_dict({**batches.state_dict(), **change})
    assert batches.state_dict()["position"] == 0


@pytest.mark.parametrize(
    ("state", "message"),
    [
        ([1], r"^state: expected a loader's state_dict, found list$"),
        ({}, r"^state: format: expected 1, found nothing; it is not a loader's state_dict$"),
    ],
)
def test_what_is_no_state_is_refused(state, message):
    with pytest.raises(StateError, match=message):
        make().load_state_dict(state)


def test_a_state_of_other_contents_is_refused():
    """CASES A2-22, for datasets that know their fingerprint."""

    class Known(Drawing):
        fingerprint = "aa"

    first, second = (loader(Known(5), seed=1, verbose=False) for _ in range(2))
    first.dataset.fingerprint = "bb"
    state = loader(first.dataset, seed=1, verbose=False).state_dict()
    with pytest.raises(StateError, match=r"^state: dataset: expected aa, found bb; the dataset's contents differ"):
        second.load_state_dict(state)


def test_a_state_of_other_weights_is_refused():
    first = loader(range(4), weights=[1, 2, 3, 4], verbose=False)
    with pytest.raises(StateError, match=r"^state: recipe: "):
        loader(range(4), weights=[1, 2, 3, 5], verbose=False).load_state_dict(first.state_dict())


# --- weights, lengths ---


@pytest.mark.parametrize("workers", [0, 2])
def test_weighted_draws_resume_and_never_draw_what_weighs_nothing(workers):
    def weighted(workers):
        return loader(Drawing(50), batch_size=8, weights=[0.0] + [1.0] * 49, seed=3, workers=workers, verbose=False)

    with weighted(0) as batches:
        whole = flat(batches) + flat(batches)
    drawn = [index for indices, _ in whole for index in indices]
    assert 0 not in drawn
    assert len(set(drawn)) < len(drawn)
    values = [tuple(values) for _, rows in whole for values in rows]
    assert len(set(values)) == len(values)  # the same sample, drawn again, is augmented otherwise
    with weighted(workers) as batches:
        batches.load_state_dict({**batches.state_dict(), "position": 16})
        assert flat(batches) == whole[2:6]


def test_balance_draws_each_class_equally_often():
    labels = np.repeat([0, 1], [990, 10])
    data = TensorDataset(torch.arange(1000), torch.from_numpy(labels))
    for balance in ("class", labels):
        batches = loader(data, batch_size=100, balance=balance, verbose=False)
        drawn = torch.cat([y for _, y in batches])
        assert 400 < int(drawn.sum()) < 600


def test_lengths_make_batches_of_like_length_that_resume_mid_epoch():
    lengths = np.random.default_rng(1).integers(1, 100, 300)

    def bucketed(workers=0):
        return loader(
            range(300), shuffle=True, lengths=lengths, batch_tokens=400, workers=workers, verbose=False, drop_last=False
        )

    with bucketed() as batches:
        whole = [batch.tolist() for batch in batches]
        count = len(batches)
        second = [batch.tolist() for batch in batches]
    assert count == len(whole)
    assert sorted(index for batch in whole for index in batch) == list(range(300))
    assert all(len(batch) * lengths[batch].max() <= 400 for batch in whole)
    assert whole != second
    batches = bucketed()
    it = iter(batches)
    for _ in range(5):
        next(it)
    with bucketed(workers=2) as again:
        again.load_state_dict(batches.state_dict())
        assert [batch.tolist() for batch in again] == whole[5:]
        with pytest.raises(
            StateError, match=r"^state: position: expected a place to go on from, found 1: it lies inside batch 0 of epoch 0"
        ):
            again.load_state_dict({**batches.state_dict(), "position": 1})


# --- ten million samples ---


def test_ten_million_samples_start_at_once():
    import time

    class Many(Dataset):
        in_memory = True

        def __len__(self):
            return 10_000_000

        def __getitem__(self, index):
            return index

    began = time.perf_counter()
    batches = loader(Many(), batch_size=64, shuffle=True, verbose=False)
    batches.load_state_dict({**batches.state_dict(), "position": 64 * 100_000})
    first = next(iter(batches))
    assert time.perf_counter() - began < 0.5
    assert len(first) == 64


# --- arguments ---


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"generator": torch.Generator()}, r"^generator: expected torch's default, found .*: the order is a function of seed="),
        ({"in_order": False}, r"^in_order: expected torch's default, found False: batches come in their order"),
        ({"pin_memory_device": "cuda"}, r"^pin_memory_device: expected torch's default, found 'cuda': device= says"),
        ({"shufle": True}, r"^loader: expected arguments of its own or of torch's DataLoader, found shufle$"),
        ({"batch_size": 0}, r"^batch_size: expected at least 1, found 0$"),
        ({"batch_size": 2.5}, r"^batch_size: expected an integer, found 2.5$"),
        ({"workers": -1}, r"^workers: expected at least 0, found -1$"),
        ({"workers": 1, "num_workers": 2}, r"^workers: expected one of workers= and num_workers=, found both$"),
        ({"drop_last": "yes"}, r"^drop_last: expected True or False, found 'yes'$"),
        ({"tail": "odd"}, r"^tail: expected None or 'even', found 'odd'$"),
        ({"tail": "even", "drop_last": True}, r"^drop_last: expected no True with tail='even'"),
        (
            {"weights": [1] * 5, "lengths": [1] * 5},
            r"^weights: expected one way to order the samples, found weights and lengths$",
        ),
        ({"shuffle": True, "sampler": [0]}, r"^shuffle: expected False with sampler=, which decides the order, found True$"),
        ({"batch_tokens": 5}, r"^lengths: expected one a sample with batch_tokens=, found none$"),
        ({"weights": [1, 2]}, r"^weights: expected one for each of 5 samples, found 2$"),
        ({"lengths": [1, 2]}, r"^lengths: expected one for each of 5 samples, found 2$"),
        ({"balance": "label"}, r"^balance: expected 'class', or one label a sample, found 'label'$"),
        (
            {"balance": "class"},
            r"^balance: expected a dataset with `labels` or `targets` \(one a sample\) for 'class', found neither in this range",
        ),
        ({"num_draws": 3}, r"^num_draws: expected weights= or balance= with it, found neither$"),
        (
            {"batch_size": 2, "batch_sampler": [[0]]},
            r"^batch_size: expected none with batch_sampler=, whose batches have their own, found 2$",
        ),
        ({"seed": "a"}, r"^seed: expected an integer, found 'a'$"),
        ({"verbose": 1}, r"^verbose: expected True or False, found 1$"),
        ({"sampler": 5}, r"^sampler: expected a torch Sampler, or a function \(seed, epoch, position\) -> index, found int$"),
    ],
)
def test_arguments_that_cannot_be_right_are_named(options, message):
    with pytest.raises(ConfigError, match=message):
        loader(range(5), **options)


def test_torchs_names_for_workers_and_collate_are_taken():
    with loader(Drawing(4), batch_size=2, num_workers=1, collate_fn=len, verbose=False) as batches:
        assert list(batches) == [2, 2]
        assert batches.num_workers == 1
