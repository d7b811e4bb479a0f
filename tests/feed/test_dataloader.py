"""GPTDataset and create_dataloader: what their readers expect, and what they never notice."""

import io
import json
import logging
import pickle
import subprocess
import sys
import textwrap
import time
import warnings
from multiprocessing.reduction import ForkingPickler

import numpy as np
import pytest
import tiktoken
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.utils.data import DataLoader

import ladle
from ladle.errors import ConfigError
from ladle.tokens.gpt2 import encoding

NINE_WORDS = "The quick brown fox jumps over the lazy dog " * 100  # 901 gpt2 ids


def split(num_tokens: int, vocab_size: int | None = None):
    """Ids that are their own places, so that a window's contents are its address."""
    return ladle.from_ids(np.arange(num_tokens, dtype=np.uint32), vocab_size=vocab_size)


def epochs(loader, count: int = 1) -> list[list[int]]:
    """The first id of every window, an epoch a list."""
    return [[int(row[0]) for inputs, _ in loader for row in inputs] for _ in range(count)]


# --- the windows ---


def test_the_nine_words_make_112_windows_in_56_batches():
    loader = ladle.create_dataloader(NINE_WORDS, batch_size=2, max_length=8, stride=8, shuffle=False)
    ids = encoding("gpt2").encode(NINE_WORDS)
    assert len(ids) == 901
    assert type(loader) is DataLoader
    assert (len(loader.dataset), len(loader)) == (112, 56)
    batches = list(loader)
    assert len(batches) == 56
    for number, (inputs, targets) in enumerate(batches):
        for row in range(2):
            start = (2 * number + row) * 8
            assert inputs[row].tolist() == ids[start : start + 8]
            assert targets[row].tolist() == ids[start + 1 : start + 9]
        assert inputs.shape == targets.shape == (2, 8)
        assert inputs.dtype == targets.dtype == torch.int64
        assert inputs.is_contiguous()
        assert targets.is_contiguous()


def test_a_batch_is_a_list_as_torch_collates_it():
    batch = next(iter(ladle.create_dataloader("In the heart of the city", batch_size=1, max_length=4, stride=1, shuffle=False)))
    assert isinstance(batch, list)
    assert [part.tolist() for part in batch] == [[[818, 262, 2612, 286]], [[262, 2612, 286, 262]]]


@given(st.integers(2, 120), st.integers(1, 20), st.integers(1, 25))
def test_item_i_starts_at_i_strides(num_tokens, max_length, stride):
    starts = list(range(0, num_tokens - max_length, stride))
    if not starts:
        with pytest.raises(ConfigError):
            ladle.GPTDataset(split(num_tokens), None, max_length, stride)
        return
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        dataset = ladle.GPTDataset(split(num_tokens), None, max_length, stride)
    assert len(dataset) == len(starts)
    for place, start in enumerate(starts):
        inputs, targets = dataset[place]
        assert inputs.tolist() == list(range(start, start + max_length))
        assert targets.tolist() == list(range(start + 1, start + max_length + 1))
    whole = dataset.__getitems__(list(range(len(starts))))
    assert whole.tensors[0][:, 0].tolist() == starts
    assert whole.tensors[1][:, -1].tolist() == [start + max_length for start in starts]


def test_indices_behave_as_a_lists():
    dataset = ladle.GPTDataset(split(41), None, 4, 4)  # starts 0, 4, ..., 36
    as_list = list(dataset)  # stops at the IndexError
    assert len(as_list) == 10
    assert dataset[-1][0].tolist() == as_list[9][0].tolist() == [36, 37, 38, 39]
    assert dataset[-10][0].tolist() == as_list[0][0].tolist()
    assert dataset[np.int64(3)][0].tolist() == dataset[torch.tensor(3)][0].tolist() == [12, 13, 14, 15]
    assert dataset.__getitems__([-1, 0]).tensors[0].tolist() == [[36, 37, 38, 39], [0, 1, 2, 3]]
    for wrong in (10, -11):
        with pytest.raises(IndexError, match=rf"^window {wrong} of a dataset of 10$"):
            dataset[wrong]
        with pytest.raises(IndexError):
            dataset.__getitems__([0, wrong])
    for wrong in ("1", 1.0, None):
        with pytest.raises(TypeError):
            dataset[wrong]


