"""The two loaders of a training script."""

import pytest
import torch
from torch.utils.data import TensorDataset

from ladle.batching import pair
from ladle.errors import ConfigError


def sets():
    return TensorDataset(torch.arange(103), torch.arange(103) % 2), TensorDataset(torch.arange(103), torch.arange(103) % 2)


def test_training_is_shuffled_and_drops_and_evaluation_is_in_order_and_whole():
    train, val = pair(*sets(), batch_size=10, seed=3, verbose=False)
    assert len(train) == 10
    assert len(val) == 11
    first, second = ([x.tolist() for x, _ in train] for _ in range(2))
    assert first != second
    assert torch.cat([x for x, _ in val]).tolist() == list(range(103))
    assert [x.tolist() for x, _ in val] == [x.tolist() for x, _ in val]
    assert train.state_dict()["position"] == 206


def test_what_orders_goes_to_training_alone():
    train, val = pair(*sets(), batch_size=10, val_batch_size=50, balance="class", num_draws=40, verbose=False)
    assert (len(train), len(val)) == (4, 3)
    assert train.state_dict()["kind"] == "weighted"
    assert val.state_dict()["kind"] == "sequential"


def test_sorted_evaluation_labels_are_nothing_to_warn_of():
    data = TensorDataset(torch.zeros(60), torch.arange(60) // 30)
    _, val = pair(data, data, batch_size=5, verbose=False)
    list(val)


@pytest.mark.parametrize("name", ["shuffle", "drop_last", "tail", "training", "batch_sampler"])
def test_what_pair_decides_is_refused(name):
    with pytest.raises(ConfigError, match=rf"^{name}: expected none, which pair decides, found True; make two loaders instead$"):
        pair(*sets(), **{name: True})
