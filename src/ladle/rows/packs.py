"""Packs: whole documents in rows of T slots, as a plan that says for any row which pieces lie in it. Arrays only, no files.

Three policies. "best_fit": the classical best-fit-decreasing, counted per length (best_fit.py); a row's pattern says which
lengths it holds, and which document of that length it is follows by arithmetic. "sequential": pieces in order, a new row where
the next one does not fit (next_fit.py). "single": one piece a row, in order.

A document longer than T is cut into pieces of T and a remainder ("split"), left out ("drop"), or refused ("error"). A piece of
T fills a row; the remainder is placed as a document of its length would be. An empty document is in no row.

How they are made: cuts.py (documents into pieces), plans.py (pieces into rows).
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Literal, Protocol

from ladle.errors import ConfigError
from ladle.order.permutation import I64
from ladle.rows.pieces import Pieces

Policy = Literal["best_fit", "sequential", "single"]
Overlong = Literal["split", "drop", "error"]
Deal = Literal["fixed", "fresh"]
POLICIES: tuple[Policy, ...] = ("best_fit", "sequential", "single")
OVERLONG: tuple[Overlong, ...] = ("split", "drop", "error")
DEALS: tuple[Deal, ...] = ("fixed", "fresh")

LONGEST_ROW = 2**24  # slots


@dataclass(frozen=True, slots=True, kw_only=True)
class Packing:
    """How documents are put into rows.

    row_length: T, in slots. policy, overlong: see above. deal: "fresh" gives each epoch a new deal of the documents of a length
    among the places of that length ("best_fit" only); "fixed" keeps one. seed: of the fresh deals.
    """

    row_length: int
    policy: Policy = "best_fit"
    overlong: Overlong = "split"
    deal: Deal = "fixed"
    seed: int = 0

    def __post_init__(self) -> None:
        for name, known in (("policy", POLICIES), ("overlong", OVERLONG), ("deal", DEALS)):
            if getattr(self, name) not in known:
                shown = "pack" if name == "policy" else name
                raise ConfigError(f"{shown}: expected one of {', '.join(known)}, found {getattr(self, name)!r}")
        if not 2 <= self.row_length <= LONGEST_ROW:
            raise ConfigError(
                f"block_size: expected 2 to {LONGEST_ROW} with pack={self.policy!r} (a row of 1 has no label in it), "
                f"found {self.row_length}"
            )
        if self.deal == "fresh" and self.policy != "best_fit":
            raise ConfigError(
                f"deal: expected 'fixed' with pack={self.policy!r}, found 'fresh': its rows keep the documents' order"
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class PackCounts:
    """What became of the documents of a split; all are counts of one epoch.

    tokens = labelled + boundary + dropped_tokens: labelled have a next token in their document, boundary are documents' last
    tokens. slots = labelled + boundary + padded. split: documents cut at a row's end. empty, dropped: documents in no row.
    """

    documents: int
    empty: int
    dropped: int
    split: int
    pieces: int
    rows: int
    tokens: int
    labelled: int
    boundary: int
    dropped_tokens: int
    slots: int
    padded: int

    @property
    def fill(self) -> float:
        """The share of the slots that hold a token."""
        return 1 - self.padded / self.slots

    def to_dict(self) -> dict[str, int]:
        """Plain JSON values."""
        return asdict(self)

    def __str__(self) -> str:
        lost = f", {self.dropped:,} longer ones dropped ({self.dropped_tokens:,} tokens)" if self.dropped else ""
        return (
            f"{self.documents:,} documents of {self.tokens:,} tokens in {self.rows:,} rows{lost}; "
            f"{self.split:,} cut at a row's end; {self.slots:,} slots = {self.labelled:,} targets + "
            f"{self.boundary:,} documents' last tokens + {self.padded:,} padded ({100 * self.fill:.3f} % full)"
        )


class Packs(Protocol):
    """A plan: row -> pieces, and back."""

    packing: Packing
    num_rows: int
    num_tokens: int
    counts: PackCounts

    def pieces(self, rows: I64, epochs: I64) -> Pieces:
        """The pieces of these rows in these epochs. int64 [k] each, in any order; rows in [0, num_rows)."""

    def holding(self, first: int, last: int, epoch: int) -> I64:
        """The rows that hold any of the tokens [first, last) in an epoch. int64, ascending."""

    def close(self) -> None:
        """Let go of the file of pieces, where there is one. Asking for rows afterwards raises ClosedError. Safe to call twice."""
