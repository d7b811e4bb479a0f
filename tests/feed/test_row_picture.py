"""A batch's rows drawn: documents where they begin, where they come from, and which tokens count."""

import json

import numpy as np
import pytest

import ladle
from ladle.errors import ConfigError
from ladle.feed.picture import columns_of
from ladle.feed.row_picture import RowPicture

TEXTS = ["In the heart of the city", "a你b", "so it goes"]


def split_of(texts=TEXTS, tokenizer="gpt2"):
    return ladle.from_text(texts, tokenizer=tokenizer, end_of_text=True)


def feed_of(source=None, **options):
    settings = {"batch_size": 2, "block_size": 6, "framework": "numpy", "prefetch": 0, "order": "sequential"} | options
    return ladle.Feed(split_of() if source is None else source, **settings)


def test_a_row_whole():
    feed = feed_of()
    feed.exclude([2], 0)
    assert str(RowPicture(feed, feed[0], row=1)) == (
        "position 0: 2 rows, 11 targets that count\n"
        "\n"
        "row 1 (slot 6 on): tokens 6 to 12, 5 of 6 targets count\n"
        "\n"
        "columns 0 to 0: document 0, from its token 6 on\n"
        "  tokens  <|endoftext|>\n"
        "          50256\n"
        "          -\n"
        "\n"
        "columns 1 to 5: document 1\n"
        "  tokens  a   <E4 BD>  <A0>  b   <|endoftext|>\n"
        "          64  19526    254   65  50256\n"
        "          ^   ^        ^     ^   ^\n"
        "\n"
        "columns 6 to 6: document 2\n"
        "  tokens  so\n"
        "          568\n"
        "          .\n"
        "\n"
        "^ a target that counts, . one that does not, - an input only\n"
        "<E4 BD> stands for bytes that are no whole character: the token holds a part of one"
    )


def test_all_rows_in_short():
    feed = feed_of(batch_size=3, window=6, block_size=3)
    assert str(RowPicture(feed, feed[0], limit=2)) == (
        "position 0: 3 rows, 9 targets that count\n"
        "\n"
        "row 0 (slot 0 on): tokens 0 to 3, 3 of 3 targets count\n"
        "  columns 0 to 3: document 0\n"
        "    In␣the␣heart␣of\n"
        "\n"
        "row 1 (slot 3 on): tokens 3 to 6, 3 of 3 targets count\n"
        "  columns 0 to 3: document 0, from its token 3 on\n"
        "    ␣of␣the␣city<|endoftext|>\n"
        "\n"
        "and 1 more row"
    )
    assert "more" not in str(RowPicture(feed, feed[0], limit=3))


def test_packed_rows_are_their_documents_and_padding_is_counted():
    feed = feed_of(batch_size=2, block_size=9, pack="sequential")
    assert str(RowPicture(feed, feed[0])) == (
        "position 0: 2 rows, 13 targets that count\n"
        "\n"
        "row 0 (slot 0 on): 1 document in 7 of 9 slots, 6 of 6 targets count\n"
        "  columns 0 to 6: document 0\n"
        "    In␣the␣heart␣of␣the␣city<|endoftext|>\n"
        "\n"
        "row 1 (slot 9 on): 2 documents in 9 of 9 slots, 7 of 8 targets count\n"
        "  columns 0 to 4: document 1\n"
        "    a<E4 BD><A0>b<|endoftext|>\n"
        "  columns 5 to 8: document 2\n"
        "    so␣it␣goes<|endoftext|>"
    )
    whole = str(RowPicture(feed, feed[0], row=1))
    assert "          568  340  2925   50256\n          .    ^    ^      ^\n" in whole
    cut = feed_of(block_size=4, pack="sequential")
    row = RowPicture(cut, cut[0], row=0).to_dict()["rows"][0]
    assert row["documents"][0]["columns"] == [0, 5]  # the label behind the last slot is its document's next token
    assert [token["counts"] for token in row["tokens"]] == [None, True, True, True, True]


