"""Packing whole documents into rows: Ladle's plans, the classical algorithm, TRL's, best-fit with cropping, and cut windows.

    python -m bench.packing [--documents 1000000] [--rounds 3] [--trl .venv-trl/bin/python] [--large] [--record]

One set of lengths (log-normal, mu 6, sigma 1.2, at least 1; mean about 830 tokens) in rows of T = 2048. Rows, waste (slots
that hold no token), tokens lost and documents cut are counted from what each returns; Ladle's rows are held against the
classical algorithm's. TRL (bench/requirements-trl.txt) is run in an environment of its own, on the same lengths (ids of one
byte, to spare memory). Two more tables: what one slot more in a row changes, and what asking a plan for rows costs. --large packs
ten million documents too, in a process of its own, whose memory is told.
"""

from __future__ import annotations

import argparse
import bisect
import json
import resource
import subprocess
import sys
import time
from collections.abc import Callable
from itertools import islice
from pathlib import Path

import numpy as np

from bench import results
from ladle.rows.packs import Packing, Packs
from ladle.rows.plans import pack

T = 2048
MU, SIGMA, SEED = 6.0, 1.2, 3
BUFFER = 1000  # documents that the cropping packer chooses among
TRL_BATCH = 1000


def draw(count: int) -> np.ndarray:
    """Lengths, int64 [count]."""
    return np.clip(np.random.default_rng(SEED).lognormal(MU, SIGMA, count), 1, None).astype(np.int64)


def plan(lengths: np.ndarray, policy: str, *, row_length: int = T, **options: str) -> Packs:
    """Ladle's: the table of rows, and the pieces in their order."""
    ends = np.cumsum(lengths)
    shards = [(0, ends.astype(np.uint64))]

    def documents(first: int, last: int) -> tuple[np.ndarray, np.ndarray]:
        low, high = np.searchsorted(ends, [first, last - 1], side="right").tolist()
        return ends[low : high + 1] - lengths[low : high + 1], ends[low : high + 1]

    packing = Packing(row_length=row_length, policy=policy, **options)  # type: ignore[arg-type]
    return pack(lambda: shards, int(ends[-1]), packing, documents)


def ladle(lengths: np.ndarray, policy: str, **options: str) -> dict[str, float]:
    """What came of a plan of Ladle's."""
    counts = plan(lengths, policy, **options).counts
    return {"rows": counts.rows, "padded": counts.padded, "lost": counts.dropped_tokens, "cut": counts.split}


def pieces_of(lengths: np.ndarray) -> list[int]:
    """Documents cut into rows of T and a remainder."""
    whole, rest = np.divmod(lengths, T)
    return [T] * int(whole.sum()) + rest[rest > 0].tolist()


def classical(lengths: np.ndarray) -> dict[str, float]:
    """Best-fit-decreasing, piece by piece: the longest first, into the row with the least room that is enough."""
    rooms: list[int] = []
    many: dict[int, int] = {}  # rows by the room they have
    rows = 0
    pieces = sorted(pieces_of(lengths), reverse=True)
    for piece in pieces:
        place = bisect.bisect_left(rooms, piece)
        if place == len(rooms):
            rows, room = rows + 1, T
        else:
            room = rooms[place]
            many[room] -= 1
            if not many[room]:
                del many[room], rooms[place]
        left = room - piece
        if left not in many:
            many[left] = 0
            bisect.insort(rooms, left)
        many[left] += 1
    return {"rows": rows, "padded": rows * T - sum(pieces), "lost": 0, "cut": int((lengths > T).sum())}


def cropping(lengths: np.ndarray) -> dict[str, float]:
    """Best-fit with cropping: of a buffer of documents the largest that fits; where none does the shortest is cropped to fill
    the row, and its rest is thrown away. Rows are always full."""
    source = iter(lengths.tolist())
    buffer = sorted(islice(source, BUFFER))
    rows = lost = cut = 0
    while buffer:
        room, rows = T, rows + 1
        while room and buffer:
            place = bisect.bisect_right(buffer, room) - 1
            if place >= 0:
                room -= buffer.pop(place)
            else:
                length = buffer.pop(0)
                lost, cut, room = lost + length - room, cut + 1, 0
            if (fresh := next(source, None)) is not None:
                bisect.insort(buffer, fresh)
    return {"rows": rows, "padded": rows * T + lost - int(lengths.sum()), "lost": lost, "cut": cut}


