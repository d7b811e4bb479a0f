"""Iterable datasets: each row once whatever `workers` says, the same batches, resumed by reading again."""

import random

import pytest
import torch
from torch.utils.data import IterableDataset, get_worker_info

from ladle.batching import generator, loader
from ladle.errors import ConfigError, StateError


class Rows(IterableDataset):
    """Rows 0 to size - 1 with a random number each; it shares itself out among workers, as torch's documentation tells one."""

    def __init__(self, size: int) -> None:
        self.size = size

    def __iter__(self):
        info = get_worker_info()
        first, every = (info.id, info.num_workers) if info else (0, 1)
        for row in range(first, self.size, every):
            yield row, random.random(), generator().random()


def make(size=23, workers=0, **options):
    return loader(Rows(size), workers=workers, **{"batch_size": 4, "seed": 1, "verbose": False, **options})


def flat(batches):
    return [[part.tolist() for part in batch] for batch in batches]


def rows(batches):
    return [batch[0] for batch in flat(batches)]


def test_each_row_comes_once_for_any_number_of_workers():
    """CASES A2-17."""
    expected = flat(make())
    assert [row for batch in expected for row in batch[0]] == list(range(23))
    for workers in (1, 2, 4):
        with make(workers=workers) as batches:
            assert batches.num_workers == 1
            assert flat(batches) == expected


def test_the_banner_says_who_reads():
    with make(workers=4) as batches:
        assert "1: 4 were asked, and an iterable dataset is read by one" in batches.banner()
        assert "resumed by reading the epoch's rows again" in batches.banner()


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("size", [22, 24])
def test_epochs_end_and_begin(size, workers):
    with make(size, workers, training=True) as batches:
        epochs = [flat(batches) for _ in range(3)]
    assert [[row for batch in epoch for row in batch[0]] for epoch in epochs] == [list(range(size))] * 3
    assert epochs[0][0][1:] != epochs[1][0][1:]  # another epoch, other random numbers
    with make(size, workers) as batches:
        assert flat(batches) == flat(batches) == epochs[0]  # an evaluation sees the same


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("size", [22, 24])
@pytest.mark.parametrize("step", [1, 4, 6, 8])
def test_a_state_goes_on_exactly(workers, size, step):
    with make(size, training=True) as batches:
        whole = [*flat(batches), *flat(batches)]
    with make(size, workers, training=True) as batches:
        taken = []
        while len(taken) < step:
            for batch in batches:
                taken += flat([batch])
                if len(taken) == step:
                    break
        state = batches.state_dict()
    assert state["unit"] == "samples"
    assert state["position"] == {1: 4, 4: 16, 6: size, 8: size + 8}[step]
    with make(size, workers, training=True) as batches:
        batches.load_state_dict(state)
        rest = flat(batches) + (flat(batches) if step < 6 else [])
    assert taken + rest == whole


@pytest.mark.parametrize("size", [24, 25, 26, 31])
@pytest.mark.parametrize("world_size", [2, 3])
def test_ranks_share_each_batch_in_step(size, world_size):
    parts = [flat(make(size, rank=rank, world_size=world_size)) for rank in range(world_size)]
    assert len({len(part) for part in parts}) == 1
    whole = [row for step in zip(*parts, strict=True) for part in step for row in part[0]]
    assert whole == list(range(size))


def test_what_fills_no_batch_is_dropped_on_request():
    assert rows(make(23, drop_last=True)) == [list(range(low, low + 4)) for low in range(0, 20, 4)]


@pytest.mark.parametrize(("size", "options"), [(0, {}), (3, {"drop_last": True})])
@pytest.mark.parametrize("workers", [0, 1])
def test_an_epoch_of_nothing_is_an_error(size, options, workers):
    batches = make(size, workers, **options)
    with pytest.raises(ConfigError, match=r"^dataset: expected at least one batch of rows in epoch 0, found none$"):
        list(batches)


def test_fewer_rows_than_ranks_are_an_error():
    with pytest.raises(ConfigError, match=r"^dataset: expected a row for each of 3 ranks, found 2 left of the epoch$"):
        list(make(2, rank=0, world_size=3))


def test_len_is_the_datasets():
    class Sized(Rows):
        def __len__(self):
            return self.size

    assert len(loader(Sized(9), batch_size=4, verbose=False)) == 3
    with pytest.raises(TypeError):
        len(make())


@pytest.mark.parametrize(
    "options", [{"shuffle": True}, {"weights": [1.0]}, {"balance": "class"}, {"lengths": [1]}, {"sampler": [0]}, {"tail": "even"}]
)
def test_what_needs_a_length_is_refused(options):
    name = next(iter(options))
    with pytest.raises(
        ConfigError, match=rf"^{name}: expected none for an IterableDataset, whose rows come as they come, found {name}="
    ):
        make(**options)


def test_a_state_of_a_map_style_dataset_is_refused():
    with pytest.raises(StateError, match=r"^state: samples: expected None, found 23;"):
        make().load_state_dict(loader(range(23), seed=1, verbose=False).state_dict())


@pytest.mark.parametrize("workers", [0, 1])
def test_a_row_that_raises_is_named(workers):
    class Broken(IterableDataset):
        def __iter__(self):
            yield 0
            raise KeyError("no such file")

    batches = loader(Broken(), workers=workers, verbose=False)
    it = iter(batches)
    with pytest.raises(KeyError, match="no such file") as caught:
        list(it)
    assert any(note.startswith("ladle: row 1 of epoch 0") for note in caught.value.__notes__)
    batches.close()


def test_a_long_stream_is_not_read_ahead_for_ever():
    read = []

    class Long(IterableDataset):
        def __iter__(self):
            for row in range(10**9):
                read.append(row)
                yield row

    batches = loader(Long(), batch_size=4, workers=0, verbose=False)
    assert next(iter(batches)).tolist() == [0, 1, 2, 3]
    assert len(read) == 5  # one row ahead, to know whether a batch is the last


def test_weights_of_short_batches():
    batches = make(6, drop_last=False)
    assert [batches.weight for _ in batches] == [1.0, 0.5]
    assert torch.tensor(rows(make(6))[1]).tolist() == [4, 5]
