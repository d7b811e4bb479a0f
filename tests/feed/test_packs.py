"""Packed rows and documents kept apart, against every slot looked at by itself."""

import pickle

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import ladle
from ladle.errors import ConfigError, StateError

HOWS = [
    {"pack": "best_fit"},
    {"pack": "best_fit", "deal": "fresh"},
    {"pack": "sequential"},
    {"pack": "single"},
    {"pack": "best_fit", "overlong": "drop"},
    {"mask_documents": True},
]
LENGTHS = st.lists(st.integers(1, 40), min_size=1, max_size=30)


def split_of(lengths, first=0):
    """Documents of these lengths; a token's id is its place."""
    return ladle.from_ids(np.arange(first, first + sum(lengths), dtype=np.uint32), document_ends=np.cumsum(lengths))


def feed_of(lengths, **options):
    source = lengths if isinstance(lengths, ladle.Mixture) else split_of(lengths)
    return ladle.Feed(source, **{"batch_size": 3, "block_size": 8, "framework": "numpy", "prefetch": 0} | options)


@settings(max_examples=120, deadline=None)
@given(
    lengths=LENGTHS, T=st.integers(2, 16), B=st.integers(1, 5), seed=st.integers(0, 99), how=st.sampled_from(HOWS), data=st.data()
)
def test_every_slot_of_two_epochs(lengths, T, B, seed, how, data):
    """x, y, positions, segments, cu_seqlens, the counts, the audit, the report and steps_of, against a plain reference."""
    total = sum(lengths)
    ends = np.cumsum(lengths)
    document = np.repeat(np.arange(len(lengths)), lengths)
    kept = np.repeat([how.get("overlong") != "drop" or n <= T for n in lengths], lengths)
    if ("mask_documents" in how and total <= T) or not kept.any():
        return
    feed = feed_of(lengths, block_size=T, batch_size=B, seed=seed, epochs=2, **how)
    epoch_slots = feed.slots_per_epoch
    excluded, since = set(), 0
    if data.draw(st.booleans()):
        excluded = data.draw(st.sets(st.integers(0, len(lengths) - 1), min_size=1, max_size=3))
        since = data.draw(st.integers(0, 2 * epoch_slots - 1))
        feed.exclude(sorted(excluded), since)
    seen = np.zeros((2, total), dtype=int)
    trained = np.zeros((2, total), dtype=int)
    places = {}
    for batch in feed:
        assert np.count_nonzero(batch.y != -100) == batch.num_targets == batch.num_local_targets
        segments, positions = batch.segments, batch.positions
        assert batch.cu_seqlens[0] == 0
        assert (np.diff(batch.cu_seqlens) > 0).all()  # no empty segment
        assert batch.cu_seqlens[-1] == np.count_nonzero(segments >= 0)  # padding is in none
        assert batch.max_seqlen == np.diff(batch.cu_seqlens).max(initial=0)
        for row, column in np.ndindex(batch.x.shape):
            slot = batch.position // T * T + row * T + column
            token, label = int(batch.x[row, column]), int(batch.y[row, column])
            if segments[row, column] < 0:
                assert (token, label, positions[row, column]) == (0, -100, 0)
                continue
            assert positions[row, column] == token - (ends[document[token]] - lengths[document[token]])
            if column:
                before = int(batch.x[row, column - 1])
                assert segments[row, column] - segments[row, column - 1] == (document[token] != document[before])
            else:
                assert segments[row, column] == 0
            if slot >= 2 * epoch_slots:
                assert label == -100
                continue
            epoch = slot // epoch_slots
            seen[epoch, token] += 1
            if label != -100:
                assert label == token + 1
                assert document[label] == document[token]
                trained[epoch, label] += 1
                place = (epoch, int(document[label]), slot // T)
                places[place] = places.get(place, 0) + 1
            elif "pack" in how and token + 1 < total and document[token] == document[token + 1]:
                assert document[token] in excluded
                assert slot >= since
    if "pack" in how:
        assert (seen == kept).all()
    first_tokens = np.zeros(total, dtype=bool)
    first_tokens[ends - lengths] = True
    if not excluded:
        assert (trained == (kept & ~first_tokens)).all()

    certificate, told = feed.audit(), feed.report().sources[0]
    assert not certificate.num_faults, str(certificate)
    assert told.trained == trained.sum() == certificate.accounts[0].trained
    assert told.slots == 2 * epoch_slots
    assert told.slots == told.trained + told.masked + told.excluded + told.boundary + told.unlearned + told.padded
    if "pack" in how:
        assert certificate.exact == bool(kept.all())
    for number in data.draw(st.sets(st.integers(0, len(lengths) - 1), max_size=3)):
        for epoch in (0, 1):
            appearances = feed.steps_of(number, [epoch])
            assert {(epoch, number, one.position // T): one.targets for one in appearances if one.targets} == {
                place: count for place, count in places.items() if place[:2] == (epoch, number)
            }
            for one in appearances if "pack" in how else []:
                spans = feed.where(one.step, one.row)
                assert [span.columns for span in spans if span.origin.document == number] == [one.columns]


@settings(max_examples=60, deadline=None)
@given(lengths=LENGTHS, how=st.sampled_from(HOWS[:3]), sizes=st.lists(st.integers(1, 6), min_size=2, max_size=5), data=st.data())
def test_resumed_at_any_row_with_any_batch_size_and_ranks_the_rows_go_on(lengths, how, sizes, data):
    T, seed = 8, 3
    whole = feed_of(lengths, batch_size=1, seed=seed, **how)
    rows = [next(whole) for _ in range(sum(sizes))]
    state, done = feed_of(lengths, batch_size=1, seed=seed, **how).state_dict(), 0
    for size in sizes:
        world = data.draw(st.integers(1, size))
        parts = []
        for rank in range(world):
            feed = feed_of(lengths, batch_size=size, seed=seed, rank=rank, world_size=world, **how)
            feed.load_state_dict(state)
            parts.append(next(feed))
        assert {part.position for part in parts} == {done * T}
        assert {part.num_targets for part in parts} == {sum(part.num_local_targets for part in parts)}
        found = np.concatenate([part.x for part in parts]), np.concatenate([part.y for part in parts])
        for one, x, y in zip(rows[done : done + size], *found, strict=True):
            assert (one.x[0] == x).all()
            assert (one.y[0] == y).all()
        done += size
        state = parts[0].state


@settings(max_examples=40, deadline=None)
@given(lengths=LENGTHS, how=st.sampled_from(HOWS), position=st.integers(0, 400))
def test_a_position_inside_a_row_masks_what_lies_before_it(lengths, how, position):
    if sum(lengths) <= 8 or (how.get("overlong") and max(lengths) > 8):
        return
    feed = feed_of(lengths, batch_size=2, **how)
    aligned, batch = feed.at(position // 8 * 8), feed.at(position)
    assert (batch.x == aligned.x).all()
    assert (batch.y[0, : position % 8] == -100).all()
    assert (batch.y.reshape(-1)[position % 8 :] == aligned.y.reshape(-1)[position % 8 :]).all()
    assert batch.num_targets == np.count_nonzero(batch.y != -100)
    assert (batch.segments == aligned.segments).all()


def test_labels_do_not_cross_documents():
    """Two documents, 1 2 3 and 7 8, in one row of 5."""
    source = ladle.from_ids([1, 2, 3, 7, 8], document_ends=[3, 5])
    batch = ladle.Feed(source, batch_size=1, block_size=5, pack="best_fit", framework="numpy", prefetch=0).at(0)
    assert batch.x.tolist() == [[1, 2, 3, 7, 8]]
    assert batch.y.tolist() == [[2, 3, -100, 8, -100]]
    assert batch.positions.tolist() == [[0, 1, 2, 0, 1]]
    assert batch.segments.tolist() == [[0, 0, 0, 1, 1]]
    assert batch.cu_seqlens.tolist() == [0, 3, 5]
    assert batch.max_seqlen == 3
    assert batch.cu_seqlens.dtype == np.int32


def test_padding_is_known_by_its_place_and_not_by_its_id():
    """A document of zeros: the id that padding has as well."""
    source = ladle.from_ids([0, 0, 0, 0, 0, 0], document_ends=[6])
    batch = ladle.Feed(source, batch_size=1, block_size=8, pack="best_fit", framework="numpy", prefetch=0).at(0)
    assert batch.y.tolist() == [[0, 0, 0, 0, 0, -100, -100, -100]]
    assert batch.segments.tolist() == [[0] * 6 + [-1, -1]]
    assert batch.cu_seqlens.tolist() == [0, 6]
    assert batch.num_targets == 5


def test_a_separator_belongs_to_the_document_that_its_length_says():
    """a b SEP, c d SEP: the end-of-text id is the last token of each, whatever it is."""
    source = ladle.from_ids([5, 6, 0, 7, 8, 0], document_ends=[3, 6])
    batch = ladle.Feed(
        source, batch_size=1, block_size=6, pack="sequential", order="sequential", framework="numpy", prefetch=0
    ).at(0)
    assert batch.segments.tolist() == [[0, 0, 0, 1, 1, 1]]
    assert batch.y.tolist() == [[6, 0, -100, 8, 0, -100]]
    assert batch.cu_seqlens.tolist() == [0, 3, 6]  # no doubled end where a row ends with a separator


def test_a_row_that_begins_mid_document_goes_on_counting():
    feed = feed_of([20], block_size=8, batch_size=3, pack="sequential", order="sequential")
    batch = feed.at(0)
    assert batch.positions[:, 0].tolist() == [0, 8, 16]
    assert batch.positions[2].tolist() == [16, 17, 18, 19, 0, 0, 0, 0]
    assert batch.y[0, 7] == 8  # a cut loses no label
    windows = feed_of([20, 5], block_size=8, batch_size=3, mask_documents=True, order="sequential").at(0)
    assert windows.positions[:, 0].tolist() == [0, 8, 16]


def test_rows_that_the_ranks_do_not_divide_give_equal_steps():
    """11 rows, 4 ranks: a batch may span two epochs, and none is dropped."""
    feeds = [feed_of([8] * 11, batch_size=4, pack="best_fit", rank=rank, world_size=4, epochs=1) for rank in range(4)]
    batches = [list(feed) for feed in feeds]
    assert [len(mine) for mine in batches] == [3] * 4
    assert sum(batch.num_local_targets for mine in batches for batch in mine) == 11 * 7
    assert batches[3][2].num_local_targets == 0  # the twelfth row belongs to the next epoch: it counts for nothing


def test_a_mixture_of_packs_keeps_its_shares_and_its_sources_apart():
    a, b = split_of([5, 9, 14, 3, 8, 2] * 4), split_of([7, 7, 20, 1] * 3, first=100_000)
    mixture = ladle.Mixture({"a": a, "b": b}, {"a": 3, "b": 1})
    feed = feed_of(mixture, block_size=16, pack="best_fit", total_tokens=16 * 120)
    from_b = 0
    for batch in feed:
        for row, segments in zip(batch.x, batch.segments, strict=True):
            real = row[segments >= 0]
            assert (real >= 100_000).all() or (real < 100_000).all()
            from_b += int(real[0] >= 100_000)
    assert from_b == 30
    certificate = feed.audit()
    assert certificate.exact
    assert [one.source for one in certificate.accounts] == ["a", "b"]
    for one, told in zip(certificate.accounts, feed.report().sources, strict=True):
        assert one.trained == told.trained
    for one in feed.steps_of(("b", 2), range(2)):
        assert any(
            span.corpus == "b" and span.origin.document == 2 and span.columns == one.columns
            for span in feed.where(one.step, one.row)
        )


def test_shuffle_block_keeps_neighbouring_rows_together():
    feed = feed_of([8] * 64, batch_size=8, pack="sequential", shuffle_block=8)
    rows = feed.at(0).x[:, 0] // 8
    assert np.ptp(rows) == 7
    assert feed.audit().exact


def test_a_batch_travels_with_its_boundaries():
    batch = feed_of([3, 9, 4, 5], pack="best_fit", framework="torch").at(0)
    again = pickle.loads(pickle.dumps(batch))
    for name in ("x", "y", "positions", "segments", "cu_seqlens"):
        assert (getattr(again, name) == getattr(batch, name)).all()
        assert getattr(again, name).device == batch.x.device
    assert (again.max_seqlen, again.num_targets, again.num_local_targets) == (
        batch.max_seqlen,
        batch.num_targets,
        batch.num_local_targets,
    )
    assert again.digest == batch.digest


def test_plain_windows_say_what_they_lack():
    batch = feed_of([9, 9]).at(0)
    for name in ("positions", "segments", "cu_seqlens", "max_seqlen"):
        with pytest.raises(ConfigError, match="found plain windows; make the feed with mask_documents=True, or with pack="):
            getattr(batch, name)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"pack": "best"}, "pack: expected one of best_fit, sequential, single, found 'best'"),
        (
            {"pack": "best_fit", "stride": 4},
            "stride: expected None with pack='best_fit', found 4: a packed row is whole documents",
        ),
        ({"pack": "best_fit", "tail": "drop"}, "tail: expected 'cover' with pack='best_fit', found 'drop'"),
        (
            {"pack": "best_fit", "order": "random"},
            "order: expected 'shuffled' or 'sequential' with pack='best_fit', found 'random'",
        ),
        ({"pack": "best_fit", "mask_documents": True}, "mask_documents: expected False with pack='best_fit', found True"),
        ({"pack": "best_fit", "window": 16}, r"window: expected block_size \(8\) with pack='best_fit', found 16"),
        ({"overlong": "drop"}, "overlong: expected 'split' without pack=, found 'drop'"),
        ({"deal": "fresh"}, "deal: expected 'fixed' without pack=, found 'fresh'"),
        ({"pack_cache": "x"}, "pack_cache: expected None without pack=, found 'x'"),
        ({"mask_documents": 1}, "mask_documents: expected True or False, found 1"),
        ({"loss_mask": True}, "loss_mask: expected a corpus that was prepared with one, found none in memory"),
        ({"pack": "best_fit", "block_size": 1}, "block_size: expected 2 to 16777216"),
        ({"pack": "best_fit", "overlong": "error"}, r"memory: document 2: expected at most 8 tokens .*found 9 \(from token 9\)"),
    ],
)
def test_what_does_not_go_with_packs_is_one_error(options, message):
    with pytest.raises(ConfigError, match=message):
        feed_of([8, 1, 9], **options)