def windows(lengths: np.ndarray) -> dict[str, float]:
    """Cut every T + 1 tokens: what lies across a border is cut."""
    total, ends = int(lengths.sum()), np.cumsum(lengths)
    begins = ends - lengths
    return {
        "rows": -(-(total - 1) // T),
        "padded": 0,
        "lost": 0,
        "cut": int(np.count_nonzero(begins // T != (ends - 1) // T)),
    }


TRL = """
import json, sys, time
import numpy as np
from datasets import Dataset, disable_progress_bars
from trl import pack_dataset
disable_progress_bars()
lengths = np.load(sys.argv[1]); T = int(sys.argv[2])
import pyarrow as pa
offsets = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64)
ids = pa.LargeListArray.from_arrays(pa.array(offsets), pa.array(np.zeros(offsets[-1], dtype=np.int8)))
data = Dataset(pa.table({"input_ids": ids}))
few, all_ = int(sys.argv[3]), len(lengths)
for strategy, batch in (("bfd_split", few), ("bfd_split", all_), ("bfd", few), ("wrapped", few)):
    begin = time.perf_counter()
    try:
        packed = pack_dataset(data, T, strategy, map_kwargs={"batch_size": batch})
        seconds = time.perf_counter() - begin
        rows = packed.data["input_ids"]
        kept = sum(len(chunk.values) if chunk.offset == 0 else len(chunk.flatten()) for chunk in rows.chunks)
        told = {"rows": len(packed), "tokens": int(kept), "seconds": seconds}
    except Exception as error:
        told = {"failed": f"{type(error).__name__}: {error}"[:200]}
    print(json.dumps({"strategy": strategy, "batch": batch, **told}), flush=True)
"""


def trl(lengths: np.ndarray, python: Path, folder: Path) -> tuple[list[dict[str, object]], str]:
    """(rows of the table, what is missing and why)."""
    if not python.exists():
        return [], f"TRL: no {python}; bench/requirements-trl.txt says how to install it"
    file = folder / "packing-lengths.npy"
    np.save(file, lengths)
    done = subprocess.run([python, "-c", TRL, file, str(T), str(TRL_BATCH)], capture_output=True, text=True, check=False)
    file.unlink()
    rows, total, missing = [], int(lengths.sum()), list[str]()
    if done.returncode:
        why = done.stderr.strip().splitlines() or [f"it ended with {done.returncode} (-9: killed, probably out of memory)"]
        missing.append(f"TRL: {why[-1]}")
    for line in done.stdout.splitlines():
        told = json.loads(line)
        name = f"TRL, {told['strategy']}, {'the whole set' if told['batch'] == len(lengths) else 'batches of 1,000'}"
        if "failed" in told:
            missing.append(f"{name}: {told['failed']}")
            continue
        found = {"rows": told["rows"], "padded": told["rows"] * T - told["tokens"], "lost": total - told["tokens"], "cut": ""}
        rows.append(row(name, found, [told["seconds"]], lengths))
    return rows, "; ".join(missing) or "no peer"


def row(name: str, found: dict[str, object], seconds: list[float], lengths: np.ndarray) -> dict[str, object]:
    """One line of the table."""
    median = float(np.median(seconds))
    return {
        "": name,
        "rows": f"{found['rows']:,}",
        "waste, % of slots": f"{100 * float(found['padded']) / (float(found['rows']) * T):.4f}",  # type: ignore[arg-type]
        "tokens lost, %": f"{100 * float(found['lost']) / float(lengths.sum()):.2f}",  # type: ignore[arg-type]
        "documents cut, %": f"{100 * float(found['cut']) / lengths.size:.2f}" if found["cut"] != "" else "not said",  # type: ignore[arg-type]
        "s, median": f"{median:.3f}",
        "least to most": f"{min(seconds):.3f} to {max(seconds):.3f}",
        "documents/s, millions": f"{lengths.size / median / 1e6:.2f}",
    }


def neighbours(lengths: np.ndarray) -> list[dict[str, object]]:
    """Rows of T and of T + 1 slots."""
    found = []
    for row_length in (2048, 8192):
        rows = [plan(lengths, "best_fit", row_length=length).num_rows for length in (row_length, row_length + 1)]
        found.append(
            {
                "T": f"{row_length:,}",
                "rows of T": f"{rows[0]:,}",
                "rows of T + 1": f"{rows[1]:,}",
                "change, %": f"{100 * (rows[1] / rows[0] - 1):.2f}",
            }
        )
    return found


def lookups(lengths: np.ndarray, calls: int = 200) -> list[dict[str, object]]:
    """What the pieces of 64 random rows cost, asked for alone and in blocks."""
    found = []
    for policy, deal in (("best_fit", "fixed"), ("best_fit", "fresh"), ("sequential", "fixed"), ("single", "fixed")):
        packs, rng = plan(lengths, policy, deal=deal), np.random.default_rng(1)
        line: dict[str, object] = {"": f"{policy}, a {deal} deal" if policy == "best_fit" else policy}
        for count in (64, 4096):
            seconds = []
            for _ in range(calls):
                rows, epochs = rng.integers(0, packs.num_rows, count), np.zeros(count, dtype=np.int64)
                begin = time.perf_counter()
                packs.pieces(rows, epochs)
                seconds.append(time.perf_counter() - begin)
            name = "us for 64 rows, alone" if count == 64 else "us for 64 rows, in blocks of 4,096"
            line[name] = f"{float(np.median(seconds)) * 1e6 * 64 / count:.0f}"
        seconds = []
        for first in rng.integers(0, int(lengths.sum()) - 1000, calls).tolist():
            begin = time.perf_counter()
            packs.holding(first, first + 1000, 0)
            seconds.append(time.perf_counter() - begin)
        line["us for the rows that hold 1,000 tokens"] = f"{float(np.median(seconds)) * 1e6:.0f}"
        found.append(line)
    return found


LARGE = """
import sys, time, resource
import numpy as np
from bench.packing import draw, plan
lengths = draw(int(sys.argv[1]))
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
begin, busy = time.perf_counter(), time.process_time()
counts = plan(lengths, "best_fit").counts
seconds = time.perf_counter() - begin, time.process_time() - busy
print(*seconds, before, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss, counts.rows, counts.padded)
"""


def large(count: int, rounds: int) -> list[dict[str, object]]:
    """Ladle alone, each time in a fresh process."""
    runs = []
    for _ in range(rounds):
        done = subprocess.run([sys.executable, "-c", LARGE, str(count)], capture_output=True, text=True, check=True)
        runs.append([float(word) for word in done.stdout.split()])
    seconds, busy, before, peak, rows, padded = (list(column) for column in zip(*runs, strict=True))
    return [
        {
            "documents": f"{count:,}",
            "s, each round": ", ".join(f"{one:.2f}" for one in seconds),
            "the processor's s": ", ".join(f"{one:.2f}" for one in busy),
            "peak MiB": f"{max(peak) / 1024:,.0f}",
            "of it before packing": f"{max(before) / 1024:,.0f}",
            "rows": f"{rows[0]:,.0f}",
            "waste, % of slots": f"{100 * padded[0] / (rows[0] * T):.5f}",
        }
    ]


def main() -> None:
    """Measure, print, and with --record keep the result."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--documents", type=int, default=1_000_000)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--trl", type=Path, default=Path(".venv-trl/bin/python"), help="a Python that has TRL")
    parser.add_argument("--large", action="store_true", help="ten million documents too")
    parser.add_argument("--scratch", type=Path, default=Path("runs"), help="folder for the lengths that TRL reads")
    parser.add_argument("--record", action="store_true", help="append to bench/results")
    args = parser.parse_args()
    lengths = draw(args.documents)
    args.scratch.mkdir(parents=True, exist_ok=True)
    contenders: dict[str, Callable[[np.ndarray], dict[str, float]]] = {
        "Ladle, best_fit": lambda lengths: ladle(lengths, "best_fit"),
        "Ladle, best_fit, overlong dropped": lambda lengths: ladle(lengths, "best_fit", overlong="drop"),
        "Ladle, sequential": lambda lengths: ladle(lengths, "sequential"),
        "Ladle, single (one document a row)": lambda lengths: ladle(lengths, "single"),
        "best-fit-decreasing, document by document": classical,
        f"best-fit with cropping, a buffer of {BUFFER:,}": cropping,
        "cut windows": windows,
    }
    seconds: dict[str, list[float]] = {name: [] for name in contenders}
    found: dict[str, dict[str, float]] = {}
    for _ in range(args.rounds):
        for name, run in contenders.items():
            begin = time.perf_counter()
            found[name] = run(lengths)
            seconds[name].append(time.perf_counter() - begin)
    ours, theirs = found["Ladle, best_fit"], found["best-fit-decreasing, document by document"]
    if (ours["rows"], ours["padded"]) != (theirs["rows"], theirs["padded"]):
        sys.exit(f"bench: Ladle packs into {ours['rows']} rows, the classical algorithm into {theirs['rows']}")
    rows = [row(name, dict(found[name]), seconds[name], lengths) for name in contenders]
    peers, missing = trl(lengths, args.trl, args.scratch)
    tables = [{"title": f"{lengths.size:,} documents, {int(lengths.sum()):,} tokens, rows of {T}", "rows": rows + peers}]
    print(results.plain(tables[0]["rows"]))  # type: ignore[arg-type]
    print(f"missing: {missing}")
    tables.append({"title": "One slot more in a row", "rows": neighbours(lengths)})
    tables.append({"title": "Asking Ladle's plans for rows", "rows": lookups(lengths)})
    if args.large:
        tables.append({"title": "Ladle, best_fit, in fresh processes", "rows": large(10_000_000, args.rounds)})
    for table in tables[1:]:
        print(f"\n{table['title']}\n{results.plain(table['rows'])}")  # type: ignore[arg-type]
    if args.record:
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024
        print(f"recorded in {results.append(results.run('packing', tables, missing=missing, peak_MiB=peak))}")


if __name__ == "__main__":
    main()
