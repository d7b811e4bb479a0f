"""Padding to the batch's longest: what comes out for every kind of sample, and what is refused."""

import pickle
from collections import OrderedDict
from typing import NamedTuple

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from hypothesis import given  # noqa: E402
from hypothesis import strategies as st  # noqa: E402
from torch.utils.data import DataLoader  # noqa: E402

from ladle.batching.collate import Padded, pad, stack  # noqa: E402
from ladle.errors import ConfigError  # noqa: E402

HOT = np.eye(3, dtype=np.float32)


class Pair(NamedTuple):
    ids: object
    label: int


def same(padded, values, lengths):
    assert type(padded) is Padded
    assert padded.values.tolist() == values
    assert padded.lengths.tolist() == lengths
    assert padded.lengths.dtype == torch.int64
    assert padded.mask.dtype == torch.bool
    assert padded.mask.tolist() == [
        [column < length for column in range(len(row))] for row, length in zip(values, lengths, strict=True)
    ]


@pytest.mark.parametrize(
    "samples",
    [
        [[1, 2], [3], []],
        [torch.tensor([1, 2]), torch.tensor([3]), torch.tensor([], dtype=torch.int64)],
        [np.array([1, 2]), np.array([3]), np.array([], dtype=np.int64)],
        [np.array([2, 1])[::-1], np.array([3]), []],
    ],
)
def test_samples_that_are_sequences(samples):
    batch = pad(9)(samples)
    same(batch, [[1, 2], [3, 9], [9, 9]], [2, 1, 0])
    assert batch.values.dtype == torch.int64
    values, lengths, mask = batch
    assert (values is batch.values, lengths is batch.lengths, mask is batch.mask) == (True, True, True)