def test_no_tensor_shares_memory_with_another_or_the_store():
    dataset = ladle.GPTDataset(split(100), None, 8, 8)
    inputs, targets = dataset[0]
    assert inputs.untyped_storage().data_ptr() != targets.untyped_storage().data_ptr()
    inputs.zero_()
    assert targets.tolist() == list(range(1, 9))
    targets.zero_()
    assert dataset[0][0].tolist() == list(range(8))
    inputs, targets = next(iter(DataLoader(dataset, batch_size=4)))
    targets.view(-1)
    inputs.zero_()
    assert targets[:, 0].tolist() == [1, 9, 17, 25]
    targets.fill_(7)
    assert dataset[3][1].tolist() == list(range(25, 33))


def test_changing_the_callers_array_afterwards_changes_nothing():
    ids = np.arange(100, dtype=np.uint16)
    dataset = ladle.GPTDataset(ladle.from_ids(ids), None, 8, 8)
    ids[:] = 0
    assert dataset[1][0].tolist() == list(range(8, 16))


def test_ids_above_65535_are_kept_whole():
    dataset = ladle.GPTDataset(ladle.from_ids(np.array([70_000, 65_536, 65_535, 1, 2])), None, 4, 4)
    assert dataset[0][0].tolist() == [70_000, 65_536, 65_535, 1]


def test_the_users_own_dataloader_and_collate_function_see_plain_samples():
    dataset = ladle.GPTDataset(split(100), None, 8, 8)
    plain = [[part.tolist() for part in batch] for batch in DataLoader(dataset, batch_size=3)]
    ours = [
        [part.tolist() for part in batch]
        for batch in ladle.create_dataloader(split(100), 3, 8, 8, shuffle=False, drop_last=False)
    ]
    assert plain == ours
    seen = []
    loader = ladle.create_dataloader(
        split(100), 3, 8, 8, shuffle=False, collate_fn=lambda samples: seen.append(list(samples)) or 1
    )
    assert list(loader) == [1] * 4
    assert all(isinstance(inputs, torch.Tensor) and len(inputs) == 8 for samples in seen for inputs, _ in samples)


# --- tokenizers and markers ---


def test_a_tiktoken_encoder_is_a_tokenizer():
    encoder = encoding("gpt2")
    assert isinstance(encoder, tiktoken.Encoding)
    by_object = ladle.GPTDataset(NINE_WORDS, encoder, 8, 8)
    by_name = ladle.GPTDataset(NINE_WORDS, "gpt2", 8, 8)
    assert [inputs.tolist() for inputs, _ in by_object] == [inputs.tolist() for inputs, _ in by_name]


@pytest.mark.parametrize("make", ["dataset", "loader"])
def test_the_written_marker_is_a_control_id_unless_turned_off(make):
    text = "Hello, do you<|endoftext|> Hello"

    def ids(**options):
        if make == "dataset":
            dataset = ladle.GPTDataset(text, "gpt2", 4, 4, **options)
        else:
            dataset = ladle.create_dataloader(text, 1, 4, 4, **options).dataset
        return [*dataset[0][0].tolist(), int(dataset[0][1][-1])]

    assert ids() == [15496, 11, 466, 345, 50256]
    assert 50256 not in ids(allowed_special=set())


def test_tokenizers_without_the_marker_are_not_disturbed():
    loader = ladle.create_dataloader("abcabc<|endoftext|>" * 3, 1, 4, 4, tokenizer="chars")
    assert int(max(loader.dataset[i][0].max() for i in range(len(loader.dataset)))) < 20
    marked = ladle.GPTDataset("ab<|endoftext|>cd", "bytes", 4, 4)
    assert marked[0][0].tolist() == [97, 98, 256, 99]


