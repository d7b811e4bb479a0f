"""Tables: files listed in a column, or rows of numbers; lazy, small in memory, and exact about what is wrong."""

import csv
import multiprocessing
import os
import pickle
from pathlib import Path

import numpy as np
import pytest
import torch

from ladle.batching import Table, drop_missing, loader, pad
from ladle.errors import ConfigError, FormatError, MissingExtra

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


# --- labels ---


def labelled(values, **options):
    data = Table(pd.DataFrame({"x": np.arange(len(values)), "y": values}), features=["x"], label="y", **options)
    return data.labels.tolist(), data.labels.dtype.name, data.classes


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        (pd.array([10, 9], dtype="Int64"), ([10, 9], "int64", None)),
        (np.array([True, False]), ([1, 0], "int64", None)),
        (np.array([1.0, 3.0]), ([1.0, 3.0], "float32", None)),  # floats stay floats, whatever their values
        (pd.Categorical(["b", "a"]), ([1, 0], "int64", ["a", "b"])),
        (["1", "2", "x"], ([0, 1, 2], "int64", ["1", "2", "x"])),
        ([b"ab", b"a"], ([1, 0], "int64", ["a", "ab"])),
        (pd.to_datetime(["2020-01-02", "2020-01-01"]), ([1, 0], "int64", ["2020-01-01", "2020-01-02"])),
    ],
)
def test_labels_follow_the_column_s_kind(values, expected):
    found, dtype, classes = labelled(values)
    assert (found, dtype) == expected[:2]
    assert classes == expected[2] or [one[:10] for one in classes] == expected[2]


@pytest.mark.parametrize(
    "values",
    [
        ["a", None],
        ["a", float("nan")],
        ["a", ""],
        ["a", "nan"],
        pd.Categorical(["a", None]),
        pd.array([1, None], dtype="Int64"),
        pd.array(["a", None], dtype="string"),
        [1.5, float("nan")],
        [1.5, float("inf")],
        pd.to_datetime(["2020-01-01", None]),
    ],
)
def test_a_missing_label_is_no_class(values):
    with pytest.raises(ConfigError, match="this DataFrame, column 'y': row 1: expected a label, found"):
        labelled(values)


def test_words_with_an_underscore_are_no_numbers(tmp_path):
    path = write_csv(tmp_path / "t.csv", ["x", "y"], [("1", "1_0"), ("2", "1_1")])
    assert Table(path, features=["x"], label="y").classes == ["1_0", "1_1"]
    with pytest.raises(FormatError, match="line 2, column 'y': expected a number, found '1_0'"):
        Table(path, features=["y"])


def test_a_validation_table_numbers_its_classes_as_the_training_table_does(tmp_path):
    train = Table(write_csv(tmp_path / "t.csv", ["x", "y"], [(1, "3"), (2, "1"), (3, "x")]), features=["x"], label="y")
    assert train.classes == ["1", "3", "x"]
    val = write_csv(tmp_path / "v.csv", ["x", "y"], [(1, "3"), (2, "1")])
    assert Table(val, features=["x"], label="y").classes is None  # all of them happen to be numbers
    again = Table(val, features=["x"], label="y", classes=train.classes)
    assert (again.classes, again.labels.tolist()) == (["1", "3", "x"], [1, 0])
    frame = pd.DataFrame({"x": [1.0], "y": [3]})
    assert Table(frame, features=["x"], label="y", classes=train.classes).labels.tolist() == [1]
    with pytest.raises(ConfigError, match="row 1: expected one of the 2 classes given, found '1'"):
        Table(val, features=["x"], label="y", classes=["3", "x"])
    for wrong in ("cat", [], ["a", "a"], [1, 2]):
        with pytest.raises(ConfigError, match="classes: expected different words"):
            Table(val, features=["x"], label="y", classes=wrong)
    with pytest.raises(ConfigError, match="classes: expected label= with it"):
        Table(val, features=["x"], classes=["a"])


# --- numbers ---


@pytest.mark.parametrize("kind", ["csv", "parquet", "frame"])
@pytest.mark.parametrize("value", [float("inf"), 1e300, -1e39])
def test_a_number_that_float32_does_not_hold_is_named(kind, value, tmp_path):
    columns = {"a": [1.0, 2.0], "b": [1.0, value]}
    if kind == "csv":
        source = write_csv(tmp_path / "t.csv", ["a", "b"], [(1, 1), (2, value)])
    else:
        source = write_parquet(tmp_path / "t.parquet", columns) if kind == "parquet" else pd.DataFrame(columns)
    with pytest.raises(ConfigError, match="row 1, column 'b': expected a number, found an infinite one, or one too large"):
        Table(source, features=["a", "b"], fill=0)