@given(
    rows=st.lists(st.lists(st.integers(0, 100), max_size=9), min_size=1, max_size=6),
    multiple=st.integers(1, 5),
    value=st.integers(-5, 200),
)
def test_against_a_plain_loop(rows, multiple, value):
    longest = -(-max(map(len, rows)) // multiple) * multiple
    expected = [row + [value] * (longest - len(row)) for row in rows]
    same(pad(value, pad_to_multiple_of=multiple)(rows), expected, list(map(len, rows)))


@pytest.mark.parametrize("dtype", ["uint8", "int32", "int64", "float32", "float64", "uint16", "bool"])
def test_dtypes_are_kept(dtype):
    rows = [np.ones(2, dtype), np.ones(1, dtype)]
    assert pad(0)(rows).values.dtype == getattr(torch, dtype)
    assert pad(0)([torch.from_numpy(row) for row in rows]).values.dtype == getattr(torch, dtype)


def test_floats_and_what_goes_with_them():
    assert pad(float("nan"))([[0.5, 1], [1]]).values.dtype == torch.float32
    assert pad(0.5)([[0.5, 1], [1]]).values.tolist() == [[0.5, 1], [1, 0.5]]
    assert pad(-1)([torch.ones(2, dtype=torch.bfloat16), torch.ones(1, dtype=torch.bfloat16)]).values.dtype == torch.bfloat16
    features = pad(-1)([np.ones((2, 2)), np.zeros((1, 2))])
    assert features.values.tolist() == [[[1, 1], [1, 1]], [[0, 0], [-1, -1]]]
    assert features.mask.tolist() == [[True, True], [True, False]]


def test_a_tuple_a_dict_and_whatever_is_in_them():
    ids, labels = pad(0)([([1, 2], 1), ([3], 0)])
    same(ids, [[1, 2], [3, 0]], [2, 1])
    assert labels.tolist() == [1, 0]
    batch = pad(0)([Pair(np.array([1, 2]), 1), Pair(np.array([3]), 0)])
    assert type(batch) is Pair
    same(batch.ids, [[1, 2], [3, 0]], [2, 1])
    batch = pad(0)([{"text": {"ids": [1, 2]}, "name": "a"}, {"text": {"ids": [3]}, "name": "b"}])
    same(batch["text"]["ids"], [[1, 2], [3, 0]], [2, 1])
    assert batch["name"] == ["a", "b"]
    fields = pad(0)([[[1, 2], 1], [[3], 0]])  # a list of fields, not of numbers
    same(fields[0], [[1, 2], [3, 0]], [2, 1])


def test_several_fields_each_with_its_value_and_one_hot_labels_stacked():
    samples = [{"ids": [1, 2], "tags": [5, 6], "label": HOT[0]}, {"ids": [3], "tags": [7], "label": HOT[2]}]
    batch = pad({"ids": 0, "tags": -100})(samples)
    assert list(batch) == ["ids", "tags", "label"]
    same(batch["ids"], [[1, 2], [3, 0]], [2, 1])
    same(batch["tags"], [[5, 6], [7, -100]], [2, 1])
    assert batch["label"].tolist() == [[1, 0, 0], [0, 0, 1]]
    ids, label = pad((0, None))([([1, 2], HOT[0]), ([3], HOT[2])])
    same(ids, [[1, 2], [3, 0]], [2, 1])
    assert label.tolist() == [[1, 0, 0], [0, 0, 1]]
    assert pad({0: 0})([([1, 2], HOT[0]), ([3], HOT[2])])[1].shape == (2, 3)
    assert list(pad({"ids": 0})([OrderedDict(ids=[1], n=2)])) == ["ids", "n"]


def test_a_batch_whose_samples_are_of_equal_length_looks_like_any_other():
    same(pad(0)([([1], 1), ([3], 0)])[0], [[1], [3]], [1, 1])


def test_what_a_length_aware_order_calls_the_length():
    assert pad(0).length(([1, 2, 3], 7)) == 3
    assert pad({"ids": 0, "tags": 0}).length({"ids": np.ones(4), "tags": [1], "label": HOT[0]}) == 4


class Sentences(torch.utils.data.Dataset):
    def __len__(self):
        return 10

    def __getitem__(self, index):
        return np.arange(index + 1), index % 2


@pytest.mark.parametrize("workers", [0, 1])
def test_under_torch_s_own_loader(workers):
    context = "forkserver" if workers else None
    loader = DataLoader(Sentences(), batch_size=5, collate_fn=pad(-1), num_workers=workers, multiprocessing_context=context)
    batches = list(loader)
    assert [ids.values.shape for ids, _ in batches] == [(5, 5), (5, 10)]
    assert batches[1][0].lengths.tolist() == [6, 7, 8, 9, 10]
    assert batches[1][1].tolist() == [1, 0, 1, 0, 1]


def test_to_a_device_and_through_pickle():
    batch = pad(0)([[1, 2], [3]])
    assert type(batch.to("meta")) is Padded
    assert batch.to("meta").values.device.type == "meta"
    again = pickle.loads(pickle.dumps(pad({"ids": 0}, pad_to_multiple_of=8)))
    assert again == pad({"ids": 0}, pad_to_multiple_of=8)
    same(pickle.loads(pickle.dumps(batch)), [[1, 2], [3, 0]], [2, 1])


def test_samples_of_a_read_only_map_are_copied(tmp_path):
    np.save(tmp_path / "x.npy", np.arange(6))
    mapped = np.load(tmp_path / "x.npy", mmap_mode="r")
    batch = pad(0)([mapped[:4], mapped[4:]])
    same(batch, [[0, 1, 2, 3], [4, 5, 0, 0]], [4, 2])
    batch.values[0, 0] = 7
    assert mapped[0] == 0


@pytest.mark.parametrize(
    ("make", "samples", "told"),
    [
        (lambda: pad(), None, "pad: expected the value to pad with, found none: there is none that suits all"),
        (lambda: pad(0, pad_to_multiple_of=0), None, "pad_to_multiple_of: expected an integer from 1, found 0"),
        (lambda: pad(0, pad_to_multiple_of=2.0), None, "pad_to_multiple_of: expected an integer from 1, found 2.0"),
        (lambda: pad("x"), [[1]], "pad: expected a number, or one for each field, found 'x'"),
        (
            lambda: pad(0),
            [([1], HOT[0])],
            r"pad: expected one field with a length for the one value 0, found sample\[0\] and sample\[1\]; give each its own",
        ),
        (lambda: pad(0), [3], "found none in a sample of int"),
        (lambda: pad({"id": 0}), [{"ids": [1]}], r"pad: expected a field 'id' in sample, found dict \['ids'\] without it"),
        (lambda: pad({"ids": 0}), [[1, 2]], "pad: expected a field 'ids' in sample, found list without it"),
        (lambda: pad(-100), [np.ones(2, np.uint8)], "pad: expected a value that torch.uint8 can hold for sample, found -100"),
        (lambda: pad(0.5), [([1], 0)], r"can hold for sample\[0\], found 0.5"),
        (lambda: pad(float("nan")), [[1]], "pad: expected a value that torch.int64 can hold for sample, found nan"),
        (
            lambda: pad({"ids": 0}),
            [{"ids": [1]}, {"ids": 3}],
            r"sample\['ids'\]: expected something with a length to pad, found int in sample 1",
        ),
        (
            lambda: pad({"ids": 0}),
            [{"ids": [1]}, {"ids": ["a"]}],
            r"sample\['ids'\]: expected numbers to pad, found list in sample 1",
        ),
        (
            lambda: pad({"ids": 0}),
            [{"ids": [1]}, {"n": 3}],
            r"sample: expected equal keys in a batch, found \['ids'\] in its sample 0 and \['n'\] in its",
        ),
        (
            lambda: pad(0),
            [np.ones((2, 3)), np.ones((2, 4))],
            r"sample: expected equal shapes after the first dimension in a batch, found \(3,\) in its sample 0 and \(4,\) in its sample 1",
        ),
        (
            lambda: pad((0, None)),
            [([1], HOT[0]), ([1], HOT[0][:2])],
            r"sample\[1\]: expected equal shapes in a batch, found \(3,\)",
        ),
        (lambda: pad((0,)), [([1], 2), ([1],)], "sample: expected equal fields in a batch, found 2 in its sample 0 and 1 in its"),
    ],
)
def test_what_does_not_fit(make, samples, told):
    with pytest.raises(ConfigError, match=told):
        make()(samples)


@pytest.mark.parametrize(
    ("samples", "told"),
    [
        (
            [{"image": torch.ones(3, 4)}, {"image": torch.ones(3, 5)}],
            r"sample\['image'\]: expected equal shapes .* found \(3, 4\) in .* and \(3, 5\) .*; to pad: collate=ladle.batching.pad\(value\)",
        ),
        (
            [(1, np.ones(3)), (1, np.ones(3)), (1, np.ones(2))],
            r"sample\[1\]: .* found \(3,\) in its sample 0 and \(2,\) in its sample 2",
        ),
        ([[1, 2], [1]], "sample: expected equal lengths in a batch, found 2 in its sample 0 and 1 in its sample 1; to pad"),
        (
            [{"a": 1}, {"b": 1}],
            r"sample: expected equal keys in a batch, found \['a'\] in its sample 0 and \['b'\] in its sample 1$",
        ),
    ],
)
def test_mixed_shapes_without_padding_are_named(samples, told):
    with pytest.raises(ConfigError, match=told):
        stack(samples)


def test_stack_is_torch_s_own_collate():
    samples = [{"x": np.ones(2), "y": (1, "a")}, {"x": np.ones(2), "y": (2, "b")}]
    ours, torchs = stack(samples), torch.utils.data.default_collate(samples)
    assert str(ours) == str(torchs)
    with pytest.raises(TypeError, match="default_collate"):
        stack([object(), object()])