# --- the order ---


def test_each_epoch_holds_every_window_once_in_an_order_of_its_own():
    loader = ladle.create_dataloader(split(2001), 4, 2, 2, seed=5)
    first, second, third = epochs(loader, 3)
    assert sorted(first) == sorted(second) == sorted(third) == list(range(0, 2000, 2))
    assert len({tuple(first), tuple(second), tuple(third), tuple(sorted(first))}) == 4
    again = ladle.create_dataloader(split(2001), 4, 2, 2, seed=5)
    assert epochs(again, 3) == [first, second, third]
    assert epochs(ladle.create_dataloader(split(2001), 4, 2, 2, seed=6))[0] != first
    again.sampler.set_epoch(1)
    assert epochs(again)[0] == second


def test_the_order_golden():
    """The first epochs of seed 7 over 12 windows: literals, written once. A change is a new order version."""
    assert epochs(ladle.create_dataloader(split(13), 3, 1, 1, seed=7), 2) == [
        [8, 9, 3, 5, 4, 0, 1, 10, 6, 7, 11, 2],
        [6, 5, 4, 1, 3, 0, 2, 10, 7, 11, 8, 9],
    ]


def test_leaving_early_and_iterating_again_goes_to_the_next_epoch():
    whole = epochs(ladle.create_dataloader(split(401), 4, 2, 2), 2)
    loader = ladle.create_dataloader(split(401), 4, 2, 2)
    for _ in loader:
        break
    assert epochs(loader)[0] == whole[1]


def test_without_shuffle_the_windows_come_as_they_lie():
    assert epochs(ladle.create_dataloader(split(17), 4, 2, 2, shuffle=False), 2) == [[0, 2, 4, 6, 8, 10, 12, 14]] * 2


@pytest.mark.parametrize("num_workers", [0, 2])
def test_the_global_generators_are_neither_asked_nor_moved(num_workers):
    torch.manual_seed(123)
    np.random.seed(123)
    before, before_numpy = torch.get_rng_state(), np.random.get_state()[1].copy()
    loader = ladle.create_dataloader(split(401), 4, 2, 2, num_workers=num_workers)
    first = epochs(loader)[0]
    assert torch.equal(torch.get_rng_state(), before)
    assert (np.random.get_state()[1] == before_numpy).all()
    torch.manual_seed(999)
    assert epochs(ladle.create_dataloader(split(401), 4, 2, 2, num_workers=num_workers))[0] == first


def test_worker_processes_change_no_batch():
    expected = epochs(ladle.create_dataloader(split(401), 4, 2, 2, seed=3), 3)
    for options in ({"num_workers": 1}, {"num_workers": 2, "persistent_workers": True, "prefetch_factor": 3}):
        assert epochs(ladle.create_dataloader(split(401), 4, 2, 2, seed=3, **options), 3) == expected


@pytest.mark.slow
def test_spawned_workers_change_no_batch():
    expected = epochs(ladle.create_dataloader(split(401), 4, 2, 2, seed=3), 2)
    loader = ladle.create_dataloader(
        split(401), 4, 2, 2, seed=3, num_workers=2, multiprocessing_context="spawn", persistent_workers=True
    )
    assert epochs(loader, 2) == expected


def test_workers_send_no_shared_memory_and_no_open_files():
    """No /dev/shm to run out of, no file descriptor for every batch that is kept."""
    for batch in ladle.create_dataloader(split(401), 4, 2, 2, num_workers=1):
        assert isinstance(batch, list)
        assert not any(part.is_shared() for part in batch)
        assert [part.dtype for part in batch] == [torch.int64] * 2


KEEP = """
    import resource
    import numpy as np
    import ladle
    resource.setrlimit(resource.RLIMIT_NOFILE, (128, 128))
    if __name__ == "__main__":
        split = ladle.from_ids(np.arange(4001))
        loader = ladle.create_dataloader(split, 4, 4, 4, num_workers=2, persistent_workers=True)
        kept = [batch for epoch in range(20) for batch in loader]
        assert len(kept) == 5000
        for batch in loader:
            break  # and leave, with the workers at work
        print("left")
"""


