"""Best-fit-decreasing by length, not by document: which lengths share a row.

Documents of one length are alike, so the classical algorithm (take the longest that is left, put it where the least room
remains) is run on counts: rows that hold the same lengths are one group, and a group is treated at once. The number of rows
is the classical algorithm's; the work follows the number of different lengths, whatever the number of documents.
Source: Johnson 1973 for the algorithm; the counting is ours (docs/packing.md).
"""

from __future__ import annotations

from bisect import bisect_left, insort
from dataclasses import dataclass

import numpy as np

from ladle.order.permutation import I64

Chain = tuple[int, int, "Chain | None"]  # (length, how often in a row, what was there before)


@dataclass(frozen=True, slots=True)
class Patterns:
    """Kinds of rows. entries: (length, times) pairs, pattern after pattern, longest first. int64.

    rows [p]: how many rows are of pattern p. first [p + 1]: where its entries begin. length, times [e]: of each entry.
    """

    rows: I64
    first: I64
    length: I64
    times: I64


def best_fit(lengths: I64, counts: I64, row_length: int) -> Patterns:
    """The patterns that hold counts[i] pieces of lengths[i] each.

    lengths: int64 [d], ascending, different, 1 to row_length. counts: int64 [d], at least 1.
    Cost: d steps; a group is split at most twice a step, and touched at most log2(row_length) times.
    """
    groups: dict[int, list[tuple[int, Chain | None]]] = {}  # by room: (rows, what they hold)
    rooms: list[int] = []  # those with a group, ascending

    def add(room: int, rows: int, chain: Chain | None) -> None:
        if room not in groups:
            groups[room] = []
            insort(rooms, room)
        groups[room].append((rows, chain))

    for length, count in zip(lengths[::-1].tolist(), counts[::-1].tolist(), strict=True):
        left = count
        while left:
            place = bisect_left(rooms, length)
            if place == len(rooms):  # no row has room: as many new ones as it takes
                room, rows, chain = row_length, -(-left // (row_length // length)), None
            else:
                room = rooms[place]
                rows, chain = groups[room].pop()
                if not groups[room]:
                    del groups[room], rooms[place]
            times = room // length
            full, rest = divmod(left, times)
            if full >= rows:
                full, rest = rows, 0
            if full:
                add(room - times * length, full, (length, times, chain))
            if rest:
                add(room - rest * length, 1, (length, rest, chain))
            if untouched := rows - full - bool(rest):
                add(room, untouched, chain)
            left -= full * times + rest

    rows_of: list[int] = []
    first, length_of, times_of = [0], list[int](), list[int]()
    for room in rooms:  # the fullest rows first
        for rows, found in groups[room]:
            entries, chain = [], found
            while chain is not None:
                entries.append(chain[:2])
                chain = chain[2]
            rows_of.append(rows)
            length_of += [length for length, _ in reversed(entries)]
            times_of += [times for _, times in reversed(entries)]
            first.append(len(length_of))
    return Patterns(*(np.array(numbers, dtype=np.int64) for numbers in (rows_of, first, length_of, times_of)))