@pytest.mark.parametrize("options", [{"pack": "best_fit"}, {"mask_documents": True}])
def test_a_split_without_documents_is_refused(options):
    source = ladle.from_ids(np.arange(100, dtype=np.uint16))
    with pytest.raises(ConfigError, match="the documents' ends are not known here"):
        ladle.Feed(source, batch_size=2, block_size=8, framework="numpy", prefetch=0, **options)


def test_a_state_of_another_packing_is_refused():
    lengths = [5, 9, 14, 3]
    state = feed_of(lengths, pack="best_fit").state_dict()
    for other in ({}, {"pack": "sequential"}, {"pack": "best_fit", "deal": "fresh"}, {"pack": "best_fit", "overlong": "drop"}):
        with pytest.raises(StateError, match="state: recipe: expected"):
            feed_of(lengths, **other).load_state_dict(state)
    feed_of(lengths, pack="best_fit", batch_size=7).load_state_dict(state)


def test_tokens_outside_the_vocabulary_are_named_in_packs_too():
    from ladle.errors import TokenError

    ids = np.array([1, 2, 3, 4, 99, 5], dtype=np.uint16)
    split = ladle.from_ids(ids, document_ends=[4, 6])
    split.vocab_size, split.max_id = 50, None
    feed = ladle.Feed(split, batch_size=1, block_size=4, pack="best_fit", order="sequential", framework="numpy", prefetch=0)
    with pytest.raises(TokenError, match="byte 8: id: expected less than the vocabulary's 50, found 99"):
        _ = [next(feed) for _ in range(2)]
