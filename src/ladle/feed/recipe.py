"""The recipe: everything that decides the order, as canonical JSON, and its hash as it stood at any position."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Literal

from ladle.corpus.split import Split
from ladle.errors import ConfigError
from ladle.feed.exclusions import NONE, Exclusions
from ladle.order.permutation import ORDER_VERSION
from ladle.order.stream import Kind, Order
from ladle.rows.packs import Deal, Overlong, Packing, Packs, Policy
from ladle.rows.stream import PackStream, Stream, WindowStream
from ladle.rows.windows import Tail, Windows


@dataclass(frozen=True, slots=True, kw_only=True)
class Recipe:
    """What `Feed` is told of the order. The corpus and the amendments come on top of it: see History."""

    seed: int
    window: int
    order: Kind = "shuffled"
    stride: int | None = None
    tail: Tail = "cover"
    epoch_offset: bool = False
    shuffle_block: int | None = None
    score: Literal["all", "new"] = "all"
    pack: Policy | None = None
    overlong: Overlong = "split"
    deal: Deal = "fixed"
    mask_documents: bool = False
    loss_mask: bool | None = None
    batch_tokens: int | None = None

    @property
    def unit(self) -> str:
        """What a position counts."""
        return "slots" if self.batch_tokens is None else "samples"

    @property
    def packing(self) -> Packing | None:
        """How documents are put into rows, or None where rows are windows. Raises ConfigError for what cannot be."""
        if self.batch_tokens is not None:
            where, why = f"with batch_tokens={self.batch_tokens}", "a row is one document, beside others of like length"
            self.refuse(where, why, *WINDOWS_ALONE, "shuffle_block", "pack", "deal")
            if self.order == "random":
                raise ConfigError(f"order: expected 'shuffled' or 'sequential' {where}, found 'random': it has epochs")
            return Packing(row_length=self.window, policy="single", overlong=self.overlong)
        if self.pack is None:
            self.refuse("without pack=", "it says how documents are packed", "overlong", "deal")
            return None
        self.refuse(f"with pack={self.pack!r}", "a packed row is whole documents", *WINDOWS_ALONE)
        if self.order == "random":
            raise ConfigError(
                f"order: expected 'shuffled' or 'sequential' with pack={self.pack!r}, found 'random': independent rows would "
                f"show some documents twice and others never"
            )
        return Packing(row_length=self.window, policy=self.pack, overlong=self.overlong, deal=self.deal, seed=self.seed)

    def settings(self) -> dict[str, object]:
        """The seed, the window, the order version, and what is not a default: a new option changes no old hash."""
        said = {name: value for name, value in asdict(self).items() if value != getattr(DEFAULT, name)}
        if self.loss_mask:
            del said["loss_mask"]  # it asks for what the default takes where it is there
        return {**said, "seed": self.seed, "window": self.window, "order_version": ORDER_VERSION}

    def refuse(self, where: str, why: str, *names: str) -> None:
        """Raise ConfigError for the first of these settings that is not its default."""
        for name in names:
            if (value := getattr(self, name)) != (default := getattr(DEFAULT, name)):
                raise ConfigError(f"{name}: expected {default!r} {where}, found {value!r}: {why}")

    def cut(self, split: Split) -> Windows:
        """The windows of a split. Raises ConfigError where it is too short, or a setting cannot be right."""
        return Windows(
            num_tokens=split.num_tokens,
            window=self.window,
            stride=self.stride,
            tail=self.tail,
            epoch_offset=self.epoch_offset,
            seed=self.seed,
            score=self.score,
            where=split.where,
        )

    def stream(self, split: Split) -> Stream:
        """The stream of one split."""
        windows = self.cut(split)
        n = windows.count
        if self.order == "random":
            self.refuse("with order='random'", INDEPENDENT, "stride", "tail", "epoch_offset", "score")
            n = windows.targets - self.window + 1
        return WindowStream(Order(kind=self.order, n=n, seed=self.seed, shuffle_block=self.shuffle_block), windows)

    def packed(self, packs: Packs) -> PackStream:
        """The stream of one split's packs."""
        return PackStream(Order(kind=self.order, n=packs.num_rows, seed=self.seed, shuffle_block=self.shuffle_block), packs)


DEFAULT = Recipe(seed=0, window=1)
WINDOWS_ALONE = "stride", "tail", "epoch_offset", "score", "mask_documents"
INDEPENDENT = "independent windows have no epochs, no neighbours and no tail (total_tokens= ends such a feed)"


@dataclass(frozen=True, slots=True, kw_only=True)
class Amendment:
    """A change that acts on the slots from a position on. corpora: sources it brings in, {name: fingerprint}."""

    from_position: int
    content: Mapping[str, object]
    corpora: Mapping[str, str]


class History:
    """The recipe as it stood at each position: its start, and the amendments in the order in which they act."""

    def __init__(
        self, recipe: Recipe, start: Amendment, stages: tuple[Amendment, ...] = (), exclusions: Exclusions = NONE
    ) -> None:
        """start: the content and the corpora at position 0."""
        self.recipe, self.exclusions = recipe, exclusions
        self._start, self._stages = start, stages
        excluded = tuple(
            Amendment(from_position=one["from_position"], content={"exclude": digest(canonical(one["documents"]))}, corpora={})
            for one in exclusions.to_list()
        )
        self._hashes: dict[int, tuple[str, str]] = {}  # by how many amendments act
        self.amendments = tuple(sorted((*stages, *excluded), key=lambda a: (a.from_position, canonical(a.content))))

    def excluding(self, exclusions: Exclusions) -> History:
        """The same start and stages, with these exclusions instead."""
        return History(self.recipe, self._start, self._stages, exclusions)

    def at(self, position: int) -> tuple[str, str]:
        """(recipe hash, corpus fingerprint) of what acts before a position. Amendments at or after it change neither."""
        count = sum(one.from_position < position for one in self.amendments)
        if count not in self._hashes:  # every batch carries a state, and hundreds of sources take a while to hash
            self._hashes[count] = self._hash(self.amendments[:count])
        return self._hashes[count]

    def _hash(self, acting: Sequence[Amendment]) -> tuple[str, str]:
        corpora = dict(self._start.corpora)
        for one in acting:
            corpora.update(one.corpora)
        # One corpus is known by its own fingerprint; several by the hash of all.
        corpus = next(iter(corpora.values())) if set(corpora) == {""} else digest(canonical(corpora))
        told: dict[str, object] = {**self.recipe.settings(), **self._start.content, "corpora": corpora}
        if acting:
            told["amendments"] = [{"from_position": one.from_position, **one.content} for one in acting]
        return digest(canonical(told)), corpus


def canonical(value: object) -> str:
    """JSON with sorted keys and no spaces, ASCII only: equal values, equal text."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=True)


def digest(text: str) -> str:
    """32 hexadecimal digits of BLAKE2b."""
    return hashlib.blake2b(text.encode(), digest_size=16).hexdigest()
