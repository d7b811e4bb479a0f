"""A mixture's stream: each source keeps its own order whatever comes or goes beside it, and every unit inverts."""

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ladle.errors import ConfigError
from ladle.order.mixture import Stages, integer_weights
from ladle.order.stream import Order
from ladle.rows.stream import MixedStream, WindowStream
from ladle.rows.windows import Windows

W = 4


def mixed(sizes, stages, *, kind="shuffled", seed=3, tail="cover", epoch_offset=False, window=W):
    """sizes: {name: tokens}. stages: [(first unit, {name: weight})]."""
    names = sorted(sizes)
    cuts = [
        Windows(num_tokens=sizes[name], window=window, tail=tail, epoch_offset=epoch_offset, seed=seed, where=name)
        for name in names
    ]
    told = [(first, integer_weights(weights)) for first, weights in stages]
    return MixedStream(Stages(names, told), names, cuts, kind=kind, seed=seed)


def by_source(stream, units):
    """{name: [(start in the source, low, high), ...]} of the first units, in the order in which they come."""
    starts, lows, highs = stream.spans(0, units)
    bases = np.cumsum([0, *(cut.num_tokens for cut in stream.windows)])
    found = {name: [] for name in stream.names}
    for start, low, high in zip(starts.tolist(), lows.tolist(), highs.tolist(), strict=True):
        number = int(np.searchsorted(bases, start, side="right")) - 1
        found[stream.names[number]].append((start - int(bases[number]), low, high))
    return found


options = st.fixed_dictionaries(
    {
        "kind": st.sampled_from(["shuffled", "sequential"]),
        "tail": st.sampled_from(["cover", "drop"]),
        "epoch_offset": st.booleans(),
    }
)
sizes_of = st.fixed_dictionaries({"a": st.integers(9, 70), "b": st.integers(9, 70)}, optional={"c": st.integers(9, 5000)})
weight = st.sampled_from([0.01, 0.5, 1.0, 3.0])


def weights_of(sizes):
    return st.fixed_dictionaries(dict.fromkeys(sizes, weight))