def test_columns_of_every_numeric_kind_are_numbers(tmp_path):
    from decimal import Decimal

    columns = {"i": [1, 2], "b": [True, False], "d": [Decimal("1.5"), Decimal("2.5")], "f": [0.5, 1.5]}
    frame = pd.DataFrame({**columns, "i": pd.array([1, 2], dtype="Int64")})
    for source in (frame, write_parquet(tmp_path / "t.parquet", columns), pa.table(columns)):
        assert Table(source, features=["i", "b", "d", "f"])[1].tolist() == [2.0, 0.0, 2.5, 1.5]
    missing = {"b": [True, None], "n": [None, None]}
    for source in (pd.DataFrame(missing), write_parquet(tmp_path / "m.parquet", missing)):
        assert Table(source, features=["b", "n"], fill=7)[1].tolist() == [7.0, 7.0]
    with pytest.raises(ConfigError, match="row 1, column 'w': expected a number, found 'q'; make the column numeric"):
        Table(pd.DataFrame({"w": [1, "q"]}), features=["w"])
    with pytest.raises(ConfigError, match="row 0, column 'w': expected a number, found '1'; make the column numeric"):
        Table(pd.DataFrame({"w": ["1", "2"]}), features=["w"])
    with pytest.raises(FormatError, match="column 'w': expected numbers, found list"):
        Table(write_parquet(tmp_path / "l.parquet", {"w": [[1], [2]]}), features=["w"])


@pytest.mark.parametrize("memory_limit", [None, 1000])
def test_rows_are_the_same_one_by_one_and_many_at_once(memory_limit, tmp_path):
    rng = np.random.default_rng(5)
    path = write_parquet(tmp_path / "t.parquet", {"a": rng.random(500), "y": np.arange(500)}, row_group_size=64)
    data = Table(path, features=["a"], label="y", memory_limit=memory_limit)
    wanted = [499, -1, 3, 250, 3]
    assert [(x.tolist(), y) for x, y in data.__getitems__(wanted)] == [(x.tolist(), y) for x, y in (data[i] for i in wanted)]
    with pytest.raises(IndexError, match="found 500"):
        data.__getitems__([0, 500])
    doubled = Table(path, features=["a"], transform=lambda row: row * 2, memory_limit=memory_limit)
    assert torch.equal(doubled.__getitems__([7])[0], data[7][0] * 2)


def test_a_batch_reads_each_of_its_row_groups_once(tmp_path, monkeypatch):
    path = write_parquet(tmp_path / "t.parquet", {"a": np.arange(1000.0)}, row_group_size=100)
    data = Table(path, features=["a"], memory_limit=1000)
    read, group = [], type(data._rows._file).group
    monkeypatch.setattr(
        type(data._rows._file), "group", lambda self, number, *rest: read.append(number) or group(self, number, *rest)
    )
    wanted = [i * 37 % 1000 for i in range(64)]
    assert [row.item() for row in data.__getitems__(wanted)] == wanted
    assert read == list(range(10))


@pytest.mark.parametrize("workers", [0, 2])
def test_row_groups_are_read_in_workers_too(workers, tmp_path):
    path = write_parquet(tmp_path / "t.parquet", {"a": np.arange(200.0), "y": np.arange(200)}, row_group_size=16)
    data = Table(path, features=["a"], label="y", memory_limit=100)
    data[0]  # the parent has used Arrow's threads before it forks
    with loader(data, batch_size=25, shuffle=True, workers=workers, verbose=False) as batches:
        seen = [(a.item(), int(y)) for x, ys in batches for a, y in zip(x, ys, strict=True)]
    assert sorted(seen) == [(float(i), i) for i in range(200)]


def test_a_table_says_what_it_holds(listing, tmp_path):
    path = write_parquet(tmp_path / "t.parquet", {"a": np.arange(1000.0), "b": np.arange(1000.0)}, row_group_size=128)
    assert str(Table(path, features=["a", "b"])) == f"{path}: 1,000 rows; 2 numeric columns, 8,000 bytes as float32, in memory"
    assert "more than 4,000, so read by row group, of 128 rows (1,024 bytes) at most" in str(
        Table(path, features=["a", "b"], memory_limit=4000)
    )
    assert str(Table(listing, path="file")) == f"{listing}: 6 rows; files below {tmp_path}, read when they are asked for"


def test_a_fingerprint_is_of_the_contents(tmp_path):
    def of(rows, **options):
        return Table(write_csv(tmp_path / "t.csv", ["x", "y"], rows), **options).fingerprint

    assert of([(1, 2), (3, 4)], features=["x"]) == of([(1, 9), (3, 9)], features=["x"])
    assert of([(1, 2), (3, 4)], features=["x"]) != of([(1, 2), (5, 4)], features=["x"])
    assert of([(1, 2), (3, 4)], features=["x"]) != of([(1, 2), (3, 4)], features=["x"], label="y")
    assert of([(1, 2)], path="x") != of([(3, 2)], path="x")
    parts = [
        Table(write_parquet(tmp_path / "t.parquet", {"a": np.arange(100.0) + i}), features=["a"], memory_limit=1).fingerprint
        for i in range(2)
    ]
    assert parts[0] != parts[1]


# --- files ---


