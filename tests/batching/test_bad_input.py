"""Datasets that raise, shrink, lie, or cannot be sent: each says which sample, and nothing hangs."""

import copy
import subprocess
import sys
import textwrap

import numpy as np
import pytest
import torch
from torch.utils.data import Dataset

from ladle.batching import loader, pad
from ladle.errors import ConfigError, FormatError, LadleError, StateError


class Files(Dataset):
    """Ten samples; one of them raises."""

    def __init__(self, error=None, at=7):
        self.error, self.at = error, at

    def __len__(self):
        return 10

    def __getitem__(self, index):
        if index == self.at and self.error is not None:
            raise copy.copy(self.error)  # a new one each time: notes are added to it
        return index

    def describe(self, index):
        return f"images/{index}.png"


class StrangeError(Exception):
    """An exception that cannot be made again from its args."""

    def __init__(self, one, *, two):
        super().__init__(one)
        self.two = two

    def __copy__(self):
        return StrangeError("odd", two=2)


def raised(dataset, workers, **options):
    batches = loader(dataset, batch_size=2, workers=workers, verbose=False, **options)
    with pytest.raises(Exception) as caught:
        list(batches)
    batches.close()
    return caught.value


@pytest.mark.parametrize("workers", [0, 1, 2])
@pytest.mark.parametrize(
    "error",
    [
        ValueError("no such picture"),
        KeyError("label"),
        FileNotFoundError(2, "No such file", "x.png"),
        FormatError("a.npy", 12, "size", 4, 3),
        UnicodeDecodeError("utf-8", b"\xff", 0, 1, "invalid start byte"),
    ],
)
def test_a_sample_that_raises_is_its_own_error_with_index_path_and_worker(error, workers):
    found = raised(Files(error), workers)
    assert type(found) is type(error)
    assert str(found) == str(error)
    note = next(note for note in found.__notes__ if note.startswith("ladle: "))
    assert note.startswith("ladle: sample 7 (images/7.png) of epoch 0")
    if workers:
        assert note.startswith(f"ladle: sample 7 (images/7.png) of epoch 0, in worker {3 % workers} (process ")
        assert any("In the worker:\nTraceback" in note and "__getitem__" in note for note in found.__notes__)


@pytest.mark.parametrize("workers", [0, 1])
def test_stop_iteration_does_not_end_the_loop_in_silence(workers):
    """CASES A5-14."""
    found = raised(Files(StopIteration("at the end")), workers)
    assert type(found) is RuntimeError
    assert str(found) == "StopIteration: at the end (it would have ended the loop in silence)"
    assert any(note.startswith("ladle: sample 7 ") for note in found.__notes__)


@pytest.mark.parametrize("workers", [0, 1])
def test_an_exception_that_does_not_pickle_is_named(workers):
    found = raised(Files(StrangeError("odd", two=2)), workers)
    assert type(found) is (RuntimeError if workers else StrangeError)
    assert str(found) == ("StrangeError: odd" if workers else "odd")
    assert any(note.startswith("ladle: sample 7 ") for note in found.__notes__)


def test_what_was_received_before_stays_received():
    batches = loader(Files(ValueError("no")), batch_size=2, workers=1, verbose=False, training=True)
    it = iter(batches)
    for _ in range(3):
        next(it)
    with pytest.raises(ValueError, match="no"):
        next(it)
    assert batches.state_dict()["position"] == 6
    batches.close()


@pytest.mark.parametrize("workers", [0, 1])
def test_mixed_shapes_name_key_and_shapes(workers):
    class Mixed(Files):
        def __getitem__(self, index):
            return {"image": torch.zeros(3, 4 + (index == 5))}

    found = raised(Mixed(), workers)
    assert isinstance(found, ConfigError)
    assert "sample['image']: expected equal shapes in a batch, found (3, 4) in its sample 0 and (3, 5) in its sample 1" in str(
        found
    )
    assert "pad" in str(found)
    assert any(note.startswith("ladle: collating samples 4, 5 of epoch 0") for note in found.__notes__)


def test_a_dataset_that_says_it_is_longer_than_it_is():
    class Liar(Files):
        def __getitem__(self, index):
            return list(range(8))[index]

    found = raised(Liar(), 0)
    assert isinstance(found, IndexError)
    assert "ladle: sample 8 (images/8.png) of epoch 0" in found.__notes__


@pytest.mark.parametrize("workers", [0, 1])
def test_lengths_that_lie_are_named(workers):
    class Texts(Files):
        def __getitem__(self, index):
            return torch.zeros(3 + (index == 6), dtype=torch.int64)

    found = raised(Texts(), workers, lengths=[3] * 10, collate=pad(0))
    assert isinstance(found, ConfigError)
    assert str(found) == "lengths: expected 3 for sample 6 (images/6.png), found 4 in the sample"