@pytest.mark.slow
def test_many_epochs_every_batch_kept_and_leaving_early_end_in_peace():
    command = [sys.executable, "-W", "error", "-c", textwrap.dedent(KEEP)]
    begin = time.monotonic()
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (0, "left\n", "")
    assert time.monotonic() - begin < 45


def test_without_torch_the_missing_extra_is_named():
    code = "import sys; sys.modules['torch'] = None\nimport ladle\ntry: ladle.create_dataloader\nexcept ImportError as error: print(error)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout == "a torch DataLoader needs the package 'torch', which is not installed; pip install 'ladle[torch]'\n"


# --- other arguments of DataLoader ---


def test_other_arguments_pass_through():
    loader = ladle.create_dataloader(split(401), 4, 2, 2, num_workers=2, prefetch_factor=5, timeout=60, in_order=True)
    assert (loader.num_workers, loader.prefetch_factor, loader.timeout, loader.batch_size, loader.drop_last) == (
        2,
        5,
        60,
        4,
        True,
    )
    with pytest.raises(TypeError, match="prefetch"):
        ladle.create_dataloader(split(401), 4, 2, 2, prefetch=5)


def test_a_sampler_or_a_batch_sampler_takes_the_place_of_shuffle():
    assert epochs(ladle.create_dataloader(split(41), 2, 4, 4, sampler=[3, 1, 2]))[0] == [12, 4]
    assert epochs(ladle.create_dataloader(split(41), 2, 4, 4, batch_sampler=[[3], [1, 2]]))[0] == [12, 4, 8]


def test_a_generator_of_the_users_own_decides_the_order():
    def order(seed):
        return epochs(ladle.create_dataloader(split(401), 4, 2, 2, generator=torch.Generator().manual_seed(seed)))[0]

    assert order(1) == order(1) != order(2)


# --- what is said ---


def test_the_account_is_logged_once_and_can_be_asked_for(caplog):
    with caplog.at_level(logging.INFO, logger="ladle"):
        loader = ladle.create_dataloader(split(10_000), 4, 256, 128)
    assert [record.getMessage() for record in caplog.records] == [
        (
            "10,000 tokens, 77 windows of 256, one every 128; of 9,999 targets: 15 never, 256 once, 9,728 twice; "
            "15 after the last window; 19 batches of 4 an epoch, 1 window dropped with the last"
        )
    ]
    coverage = loader.dataset.coverage(loader.batch_size, drop_last=loader.drop_last)
    assert (coverage.times, coverage.num_batches, coverage.dropped_windows) == ({0: 15, 1: 256, 2: 9728}, 19, 1)
    assert coverage.num_batches == len(loader)


def test_a_stride_above_the_length_warns_with_the_count():
    message = r"^stride 5 > max_length 4: 2 of 15 targets stand in no window; stride=4 covers them$"
    with pytest.warns(UserWarning, match=message) as caught:
        ladle.GPTDataset(split(16), None, 4, 5)
    assert caught[0].filename == __file__
    with pytest.warns(UserWarning, match=message):
        ladle.create_dataloader(split(16), 1, 4, 5)


def test_a_text_too_short_is_one_error_with_both_counts():
    with pytest.raises(ConfigError, match=r"^text: expected more than max_length = 256 tokens, found 2: no window"):
        ladle.create_dataloader("Hello world")
    with pytest.raises(ConfigError, match=r"more than max_length = 901 tokens, found 901:"):
        ladle.GPTDataset(NINE_WORDS, "gpt2", 901, 1)
    assert len(ladle.GPTDataset(NINE_WORDS, "gpt2", 900, 1)) == 1
    with pytest.raises(ConfigError, match=r"more than max_length = 4 tokens, found 0:"):
        ladle.create_dataloader("", max_length=4)