def test_no_line_is_wider_than_the_page():
    text = " ".join(f"字{i} word" for i in range(400))
    feed = feed_of(split_of([text, text]), batch_size=4, block_size=200)
    for picture in (RowPicture(feed, feed[0], width=50), RowPicture(feed, feed[0], width=50, row=2)):
        lines = [line for line in str(picture).split("\n") if line.startswith("  ") and not line.startswith("  columns")]
        assert lines
        assert max(map(columns_of, lines)) <= 50


def test_the_masked_tail_and_the_part_before_a_position():
    feed = feed_of(batch_size=1)  # 15 targets in windows of 6: the last repeats three
    assert "row 0 (slot 12 on): tokens 9 to 15, 3 of 6 targets count" in str(RowPicture(feed, feed[2], row=0))
    assert "row 0 (slot 0 on): tokens 0 to 6, 2 of 6 targets count" in str(RowPicture(feed, feed.at(4), row=0))
    padded = feed_of(batch_size=1, tail="pad")
    told = RowPicture(padded, padded[2], row=0).to_dict()["rows"][0]
    assert (len(told["tokens"]), told["num_targets"], told["start"]) == (4, 3, 12)


def test_without_a_tokenizer_and_documents():
    feed = feed_of(ladle.from_ids(np.arange(30, dtype=np.uint16)))
    assert str(RowPicture(feed, feed[1], row=0)).split("\n")[4:7] == [
        "columns 0 to 6: the documents are not known",
        "  tokens  12  13  14  15  16  17  18",
        "          -   ^   ^   ^   ^   ^   ^",
    ]
    assert str(RowPicture(feed, feed[1], limit=1)).split("\n")[3:5] == [
        "  columns 0 to 6: the documents are not known",
        "    12 13 14 15 16 17 18",
    ]
    told = RowPicture(feed, feed[1], row=0).to_dict()["rows"][0]
    assert told["documents"] is None
    assert told["tokens"][:2] == [{"id": 12, "counts": None}, {"id": 13, "counts": True}]


def test_where_a_byte_stands(tmp_path):
    (tmp_path / "book.txt").write_text("It was a bright cold day in April")
    with ladle.prepare(tmp_path / "book.txt", tmp_path / "out", tokenizer="bytes", val_fraction=0, progress=False) as corpus:
        feed = feed_of(corpus["train"], batch_size=1, block_size=8)
        drawn = str(RowPicture(feed, feed[1], row=0))
        assert "columns 0 to 8: document 0 of book.txt (line 1, byte 0), from its token 8 (byte 8) on" in drawn


def test_a_mixture_names_the_source():
    feed = feed_of(ladle.Mixture({"web": split_of(), "code": split_of(["x = 1", "y = 2"])}), order="shuffled")
    drawn = [str(RowPicture(feed, feed[step])) for step in range(3)]
    assert all(": document " in one for one in drawn)
    assert any("columns 0 to 6: web: document 0" in one for one in drawn)


def test_as_json_values():
    feed = feed_of()
    told = RowPicture(feed, feed[0]).to_dict()
    assert json.loads(json.dumps(told)) == told
    assert (told["position"], told["num_targets"], [row["row"] for row in told["rows"]]) == (0, 12, [0, 1])
    row = told["rows"][1]
    assert (row["slot"], row["start"], row["num_targets"]) == (6, 6, 6)
    assert [document["columns"] for document in row["documents"]] == [[0, 1], [1, 6], [6, 7]]
    assert row["tokens"][2] == {"id": 19526, "counts": True, "text": None, "bytes": "e4 bd"}
    assert row["tokens"][0]["counts"] is None
    assert len(row["tokens"]) == 7


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"row": 2}, r"^row: expected less than 2, found 2$"),
        ({"row": -1}, r"^row: expected at least 0, found -1$"),
        ({"limit": 0}, r"^limit: expected at least 1, found 0$"),
    ],
)
def test_rows_that_are_not_there(options, message):
    feed = feed_of()
    with pytest.raises(ConfigError, match=message):
        RowPicture(feed, feed[0], **options)
