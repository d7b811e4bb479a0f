"""How an epoch is cut into batches: a function of what is left of it, so that any place goes on at any batch size."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Tail = Literal["auto", "drop", "keep", "even"]
FEW = 20  # one part in so many, 5 %, is little enough to leave out, or to add to a batch


@dataclass(frozen=True, slots=True, kw_only=True)
class Cut:
    """Cuts m samples, what is left of an epoch, into global batches.

    batch: samples a batch (G), all ranks together. ranks: every batch has one for each. tail: "drop" a batch that is not
    full; "keep" it, or where it has fewer samples than ranks add them to the one before; "even": spread the samples, so that
    batches differ by one at most, and none is larger than G by more than 5 %; "auto": drop 5 % of an epoch or less, else keep.
    """

    batch: int
    ranks: int
    tail: Tail

    def batches(self, left: int, epoch: int) -> int:
        """Batches that `left` samples make, of an epoch of `epoch` samples; 0 where there is nothing more to hand out."""
        whole, rest = divmod(left, self.batch)
        match self._tail(rest, epoch):
            case "drop":
                return whole
            case "even":
                return min(max(whole, -(-left // (self.batch + self.batch // FEW))), left // self.ranks)
            case _:
                return whole + (rest >= self.ranks)

    def first(self, left: int, epoch: int) -> int:
        """Samples of the first of these batches; 0 where there is none."""
        batches = self.batches(left, epoch)
        if not batches:
            return 0
        tail = self._tail(left % self.batch, epoch)
        if tail == "even":
            return -(-left // batches)
        return left if batches == 1 and tail == "keep" else self.batch

    def dropped(self, left: int, epoch: int) -> int:
        """Samples that are left out."""
        rest = left % self.batch
        return rest if self._tail(rest, epoch) == "drop" else 0 if self.batches(left, epoch) else left

    def too_few(self, left: int, epoch: int) -> bool:
        """Whether samples are left that are not to be dropped, but are fewer than the ranks."""
        return 0 < left < self.ranks and self._tail(left % self.batch, epoch) != "drop"

    def _tail(self, rest: int, epoch: int) -> Tail:
        """What becomes of `rest` samples; they are the same at every batch's border."""
        if self.tail != "auto":
            return self.tail
        return "drop" if rest * FEW <= epoch else "keep"
