"""Was every token a target exactly once? The plan is streamed, not the tokens, and what it did is counted and certified."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Any, TextIO

import numpy as np

from ladle.corpus.summary import plural
from ladle.errors import ConfigError
from ladle.feed import times
from ladle.feed.arguments import integer
from ladle.feed.coverage import often
from ladle.feed.ledger import Counts, Ledger, Taken
from ladle.feed.mixture import Mixture
from ladle.feed.pack_audit import PackAccount, audited
from ladle.feed.pack_ledger import PackLedger
from ladle.feed.plan import Plan, Rows
from ladle.feed.recipe import canonical, digest
from ladle.feed.streams import is_packed, uses_loss_mask
from ladle.feed.tally import Tallies
from ladle.order.permutation import I64, LARGEST
from ladle.rows.stream import Stream

if TYPE_CHECKING:
    from ladle.feed.feed import Feed

AT_ONCE = 2**14  # rows looked at together


@dataclass(frozen=True, slots=True, kw_only=True)
class Account:
    """What the audited windows did with one source.

    source: its name in a mixture, else "". tokens: N. windows: handed out. epochs: whole ones; None for order="random".
    slots = trained + masked + padded; masked are repeats, and the targets of excluded documents (`excluded`), at documents' ends
    (`boundary`, with mask_documents) and left out by the corpus's own mask (`unlearned`).
    handed = trained + excluded + boundary + unlearned: slots of targets. partial: how many of them in an unfinished epoch.
    times: {how often: targets} in a whole epoch, or over all draws of order="random"; empty where there is neither.
    """

    source: str
    tokens: int
    windows: int
    epochs: int | None
    slots: int
    handed: int
    trained: int
    masked: int
    padded: int
    excluded: int
    partial: int
    times: dict[int, int]
    boundary: int = 0
    unlearned: int = 0

    @property
    def dropped(self) -> int:
        """Targets that no window holds, an epoch (or over all draws)."""
        return self.times.get(0, 0)

    @property
    def exact(self) -> bool:
        """Whether each token but the first was handed out as a target exactly once in each of at least one whole epoch."""
        return bool(self.epochs) and self.times == {1: self.tokens - 1}

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON values."""
        told = {"exact": self.exact, **asdict(self), "dropped": self.dropped}
        for name in ("boundary", "unlearned"):  # where nothing keeps documents apart these are no question
            told = told if told[name] else {key: value for key, value in told.items() if key != name}
        return {**told, "times": {str(number): targets for number, targets in self.times.items()}}

    @property
    def _apart(self) -> str:
        ends = f" + {self.boundary:,} at documents' ends" if self.boundary else ""
        return ends + (f" + {self.unlearned:,} masked by the corpus" if self.unlearned else "")

    def __str__(self) -> str:
        name, epochs, N = f"{self.source}: " if self.source else "", self.epochs or 0, self.tokens
        lines = [f"{name}{plural(N, 'token')}, {plural(self.windows, 'window')}"]
        if self.epochs is not None:
            lines[0] += f", {plural(epochs, 'whole epoch')}" + ", and a part of the next" * (self.partial > 0)
        if self.exact:
            names = {"excluded": self.excluded, "documents' first": self.boundary, "not to be learned": self.unlearned}
            masked = " and ".join(f"the {name}" for name, count in names.items() if count)
            handed = "handed out" if masked else "a target"
            lines.append(
                f"  each token after the first was {handed} exactly once in each epoch" + f", {masked} masked" * bool(masked)
            )
        elif self.times:
            told = ", ".join(f"{targets:,} {often(number)}" for number, targets in self.times.items())
            lines.append(f"  of {N - 1:,} targets{' an epoch' * bool(epochs)}: {told}")
        if set(self.times) <= {0, 1} and epochs:
            part = f" + {self.partial:,}" * (self.partial > 0)
            lines.append(
                f"  tokens  {epochs:,} x {N:,}{part} = {self.trained:,} trained + {self.excluded:,} excluded{self._apart} "
                f"+ {epochs:,} first + {epochs * self.dropped:,} dropped"
            )
        elif self.times:
            lines.append(f"  tokens  {N:,} = {N - 1 - self.dropped:,} handed out + 1 first + {self.dropped:,} dropped")
        lines.append(
            f"  slots   {self.slots:,} = {self.trained:,} trained + {self.masked:,} masked ({self.excluded:,} excluded) "
            f"+ {self.padded:,} padded"
        )
        if self.boundary or self.unlearned:
            lines[-1] = lines[-1].replace(" excluded)", f" excluded{self._apart})")
        return "\n".join(lines)


