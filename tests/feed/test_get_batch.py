"""The drop-in for a training script's own function."""

import json
import subprocess
import sys
import threading

import numpy as np
import pytest
import torch

import ladle
from ladle.errors import ClosedError, ConfigError, FormatError, StateError


@pytest.fixture
def folder(tmp_path):
    """A nanoGPT folder whose ids are their own places."""
    np.arange(1000, dtype=np.uint16).tofile(tmp_path / "train.bin")
    np.arange(200, dtype=np.uint16).tofile(tmp_path / "val.bin")
    return tmp_path


def get_batch_of(folder, **options):
    chosen = {"batch_size": 4, "block_size": 16, "framework": "numpy"} | options
    return ladle.get_batch(folder, **chosen)


def test_it_replaces_a_scripts_own_function(folder):
    get_batch = ladle.get_batch(folder, batch_size=12, block_size=64, device="cpu")
    x, y = get_batch("train")
    assert x.dtype == y.dtype == torch.int64
    assert x.shape == y.shape == (12, 64)
    assert x.is_contiguous()
    assert y.is_contiguous()
    y.view(-1)
    torch.testing.assert_close(y, x + 1, rtol=0, atol=0)
    kept = y.clone()
    x.zero_()
    assert torch.equal(y, kept)
    assert x.device == torch.device("cpu")
    get_batch.close()


def test_the_corpus_may_be_open_already_and_stays_its_owners(folder):
    with ladle.open(folder) as corpus:
        get_batch = get_batch_of(corpus)
        get_batch("train")
        get_batch.close()
        assert corpus["train"].read(0, 2).tolist() == [0, 1]


def test_our_own_format_too(tmp_path):
    (tmp_path / "text.txt").write_text("all that is needed is a folder of text. " * 100)
    ladle.prepare(tmp_path / "text.txt", tmp_path / "out", tokenizer="chars", val_fraction=0.1).close()
    with get_batch_of(tmp_path / "out") as get_batch:
        for split in ("train", "val"):
            x, y = get_batch(split)
            np.testing.assert_array_equal(x[:, 1:], y[:, :-1])
        text = get_batch.corpus.tokenizer.decode(x[0])
        assert text in "all that is needed is a folder of text. " * 2


def test_windows_are_independent_and_every_start_is_alike(tmp_path):
    """20 tokens, T = 7: starts 0 to 12. 26 000 draws: 2 000 each, with a standard deviation of 43."""
    np.arange(20, dtype=np.uint16).tofile(tmp_path / "train.bin")
    with get_batch_of(tmp_path, batch_size=130, block_size=7) as get_batch:
        starts = np.concatenate([get_batch("train")[0][:, 0] for _ in range(200)])
    counts = np.bincount(starts, minlength=13)
    assert len(counts) == 13
    assert np.abs(counts - 2000).max() < 220
    pairs = np.bincount(starts[:-1] * 13 + starts[1:], minlength=169)
    chi_square = ((pairs - 26_000 / 169) ** 2 / (26_000 / 169)).sum()
    assert 90 < chi_square < 270  # 168 degrees of freedom: 168 +- 18


@pytest.mark.parametrize("order", ["random", "shuffled", "sequential"])
def test_no_target_is_ever_masked(folder, order):
    with get_batch_of(folder, order=order, batch_size=7, block_size=17) as get_batch:
        for _ in range(100):  # beyond an epoch of the 999 targets
            x, y = get_batch("train")
            np.testing.assert_array_equal(y, x + 1)


def test_shuffled_windows_come_once_an_epoch(folder):
    with get_batch_of(folder, order="shuffled", batch_size=2, block_size=9) as get_batch:
        starts = np.concatenate([get_batch("train")[0][:, 0] for _ in range(55)])  # 111 windows of 9: half a batch more
        assert len(set(starts.tolist())) == 110


# --- counters, state ---


def test_each_split_has_its_own_counter(folder):
    with get_batch_of(folder) as quiet, get_batch_of(folder) as busy:
        for _ in range(10):
            expected = quiet("train")[0]
            for _ in range(3):
                busy("val")
            np.testing.assert_array_equal(busy("train")[0], expected)


def test_seeds_and_splits_draw_apart(folder):
    with get_batch_of(folder, seed=1) as one, get_batch_of(folder, seed=2) as two, get_batch_of(folder, seed=1) as again:
        first = one("train")[0]
        assert (first != two("train")[0]).any()
        np.testing.assert_array_equal(first, again("train")[0])


@pytest.mark.parametrize("prefetch", [0, 2])
def test_a_run_continues_where_it_was_saved(folder, prefetch):
    with get_batch_of(folder, prefetch=prefetch) as get_batch:
        for _ in range(5):
            get_batch("train")
        get_batch("val")
        saved = json.loads(json.dumps(get_batch.state_dict()))
        expected = [get_batch(split)[0] for split in ("train", "val", "train")]
    with get_batch_of(folder) as again:
        again("val")
        again.load_state_dict(saved)
        assert again.state_dict() == saved
        for split, x in zip(("train", "val", "train"), expected, strict=True):
            np.testing.assert_array_equal(again(split)[0], x)