@pytest.mark.parametrize("missing", ["", None, float("nan")])
def test_a_row_without_a_path_is_named_or_skipped(missing, tmp_path):
    np.save(tmp_path / "a.npy", np.zeros(2))
    frame = pd.DataFrame({"file": ["a.npy", missing]})
    with pytest.raises(ConfigError, match="this DataFrame: row 1, column 'file': expected a file's path, found an empty one"):
        Table(frame, path="file", root=tmp_path)
    data = Table(frame, path="file", root=tmp_path, on_error="skip", load=np.load)
    assert data[1] is None
    assert data.skipped_rows == [1]


def test_what_is_no_file_s_fault_is_never_skipped(tmp_path):
    def too_many(path):
        raise OSError(24, "Too many open files")

    def no_extra(path):
        raise MissingExtra("images", "PIL", "images")

    source = write_csv(tmp_path / "t.csv", ["file"], [("a.wav",)])
    for load, error, message in (
        ("auto", ConfigError, r"load: expected \.npy, an image or \.txt"),
        (no_extra, MissingExtra, "pip install 'ladle\\[images\\]'"),
        (too_many, FormatError, "row 0 of .*Too many open files"),
    ):
        with pytest.raises(error, match=message):
            Table(source, path="file", load=load, on_error="skip")[0]


def test_torch_s_own_loader_can_skip_too(listing, tmp_path):
    (tmp_path / "1.npy").unlink()
    data = Table(listing, path="file", label="animal", on_error="skip")
    collate = lambda samples: torch.utils.data.default_collate(drop_missing(samples))  # noqa: E731
    batches = list(torch.utils.data.DataLoader(data, batch_size=3, collate_fn=collate))
    assert [x[:, 0, 0].tolist() for x, _ in batches] == [[0.0, 2.0], [3.0, 4.0, 5.0]]
    with pytest.raises(ConfigError, match="batch: expected a sample that can be loaded, found none among 2"):
        drop_missing([None, None])


def test_a_part_of_a_dataset_skips_as_the_whole_does(listing, tmp_path):
    (tmp_path / "1.npy").unlink()
    data = Table(listing, path="file", on_error="skip")
    part = torch.utils.data.ConcatDataset([torch.utils.data.Subset(data, [0, 1, 2])])
    (batch,) = loader(part, batch_size=3, workers=0, verbose=False)
    assert batch[:, 0, 0].tolist() == [0.0, 2.0]
    assert data.skipped == 1


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (
            b"file,y\n" + b"aaaaaaaa,1\n" * 3000 + b"\xff,2\n",
            "@ byte 33007: text: expected UTF-8, found the byte 0xff; save the table as",
        ),
        ("file,y\na,1\n".encode("utf-16"), "@ byte 0: text: expected UTF-8, found the byte 0xff"),
        (b"file,y\na," + b"z" * 200_000 + b"\n", r"line 2: .*field limit \(131072\); csv.field_size_limit\(\) raises it"),
        (b"file, y\na,1\n", "column: expected one of file, ' y', found 'y'"),
    ],
)
def test_more_that_is_wrong_with_a_table_is_named(content, message, tmp_path):
    (tmp_path / "t.csv").write_bytes(content)
    with pytest.raises((ConfigError, FormatError), match=message):
        Table(tmp_path / "t.csv", path="file", label="y")


def test_names_may_be_blank_where_they_are_not_asked_for(tmp_path):
    (tmp_path / "t.csv").write_text("file,y,,\na.npy,1,,\n")
    assert len(Table(tmp_path / "t.csv", path="file", label="y")) == 1
    for wrong in (";;", "", "\n", None):
        with pytest.raises(ConfigError, match="delimiter: expected one character"):
            Table(tmp_path / "t.csv", path="file", delimiter=wrong)


def test_columns_of_a_frame_are_told_apart():
    with pytest.raises(ConfigError, match="columns: expected different names, found 'x' more than once"):
        Table(pd.DataFrame([[1, 2]], columns=["x", "x"]), features=["x"])
    assert Table(pd.DataFrame([[1, 2]]), features=["1"])[0].tolist() == [2.0]  # columns that have numbers for names


def test_a_damaged_parquet_file_is_named(tmp_path):
    path = write_parquet(tmp_path / "t.parquet", {"x": [f"word {i}" for i in range(20_000)]})
    content = bytearray(path.read_bytes())
    content[1000:3000] = np.random.default_rng(0).bytes(2000)
    path.write_bytes(content)
    with pytest.raises(FormatError, match=r"t\.parquet: file: expected a Parquet file, found"):
        Table(path, path="x")
    path.write_bytes(bytes(content[:-50]))
    with pytest.raises(FormatError, match=r"t\.parquet: file: expected a Parquet file, found"):
        Table(path, path="x")


def test_a_file_left_out_has_no_length_to_be_checked(tmp_path):
    for number in range(4):
        np.save(tmp_path / f"{number}.npy", np.ones(number + 1))
    (tmp_path / "2.npy").unlink()
    source = write_csv(tmp_path / "t.csv", ["file"], [(f"{number}.npy",) for number in range(4)])
    data = Table(source, path="file", on_error="skip")
    with loader(data, batch_size=4, lengths=[1, 2, 3, 4], collate=pad(0), workers=0, verbose=False) as batches:
        (batch,) = batches
    assert sorted(batch.lengths.tolist()) == [1, 2, 4]