@dataclass(frozen=True, slots=True, kw_only=True)
class Certificate:
    """An audit's outcome; str() is the text for people.

    recipe, corpus: hashes, as they stand at the end of what was audited. slots: from position 0. plan: a hash of all windows
    in their order. faults: where the plan breaks its own recipe; num_faults may say that there are more.
    """

    recipe: str
    corpus: str
    window: int
    slots: int
    accounts: tuple[Account | PackAccount, ...]
    plan: str
    num_faults: int
    faults: tuple[str, ...]

    @property
    def exact(self) -> bool:
        """Whether there is no fault, and every account is exact."""
        return not self.num_faults and all(account.exact for account in self.accounts)

    @property
    def digest(self) -> str:
        """A hash of all of it: equal for all who audit the same plan of the same corpus."""
        return digest(canonical(self._told()))

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON values."""
        return {**self._told(), "digest": self.digest}

    def _told(self) -> dict[str, Any]:
        return {**asdict(self), "exact": self.exact, "accounts": [account.to_dict() for account in self.accounts]}

    def __str__(self) -> str:
        lines = [f"recipe {self.recipe}, corpus {self.corpus[:32]}: {self.slots:,} slots in windows of {self.window:,}"]
        if self.num_faults:
            more = self.num_faults - len(self.faults)
            lines.append(f"NOT what the recipe says: {plural(self.num_faults, 'fault')}")
            lines += [f"  {fault}" for fault in self.faults] + [f"  and {more:,} more"] * (more > 0)
        else:
            lines += map(str, self.accounts)
        return "\n".join([*lines, f"digest {self.digest}"])


def audit(
    feed: Feed, *, epochs: int | None = None, total_tokens: int | None = None, progress: TextIO | None = None
) -> Certificate:
    """Follow a feed's plan from position 0 and certify what it hands out.

    epochs, total_tokens (slots, rounded up to a window): how far; by default to the feed's end, or one epoch. With
    order="random" an epoch is as many draws as the split has windows. A mixture takes total_tokens only.
    progress: where to draw it. Memory: one bit a window of an epoch, and blocks of rows.
    Raises ConfigError for lengths that cannot be. A broken plan raises nothing: see Certificate.faults.
    """
    from ladle.corpus.progress import Progress  # here: it brings tqdm, which reads the environment

    source, stream, units = feed.source, feed.stream, _units(feed, epochs, total_tokens)
    if is_packed(stream):
        told, books, plan = audited(feed, stream, units, progress)
        return _certificate(feed, units, told, books, plan)
    named = dict(zip(source.names, source.splits, strict=True)) if isinstance(source, Mixture) else {"": source}
    bases = np.array([0, *np.cumsum([split.num_tokens for split in named.values()])], dtype=np.int64)
    random = feed.recipe.order == "random"
    ledgers = [] if random else [Ledger(feed.recipe.cut(split), name) for name, split in named.items()]
    drawn = [Counts() for _ in named]
    hashed = hashlib.blake2b(digest_size=16)
    with Progress("auditing", units, progress, unit="windows") as done:
        for taken in _windows(feed, stream, units):
            hashed.update(np.stack((taken.start, taken.first, taken.last), axis=1).astype("<i8").data)
            for number, mine in _by_source(taken, bases):
                (drawn if random else ledgers)[number].take(mine)
            done(taken.start.size)
    accounts = [_account(ledger) for ledger in ledgers]
    if random:
        accounts = [
            _account_of_draws(feed, stream, name, counts, units=units, ends=bases[i : i + 2])
            for i, (name, counts) in enumerate(zip(named, drawn, strict=True))
        ]
    if feed.recipe.mask_documents or any(uses_loss_mask(feed.recipe, split) for split in named.values()):
        accounts = [_masked(feed, number, account, ledgers) for number, account in enumerate(accounts)]
    return _certificate(feed, units, accounts, ledgers, hashed.hexdigest())


def _certificate(
    feed: Feed, units: int, accounts: Sequence[Account | PackAccount], ledgers: Sequence[Ledger | PackLedger], plan: str
) -> Certificate:
    recipe, corpus = feed.history.at(units * feed.recipe.window)
    return Certificate(
        recipe=recipe,
        corpus=corpus,
        window=feed.recipe.window,
        slots=sum(account.slots for account in accounts),
        accounts=tuple(accounts),
        plan=plan,
        num_faults=sum(ledger.num_faults for ledger in ledgers),
        faults=tuple(fault for ledger in ledgers for fault in ledger.faults),
    )


def _masked(feed: Feed, number: int, account: Account, ledgers: Sequence[Ledger]) -> Account:
    """The account with what documents' ends and the corpus's mask take away, counted apart from the ledger's own counts."""
    tally = Tallies(feed, number).until(account.slots)
    handed = tally.trained + tally.excluded + tally.boundary + tally.unlearned
    if handed != account.handed and ledgers:
        ledgers[number].fault(f"the counts do not add up: expected {account.handed} targets in all, found {handed}")
    return replace(
        account,
        trained=tally.trained,
        excluded=tally.excluded,
        boundary=tally.boundary,
        unlearned=tally.unlearned,
        masked=account.slots - tally.trained - account.padded,
    )


