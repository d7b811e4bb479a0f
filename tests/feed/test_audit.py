"""The audit against batches that are counted one target at a time, and against plans that are broken on purpose."""

import io
import json
import re
import tracemalloc
from collections import Counter

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import ladle
from ladle.corpus import progress
from ladle.errors import ConfigError
from ladle.feed import audit, ledger, times
from ladle.order import orders, stream

N = 101


def split_of(count=N, first=0):
    edges = [edge for edge in (7, 20, 64) if edge < count]
    return ladle.from_ids(np.arange(first, first + count, dtype=np.uint32), document_ends=[*edges, count])


def feed_of(source=None, **options):
    settings = {"batch_size": 3, "block_size": 4, "framework": "numpy", "prefetch": 0, "seed": 5} | options
    return ladle.Feed(split_of() if source is None else source, **settings)


def counted(feed, slots, first=0, count=N):
    """(times that each target is trained, slots looked at), target by target, from the batches themselves."""
    trained = Counter()
    looked = 0
    step = 0
    while looked < slots:
        batch = feed[step]
        for row in batch.y:
            for label in row[: max(slots - looked, 0)]:
                if label != -100 and first <= label < first + count:
                    trained[int(label) - 1 - first] += 1
            looked += row.size
        step += 1
    return trained


@settings(max_examples=120, deadline=None)
@given(
    count=st.integers(2, 90),
    block=st.integers(1, 6),
    per_window=st.integers(1, 3),
    tail=st.sampled_from(["cover", "drop", "pad"]),
    offset=st.booleans(),
    shuffle_block=st.sampled_from([None, 2, 3]),
    epochs=st.integers(1, 3),
    excluded=st.lists(st.tuples(st.integers(0, 3), st.integers(0, 200)), max_size=2, unique_by=lambda one: one[0]),
    at_once=st.sampled_from([1, 5, 2**14]),
)
def test_the_counts_are_those_of_the_batches(count, block, per_window, tail, offset, shuffle_block, epochs, excluded, at_once):
    try:
        feed = feed_of(
            split_of(count),
            block_size=block,
            window=block * per_window,
            tail=tail,
            epoch_offset=offset and tail != "pad",
            shuffle_block=shuffle_block,
        )
    except ConfigError:  # too short for this window
        return
    plain = feed.audit(epochs=epochs).accounts[0]
    known = feed.source.num_documents
    for document, position in excluded:
        if document < known:
            feed.exclude([document], position)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(audit, "AT_ONCE", at_once)
        certificate = feed.audit(epochs=epochs)
    (account,) = certificate.accounts
    slots = epochs * feed.slots_per_epoch
    trained = counted(feed, slots, count=count)
    M = count - 1
    dropped = M - sum(account.times.get(k, 0) for k in account.times if k)
    assert certificate.faults == ()
    assert (account.epochs, account.slots, account.trained) == (epochs, slots, trained.total())
    assert account.excluded == plain.trained - trained.total()
    assert account.slots == account.trained + account.masked + account.padded
    assert epochs * count == account.trained + account.excluded + epochs + epochs * dropped
    assert certificate.exact is (tail != "drop" or not dropped)
    if tail == "pad":
        assert account.padded == epochs * (-M % feed.recipe.window)
        assert account.masked == account.excluded
    else:
        assert account.padded == 0