@settings(max_examples=60, deadline=None)
@given(sizes=sizes_of, how=options, data=st.data())
def test_every_target_of_every_source_once_a_source_epoch(sizes, how, data):
    stream = mixed(sizes, [(0, data.draw(weights_of(sizes)))], **how)
    found = by_source(stream, 400)
    for name, cut in zip(stream.names, stream.windows, strict=True):
        spans = found[name]
        for epoch in range(len(spans) // cut.count):
            owned = sorted(
                target
                for start, low, high in spans[epoch * cut.count : (epoch + 1) * cut.count]
                for target in range(start + low, start + high)
            )
            if cut.tail == "cover":
                assert owned == list(range(cut.targets))
            else:
                assert len(set(owned)) == len(owned) == cut.count * W


@settings(max_examples=60, deadline=None)
@given(sizes=sizes_of, how=options, more=st.integers(9, 200), data=st.data())
def test_a_source_is_the_same_alone_or_beside_others(sizes, how, more, data):
    weights = data.draw(weights_of(sizes))
    found = by_source(mixed(sizes, [(0, weights)], **how), 200)
    with_another = by_source(mixed(sizes | {"aa": more}, [(0, weights | {"aa": 2.0})], **how), 300)
    for name in sizes:
        alone = by_source(mixed({name: sizes[name]}, [(0, {name: 1})], **how), max(len(found[name]), len(with_another[name])))[
            name
        ]
        assert found[name] == alone[: len(found[name])]
        assert with_another[name] == alone[: len(with_another[name])]


@settings(max_examples=60, deadline=None)
@given(first=st.integers(1, 120), how=options, weights=st.tuples(weight, weight, weight))
def test_a_stage_that_adds_or_removes_a_source_leaves_the_past_and_repeats_nothing(first, how, weights):
    sizes = {"a": 300, "b": 90, "c": 61}
    a, b, c = weights
    before = mixed({"a": 300, "b": 90}, [(0, {"a": a, "b": b})], **how)
    after = mixed(sizes, [(0, {"a": a, "b": b}), (first, {"a": b, "c": c}), (first + 90, {"a": 1, "b": 1, "c": 1})], **how)
    for one, other in zip(before.spans(0, first), after.spans(0, first), strict=True):
        np.testing.assert_array_equal(one, other)  # a and b come first in name order, so their tokens keep their numbers
    found = by_source(after, first + 400)
    for name, spans in found.items():
        alone = by_source(mixed({name: sizes[name]}, [(0, {name: 1})], **how), len(spans))[name]
        assert spans == alone  # on where it was, through all stages: nothing twice, nothing left out
    assert found["c"]


@settings(max_examples=40, deadline=None)
@given(
    sizes=sizes_of,
    how=options,
    border=st.integers(1, 150),
    edges=st.tuples(st.integers(0, 69), st.integers(1, 30)),
    epoch=st.integers(0, 2),
    data=st.data(),
)
def test_holding_is_a_scan(sizes, how, border, edges, epoch, data):
    """Units that read a source's targets in one of its epochs, through a stage that may end the source for good."""
    later = {name: 1.0 for name in sizes if name == "a" or data.draw(st.booleans())}
    stream = mixed(sizes, [(0, data.draw(weights_of(sizes))), (border, later)], **how)
    units = 700
    source, own = stream.stages.split(0, units)
    starts, _, _ = stream.spans(0, units)
    bases = np.cumsum([0, *(cut.num_tokens for cut in stream.windows)])
    for number, cut in enumerate(stream.windows):
        first, last = edges[0], min(edges[0] + edges[1], cut.targets)
        start = starts - bases[number]
        scanned = np.flatnonzero(
            (source == number) & (own // cut.count == epoch) & (start < last) & (start + W > first) & (first < last)
        )
        held = stream.holding(number, first, last, epoch)
        assert held[held < units].tolist() == scanned.tolist()


def test_the_position_is_all_there_is():
    """Any piece of the stream is the same piece, whatever was asked before: also of small sources, whose orders are kept."""
    sizes = {f"s{i}": 70 * W + i for i in range(20)}
    stages = [(0, dict.fromkeys(sizes, 1.0)), (3000, {"s1": 1.0, "s2": 5.0})]
    whole = mixed(sizes, stages).spans(0, 6000)
    stream = mixed(sizes, stages)
    for first in [5000, 0, 2990, 17, 2990, 5999, 1]:
        for part, full in zip(stream.spans(first, min(500, 6000 - first)), whole, strict=True):
            np.testing.assert_array_equal(part, full[first : first + 500])


def test_far_positions_and_many_sources():
    rng = np.random.default_rng(1)
    sizes = {f"{i:03}": int(n) for i, n in enumerate(rng.integers(9, 10**9, 300))}
    stream = mixed(sizes, [(0, dict.fromkeys(sizes, 1.0))])
    bases = np.cumsum([0, *sizes.values()])
    for first in (0, 2**40, 2**55):
        starts, low, high = stream.spans(first, 600)
        number = np.searchsorted(bases, starts, side="right") - 1
        np.testing.assert_array_equal(number, stream.stages.split(first, 600)[0])
        assert (starts + W < bases[number + 1]).all()  # no window crosses into the next source: its last label is inside
        assert ((low >= 0) & (low <= high) & (high <= W)).all()


def test_a_lottery_of_starts():
    """order="random": every start of a source is possible, with replacement, and every target counts."""
    stream = mixed({"a": 20, "b": 10}, [(0, {"a": 1, "b": 1})], kind="random")
    found = by_source(stream, 2000)
    for name, tokens in (("a", 20), ("b", 10)):
        assert {span[1:] for span in found[name]} == {(0, W)}
        assert {start for start, _, _ in found[name]} == set(range(tokens - W))
    alone = by_source(mixed({"b": 10}, [(0, {"b": 1})], kind="random"), 1000)["b"]
    assert found["b"] == alone
    with pytest.raises(ConfigError, match="draws with replacement"):
        stream.holding(0, 0, 1, 0)


def test_slots_handed_out_add_up():
    stream = mixed({"a": 50, "b": 90}, [(0, {"a": 3, "b": 1}), (10, {"b": 1})])
    source = stream.stages.split(0, 40)[0].repeat(W)
    for position in range(40 * W):
        slots = stream.handed_out(position)
        assert slots.tolist() == np.bincount(source[:position], minlength=2).tolist()
    assert stream.epoch_slots.tolist() == [13 * W, 23 * W]
    assert stream.units_per_epoch is None
    one = WindowStream(Order(kind="shuffled", n=13, seed=1), Windows(num_tokens=50, window=W))
    assert (one.handed_out(17).tolist(), one.epoch_slots.tolist(), one.units_per_epoch) == ([17], [13 * W], 13)


@pytest.mark.parametrize(
    ("cut", "message"),
    [
        ({"stride": 2}, r"stride: expected none in a mixture \(it mixes whole windows\), found 2 for the split"),
        ({"tail": "pad"}, "tail: expected 'cover' or 'drop' in a mixture, found 'pad' for the split"),
    ],
)
def test_cuts_that_do_not_mix(cut, message):
    with pytest.raises(ConfigError, match=message):
        MixedStream(
            Stages(["a"], [(0, integer_weights({"a": 1}))]),
            ["a"],
            [Windows(num_tokens=50, window=W, **cut)],
            kind="shuffled",
            seed=1,
        )


def test_equal_sources_do_not_walk_in_step():
    """Two sources of one length have orders of their own."""
    found = by_source(mixed({"a": 400, "b": 400}, [(0, {"a": 1, "b": 1})]), 200)
    assert sum(one == other for one, other in itertools.zip_longest(found["a"], found["b"])) < 10
