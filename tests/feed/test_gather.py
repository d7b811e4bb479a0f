"""The gather against a plain reference: one slice a row over one array."""

import os
import resource
import subprocess
import sys
import time

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import ladle
from ladle.corpus.shard import ArrayShard, Pool
from ladle.corpus.split import SIZE_SECONDS, Split
from ladle.errors import ClosedError, FormatError, TokenError
from ladle.feed import gather as module
from ladle.feed.gather import by_shard, gather, gather_pieces, read_rows
from ladle.rows.pieces import Pieces


def reference(ids: np.ndarray, starts: np.ndarray, length: int) -> np.ndarray:
    padded = np.concatenate([ids, np.zeros(length, ids.dtype)])
    return np.stack([padded[start : start + length] for start in starts.tolist()])


@st.composite
def requests(draw):
    sizes = draw(st.lists(st.integers(1, 30), min_size=1, max_size=15))
    starts = draw(st.lists(st.integers(0, sum(sizes) - 1), min_size=1, max_size=40))
    return sizes, np.array(starts, dtype=np.int64), draw(st.integers(1, 50))


@settings(max_examples=300, deadline=None)
@given(request=requests(), dtype=st.sampled_from([np.uint16, np.uint32]))
def test_rows_are_what_lies_there_whatever_the_shards(in_shards, request, dtype):
    """Rows inside a shard, across one border, across many, and past the split's end (zeros)."""
    sizes, starts, length = request
    ids = (np.arange(sum(sizes)) * 7919 % 60_000).astype(dtype)
    rows = read_rows(in_shards(ids, sizes), starts, length)
    assert rows.dtype == dtype
    np.testing.assert_array_equal(rows, reference(ids, starts, length))


@settings(max_examples=100, deadline=None)
@given(request=requests(), wide=st.lists(st.booleans(), min_size=15, max_size=15))
def test_both_ways_read_the_same_also_where_shards_differ_in_their_type(request, wide):
    """Shard by shard, or row by row: only the cost differs."""
    sizes, starts, length = request
    ids = np.arange(sum(sizes)) * 7919 % 60_000
    parts = np.split(ids, np.cumsum(sizes)[:-1])
    shards = [ArrayShard(part.astype(np.uint32 if w else np.uint16)) for part, w in zip(parts, wide, strict=False)]
    split = Split(name="s", where="s", shards=shards, dtype=np.dtype(np.uint32), fingerprint=str)
    with pytest.MonkeyPatch.context() as patch:
        for rows_a_shard in (0, 10**9):
            patch.setattr(module, "ROWS_A_SHARD", rows_a_shard)
            np.testing.assert_array_equal(read_rows(split, starts, length), reference(ids, starts, length))


@st.composite
def rows_of_pieces(draw):
    """(sizes of shards, T, rows of pieces): each piece lies in one shard; one that fills its row may go on."""
    sizes, T, rows = draw(st.lists(st.integers(2, 30), min_size=1, max_size=8)), draw(st.integers(1, 12)), []
    for _ in range(draw(st.integers(1, 6))):
        left, row = T, []
        while left and (not row or draw(st.booleans())):
            shard = draw(st.integers(0, len(sizes) - 1))
            first = draw(st.integers(0, sizes[shard] - 1))
            length = draw(st.integers(1, min(left, sizes[shard] - first)))
            goes_on = length == T and first + length < sizes[shard] and draw(st.booleans())
            row.append((sum(sizes[:shard]) + first, length, goes_on))
            left -= length
        rows.append(row)
    return sizes, T, rows


@settings(max_examples=200, deadline=None)
@given(request=rows_of_pieces(), wide=st.lists(st.booleans(), min_size=8, max_size=8))
def test_rows_of_pieces_are_the_pieces_and_zeros_whatever_the_shards(request, wide):
    sizes, T, rows = request
    ids = np.arange(sum(sizes)) * 7919 % 60_000 + 1
    shards = [
        ArrayShard(part.astype(np.uint32 if w else np.uint16))
        for part, w in zip(np.split(ids, np.cumsum(sizes)[:-1]), wide, strict=False)
    ]
    widest = max(shard.dtype for shard in shards)
    split = Split(name="s", where="s", shards=shards, dtype=widest, fingerprint=str)
    table, wanted = [], np.zeros((len(rows), T + 1), dtype=np.int64)
    for number, row in enumerate(rows):
        column = 0
        for start, length, goes_on in row:
            table.append((number, column, start, length, length - 1 + goes_on, 0))
            wanted[number, column : column + length + goes_on] = ids[start : start + length + goes_on]
            column += length
    x, y = gather_pieces(split, Pieces(*np.array(table, dtype=np.int64).T), len(rows), T)
    np.testing.assert_array_equal(x, wanted[:, :-1])
    np.testing.assert_array_equal(y, wanted[:, 1:])
    assert not np.shares_memory(x, y)