def test_splits_that_a_state_does_not_name_start_anew(folder):
    with get_batch_of(folder) as get_batch:
        first = get_batch("val")[0]
        get_batch.load_state_dict({})
        np.testing.assert_array_equal(get_batch("val")[0], first)


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (lambda s: None, "state: expected a get_batch's state_dict {split: state}, found NoneType"),
        (
            lambda s: s | {"val": s["val"] | {"seed": 9}},
            "split 'val': state: seed: expected 0, found 9; it belongs to another seed",
        ),
        (lambda s: s | {"val": s["train"]}, "split 'val': state: corpus: expected "),
        (lambda s: s | {"test": s["train"]}, "split 'test': "),
        (lambda s: s | {"val": 3}, "split 'val': state: expected a feed's state_dict, found int"),
    ],
)
def test_a_state_that_does_not_belong_moves_nothing(folder, spoil, message):
    with get_batch_of(folder) as get_batch:
        get_batch("train")
        get_batch("val")
        saved = get_batch.state_dict()
        get_batch("train")
        before = get_batch.state_dict()
        with pytest.raises(StateError) as caught:
            get_batch.load_state_dict(spoil(saved))
        assert str(caught.value).startswith(message)
        assert get_batch.state_dict() == before


def test_the_feed_behind_it_can_be_asked(folder):
    with get_batch_of(folder) as get_batch:
        x, _ = get_batch("train")
        np.testing.assert_array_equal(get_batch.feed("train")[0].x, x)
        assert get_batch.feed("train").position == 64


# --- ranks ---


@pytest.mark.parametrize("world_size", [2, 3])
def test_ranks_draw_apart_and_together_are_one_global_batch(folder, world_size):
    with get_batch_of(folder, batch_size=4 * world_size) as whole:
        ranks = [get_batch_of(folder, rank=rank, world_size=world_size) for rank in range(world_size)]
        for _ in range(5):
            parts = [get_batch("train")[0] for get_batch in ranks]
            assert all(part.shape == (4, 16) for part in parts)
            np.testing.assert_array_equal(np.concatenate(parts), whole("train")[0])
        for get_batch in ranks:
            get_batch.close()


# --- errors ---


def test_a_short_split_is_an_error_only_when_it_is_asked_for(folder):
    np.arange(18, dtype=np.uint16).tofile(folder / "val.bin")
    with get_batch_of(folder, block_size=512) as get_batch:
        assert get_batch("train")[0].shape == (4, 512)
        for _ in range(2):
            with pytest.raises(ConfigError) as caught:
                get_batch("val")
            assert str(caught.value) == (
                f"{folder}/val.bin: expected at least 513 tokens for windows of 512 (each needs one token more), found 18; "
                "use a smaller block_size, or tail='pad'"
            )
        get_batch("train")


def test_an_empty_val_is_an_error_only_when_it_is_asked_for(folder):
    (folder / "val.bin").write_bytes(b"")
    with get_batch_of(folder) as get_batch:
        get_batch("train")
        with pytest.raises(FormatError) as caught:
            get_batch("val")
        assert str(caught.value).startswith(f"{folder}/val.bin: size: expected at least one token, found 0 bytes; ")
        get_batch("train")


def test_a_split_that_is_not_there(folder):
    with get_batch_of(folder) as get_batch, pytest.raises(ConfigError) as caught:
        get_batch("test")
    assert str(caught.value) == f"{folder}: split: expected one of train, val, found 'test'"


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"batch_size": 0}, "batch_size: expected at least 1, found 0"),
        ({"block_size": "64"}, "block_size: expected an integer, found '64'"),
        ({"rank": 1}, "rank, world_size: expected both or neither, found rank=1, world_size=None"),
        ({"rank": 3, "world_size": 2}, "rank: expected less than 2, found 3"),
    ],
)
def test_arguments_that_cannot_be_right_are_refused_at_once(folder, options, message):
    with pytest.raises(ConfigError) as caught:
        get_batch_of(folder, **options)
    assert str(caught.value) == message


def test_a_folder_that_is_none(tmp_path):
    with pytest.raises(FormatError, match=r"no such folder"):
        get_batch_of(tmp_path / "nothing")


def test_after_close_it_says_so_and_nothing_is_left(folder):
    get_batch = get_batch_of(folder, prefetch=2)
    get_batch("train")
    get_batch("val")
    get_batch.close()
    get_batch.close()
    assert "ladle-prefetch" not in {thread.name for thread in threading.enumerate()}
    with pytest.raises(ClosedError) as caught:
        get_batch("train")
    assert str(caught.value) == "this get_batch is closed; make another and load its state_dict()"
    with pytest.raises(ClosedError):
        get_batch.corpus["train"].read(0, 1)
    assert set(get_batch.state_dict()) == {"train", "val"}


def test_on_the_cpu_no_thread_is_made(folder):
    for device in (None, "cpu", torch.device("cpu")):
        with ladle.get_batch(folder, batch_size=2, block_size=8, device=device) as get_batch:
            get_batch("train")
            assert "ladle-prefetch" not in {thread.name for thread in threading.enumerate()}


def test_it_needs_no_torch(folder):
    script = """
import sys
sys.modules["torch"] = None
import ladle
get_batch = ladle.get_batch(sys.argv[1], batch_size=4, block_size=16, framework="numpy")
print(get_batch("train")[0].shape)
try:
    ladle.get_batch(sys.argv[1], batch_size=4, block_size=16)("train")
except ladle.errors.MissingExtra as error:
    print(error)
"""
    done = subprocess.run([sys.executable, "-c", script, str(folder)], capture_output=True, text=True, check=False)
    assert done.stderr == ""
    shape, message = done.stdout.splitlines()
    assert shape == "(4, 16)"
    assert message.endswith("needs the package 'torch', which is not installed; pip install 'ladle[torch]'")
