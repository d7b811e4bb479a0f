"""The harness: wrong and fast is refused before it is timed, and what is timed is what was asked for."""

import time
import weakref
from contextlib import contextmanager

import numpy as np
import pytest

import ladle
from ladle.bench import contenders, table
from ladle.bench.corpus import make
from ladle.bench.rounds import Contender, Timing, UnequalOutput, compare
from ladle.feed.gather import gather

torch = pytest.importorskip("torch")
B, T, N = 3, 16, 4000


@pytest.fixture(scope="module")
def tokens():
    return np.random.default_rng(5).integers(0, 60000, N, dtype=np.uint16)


@pytest.fixture
def split(tokens, tmp_path):
    tokens.tofile(tmp_path / "train.bin")
    with ladle.open(tmp_path) as corpus:
        yield corpus["train"]


class Slices:
    """A correct contender, which a test then spoils."""

    def __init__(self, tokens, spoil=lambda x, y: (x, y), at=True):
        self.tokens, self.spoil, self.calls = tokens, spoil, 0
        self.at = self._rows if at else None

    def __call__(self):
        self.calls += 1
        return self._rows(np.arange(B) * 100 + self.calls % 100)

    def _rows(self, starts):
        rows = np.stack([self.tokens[s : s + T + 1] for s in starts]).astype(np.int64)
        return self.spoil(rows[:, :-1].copy(), rows[:, 1:].copy())


def contender(draw, name="subject", **options):
    @contextmanager
    def opened(batch_size, block_size):
        yield draw

    return Contender(name=name, open=opened, **options)


def run(draw, split, **options):
    return compare([contender(draw)], split, batch_size=B, block_size=T, rounds=2, turn_seconds=0.0, **options)


def one_id(part, row, column):
    def spoil(x, y):
        (x, y)[part][row, column] ^= 1
        return x, y

    return spoil


@pytest.mark.parametrize(
    ("spoil", "words"),
    [
        (one_id(0, 1, 3), "subject: x of given starts: row 1, column 3: expected"),
        (one_id(1, 2, T - 1), f"subject: y of given starts: row 2, column {T - 1}: expected"),
        (lambda x, y: (x[:, :-1], y[:, :-1]), f"x of given starts: expected shape {(B, T)}, found {(B, T - 1)}"),
    ],
)
def test_a_contender_whose_given_rows_differ_is_refused(tokens, split, spoil, words):
    draw = Slices(tokens, spoil)
    with pytest.raises(UnequalOutput) as refused:
        run(draw, split)
    assert words in str(refused.value)
    assert draw.calls == 0  # nothing was timed


@pytest.mark.parametrize(
    ("spoil", "words"),
    [
        (one_id(0, 1, 3), "y, one token later than x: row 1, column 2: expected"),
        (one_id(1, B - 1, T - 1), "row 2: expected a stretch of"),  # y's last id: only the corpus can tell
        (lambda x, y: (x[::-1] ^ 1, y[::-1] ^ 1), "row 0: expected a stretch of"),
        (lambda x, y: (x + 65536, y + 65536), "row 0: expected a stretch of"),  # equal to the corpus but for a wrap
        (lambda x, y: (x.astype(np.int32), y), f"x: expected contiguous int64 {(B, T)}, found int32"),
        (lambda x, y: (x, np.asfortranarray(y)), "y: expected contiguous int64"),
        (lambda x, y: (x, x), "x, y: expected memory of their own"),
    ],
)
def test_a_contender_with_its_own_order_is_held_to_the_corpus(tokens, split, spoil, words):
    with pytest.raises(UnequalOutput) as refused:
        run(Slices(tokens, spoil, at=False), split)
    assert words in str(refused.value)


def test_ids_at_an_odd_byte_are_no_row(tmp_path):
    np.full(N, 0x0100, np.uint16).tofile(tmp_path / "train.bin")  # read one byte late, it is a run of 1s
    with ladle.open(tmp_path) as corpus, pytest.raises(UnequalOutput, match="expected a stretch"):
        run(Slices(np.ones(N, np.uint16), at=False), corpus["train"])