@pytest.mark.parametrize("max_id", [None, 99])
@pytest.mark.parametrize("token", [1, 3, 4])
def test_an_id_outside_the_vocabulary_is_placed_in_pieces_too(token, max_id):
    """In a first piece, in a second, and as the label behind the last slot."""
    ids = np.arange(6, dtype=np.uint16)
    ids[token] = 99
    split = ladle.from_ids(ids)
    split.vocab_size, split.max_id = 50, max_id
    pieces = Pieces(*np.array([[0, 0, 0, 2, 1, 0], [0, 2, 3, 1, 0, 0], [1, 0, 1, 3, 3, 0]], dtype=np.int64).T)
    with pytest.raises(TokenError, match=f"memory @ byte {2 * token}: id: expected less than the vocabulary's 50, found 99"):
        gather_pieces(split, pieces, 2, 3)


def test_an_id_outside_the_vocabulary_is_placed_in_its_own_file():
    """In a shard of 2 bytes an id, though the split has 4."""
    shards = [ArrayShard(np.array([1, 2, 3], np.uint32)), ArrayShard(np.array([4, 500, 6], np.uint16))]
    split = Split(name="s", where="s", shards=shards, dtype=np.dtype(np.uint32), vocab_size=100, fingerprint=str)
    with pytest.raises(TokenError, match="memory @ byte 2: id: expected less than the vocabulary's 100, found 500"):
        gather(split, np.array([2]), 3)


@settings(max_examples=100, deadline=None)
@given(request=requests())
def test_x_and_y_are_the_row_and_the_row_one_later(in_shards, request):
    sizes, starts, block_size = request
    ids = np.arange(sum(sizes), dtype=np.uint16)
    block = gather(in_shards(ids, sizes), starts, block_size)
    assert block.dtype == np.int64
    assert block.shape == (2, len(starts), block_size)
    assert block.flags.c_contiguous
    whole = reference(ids, starts, block_size + 1)
    np.testing.assert_array_equal(block[0], whole[:, :-1])
    np.testing.assert_array_equal(block[1], whole[:, 1:])


def test_starts_are_grouped_by_shard_in_their_order(in_shards):
    split = in_shards(np.arange(30, dtype=np.uint16), [10, 5, 15])
    groups = [
        (shard, chosen.tolist(), inside.tolist()) for shard, chosen, inside in by_shard(split, np.array([29, 3, 14, 10, 0, 15]))
    ]
    assert groups == [(0, [1, 4], [3, 0]), (1, [2, 3], [4, 0]), (2, [0, 5], [14, 0])]
    assert list(by_shard(split, np.empty(0, np.int64))) == []


def test_a_block_is_fresh_each_time(in_shards):
    split = in_shards(np.arange(30, dtype=np.uint16), [30])
    first, second = (gather(split, np.array([3, 4]), 5) for _ in range(2))
    assert not np.shares_memory(first, second)
    first[:] = 0
    assert gather(split, np.array([3, 4]), 5)[0, 0].tolist() == [3, 4, 5, 6, 7]


# --- real files ---


@pytest.fixture
def corpus(tmp_path):
    """Real text in our format, in many small shards."""
    (tmp_path / "in").mkdir()
    for number in range(40):
        (tmp_path / "in" / f"{number:02}.txt").write_text(f"document {number} " * (20 + number))
    with ladle.prepare(tmp_path / "in", tmp_path / "out", tokenizer="bytes", val_fraction=0, shard_bytes=600) as corpus:
        yield corpus


def test_files_in_our_format(corpus):
    split = corpus["train"]
    assert len(split.shards) > 10
    ids = np.concatenate([shard.tokens() for shard in split.shards])
    starts = np.arange(0, split.num_tokens, 37)
    np.testing.assert_array_equal(read_rows(split, starts, 1500), reference(ids, starts, 1500))


@pytest.mark.parametrize("rows_a_shard", [0, 10**9])
def test_a_damaged_byte_is_found_when_its_block_is_first_touched(corpus, monkeypatch, rows_a_shard):
    monkeypatch.setattr(module, "ROWS_A_SHARD", rows_a_shard)
    split = corpus["train"]
    shard = 3
    path = corpus.path / f"train-{shard:05}.bin"
    content = bytearray(path.read_bytes())
    content[100] ^= 1
    path.write_bytes(content)
    base = int(split.bases[shard])
    gather(split, np.array([0]), 64)
    with pytest.raises(FormatError) as caught:
        gather(split, np.array([0, base + 60]), 64)
    message = str(caught.value)
    assert message.startswith(f"{path} @ byte 0: CRC-32 of block 0: expected ")
    assert message.endswith("the file was damaged since it was prepared; `ladle verify` lists every fault")


