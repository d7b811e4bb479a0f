"""Positions, segments and lengths of the documents in a batch: against loops, and the shapes that others got wrong."""

import pickle

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ladle.feed.boundaries import PADDING, Boundaries
from ladle.rows.pieces import Pieces


def boundaries(rows: list[list[tuple[int, int]]], block_size: int) -> Boundaries:
    """rows: of each row its pieces, (offset in its document, length)."""
    table = []
    for number, row in enumerate(rows):
        column = 0
        for offset, length in row:
            table.append((number, column, 100 * number + column, length, length - 1, offset))
            column += length
    return Boundaries(Pieces(*np.array(table, dtype=np.int64).reshape(-1, 6).T), len(rows), block_size)


@st.composite
def batches(draw):
    T = draw(st.integers(1, 12))
    rows = []
    for _ in range(draw(st.integers(1, 6))):
        left, row = draw(st.integers(1, T)), []
        while left:
            length = draw(st.integers(1, left))
            row.append((draw(st.integers(0, 2**40)), length))
            left -= length
        rows.append(row)
    return rows, T


@settings(deadline=None)
@given(batches())
def test_against_a_loop(batch):
    rows, T = batch
    found = boundaries(rows, T)
    positions = np.zeros((len(rows), T), dtype=np.int64)
    segments = np.full((len(rows), T), -1)
    ends = [0]
    for number, row in enumerate(rows):
        column = 0
        for segment, (offset, length) in enumerate(row):
            for i in range(length):
                positions[number, column + i], segments[number, column + i] = offset + i, segment
            column += length
            ends.append(ends[-1] + length)
    np.testing.assert_array_equal(found.positions, positions)
    np.testing.assert_array_equal(found.segments, segments)
    assert found.cu_seqlens.tolist() == ends
    assert found.max_seqlen == max(length for row in rows for _, length in row)
    assert (found.positions.dtype, found.segments.dtype, found.cu_seqlens.dtype) == (np.int64, np.int32, np.int32)
    assert found.positions.flags.c_contiguous
    assert found.segments.flags.c_contiguous


def test_one_document_of_six_and_padding_that_is_no_document():
    found = boundaries([[(0, 6)]], 8)
    assert found.cu_seqlens.tolist() == [0, 6]
    assert found.segments.tolist() == [[0] * 6 + [PADDING] * 2]
    assert found.positions.tolist() == [[0, 1, 2, 3, 4, 5, 0, 0]]


def test_a_row_that_begins_in_the_middle_of_a_document():
    found = boundaries([[(300, 3), (0, 2)]], 5)
    assert found.positions.tolist() == [[300, 301, 302, 0, 1]]
    assert found.cu_seqlens.tolist() == [0, 3, 5]
    assert found.max_seqlen == 3


@pytest.mark.parametrize("asked", [(), ("positions", "segments", "cu_seqlens")])
def test_it_pickles_as_its_pieces(asked):
    before = boundaries([[(0, 2), (7, 1)], [(0, 3)]], 4)
    size = len(pickle.dumps(before))
    for name in asked:
        getattr(before, name)
    assert len(pickle.dumps(before)) == size
    after = pickle.loads(pickle.dumps(before))
    np.testing.assert_array_equal(after.positions, before.positions)
    np.testing.assert_array_equal(after.segments, before.segments)
    assert after.max_seqlen == before.max_seqlen