def test_every_contender_of_ours_passes_and_takes_its_turns(split):
    path, dtype = split.shards[0].path, split.dtype
    fed = [contenders.ladle_feed(split, order, prefetch) for order in ("random", "shuffled") for prefetch in (0, None)]
    everyone = [
        contenders.nanogpt(path, dtype),
        contenders.dataloader(path, dtype),
        contenders.ladle_gather(split),
        *fed,
    ]
    timings = compare(everyone, split, batch_size=B, block_size=T, rounds=2, turn_seconds=0.0)
    assert [t.name for t in timings] == [c.name for c in everyone]
    assert len({t.name for t in timings}) == 7
    for timing in timings:
        assert len(timing.seconds) == len(timing.cpu_seconds) == len(timing.bytes_read) == 2
        assert timing.batches == 6
        assert min(timing.seconds) > 0


def test_nanogpts_rows_equal_the_gathers_for_the_same_starts(split):
    path = split.shards[0].path
    for starts in ([0, 1, 2], [N - T - 1, 0, N - T - 1], [77, 1234, 3000]):
        starts = np.array(starts)
        ours = gather(split, starts, T)
        theirs = contenders.NanoGPT(path, split.dtype, B, T).at(starts)
        assert np.array_equal(ours[0], theirs[0])
        assert np.array_equal(ours[1], theirs[1])
        assert theirs[0].dtype == theirs[1].dtype == torch.int64


def test_nanogpt_maps_the_file_anew_for_each_batch(split):
    draw = contenders.NanoGPT(split.shards[0].path, split.dtype, B, T)
    before = draw.at(np.zeros(B, np.int64))[0]
    np.roll(np.fromfile(split.shards[0].path, np.uint16), 1).tofile(split.shards[0].path.with_suffix(".new"))
    split.shards[0].path.with_suffix(".new").replace(split.shards[0].path)
    after = draw.at(np.zeros(B, np.int64))[0]
    assert torch.equal(before[:, :-1], after[:, 1:])
    assert not torch.equal(before, after)


def test_turns_alternate_and_afresh_means_opened_for_each_turn(tokens, split):
    log = []

    def logged(name, **options):
        draw = Slices(tokens)

        @contextmanager
        def opened(batch_size, block_size):
            log.append(f"open {name}")
            yield draw
            log.append(f"close {name}")

        return Contender(name=name, open=opened, **options)

    compare(
        [logged("a"), logged("b", afresh=True)],
        split,
        batch_size=B,
        block_size=T,
        rounds=2,
        batches={"a": 1, "b": 1},
        before=lambda: log.append("before"),
    )
    turns = ["before", "before", "open b", "close b"]
    assert log == ["open a", "open b", "close b", *turns, *turns, "close a"]


@pytest.mark.parametrize("hold", [True, False])
def test_hold_keeps_one_batch_alive_while_the_next_is_made(tokens, split, hold):
    alive, seen = [], []

    class Watched(Slices):
        def __call__(self):
            seen.append(sum(reference() is not None for reference in alive))
            x, y = super().__call__()
            alive.append(weakref.ref(x))
            return x, y

    run(Watched(tokens, at=False), split, hold=hold)
    assert seen[-2:] == [int(hold)] * 2


def test_work_between_batches_is_done_and_not_timed(tokens, split):
    done = []

    def work():
        done.append(1)
        time.sleep(0.02)

    (timing,) = run(Slices(tokens), split, work=work, settle=0)
    assert len(done) == timing.batches == 6
    assert timing.median < 0.01