@settings(max_examples=60, deadline=None)
@given(
    count=st.integers(8, 80),
    window=st.integers(2, 7),
    stride=st.integers(1, 6),
    score=st.sampled_from(["all", "new"]),
    tail=st.sampled_from(["cover", "drop"]),
    at_once=st.sampled_from([1, 3, 2**21]),
)
def test_overlaps_say_how_often(count, window, stride, score, tail, at_once):
    feed = feed_of(split_of(count), block_size=window, stride=min(stride, window), score=score, tail=tail)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(times, "AT_ONCE", at_once)
        certificate = feed.audit(epochs=2)
    (account,) = certificate.accounts
    trained = counted(feed, 2 * feed.slots_per_epoch, count=count)
    often = Counter(trained[target] // 2 for target in range(count - 1))
    assert account.times == dict(often)
    assert account.trained == trained.total()
    assert certificate.faults == ()
    assert certificate.exact is (set(often) == {1})


@settings(max_examples=40, deadline=None)
@given(count=st.integers(8, 80), window=st.integers(1, 7), epochs=st.integers(1, 4), at_once=st.sampled_from([1, 3, 2**21]))
def test_random_windows_say_how_often(count, window, epochs, at_once):
    feed = feed_of(split_of(count), block_size=window, order="random")
    feed.exclude([0], 20)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(times, "AT_ONCE", at_once)
        certificate = feed.audit(epochs=epochs)
    (account,) = certificate.accounts
    assert account.slots == epochs * -(-(count - 1) // window) * window
    assert account.trained == counted(feed, account.slots, count=count).total()
    unmasked = feed_of(split_of(count), block_size=window, order="random")
    often = counted(unmasked, account.slots, count=count)
    assert account.times == dict(Counter(often[target] for target in range(count - 1)))
    assert (account.epochs, certificate.exact) == (None, False)
    assert account.handed == account.trained + account.excluded == account.slots


def mixture_of(**options):
    return ladle.Mixture({"web": split_of(N, first=1000), "code": split_of(41)}, **options)


@pytest.mark.parametrize("options", [{}, {"window": 8}, {"epoch_offset": True}, {"tail": "drop"}, {"order": "sequential"}])
@pytest.mark.parametrize("total", [1, 100, 333, 1200])
def test_a_mixture_is_counted_per_source(options, total):
    feed = feed_of(mixture_of(stages=[(200, {"web": 3, "code": 1}), (None, {"web": 1, "code": 2})]), **options)
    feed.exclude({"web": [1], "code": [2]}, 150)
    certificate = feed.audit(total_tokens=total)
    assert certificate.faults == ()
    W = feed.recipe.window
    assert certificate.slots == -(-total // W) * W == sum(account.slots for account in certificate.accounts)
    assert [account.source for account in certificate.accounts] == ["code", "web"]
    for account, first in zip(certificate.accounts, (0, 1000), strict=True):
        trained = counted(feed, certificate.slots, first, account.tokens)
        assert account.trained == trained.total()
        assert account.slots == account.trained + account.masked + account.padded
        assert account.epochs == account.windows // feed.stream.windows[first > 0].count
        whole = account.epochs * (account.tokens - 1 - account.dropped)
        assert account.handed == whole + account.partial == account.trained + account.excluded
        assert account.exact is (account.epochs > 0 and account.dropped == 0)
    assert certificate.exact is all(account.exact for account in certificate.accounts)


@pytest.mark.parametrize("total", [40, 500])
def test_a_mixture_drawn_at_random(total):
    feed = feed_of(mixture_of(weights={"web": 1, "code": 3}), order="random")
    certificate = feed.audit(total_tokens=total)
    assert certificate.slots == total
    for account, first in zip(certificate.accounts, (0, 1000), strict=True):
        often = counted(feed, total, first, account.tokens)
        assert account.times == dict(Counter(often[target] for target in range(account.tokens - 1)))
        assert (account.trained, account.epochs, account.exact) == (often.total(), None, False)


def test_as_text():
    feed = feed_of(split_of(), block_size=8)
    feed.exclude([1, 3], 104)
    certificate = feed.audit(epochs=2)
    assert str(certificate) == (
        f"recipe {feed.history.at(208)[0]}, corpus {split_of().fingerprint[:32]}: 208 slots in windows of 8\n"
        "101 tokens, 26 windows, 2 whole epochs\n"
        "  each token after the first was handed out exactly once in each epoch, the excluded masked\n"
        "  tokens  2 x 101 = 150 trained + 50 excluded + 2 first + 0 dropped\n"
        "  slots   208 = 150 trained + 58 masked (50 excluded) + 0 padded\n"
        f"digest {certificate.digest}"
    )
    assert str(feed_of(tail="drop", block_size=8).audit().accounts[0]) == (
        "101 tokens, 12 windows, 1 whole epoch\n"
        "  of 100 targets an epoch: 4 never, 96 once\n"
        "  tokens  1 x 101 = 96 trained + 0 excluded + 1 first + 4 dropped\n"
        "  slots   96 = 96 trained + 0 masked (0 excluded) + 0 padded"
    )
    assert str(feed_of(stride=2).audit().accounts[0]) == (
        "101 tokens, 49 windows, 1 whole epoch\n"
        "  of 100 targets an epoch: 4 once, 96 twice\n"
        "  tokens  101 = 100 handed out + 1 first + 0 dropped\n"
        "  slots   196 = 196 trained + 0 masked (0 excluded) + 0 padded"
    )
    mixed = feed_of(mixture_of(weights={"web": 1, "code": 1})).audit(total_tokens=80)
    assert str(mixed.accounts[0]) == (
        "code: 41 tokens, 10 windows, 1 whole epoch\n"
        "  each token after the first was a target exactly once in each epoch\n"
        "  tokens  1 x 41 = 40 trained + 0 excluded + 1 first + 0 dropped\n"
        "  slots   40 = 40 trained + 0 masked (0 excluded) + 0 padded"
    )
    assert str(mixed.accounts[1]).split("\n")[0] == "web: 101 tokens, 10 windows, 0 whole epochs, and a part of the next"


def test_as_json_values():
    certificate = feed_of(stride=2).audit()
    told = certificate.to_dict()
    assert json.loads(json.dumps(told)) == {**told, "faults": []}
    assert told["accounts"][0]["times"] == {"1": 4, "2": 96}
    assert (told["exact"], told["digest"]) == (False, certificate.digest)


# --- the digest ---


def test_the_digest_is_of_the_plan_and_not_of_how_it_is_read(monkeypatch):
    digest = feed_of(window=12).audit(epochs=3).digest
    assert feed_of(window=12, batch_size=1, block_size=6).audit(epochs=3).digest == digest
    assert feed_of(window=12, block_size=12, prefetch=2).audit(total_tokens=3 * 9 * 12).digest == digest
    assert feed_of(window=12, epochs=3).audit().digest == digest  # by default to the feed's end
    monkeypatch.setattr(audit, "AT_ONCE", 1)
    assert feed_of(window=12).audit(epochs=3).digest == digest


def test_the_digest_tells_plans_apart():
    base = {"window": 12}
    feeds = [
        feed_of(**base, **more) for more in ({}, {"seed": 6}, {"tail": "drop"}, {"epoch_offset": True}, {"order": "sequential"})
    ]
    feeds += [feed_of(split_of(102), **base), feed_of(block_size=4), feed_of(**base, shuffle_block=3)]
    excluding = feed_of(**base)
    excluding.exclude([1], 0)
    digests = {feed.audit().digest for feed in [*feeds, excluding]} | {feed_of(**base).audit(epochs=2).digest}
    assert len(digests) == len(feeds) + 2


# --- plans that are wrong ---


def faults_of(feed, **lengths):
    certificate = feed.audit(**lengths)
    assert certificate.num_faults >= len(certificate.faults) > 0
    assert not certificate.exact
    assert str(certificate).split("\n")[1] == f"NOT what the recipe says: {certificate.num_faults} fault" + "s" * (
        certificate.num_faults > 1
    )
    return certificate.faults


def test_a_permutation_that_is_none_is_found(monkeypatch):
    real = stream.permute

    def broken(places, n, key, **options):
        return np.where(places == 3, real(np.full_like(places, 9), n, key, **options), real(places, n, key, **options))

    monkeypatch.setattr(stream, "permute", broken)
    monkeypatch.setattr(orders, "permute", broken)
    feed = feed_of()
    lost, twice = (int(real(np.array([place]), 25, stream.hash_key("order", 5, 1))[0]) * 4 for place in (3, 9))
    assert faults_of(feed, epochs=2)[2:] == (
        f"epoch 1: targets {twice} to {twice + 3} were handed out again",
        f"epoch 1: targets {lost} to {lost + 3} were not handed out",
    )
    assert any(fault.startswith("web, epoch 0: targets") for fault in faults_of(feed_of(mixture_of()), total_tokens=400))


@pytest.mark.parametrize(
    ("change", "fault"),
    [
        ((1, 0, 0), "which owns targets 13 to 16, does not own what the cut gives a window"),
        ((0, 1, 0), "which owns targets 13 to 15, does not own what the cut gives a window"),
        ((0, 0, -1), "which owns targets 12 to 14, does not own what the cut gives a window"),
        ((-20, 20, 20), "the window read from token -8, which owns targets 12 to 15, reads past the source's ends"),
        ((200, 0, 0), "reads past the source's ends"),
    ],
)
def test_a_window_that_is_cut_wrong_is_found(monkeypatch, change, fault):
    feed = feed_of(order="sequential", block_size=4)
    real = feed.stream.spans

    def broken(first, count):
        parts = [part.copy() for part in real(first, count)]
        for part, more in zip(parts, change, strict=True):
            part[np.arange(first, first + count) == 3] += more
        return tuple(parts)

    monkeypatch.setattr(feed.stream, "spans", broken)
    assert any(fault in found for found in faults_of(feed))


def test_rows_that_do_not_make_up_their_window_are_found(monkeypatch):
    feed = feed_of(order="sequential", window=12)
    real = audit.Plan.rows

    def broken(plan, first, count):
        rows = real(plan, first, count)
        low = rows.low.copy()
        low[np.arange(first, first + count) == 4] = 1
        return audit.Rows(rows.start, low, rows.high)

    monkeypatch.setattr(audit.Plan, "rows", broken)
    assert faults_of(feed)[0] == (
        "epoch 0: the window read from token 12, which owns targets 12 to 23, leaves out or repeats targets between its rows"
    )


def test_many_faults_are_counted_and_some_are_told(monkeypatch):
    feed = feed_of(block_size=1, order="sequential")
    spans = feed.stream.spans
    monkeypatch.setattr(feed.stream, "spans", lambda first, count: spans(0 * first, count))
    monkeypatch.setattr(audit, "AT_ONCE", 10)
    certificate = feed.audit()
    assert len(certificate.faults) == ledger.FAULTS
    assert certificate.num_faults == 90 + 90  # ten targets ten times, and ninety never
    assert str(certificate).split("\n")[-2] == "  and 160 more"


# --- size ---


def test_memory_is_a_bit_a_window():
    n = 400_000
    ids = np.broadcast_to(np.zeros(1, dtype=np.uint16), n * 16 + 1)
    feed = ladle.Feed(ladle.from_ids(ids, vocab_size=1), batch_size=8, block_size=16, framework="numpy", prefetch=0)
    feed.audit(total_tokens=16)
    tracemalloc.start()
    assert feed.audit().exact
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < n / 8 + 10_000_000  # eight bytes a window would be 3.2 MB more for each array


def test_progress_is_drawn_off_a_terminal(monkeypatch):
    monkeypatch.setattr(progress, "LINE_SECONDS", 0)
    drawn = io.StringIO()
    feed_of().audit(progress=drawn)
    assert re.match(r"auditing: (\d+) of \1 windows, [\d,.]+ windows/s\n", drawn.getvalue().splitlines(keepends=True)[-1])


# --- what cannot be asked ---


@pytest.mark.parametrize(
    ("lengths", "message"),
    [
        ({"epochs": 0}, r"^epochs: expected at least 1, found 0$"),
        ({"epochs": 1.5}, r"^epochs: expected an integer, found 1.5$"),
        ({"epochs": 2**60}, r"^epochs: expected less than \d+, found 1152921504606846976$"),
        ({"total_tokens": 0}, r"^total_tokens: expected at least 1, found 0$"),
        ({"epochs": 1, "total_tokens": 8}, r"^audit: expected epochs or total_tokens, found both: 1 and 8$"),
    ],
)
def test_lengths_that_cannot_be(lengths, message):
    with pytest.raises(ConfigError, match=message):
        feed_of().audit(**lengths)


@pytest.mark.parametrize("lengths", [{}, {"epochs": 2}])
def test_a_mixture_has_no_epochs(lengths):
    found = lengths.get("epochs")
    with pytest.raises(
        ConfigError,
        match=rf"^audit: expected a feed made with total_tokens= for a mixture, found epochs={found}: it has no epochs",
    ):
        feed_of(mixture_of()).audit(**lengths)