def _units(feed: Feed, epochs: int | None, total_tokens: int | None) -> int:
    """How many windows to follow."""
    W, source = feed.stream.window, feed.source
    if feed.recipe.batch_tokens is not None and total_tokens is not None:
        raise ConfigError(f"audit: expected epochs with batch_tokens=, found total_tokens={total_tokens}: it counts rows")
    if epochs is not None and total_tokens is not None:
        raise ConfigError(f"audit: expected epochs or total_tokens, found both: {epochs} and {total_tokens}")
    if total_tokens is None and epochs is None and feed.end is not None:
        total_tokens = feed.end
    if total_tokens is not None:
        return -(-integer("total_tokens", total_tokens, 1) // W)
    if isinstance(source, Mixture):
        raise ConfigError(
            f"audit: expected a feed made with total_tokens= for a mixture, found epochs={epochs}: it has no epochs of its own"
        )
    per_epoch = feed.stream.units_per_epoch or -(-(source.num_tokens - 1) // W)
    return integer("epochs", 1 if epochs is None else epochs, 1, LARGEST // (per_epoch * W)) * per_epoch


def _windows(feed: Feed, stream: Stream, units: int) -> Iterator[Taken]:
    """The first `units` windows, put together from the rows that the feed hands out."""
    W, T, exclusions = feed.recipe.window, feed.shape.block_size, feed.history.exclusions
    plan, per_window = Plan(stream, T, ahead=1), W // T
    sources = len(feed.source.names) if isinstance(feed.source, Mixture) else 1
    at_once = max(AT_ONCE, AT_ONCE // 16 * sources) // per_window or 1  # enough of each source for NumPy's stride
    for unit in range(0, units, at_once):
        shape = min(at_once, units - unit), per_window
        row = np.arange(unit * per_window, unit * per_window + shape[0] * shape[1], dtype=np.int64)
        rows = plan.rows(int(row[0]), row.size)
        nothing = np.zeros(row.size, dtype=np.int64)
        excluded = exclusions.count(rows.start, rows.low, rows.high, row * T) if exclusions else nothing
        padded = np.clip(rows.start + T + 1 - feed.source.num_tokens, 0, T) if feed.recipe.tail == "pad" else nothing
        first, last, whole = _joined(rows, shape)
        start = rows.start.reshape(shape)[:, 0]
        yield Taken(start, first, last, whole, excluded.reshape(shape).sum(axis=1), padded.reshape(shape).sum(axis=1))


def _joined(rows: Rows, shape: tuple[int, int]) -> tuple[I64, I64, I64]:
    """Of each window [first, last), the targets that its rows own, and whether the rows own each of them once."""
    first, last = (rows.start + rows.low).reshape(shape), (rows.start + rows.high).reshape(shape)
    if shape[1] == 1:
        return first[:, 0], last[:, 0], np.ones(shape[0], dtype=np.int64)
    some = last > first
    owned = np.where(some, last - first, 0).sum(axis=1)
    begin = np.where(some, first, LARGEST).min(axis=1)
    end = np.where(some, last, -1).max(axis=1)
    torn = (some[:, 1:] & some[:, :-1] & (first[:, 1:] != last[:, :-1])).any(axis=1)
    whole = (owned == end - begin) & ~torn | (owned == 0)
    return np.where(owned, begin, 0), np.where(owned, end, 0), whole.astype(np.int64)


def _by_source(taken: Taken, bases: I64) -> Iterator[tuple[int, Taken]]:
    """(source, its windows in its own numbering), each source in its windows' order."""
    if bases.size == 2:
        yield 0, taken
        return
    source = np.clip(np.searchsorted(bases, taken.start, side="right") - 1, 0, bases.size - 2)
    order = np.argsort(source, kind="stable")
    for which in np.split(order, np.flatnonzero(np.diff(source[order])) + 1):
        number = int(source[which[0]])
        yield number, taken.part(which).moved(-int(bases[number]))


def _account(ledger: Ledger) -> Account:
    windows, seen = ledger.windows, dict[int, int]()
    if ledger.epoch and windows.overlaps and windows.score == "all":
        seen = times.overlapping(windows)
    elif ledger.epoch:
        seen = {0: ledger.dropped} if ledger.dropped else {}
        seen[1] = windows.targets - ledger.dropped
    handed = ledger.epoch * sum(number * targets for number, targets in seen.items()) + ledger.partial
    if handed != ledger.counts.handed and not ledger.num_faults:
        ledger.fault(f"the counts do not add up: expected {handed} targets in all, found {ledger.counts.handed}")
    counted = _counted(ledger.counts, windows.window)
    return Account(
        source=ledger.name, tokens=windows.num_tokens, epochs=ledger.epoch, partial=ledger.partial, times=seen, **counted
    )


def _account_of_draws(feed: Feed, stream: Stream, name: str, drawn: Counts, *, units: int, ends: I64) -> Account:
    """ends: the source's first token among all sources', and the one after its last."""
    first, N, W = int(ends[0]), int(ends[1] - ends[0]), feed.recipe.window

    def starts() -> Iterator[I64]:
        for unit in range(0, units, AT_ONCE):
            start, _, _ = stream.spans(unit, min(AT_ONCE, units - unit))
            yield start[(start >= first) & (start < first + N)] - first

    seen = times.drawn(starts, drawn.units, W, N - 1)
    return Account(source=name, tokens=N, epochs=None, partial=0, times=seen, **_counted(drawn, W))


def _counted(counts: Counts, window: int) -> dict[str, int]:
    slots, trained = counts.units * window, counts.handed - counts.excluded
    return {
        "windows": counts.units,
        "slots": slots,
        "handed": counts.handed,
        "trained": trained,
        "masked": slots - trained - counts.padded,
        "padded": counts.padded,
        "excluded": counts.excluded,
    }