def test_a_table_gives_ratios_to_the_reference_and_says_what_was_missed():
    slow = Timing("slow", 2, 8, seconds=[2e-6, 4e-6, 6e-6], cpu_seconds=[1e-6, 9e-6, 4e-6], batches=30)
    fast = Timing("fast", 2, 8, seconds=[1e-6, 1e-6, 2e-6], cpu_seconds=[1e-6] * 3, batches=30)
    rows = table.rows([slow, fast], "slow", {"fast": 5, "slow": 1})
    assert rows[0] == {
        "name": "slow",
        "median_us": 4.0,
        "quartiles_us": [3.0, 5.0],
        "cpu_us": 4.0,
        "tokens_per_s": 4_000_000,
        "ratio": 1.0,
        "turns": 3,
        "batches": 30,
        "target": 1,
        "met": True,
    }
    assert (rows[1]["ratio"], rows[1]["met"]) == (4.0, False)
    drawn = table.markdown(rows)
    assert "5: MISSED" in drawn
    assert "1: met" in drawn
    assert len({len(line) for line in drawn.splitlines()}) == 1


@pytest.mark.parametrize("joins", [True, False])
def test_only_a_contender_that_says_so_may_join_documents(tmp_path, joins):
    path = make(tmp_path / "made", 20_000)
    tokens = np.fromfile(path, "<u2")
    with ladle.open(path.parent) as corpus:
        ends = corpus["train"].document_ends().astype(int)
        joined = np.concatenate([tokens[ends[4] - 6 : ends[4]], tokens[ends[8] : ends[8] + T]])[: T + 1].astype(np.int64)
        draw = Slices(tokens, lambda x, y: (np.tile(joined[:-1], (B, 1)), np.tile(joined[1:], (B, 1))), at=False)
        subject = contender(draw, joins=joins)
        if joins:
            compare([subject], corpus["train"], batch_size=B, block_size=T, rounds=1, turn_seconds=0.0)
        else:
            with pytest.raises(UnequalOutput, match="expected a stretch"):
                compare([subject], corpus["train"], batch_size=B, block_size=T, rounds=1, turn_seconds=0.0)


def test_documents_may_be_joined_only_at_their_ends(tmp_path):
    path = make(tmp_path / "made", 20_000)
    tokens = np.fromfile(path, "<u2")
    with ladle.open(path.parent) as corpus:
        ends = corpus["train"].document_ends().astype(int)
        cut = np.concatenate([tokens[ends[4] - 9 : ends[4] - 1], tokens[ends[8] : ends[8] + T]])[: T + 1].astype(np.int64)
        draw = Slices(tokens, lambda x, y: (np.tile(cut[:-1], (B, 1)), np.tile(cut[1:], (B, 1))), at=False)
        with pytest.raises(UnequalOutput, match="expected a stretch"):
            compare([contender(draw, joins=True)], corpus["train"], batch_size=B, block_size=T, rounds=1)


def test_a_document_s_piece_may_begin_as_another_does(tmp_path):
    for number, text in enumerate(("        if a:", "        if b:", "        return c" * 3)):
        (tmp_path / f"{number}.py").write_text(text)
    with ladle.prepare([tmp_path], tmp_path / "corpus", tokenizer="bytes", val_fraction=0) as corpus:
        split = corpus["train"]
        joined = np.append(split.read(13 + 1, 14), split.read(14 + 14, T))[: T + 1].astype(np.int64)  # the second, then the third
        wrong = joined.copy()
        wrong[-1] = ord("?")
        for row, outcome in ((joined, None), (wrong, "expected a stretch")):
            draw = Slices(row, lambda x, y, row=row: (np.tile(row[:-1], (B, 1)), np.tile(row[1:], (B, 1))), at=False)
            draw._rows = lambda starts, draw=draw: draw.spoil(None, None)
            if outcome is None:
                compare([contender(draw, joins=True)], split, batch_size=B, block_size=T, rounds=1, turn_seconds=0.0)
            else:
                with pytest.raises(UnequalOutput, match=outcome):
                    compare([contender(draw, joins=True)], split, batch_size=B, block_size=T, rounds=1)
