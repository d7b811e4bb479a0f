"""Once every block of a shard has been verified nothing is looked up any more; until then every block still is."""

import numpy as np
import pytest

import ladle
from ladle.bench.corpus import make
from ladle.errors import FormatError

BLOCK = 2048  # tokens of uint16 in a checksum block
BLOCKS = 5


@pytest.fixture
def made(tmp_path):
    return make(tmp_path / "made", BLOCKS * BLOCK - 7)


def damage(path, block):
    raw = bytearray(path.read_bytes())
    raw[block * BLOCK * 2 + 5] ^= 1
    with path.open("r+b") as file:  # in place: the map sees it
        file.write(raw)


@pytest.mark.parametrize("last", range(BLOCKS))
def test_the_last_unverified_block_is_still_verified(made, last):
    with ladle.open(made.parent) as corpus:
        split = corpus["train"]
        for block in set(range(BLOCKS)) - {last}:
            split.read(block * BLOCK, 10)
            split.read(block * BLOCK + 5, 20)  # touched twice, counted once
        damage(made, last)
        with pytest.raises(FormatError, match=f"CRC-32 of block {last}"):
            split.read(last * BLOCK, 10)


def test_rows_one_by_one_are_verified_block_by_block(made):
    with ladle.open(made.parent) as corpus:
        shard = corpus["train"].shards[0]
        shard.piece(20, 40)
        shard.piece(2 * BLOCK - 1, 2 * BLOCK + 1)  # two blocks, one of them known
        assert shard._unchecked == BLOCKS - 2
        damage(made, 4)
        with pytest.raises(FormatError, match="CRC-32 of block 4"):
            shard.piece(6 * BLOCK, 10 * BLOCK - 14)
        damage(made, 4)  # mended
        assert len(shard.piece(0, shard.num_bytes)) == shard.num_bytes
        assert shard._unchecked == 0
        assert shard._map.sums is None  # nothing will ask for them again, and they held a file open


def test_a_wrong_count_of_what_is_left_is_counted_again(made):
    with ladle.open(made.parent) as corpus:
        split = corpus["train"]
        shard = split.shards[0]
        shard._unchecked = 1  # as two threads leave it that verified the same blocks
        split.read(0, 10)
        assert shard._unchecked == BLOCKS - 1
        damage(made, 3)
        with pytest.raises(FormatError, match="CRC-32 of block 3"):
            split.read(0, split.num_tokens)


def test_a_verified_shard_is_looked_up_no_more(made):
    with ladle.open(made.parent) as corpus:
        split = corpus["train"]
        before = split.read(0, split.num_tokens)
        assert split.shards[0]._unchecked == 0
        split.shards[0]._checked = bytearray()  # looking it up would now begin anew, and find the damage
        damage(made, 2)
        assert np.count_nonzero(split.read(0, split.num_tokens) != before) == 1
