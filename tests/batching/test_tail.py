"""How an epoch is cut: nothing lost unsaid, nothing too large, the same from any place on."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from ladle.batching import loader
from ladle.batching.tail import Cut
from ladle.errors import ConfigError

tails = st.sampled_from(["drop", "keep", "even", "auto"])


def cut_up(cut, left, epoch):
    sizes = []
    while size := cut.first(left, epoch):
        sizes.append(size)
        left -= size
    return sizes, left


@given(n=st.integers(1, 3000), each=st.integers(1, 200), ranks=st.integers(1, 9), tail=tails)
def test_batches_add_up_and_each_rank_has_a_share_of_each(n, each, ranks, tail):
    cut = Cut(batch=each * ranks, ranks=ranks, tail=tail)
    sizes, left = cut_up(cut, n, n)
    assert len(sizes) == cut.batches(n, n)
    assert left == cut.dropped(n, n)
    assert all(size >= ranks for size in sizes)
    if tail in {"keep", "even"} and n >= ranks:
        assert not left
    if tail == "drop":
        assert all(size == cut.batch for size in sizes)
        assert left == n % cut.batch
    if tail == "auto":
        assert left * 20 <= n or n < ranks
    if tail == "even":
        assert max(sizes, default=0) - min(sizes, default=0) <= 1
        if each > 1:
            assert max(sizes, default=0) <= cut.batch * 1.05
    else:
        assert all(size == cut.batch for size in sizes[:-1])
        assert max(sizes, default=0) < cut.batch + ranks  # at most one more on a rank


@given(n=st.integers(1, 500), each=st.integers(1, 40), ranks=st.integers(1, 4), tail=tails, data=st.data())
def test_any_border_goes_on_as_if_nothing_had_happened(n, each, ranks, tail, data):
    cut = Cut(batch=each * ranks, ranks=ranks, tail=tail)
    sizes, _ = cut_up(cut, n, n)
    step = data.draw(st.integers(0, len(sizes)))
    assert cut_up(cut, n - sum(sizes[:step]), n)[0] == sizes[step:]


def test_1003_samples():
    """The issue's own numbers."""
    sizes = {}
    for name, options in {
        "auto": {"shuffle": True},
        "evaluation": {},
        "even": {"shuffle": True, "tail": "even"},
        "keep": {"shuffle": True, "drop_last": False},
    }.items():
        batches = loader(range(1003), batch_size=100, verbose=False, **options)
        sizes[name] = [len(batch) for batch in batches]
        assert len(batches) == len(sizes[name])
    assert sizes["auto"] == [100] * 10
    assert sizes["evaluation"] == sizes["keep"] == [100] * 10 + [3]
    assert sorted(sizes["even"]) == [100] * 7 + [101] * 3


def test_a_training_tail_over_five_percent_is_kept():
    assert [len(batch) for batch in loader(range(105), batch_size=100, shuffle=True, verbose=False)] == [100]
    assert [len(batch) for batch in loader(range(106), batch_size=100, shuffle=True, verbose=False)] == [100, 6]


def test_a_short_batch_carries_its_weight():
    batches = loader(range(250), batch_size=100, verbose=False)
    weights = []
    total = 0.0
    for batch in batches:
        weights.append(batches.weight)
        total += batches.weight * batch.double().mean().item()
    assert weights == [1.0, 1.0, 0.5]
    assert total / sum(weights) == pytest.approx(torch.arange(250).double().mean().item())


# --- CASES A8-01: never an epoch of nothing ---


def test_a_set_smaller_than_a_batch_is_one_batch_or_an_error():
    assert [len(batch) for batch in loader(range(10), batch_size=32, shuffle=True, verbose=False)] == [10]
    assert [len(batch) for batch in loader(range(10), batch_size=32, shuffle=True, tail="even", verbose=False)] == [10]
    with pytest.raises(ConfigError) as caught:
        loader(range(10), batch_size=32, shuffle=True, drop_last=True)
    assert str(caught.value) == (
        "batch_size: expected at most 10 of 10 samples on 1 rank(s) where batches that are not full are dropped, found 32: "
        "an epoch would have no batch; set drop_last=False"
    )


def test_a_set_smaller_than_the_ranks_is_an_error():
    with pytest.raises(ConfigError, match=r"^dataset: expected at least one sample for each of 4 ranks, found 3$"):
        loader(range(3), rank=0, world_size=4)


@pytest.mark.parametrize("dataset", [[], range(0)])
def test_an_empty_dataset_is_an_error(dataset):
    with pytest.raises(ConfigError, match=r"^dataset: expected at least one sample, found none in this (list|range)$"):
        loader(dataset, shuffle=True)


@pytest.mark.parametrize("dataset", [5, iter([1, 2]), object()])
def test_what_is_no_dataset_is_an_error(dataset):
    with pytest.raises(
        ConfigError, match=r"^dataset: expected one with __len__ and __getitem__, or an IterableDataset, found \w+$"
    ):
        loader(dataset)
