"""What a loader says of itself, and what it warns of."""

import warnings

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils.data import Dataset, TensorDataset

from ladle.batching import loader
from ladle.errors import ConfigError


def line(batches, name):
    return next(text.split(None, 3)[3] for text in batches.banner().splitlines() if text.split()[2] == name.split()[0])


class Images(Dataset):
    def __len__(self):
        return 1003

    def __getitem__(self, index):
        return torch.zeros(3, 8, 8), index


def test_it_is_printed_once_with_the_first_batch(capsys):
    batches = loader(Images(), batch_size=100, shuffle=True, seed=9, workers=0)
    assert not capsys.readouterr().err
    assert "memory      known with the first batch" in batches.banner()
    list(batches)
    list(batches)
    said = capsys.readouterr()
    assert not said.out
    assert said.err.splitlines()[:5] == [
        "ladle loader  samples     1,003, shuffled",
        "ladle loader  batch       100 samples",
        "ladle loader  epoch       10 batches",
        (
            "ladle loader  last batch  dropped: 3 of 1,003 samples an epoch are left out, others each epoch; "
            "batch_size 59 would divide them"
        ),
        said.err.splitlines()[4],
    ]
    assert said.err.splitlines()[4].startswith("ladle loader  workers     0: as asked; ")
    assert said.err.splitlines()[5:7] == ["ladle loader  pinning     none", "ladle loader  seed        9"]
    assert said.err.splitlines()[7].startswith(
        "ladle loader  memory      776 B a sample, 778 KB if all were held; this process may have "
    )
    assert len(said.err.splitlines()) == 8


@pytest.mark.parametrize("options", [{"verbose": False}, {"rank": 1, "world_size": 2}])
def test_it_is_silent_on_request_and_on_other_ranks(capsys, options):
    list(loader(range(10), 2, **options))
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize(
    ("size", "options", "said"),
    [
        (1000, {}, "batch  full"),
        (1009, {}, "batch  9 samples, weight 0.09; no batch_size near divides them"),
        (1003, {}, "batch  3 samples, weight 0.03; batch_size 59 would divide them"),
        (1010, {}, "batch  10 samples, weight 0.1; batch_size 101 would divide them"),
        (
            990,
            {"shuffle": True},
            "batch  90 samples, weight 0.9 (kept: dropping would lose over 5 %); batch_size 99 or 110 would divide them",
        ),
        (1003, {"tail": "even"}, "batch  as the others: batches of 100 and 101"),
        (
            1003,
            {"drop_last": True},
            "batch  dropped: 3 of 1,003 samples an epoch are left out, the same each time; batch_size 59 would divide them",
        ),
    ],
)
def test_the_last_batch(size, options, said):
    batches = loader(range(size), batch_size=100, verbose=False, **options)
    assert line(batches, "last batch") == said


def test_ranks_and_weights():
    batches = loader(range(100), batch_size=5, weights=[1.0] * 50 + [0.0] * 50, rank=0, world_size=2, verbose=False)
    assert line(batches, "samples") == "100, weighted: an epoch is 100 draws with replacement, about 43 distinct samples"
    assert line(batches, "batch") == "5 samples a rank, 10 on 2 ranks"
    assert line(batches, "epoch") == "10 batches"


def test_batches_by_length():
    batches = loader(range(100), lengths=[3] * 100, batch_tokens=30, verbose=False)
    assert line(batches, "batch") == "of sizes that vary"


# --- BatchNorm ---


def norm():
    return nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(2))


def test_a_last_batch_too_small_for_batch_norm_is_warned_about():
    with pytest.warns(
        UserWarning, match=r"^ladle: the last batch has 3 of 16 samples, too few for the statistics of BatchNorm \(1\)"
    ):
        loader(range(19), batch_size=16, shuffle=True, drop_last=False, model=norm(), verbose=False)


@pytest.mark.parametrize(
    "options",
    [
        {"shuffle": True, "drop_last": True},
        {"shuffle": True, "tail": "even"},
        {"shuffle": False},  # evaluation: its statistics are not taken
        {"shuffle": True, "batch_size": 12},
    ],
)
def test_batches_that_suit_batch_norm_are_silent(options):
    loader(range(19), **{"batch_size": 16, "model": norm(), "verbose": False, **options})


def test_a_model_without_batch_norm_is_silent():
    loader(range(19), batch_size=16, shuffle=True, drop_last=False, model=nn.Linear(1, 1), verbose=False)
    with pytest.raises(ConfigError, match=r"^model: expected a torch.nn.Module, found int$"):
        loader(range(19), shuffle=True, model=3)


# --- sorted by label ---


def sorted_by_label(label=torch.int64):
    return TensorDataset(torch.zeros(60, 2), torch.arange(60).div(30, rounding_mode="floor").to(label))


def test_an_unshuffled_training_loader_over_sorted_labels_is_warned_about():
    batches = loader(sorted_by_label(), batch_size=5, verbose=False)
    with pytest.warns(
        UserWarning, match=r"^ladle: the first 3 batches hold the single class 0 \(15 samples\), but the dataset has others"
    ):
        list(batches)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        list(batches)  # once


class Named(Dataset):
    def __len__(self):
        return 30

    def __getitem__(self, index):
        return {"x": 0.0, "label": "cat" if index < 20 else "dog"}


def test_labels_of_dicts_and_texts_are_known_too():
    with pytest.warns(UserWarning, match="single class 'cat'"):
        list(loader(Named(), batch_size=4, workers=0, verbose=False))


@pytest.mark.parametrize(
    "options",
    [{"shuffle": True}, {"training": False}, {"weights": np.ones(60)}, {"batch_size": 1}, {"batch_size": 12}],
)
def test_others_are_silent(options):
    list(loader(sorted_by_label(), **{"batch_size": 5, "verbose": False, **options}))


def test_an_evaluation_without_gradients_is_silent():
    with torch.no_grad():
        list(loader(sorted_by_label(), batch_size=5, verbose=False))


def test_a_dataset_of_one_class_is_silent():
    list(loader(TensorDataset(torch.zeros(60, 2), torch.zeros(60, dtype=torch.int64)), batch_size=5, verbose=False))


def test_numbers_to_predict_are_no_classes():
    list(loader(sorted_by_label(torch.float32), batch_size=5, verbose=False))