def test_a_dataset_that_shrinks_between_epochs_is_refused():
    class Shrinking(list):
        pass

    data = Shrinking(range(10))
    batches = loader(data, shuffle=True, verbose=False)
    list(batches)
    data.pop()
    with pytest.raises(
        StateError, match=r"^dataset: expected 10 samples, as when this loader was made, found 9; make a new loader$"
    ):
        list(batches)


def test_a_batch_on_another_device_is_refused_in_a_worker():
    """CASES A5-05, with a device that every machine has."""

    class Elsewhere(Files):
        def __getitem__(self, index):
            return torch.zeros(2, device="meta")

    found = raised(Elsewhere(), 1)
    assert isinstance(found, ConfigError)
    assert str(found).startswith("batch: expected tensors on the CPU from a worker, found one on meta: a worker must not touch")


def test_a_batch_that_cannot_be_sent_is_an_error_and_not_a_wait_for_ever():
    class Local(Files):
        def __getitem__(self, index):
            return index

    found = raised(Local(), 1, collate=lambda samples: lambda: samples)
    assert isinstance(found, ConfigError)
    assert str(found).startswith("batch: expected one that can be sent to another process, found one that cannot: ")
    assert str(found).endswith("; leave it out of the samples, or use workers=0")


def test_a_worker_init_fn_that_raises_is_torchs_own_error():
    def broken(worker):
        raise ValueError("cannot begin")

    with pytest.raises(ValueError, match="cannot begin"):
        next(iter(loader(Files(), workers=1, worker_init_fn=broken, verbose=False)))


def test_the_workers_know_the_callers_dataset():
    def mark(worker):
        torch.utils.data.get_worker_info().dataset.at = worker + 5

    class Marked(Files):
        def __getitem__(self, index):
            return self.at, torch.utils.data.get_worker_info().dataset is self

    with loader(Marked(), batch_size=5, workers=2, worker_init_fn=mark, verbose=False) as batches:
        assert [(at.tolist(), same.tolist()) for at, same in batches] == [([5] * 5, [True] * 5), ([6] * 5, [True] * 5)]


def test_a_timeout_says_so():
    class Sleeping(Files):
        def __getitem__(self, index):
            import time

            time.sleep(2)
            return index

    with (
        loader(Sleeping(), workers=1, timeout=0.2, verbose=False) as batches,
        pytest.raises(RuntimeError, match=r"timed out after 0\.2"),
    ):
        next(iter(batches))


# --- spawn ---


def test_what_does_not_pickle_under_spawn_is_named():
    class Local(Files):
        pass

    data = Files()
    data.transforms = {"train": [abs, lambda picture: picture]}
    with pytest.raises(ConfigError) as caught:
        next(iter(loader(data, workers=1, multiprocessing_context="spawn", verbose=False)))
    message = str(caught.value)
    assert message.startswith(
        "dataset.transforms['train'][1]: expected what can be pickled, since workers are started by 'spawn', found function "
    )
    assert message.endswith("; define it at a module's top level, or use workers=0")
    with pytest.raises(ConfigError, match=r"^collate: expected what can be pickled, .* found function .*<lambda>: "):
        next(iter(loader(Files(), workers=1, collate=lambda samples: samples, multiprocessing_context="spawn", verbose=False)))


@pytest.mark.slow
@pytest.mark.parametrize("method", ["spawn", "forkserver"])
def test_other_ways_to_start_workers_give_the_same_batches(tmp_path, method):
    script = tmp_path / "main.py"
    script.write_text(
        textwrap.dedent(
            """
            import random, sys
            from ladle.batching import loader

            class Noise:
                def __len__(self):
                    return 20

                def __getitem__(self, index):
                    return index, random.random()

            if __name__ == "__main__":
                found = []
                for options in ({"workers": 0}, {"workers": 2, "multiprocessing_context": sys.argv[1]}):
                    with loader(Noise(), batch_size=6, shuffle=True, verbose=False, **options) as batches:
                        found.append([[part.tolist() for part in batch] for _ in range(2) for batch in batches])
                assert found[0] == found[1], found
                print(len(found[0]))
            """
        )
    )
    run = subprocess.run([sys.executable, script, method], capture_output=True, text=True, timeout=100)
    assert run.returncode == 0, run.stderr
    assert run.stdout == "8\n"


def test_errors_of_ours_stay_one_line():
    found = raised(Files(FormatError("a.npy", 12, "size", 4, 3)), 1)
    assert isinstance(found, LadleError)
    assert "\n" not in str(found)


def test_numpy_scalars_and_strings_collate():
    class Mixed(Files):
        def __getitem__(self, index):
            return np.float32(index), f"text {index}", {"y": index}

    with loader(Mixed(), batch_size=2, workers=1, verbose=False) as batches:
        x, text, rest = next(iter(batches))
    assert x.tolist() == [0.0, 1.0]
    assert list(text) == ["text 0", "text 1"]
    assert rest["y"].tolist() == [0, 1]