def test_fewer_windows_than_a_batch_is_one_error_with_both_counts():
    with pytest.raises(
        ConfigError, match=r"^text: expected at least batch_size = 8 windows with drop_last=True, found 6 in 901 tokens"
    ):
        ladle.create_dataloader(NINE_WORDS, batch_size=8, max_length=256, stride=128)
    assert len(ladle.create_dataloader(NINE_WORDS, batch_size=8, max_length=256, stride=128, drop_last=False)) == 1


@pytest.mark.parametrize("name", ["batch_size", "max_length", "stride"])
@pytest.mark.parametrize("value", [None, 1.5, "3", True])
def test_sizes_are_integers(name, value):
    with pytest.raises(ConfigError, match=f"^{name}: expected an integer, found {value!r}$"):
        ladle.create_dataloader(NINE_WORDS, **{name: value})


def test_numpys_and_torchs_integers_are_integers():
    """torch's DataLoader takes no other batch_size than Python's own."""
    for kind in (np.int64, torch.tensor):
        loader = ladle.create_dataloader(NINE_WORDS, batch_size=kind(2), max_length=kind(8), stride=kind(8), shuffle=False)
        assert len(loader) == 56
        assert next(iter(loader))[0].shape == (2, 8)


def test_what_is_no_text_is_named():
    with pytest.raises(ConfigError, match=r"^text: expected a str or a split, found ndarray; ladle.from_ids\(array\) makes"):
        ladle.create_dataloader(np.arange(1000))


# --- cost ---


def test_a_dataset_travels_to_workers_as_shared_memory_not_as_bytes():
    dataset = ladle.GPTDataset(split(1_000_000), None, 256, 128)
    buffer = io.BytesIO()
    ForkingPickler(buffer).dump(dataset)
    assert buffer.tell() < 4096
    copy = pickle.loads(pickle.dumps(dataset))
    assert copy[7][1].tolist() == dataset[7][1].tolist()


MEASURE = """
    import json, resource, sys, time
    import numpy as np, torch
    import ladle
    from ladle.feed import dataloader
    torch.set_num_threads(1)
    ids = (np.arange(10**8, dtype=np.uint32) % 50257).astype(np.uint16)

    def status(name):
        return next(int(line.split()[1]) for line in open("/proc/self/status") if line.startswith(name)) // 1024

    open("/proc/self/clear_refs", "w").write("5")  # the peak begins here
    before, begin = status("VmRSS"), time.perf_counter()
    loader = ladle.create_dataloader(ladle.from_ids(ids), batch_size=16, max_length=256, stride=1)
    inputs, targets = next(iter(loader))
    seconds = time.perf_counter() - begin
    assert (inputs[:, 1:] == targets[:, :-1]).all()
    print(json.dumps({"windows": len(loader.dataset), "seconds": seconds, "peak_mb": status("VmHWM") - before}))
"""


@pytest.mark.slow
def test_a_hundred_million_windows_cost_the_ids_and_no_more():
    """10^8 tokens at stride 1: a list of tensors takes 31 s and 4 GB. Here: the 200 MB of ids, once, and a moment."""
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(MEASURE)], capture_output=True, text=True, check=True, timeout=120
    )
    measured = json.loads(done.stdout)
    assert measured["windows"] == 10**8 - 256
    assert measured["peak_mb"] < 300
    assert measured["seconds"] < 5


def test_pinning_is_no_matter_where_there_is_no_accelerator():
    """A5-01: torch warns at each epoch, and warnings are errors here."""
    pinned = ladle.create_dataloader("abcdefgh" * 8, 2, 4, 4, tokenizer="bytes", pin_memory=True)
    plain = ladle.create_dataloader("abcdefgh" * 8, 2, 4, 4, tokenizer="bytes")
    assert all(torch.equal(x, a) and torch.equal(y, b) for (x, y), (a, b) in zip(pinned, plain, strict=True))