def test_a_row_that_reaches_into_a_damaged_shard_is_found_too(corpus):
    split = corpus["train"]
    path = corpus.path / "train-00003.bin"
    content = bytearray(path.read_bytes())
    content[0] ^= 1
    path.write_bytes(content)
    with pytest.raises(FormatError, match=r"train-00003\.bin @ byte 0: CRC-32 of block 0"):
        gather(split, np.array([int(split.bases[3]) - 1]), 64)


def test_a_file_cut_short_by_another_process_is_an_error_not_a_crash(tmp_path):
    """Touching a page that is gone would end the process by SIGBUS."""
    np.arange(60_000, dtype=np.uint16).tofile(tmp_path / "train.bin")
    with ladle.open(tmp_path) as corpus:
        feed = ladle.Feed(corpus["train"], batch_size=4, block_size=64, framework="numpy", prefetch=0)
        next(feed)
        subprocess.run([sys.executable, "-c", f"import os; os.truncate({str(tmp_path / 'train.bin')!r}, 60_000)"], check=True)
        with pytest.raises(FormatError) as caught:
            next(feed)
    assert str(caught.value).startswith(f"{tmp_path}/train.bin: size: expected 120000 bytes, found 60000 bytes; ")


def test_one_of_many_files_cut_short_is_an_error_within_a_moment(corpus):
    """Row by row a file's size is asked for before each batch, but not more than ten times a second."""
    split = corpus["train"]
    starts = split.bases[:-1]
    gather(split, starts, 16)
    path = corpus.path / "train-00002.bin"
    size = path.stat().st_size
    os.truncate(path, size - 2)
    time.sleep(SIZE_SECONDS * 1.1)
    with pytest.raises(FormatError, match=rf"train-00002\.bin: size: expected {size} bytes, found {size - 2} bytes; "):
        gather(split, starts, 16)


def test_verified_shards_are_read_straight_from_their_maps_until_one_is_closed(corpus):
    split = corpus["train"]
    ids = np.concatenate([shard.tokens() for shard in split.shards])
    starts = np.flatnonzero(np.arange(len(ids)) % 7 == 0)[:90]
    read_rows(split, starts, 3)
    assert split._maps is None  # blocks are still unverified
    split.read(0, split.num_tokens)
    time.sleep(SIZE_SECONDS * 1.1)
    np.testing.assert_array_equal(read_rows(split, starts, 3), reference(ids, starts, 3))
    assert split._maps.hold
    split.shards[0].close()
    with pytest.raises(ClosedError, match=r"train-00000\.bin: read after its corpus was closed"):
        read_rows(split, starts, 3)


def test_thousands_of_shards_need_few_open_files(corpus, tmp_path):
    """More shards than the pool keeps mapped, read in an order that jumps between all of them."""
    split = corpus["train"]
    pool = Pool(limit=4)
    for shard in split.shards:
        shard.pool = pool
    before = len(os.listdir("/proc/self/fd"))
    feed = ladle.Feed(split, batch_size=8, block_size=16, epochs=2, framework="numpy", prefetch=2)
    most = 0
    with feed:
        for batch in feed:
            np.testing.assert_array_equal(batch.x[:, 1:], np.where(batch.y < 0, batch.x[:, [*range(1, 16), 15]], batch.y)[:, :-1])
            most = max(most, len(os.listdir("/proc/self/fd")))
    assert sum(shard._map is not None for shard in split.shards) <= 4
    assert most - before <= 12  # a file and its sums each, and one being opened


def test_making_a_feed_opens_no_shard(corpus):
    split = corpus["train"]
    with ladle.Feed(split, batch_size=2, block_size=16, framework="numpy") as feed:
        assert all(shard._map is None for shard in split.shards)
        next(feed)
        assert 0 < sum(shard._map is not None for shard in split.shards) < len(split.shards)


def test_open_files_stay_within_a_small_limit(corpus):
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (256, hard))
    try:
        with ladle.Feed(corpus["train"], batch_size=8, block_size=16, framework="numpy", prefetch=2) as feed:
            kept = [next(feed) for _ in range(500)]
        assert len({batch.digest for batch in kept}) > 400
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def test_two_threads_may_read_one_split(corpus):
    """The prefetch thread walks while the caller looks, and each lets go of shards that the other has just found."""
    split = corpus["train"]
    ids = np.concatenate([shard.tokens() for shard in split.shards])
    pool = Pool(limit=2)
    for shard in split.shards:
        shard.pool = pool
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        with ladle.Feed(split, batch_size=4, block_size=16, framework="numpy", prefetch=4) as feed:
            for number in range(300):
                for batch in (next(feed), feed[number * 7]):
                    np.testing.assert_array_equal(batch.x, reference(ids, batch.starts, 16))
    finally:
        sys.setswitchinterval(interval)
