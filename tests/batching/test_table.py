"""Tables: files listed in a column, or rows of numbers; lazy, small in memory, and exact about what is wrong."""

import csv
import multiprocessing
import os
import pickle
from pathlib import Path

import numpy as np
import pytest
import torch

from ladle.batching import Table, loader
from ladle.errors import ConfigError, FormatError

pa = pytest.importorskip("pyarrow", reason="not installed: pip install pyarrow")
pd = pytest.importorskip("pandas", reason="not installed: pip install pandas")


def write_csv(path, header, rows, delimiter=","):
    with open(path, "w", encoding="utf-8", newline="") as file:
        csv.writer(file, delimiter=delimiter).writerows([header, *rows])
    return path


def write_parquet(path, columns, row_group_size=None):
    import pyarrow.parquet as pq

    pq.write_table(pa.table(columns), path, row_group_size=row_group_size)
    return path


@pytest.fixture
def listing(tmp_path):
    """Six .npy files in a table of paths and words."""
    rows = []
    for number in range(6):
        np.save(tmp_path / f"{number}.npy", np.full((2, 3), number, dtype=np.float64))
        rows.append((f"{number}.npy", "cat" if number % 2 else "ant"))
    return write_csv(tmp_path / "list.csv", ["file", "animal"], rows)


def test_files_are_read_when_they_are_asked_for(listing, tmp_path):
    data = Table(listing, path="file", label="animal")
    (tmp_path / "0.npy").unlink()
    assert len(data) == 6
    assert data.classes == ["ant", "cat"]
    assert data.labels.tolist() == [0, 1, 0, 1, 0, 1]
    sample, label = data[3]
    assert sample.dtype == torch.float32
    assert sample.tolist() == [[3.0] * 3] * 2
    assert label == 1
    assert data[-1][0][0, 0] == 5
    with pytest.raises(IndexError, match="index: expected -6 to 5, found 6"):
        data[6]
    assert data.describe(2) == str(tmp_path / "2.npy")


@pytest.mark.parametrize("kind", ["csv", "tsv", "parquet", "frame"])
def test_every_kind_of_table_lists_the_same(kind, tmp_path):
    rows = [("a.npy", 3, 0.5, "x"), ('b,"c".npy', 4, 1.5, "ä"), ("d\ne.npy", -5, 2.5, "x")]
    header = ["file", "count", "size", "word"]
    columns = {name: [row[i] for row in rows] for i, name in enumerate(header)}
    if kind == "frame":
        source = pd.DataFrame(columns)
    elif kind == "parquet":
        source = write_parquet(tmp_path / "t.parquet", columns)
    else:
        source = write_csv(tmp_path / f"t.{kind}", header, rows, delimiter="\t" if kind == "tsv" else ",")
    listed = Table(source, path="file", label="word", root=tmp_path)
    assert [listed.describe(i) for i in range(3)] == [os.path.join(tmp_path, row[0]) for row in rows]
    assert listed.labels.tolist() == [0, 1, 0]
    assert listed.classes == ["x", "ä"]
    numbers = Table(source, features=["count", "size"], label="count")
    assert numbers[2][0].tolist() == [-5.0, 2.5]
    assert numbers[2][0].dtype == torch.float32
    assert numbers.labels.tolist() == [3, 4, -5]
    assert numbers.classes is None
    sizes = Table(source, features=["count"], label="size")
    assert sizes[1][1].dtype == torch.float32
    assert float(sizes[1][1]) == 1.5


def test_a_byte_order_mark_and_windows_lines_are_no_part_of_a_name(tmp_path):
    (tmp_path / "t.csv").write_bytes("\ufefffile,y\r\na.npy,1\r\n\r\nb.npy,2\r\n".encode())
    data = Table(tmp_path / "t.csv", path="file", label="y")
    assert len(data) == 2
    assert data.labels.tolist() == [1, 2]


WRONG = {
    "an empty file": ("", "header: expected the columns' names, found an empty file"),
    "a header alone": ("file,y\n", "expected at least one row, found none"),
    "another delimiter": ("file;y\na;1\n", r"header: expected names separated by ',', found file;y; pass delimiter=';'"),
    "a name twice": ("file,y,y\na,1,2\n", "header: expected different names, found 'y' more than once"),
    "a field too few": ("file,y\na,1\nb\n", "line 3: expected 2 fields, found 1"),
    "a quote left open": ('file,y\n"a,1\n', "line 2: expected a row of CSV, found unexpected end of data"),
    "a label left out": ("file,y\na,x\nb,\n", "column 'y': row 1: expected a label, found an empty one"),
    "bytes that are no text": (b"file,y\na\xff,1\n", "text: expected UTF-8"),
}


@pytest.mark.parametrize("what", WRONG)
def test_what_is_wrong_with_a_table_is_named(what, tmp_path):
    content, message = WRONG[what]
    (tmp_path / "t.csv").write_bytes(content if isinstance(content, bytes) else content.encode())
    with pytest.raises((ConfigError, FormatError), match=message) as caught:
        Table(tmp_path / "t.csv", path="file", label="y")
    assert str(tmp_path / "t.csv") in str(caught.value)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"path": "image"}, "column: expected one of file, animal, found 'image'"),
        ({"path": "file", "label": "class"}, "column: expected one of file, animal, found 'class'"),
        ({}, "expected path= .* or features="),
        ({"path": "file", "features": ["animal"]}, "expected path= .* or features="),
        ({"features": ["animal"]}, "line 2, column 'animal': expected a number, found 'ant'"),
        ({"features": []}, "features: expected a list of at least one column, found"),
        ({"path": "file", "on_error": "ignore"}, "on_error: expected 'stop' or 'skip', found 'ignore'"),
        ({"path": "file", "load": "image"}, "load: expected 'auto', or a function of a path, found 'image'"),
    ],
)
def test_what_is_asked_of_a_table_wrongly_is_named(listing, options, message):
    with pytest.raises((ConfigError, FormatError), match=message):
        Table(listing, **options)


