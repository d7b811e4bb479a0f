"""What a run can be told wrongly: each is one error with both values, before the first batch is made."""

import re
import shutil

import numpy as np
import pytest

import ladle
from ladle.errors import ConfigError, LadleError, StateError
from ladle.feed.producer import Producer
from ladle.order.permutation import LARGEST, ORDER_VERSION

N = 101


@pytest.fixture(autouse=True)
def no_batch(monkeypatch):
    """Whatever is wrong is said before a batch."""

    def make(*_):
        raise AssertionError("a batch was made")

    monkeypatch.setattr(Producer, "__call__", make)


def split_of(count=N):
    return ladle.from_ids(np.arange(count, dtype=np.uint32))


def mixture_of(sizes):
    return ladle.Mixture({name: split_of(size) for name, size in sizes.items()}, dict.fromkeys(sizes, 1.0))


def feed_of(source=None, **options):
    chosen = {"batch_size": 4, "block_size": 8, "framework": "numpy", "prefetch": 0, "seed": 5} | options
    return ladle.Feed(split_of() if source is None else source, **chosen)


SOURCES = pytest.mark.parametrize("source", [split_of, lambda: mixture_of({"a": N, "b": 60})], ids=["split", "mixture"])


@SOURCES
@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"rank": 0, "world_size": 5}, "batch_size: expected at least a row for each of 5 ranks, found 4 rows"),
        ({"rank": 4, "world_size": 4}, "rank: expected less than 4, found 4"),
        ({"rank": -1, "world_size": 4}, "rank: expected at least 0, found -1"),
        ({"rank": 0, "world_size": 0}, "world_size: expected at least 1, found 0"),
        ({"rank": 2}, "rank, world_size: expected both or neither, found rank=2, world_size=None"),
        ({"world_size": 2}, "rank, world_size: expected both or neither, found rank=None, world_size=2"),
        ({"block_size": 8, "window": 12}, "block_size: expected a divisor of the window 12, found 8"),
        ({"block_size": 8, "window": 4}, "block_size: expected a divisor of the window 4, found 8"),
        ({"block_size": 0}, "block_size: expected at least 1, found 0"),
        ({"batch_size": -3}, "batch_size: expected at least 1, found -3"),
        ({"batch_size": 2.0}, "batch_size: expected an integer, found 2.0"),
        ({"total_tokens": 0}, "total_tokens: expected at least 1, found 0"),
    ],
)
def test_shapes_and_ranks(source, options, message):
    with pytest.raises(ConfigError, match=f"^{re.escape(message)}$"):
        feed_of(source(), **options)


@SOURCES
@pytest.mark.parametrize(
    ("position", "message"),
    [
        (-1, "position: expected at least 0, found -1"),
        (2**62, f"position: expected less than {LARGEST}, found {2**62}"),
        (10**30, f"position: expected less than {LARGEST}, found {10**30}"),
        (8.0, "position: expected an integer, found 8.0"),
        ("8", "position: expected an integer, found '8'"),
    ],
)
def test_positions(source, position, message):
    feed = feed_of(source())
    for ask in (feed.at, feed.state_at, feed.shares):
        with pytest.raises(ConfigError, match=f"^{re.escape(message)}$"):
            ask(position)
    before = feed.state_dict()
    with pytest.raises(StateError, match=rf"^state: position: expected 0 to 2\*\*62 slots, found {re.escape(repr(position))}$"):
        feed.load_state_dict(before | {"position": position})
    assert feed.state_dict() == before


@SOURCES
def test_steps(source):
    feed = feed_of(source())
    for step in (-1, 2**60):
        with pytest.raises(ConfigError, match=rf"^step: expected (at least 0|less than \d+), found {step}$"):
            feed[step]
    finite = feed_of(source(), total_tokens=100)
    with pytest.raises(IndexError, match=r"^step: expected -4 to 3 in a feed of 4 batches, found 4$"):
        finite[4]
    with pytest.raises(IndexError, match=r"^position: expected below the feed's end at 100 slots, found 100$"):
        finite.at(100)


@SOURCES
def test_a_state_from_a_newer_order_version(source):
    feed = feed_of(source())
    message = (
        f"state: order_version: expected {ORDER_VERSION}, found {ORDER_VERSION + 1}; it was saved under another order version, "
        "which deals windows in another order"
    )
    with pytest.raises(StateError, match=f"^{re.escape(message)}$"):
        feed.load_state_dict(feed.state_dict() | {"order_version": ORDER_VERSION + 1})


@pytest.mark.parametrize("mixed", [False, True])
def test_a_corpus_that_changed_under_its_fingerprint(tmp_path, mixed):
    """The same folder, prepared again from other text: its state is not continued, and both fingerprints are named."""

    def feed():
        split = ladle.open(tmp_path / "corpus")["train"]
        return feed_of(ladle.Mixture({"a": split, "b": split_of(256)}, {"a": 1, "b": 1}) if mixed else split)

    def prepare(text):
        (tmp_path / "text.txt").write_text(text)
        shutil.rmtree(tmp_path / "corpus", ignore_errors=True)
        ladle.prepare([tmp_path / "text.txt"], tmp_path / "corpus", tokenizer="bytes", val_fraction=0).close()

    prepare("one fish, two fish, red fish, blue fish")
    state = feed().state_dict()
    feed().load_state_dict(state)
    prepare("one fish, two fish, red fish, blue fish!")
    changed = feed()
    mine = changed.state_dict()["corpus"]
    message = f"state: corpus: expected {mine}, found {state['corpus']}; it belongs to other data (the fingerprints differ)"
    with pytest.raises(StateError, match=f"^{re.escape(message)}$"):
        changed.load_state_dict(state)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: split_of(1), "memory: expected at least 2 tokens (an input and its target), found 1"),
        (lambda: split_of(8), "memory: expected at least 9 tokens for windows of 8 (each needs one token more), found 8; use "),
        (lambda: split_of(0), "from_ids: expected a 1-D array of at least one id, found shape (0,)"),
        (lambda: ladle.from_text("", "bytes"), "from_text: expected at least one token, found none: the text is empty"),
        (lambda: mixture_of({"a": 50, "b": 1}), "sources: b: expected at least 9 tokens for windows of 8, found 1; leave it out"),
        (lambda: ladle.Mixture({}), "sources: expected {name: split} of at least one, found {}"),
    ],
)
def test_sources_without_tokens(make, message):
    with pytest.raises(LadleError, match=f"^{re.escape(message)}"):
        feed_of(make())


def test_a_file_without_tokens(tmp_path):
    np.arange(100, dtype=np.uint16).tofile(tmp_path / "train.bin")
    (tmp_path / "val.bin").write_bytes(b"")
    with ladle.open(tmp_path) as corpus:
        feed_of(corpus["train"])
        with pytest.raises(LadleError, match=r"val\.bin: size: expected .*, found 0 bytes"):
            feed_of(corpus["val"])
