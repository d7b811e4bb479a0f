"""Was every token in exactly one row? The audit of packs: see audit.py, which calls it."""

from __future__ import annotations

import hashlib
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, TextIO

import numpy as np

from ladle.corpus.summary import plural
from ladle.feed.budget import BudgetStream
from ladle.feed.mixture import Mixture
from ladle.feed.pack_ledger import PackLedger
from ladle.feed.streams import packs_in
from ladle.feed.tally import Tallies
from ladle.order.permutation import I64
from ladle.rows.packs import PackCounts
from ladle.rows.pieces import Pieces
from ladle.rows.stream import PackedStream

if TYPE_CHECKING:
    from ladle.feed.feed import Feed

AT_ONCE = 2**13  # rows looked at together


@dataclass(frozen=True, slots=True, kw_only=True)
class PackAccount:
    """What the audited rows did with one source.

    source: its name in a mixture, else "". rows: handed out. epochs: whole ones. slots = trained + excluded + unlearned +
    boundary + padded (feed/tally.py). plan: what becomes of the documents in each epoch. exact: whether each token stood in
    exactly one row in each of at least one whole epoch.
    """

    source: str
    rows: int
    epochs: int
    slots: int
    trained: int
    excluded: int
    unlearned: int
    boundary: int
    padded: int
    plan: PackCounts
    exact: bool

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON values."""
        return asdict(self)

    def __str__(self) -> str:
        name = f"{self.source}: " if self.source else ""
        lines = [f"{name}{self.plan}", f"  {plural(self.rows, 'row')}, {plural(self.epochs, 'whole epoch')}"]
        if self.exact:
            lines[-1] += ": each token stood in exactly one row in each"
        lines.append(
            f"  slots   {self.slots:,} = {self.trained:,} trained + {self.boundary:,} masked at documents' ends + "
            f"{self.unlearned:,} masked by the corpus + {self.excluded:,} excluded + {self.padded:,} padded"
        )
        return "\n".join(lines)


def audited(
    feed: Feed, stream: PackedStream, units: int, progress: TextIO | None
) -> tuple[list[PackAccount], list[PackLedger], str]:
    """(an account for each source, the ledgers with their faults, a hash of all rows in their order) of the first rows."""
    from ladle.corpus.progress import Progress  # here: it brings tqdm, which reads the environment

    source, plans, T = feed.source, packs_in(stream), stream.window
    named = dict(zip(source.names, source.splits, strict=True)) if isinstance(source, Mixture) else {"": source}
    bases = np.array([0, *np.cumsum([split.num_tokens for split in named.values()])], dtype=np.int64)
    ledgers = [
        PackLedger(split.document_ends().astype(np.int64), plan.packing, plan.num_rows, name)
        for (name, split), plan in zip(named.items(), plans, strict=True)
    ]
    hashed = hashlib.blake2b(digest_size=16)
    with Progress("auditing", units, progress, unit="rows") as done:
        for unit in range(0, units, AT_ONCE):
            count = min(AT_ONCE, units - unit)
            pieces = stream.pieces(unit, count)
            hashed.update(np.stack((pieces.row + unit, pieces.column, pieces.start, pieces.length), axis=1).astype("<i8").data)
            _deal(pieces, count, bases, ledgers)
            done(count)
    accounts = []
    for number, (plan, ledger) in enumerate(zip(plans, ledgers, strict=True)):
        tally, counts = Tallies(feed, number).until(ledger.rows * T), plan.counts
        total = tally.trained + tally.excluded + tally.unlearned + tally.boundary + tally.padded
        whole = counts.labelled + counts.boundary + counts.dropped_tokens == counts.tokens
        expected = tally.slots if isinstance(stream, BudgetStream) else ledger.rows * T
        if total != expected or not whole or tally.repeated:
            ledger.fault(f"the counts do not add up: expected {expected} slots in all, found {total}")
        accounts.append(
            PackAccount(
                source=ledger.name,
                rows=ledger.rows,
                epochs=ledger.epoch,
                slots=tally.slots,
                trained=tally.trained,
                excluded=tally.excluded,
                unlearned=tally.unlearned,
                boundary=tally.boundary,
                padded=tally.padded,
                plan=counts,
                exact=ledger.epoch > 0 and not ledger.num_faults and not counts.dropped,
            )
        )
    return accounts, ledgers, hashed.hexdigest()


def _deal(pieces: Pieces, rows: int, bases: I64, ledgers: list[PackLedger]) -> None:
    """Each source's rows to its ledger, in its own numbering, in their order."""
    if len(ledgers) == 1:
        ledgers[0].take(pieces, rows)
        return
    source = np.clip(np.searchsorted(bases, pieces.start, side="right") - 1, 0, len(ledgers) - 1)
    for number in np.unique(source).tolist():
        mine = np.flatnonzero(source == number)
        own, row = np.unique(pieces.row[mine], return_inverse=True)
        part = (pieces.column, pieces.start, pieces.length, pieces.labelled, pieces.offset)
        ledgers[number].take(Pieces(row, *(array[mine] for array in part)).moved(-int(bases[number])), own.size)