def test_no_table_at_all_is_named(tmp_path):
    with pytest.raises(ConfigError, match="table: expected a file, found none at"):
        Table(tmp_path / "nowhere.csv", path="file")
    with pytest.raises(ConfigError, match=r"table: expected a path .* or a DataFrame, found list"):
        Table([1, 2], path="file")
    (tmp_path / "t.parquet").write_text("not that")
    with pytest.raises(FormatError, match="file: expected a Parquet file"):
        Table(tmp_path / "t.parquet", path="file")


def test_missing_numbers_are_refused_or_filled(tmp_path):
    path = write_csv(tmp_path / "t.csv", ["a", "b", "y"], [(1, 2, 0), (3, "", 1)])
    with pytest.raises(ConfigError, match="row 1, column 'b': expected a number, found none; pass fill="):
        Table(path, features=["a", "b"])
    assert Table(path, features=["a", "b"], fill=-1)[1].tolist() == [3.0, -1.0]
    frame = pd.DataFrame({"a": [1.0, None], "y": [0.0, None]})
    with pytest.raises(ConfigError, match="row 1: expected a label, found none"):
        Table(frame, features=["a"], fill=0, label="y")


def test_a_file_that_cannot_be_loaded_names_its_row_and_its_path(listing, tmp_path):
    (tmp_path / "4.npy").write_bytes(b"not an array")
    (tmp_path / "5.npy").unlink()
    data = Table(listing, path="file", label="animal")
    with pytest.raises(FormatError, match=r"4\.npy: row 4 of .*list\.csv: expected a file that can be loaded, found FormatError"):
        data[4]
    with pytest.raises(FormatError, match=r"5\.npy: row 5 of .*found FileNotFoundError"):
        data[5]
    with pytest.raises(FormatError, match="row 4"):
        list(loader(data, batch_size=2, workers=1, verbose=False))


@pytest.mark.parametrize("workers", [0, 2])
def test_files_may_be_skipped_and_are_counted_in_all_processes(listing, tmp_path, workers):
    (tmp_path / "1.npy").write_bytes(b"")
    (tmp_path / "2.npy").unlink()
    data = Table(listing, path="file", label="animal", on_error="skip")
    with loader(data, batch_size=3, workers=workers, verbose=False) as batches:
        for _ in range(2):  # a file that is missing in every epoch is one file
            assert [x[:, 0, 0].tolist() for x, _ in batches] == [[0.0], [3.0, 4.0, 5.0]]
    assert data.skipped == 2


def test_a_batch_of_nothing_but_broken_files_is_an_error(listing, tmp_path):
    for number in (0, 1):
        (tmp_path / f"{number}.npy").unlink()
    data = Table(listing, path="file", on_error="skip")
    with pytest.raises(ConfigError, match="expected one that can be loaded, found none in a batch"):
        list(loader(data, batch_size=2, workers=0, verbose=False))


def test_a_table_larger_than_its_limit_is_read_by_row_group(tmp_path):
    rng = np.random.default_rng(1)
    columns = {"a": rng.random(1000), "b": rng.random(1000).astype(np.float32), "y": np.arange(1000) % 3}
    path = write_parquet(tmp_path / "t.parquet", columns, row_group_size=128)
    whole = Table(path, features=["a", "b"], label="y")
    parts = Table(path, features=["a", "b"], label="y", memory_limit=4000)
    assert whole.in_memory
    assert not parts.in_memory
    order = rng.permutation(1000).tolist()
    assert all(torch.equal(parts[i][0], whole[i][0]) for i in order)
    assert len(parts._rows._groups) == 2  # of eight
    again = pickle.loads(pickle.dumps(parts))
    assert torch.equal(again[777][0], whole[777][0])
    write_csv(tmp_path / "t.csv", ["a"], [(1,)] * 1000)
    with pytest.raises(ConfigError, match="CSV cannot be read in parts: convert it to Parquet, or raise memory_limit"):
        Table(tmp_path / "t.csv", features=["a"], memory_limit=100)


def test_what_is_given_out_is_one_s_own(tmp_path):
    data = Table(write_csv(tmp_path / "t.csv", ["a"], [(1,), (2,)]), features=["a"])
    data[0].zero_()
    assert data[0].tolist() == [1.0]


def _private(pid):
    """Bytes of a process's pages that no other shares."""
    text = Path(f"/proc/{pid}/smaps_rollup").read_text()
    return sum(int(line.split()[1]) for line in text.splitlines() if line.startswith(("Private_Dirty", "Private_Clean"))) * 1024


def _walk(data, ready, go, grown):
    ready.put(None)
    go.wait()
    before = _private(os.getpid())
    for i in range(0, len(data), 7):
        data.describe(i)
    grown.put(_private(os.getpid()) - before)


@pytest.mark.slow
def test_forked_workers_share_the_listing_of_a_million_rows():
    names = [f"images/class-{i % 1000:04}/{i:07}.jpeg" for i in range(1_000_000)]
    data = Table(pd.DataFrame({"file": names, "y": np.arange(1_000_000) % 1000}), path="file", label="y")
    del names
    context = multiprocessing.get_context("fork")
    ready, grown, go = context.Queue(), context.Queue(), context.Event()
    workers = [context.Process(target=_walk, args=(data, ready, go, grown)) for _ in range(4)]
    for worker in workers:
        worker.start()
    for _ in workers:
        ready.get(timeout=60)
    go.set()
    found = [grown.get(timeout=60) for _ in workers]
    for worker in workers:
        worker.join()
    assert max(found) < 20e6
