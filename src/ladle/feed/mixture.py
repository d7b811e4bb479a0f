"""Several corpora in one feed, each with its share of the tokens."""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from ladle.corpus.mask import joined
from ladle.corpus.shard import FileShard, Pool
from ladle.corpus.split import Split
from ladle.errors import ConfigError
from ladle.feed.arguments import integer
from ladle.feed.recipe import INDEPENDENT, Amendment, Recipe, canonical, digest
from ladle.feed.shares import shares
from ladle.order.mixture import Stages, integer_weights
from ladle.rows.packs import Packs
from ladle.rows.stream import MixedPackStream, MixedStream, Units

Weights = Mapping[str, float]


class Mixture:
    """A source for `Feed` that draws windows from several splits, each by its weight of the tokens.

        mixture = ladle.Mixture({"web": web["train"], "code": code["train"]}, weights={"web": 3, "code": 1})
        feed = ladle.Feed(mixture, batch_size=64, block_size=1024, seed=1337)

    sources: {name: split}; a source's order depends on its name, so keep names when sources come and go. The splits stay
    the caller's to close. weights: shares of the tokens handed out, in any scale; None: in proportion to the sources'
    sizes. stages, instead of weights: [(until_tokens, weights), ...], each holding until that many slots of the whole
    stream (rounded up to a window), the last one for ever (its until_tokens is None); a source may be absent from some.
    max_epochs: the most often any source may be seen; a feed with `total_tokens=` that would exceed it is refused.

    After every window each source has had its share but for less than 1.68 windows; nothing is drawn by lot. A source
    that runs out wraps into its next epoch, in a new order: `feed.report()` counts it. A mixture itself has no epoch.
    Raises ConfigError for weights that are zero, negative, not finite or of unknown names, for an unused source, and for
    sources of different tokenizers; a feed raises it for a source smaller than one window.
    """

    def __init__(
        self,
        sources: Mapping[str, Split],
        weights: Weights | None = None,
        *,
        stages: Sequence[tuple[int | None, Weights]] | None = None,
        max_epochs: float | None = None,
    ) -> None:
        if not isinstance(sources, Mapping) or not sources:
            raise ConfigError(f"sources: expected {{name: split}} of at least one, found {sources!r}")
        for name, split in sources.items():
            if not isinstance(name, str) or not name or not name.isprintable():
                raise ConfigError(f"sources: expected printable names, found {name!r}")
            if not isinstance(split, Split):
                raise ConfigError(
                    f"sources: {name}: expected a split, found {type(split).__name__}; use ladle.open(path)['train']"
                )
        if weights is not None and stages is not None:
            raise ConfigError("weights and stages: expected one of them, found both")
        if max_epochs is not None and not (isinstance(max_epochs, int | float) and max_epochs > 0):
            raise ConfigError(f"max_epochs: expected a number above 0, found {max_epochs!r}")
        self.max_epochs, self._shares = max_epochs, (weights, stages)
        self.names = sorted(sources)
        self.splits = [sources[name] for name in self.names]
        if weights is None and stages is None:
            weights = {name: split.num_tokens for name, split in sources.items()}
        self._begins, self._weights = _stages(self.names, stages if weights is None else [(None, weights)])
        _one_vocabulary(self.names, self.splits)
        self.joined = self._join()
        self.num_tokens, self.where, self.tokenizer = self.joined.num_tokens, self.joined.where, self.joined.tokenizer
        self.bases = np.cumsum([0, *(split.num_tokens for split in self.splits)], dtype=np.int64)

    def __reduce__(self) -> tuple[Any, ...]:
        """A mixture pickles as its splits and its weights."""
        return _remade, (dict(zip(self.names, self.splits, strict=True)), *self._shares, self.max_epochs)

    def _join(self) -> Split:
        """The sources' shards laid end to end: tokens are numbered through all of them, in name order.

        The files of all together stay within what one process may open.
        """
        pool = Pool()
        masks = [part for split in self.splits if split.mask is not None for part in split.mask.parts]
        for shard in [*(shard for split in self.splits for shard in split.shards), *masks]:
            if isinstance(shard, FileShard):
                shard.move(pool)
        known = [split.max_id for split in self.splits]
        return Split(
            name="mixture",
            where=f"the mixture of {', '.join(self.names[:5])}{', ...' if len(self.names) > 5 else ''}",
            shards=[shard for split in self.splits for shard in split.shards],
            dtype=max((split.dtype for split in self.splits), key=lambda dtype: dtype.itemsize),
            vocab_size=next((split.vocab_size for split in self.splits if split.vocab_size is not None), None),
            max_id=None if None in known else max(number for number in known if number is not None),
            fingerprint=lambda: digest(
                canonical({name: split.fingerprint for name, split in zip(self.names, self.splits, strict=True)})
            ),
            tokenizer=lambda: next((split.tokenizer for split in self.splits if split.tokenizer is not None), None),
            mask=joined([(split.mask, split.shards) for split in self.splits]),
        )

    def source_of(self, token: int) -> int:
        """Which source (in name order) holds a token of the joined numbering."""
        return int(np.searchsorted(self.bases, token, side="right")) - 1

    def start(self) -> Amendment:
        """What holds from position 0: the first stage."""
        return self._amendment(0, 0)

    def amendments(self, window: int) -> tuple[Amendment, ...]:
        """The later stages, each from the window at which it begins."""
        return tuple(
            self._amendment(number, self._first_unit(number, window) * window) for number in range(1, len(self._weights))
        )

    def _amendment(self, number: int, position: int) -> Amendment:
        weights = self._weights[number]
        fingerprints = {name: self.splits[self.names.index(name)].fingerprint for name in weights}
        return Amendment(from_position=position, content={"weights": weights}, corpora=fingerprints)

    def _first_unit(self, number: int, window: int) -> int:
        return -(-self._begins[number] // window)

    def stream(self, recipe: Recipe) -> MixedStream:
        """The stream of these windows. Raises ConfigError for a setting that mixtures do not have, or a source too short."""
        recipe.refuse("in a mixture", "it mixes whole windows of several sources", "stride", "score")
        recipe.refuse("in a mixture", "neighbours come from different sources", "shuffle_block")
        if recipe.tail == "pad":
            raise ConfigError("tail: expected 'cover' or 'drop' in a mixture, found 'pad'")
        if recipe.order == "random":
            recipe.refuse("with order='random'", INDEPENDENT, "tail", "epoch_offset")
        for name, split in zip(self.names, self.splits, strict=True):
            if split.num_tokens <= recipe.window:
                raise ConfigError(
                    f"sources: {name}: expected at least {recipe.window + 1} tokens for windows of {recipe.window}, "
                    f"found {split.num_tokens}; leave it out, or use a smaller block_size"
                )
        stages = [(self._first_unit(number, recipe.window), weights) for number, weights in enumerate(self._weights)]
        return MixedStream(
            Stages(self.names, stages),
            self.names,
            [recipe.cut(split) for split in self.splits],
            kind=recipe.order,
            seed=recipe.seed,
        )

    def packed(self, recipe: Recipe, packs: Sequence[Packs]) -> MixedPackStream:
        """The stream of these plans, one for each source in name order. Raises ConfigError for a setting mixtures do not have."""
        recipe.refuse("in a mixture", "neighbours come from different sources", "shuffle_block")
        stages = [(self._first_unit(number, recipe.window), weights) for number, weights in enumerate(self._weights)]
        return MixedPackStream(Stages(self.names, stages), self.names, packs, kind=recipe.order, seed=recipe.seed)

    def check_end(self, stream: Units, end: int | None) -> None:
        """Before a feed of `end` slots begins: max_epochs holds, and every source appears. Raises ConfigError, or warns."""
        if self.max_epochs is not None and end is None:
            raise ConfigError(f"max_epochs={self.max_epochs}: expected total_tokens= beside it, found an endless feed")
        if end is None:
            return
        for name, share in shares(self.names, stream, end).items():
            if self.max_epochs is not None and share.epochs > self.max_epochs:
                raise ConfigError(
                    f"max_epochs: {name}: expected at most {self.max_epochs:g}, found {share.epochs:.2f} in {end} tokens; "
                    f"lower its weight or total_tokens, or raise max_epochs"
                )
            if not share.slots:
                warnings.warn(f"mixture: {name} will not appear in {end} tokens: its weight is too small", stacklevel=3)

    def __repr__(self) -> str:
        return f"Mixture({', '.join(self.names)})"


def _remade(
    sources: Mapping[str, Split],
    weights: Weights | None,
    stages: Sequence[tuple[int | None, Weights]] | None,
    max_epochs: float | None,
) -> Mixture:
    return Mixture(sources, weights, stages=stages, max_epochs=max_epochs)


def _stages(names: Sequence[str], stages: Sequence[tuple[int | None, Weights]] | None) -> tuple[list[int], list[dict[str, int]]]:
    """(the position at which each stage begins, its integer weights). Raises ConfigError."""
    if not isinstance(stages, Sequence) or not stages:
        raise ConfigError(f"stages: expected at least one (until_tokens, weights), found {stages!r}")
    begins, told = [0], []
    for number, stage in enumerate(stages):
        if not isinstance(stage, Sequence) or len(stage) != 2:
            raise ConfigError(f"stages: expected (until_tokens, weights), found {stage!r} (stage {number})")
        until, weights = stage
        if not isinstance(weights, Mapping):
            raise ConfigError(f"weights: expected {{name: weight}}, found {weights!r}")
        if unknown := [name for name in weights if name not in names]:
            raise ConfigError(f"weights: expected names among {', '.join(names)}, found {', '.join(map(str, unknown))}")
        told.append(integer_weights(weights))
        last = number == len(stages) - 1
        if (until is None) != last:
            found = "none" if until is None else f"{until} for the last"
            raise ConfigError(f"stages: expected until_tokens for every stage but the last, found {found} (stage {number})")
        if until is not None:
            begins.append(integer(f"stages: until_tokens of stage {number}", until, begins[-1] + 1))
    if unused := sorted(set(names) - set().union(*told)):
        raise ConfigError(f"weights: expected one for every source, found none for {', '.join(unused)}")
    return begins, told


def _one_vocabulary(names: Sequence[str], splits: Sequence[Split]) -> None:
    """Raise ConfigError where two sources say that their ids mean different things."""
    first: tuple[str, str] | None = None
    for name, split in zip(names, splits, strict=True):
        tokenizer = split.tokenizer
        meaning = f"the tokenizer {tokenizer.name} ({tokenizer.hash[:12]})" if tokenizer is not None else None
        if meaning is not None and first is not None and meaning != first[1]:
            raise ConfigError(f"sources: expected one tokenizer, found {first[1]} for {first[0]} and {meaning} for {name}")
        first = first or ((name, meaning) if meaning is not None else None)
    sizes = {split.vocab_size: name for name, split in zip(names, splits, strict=True) if split.vocab_size is not None}
    if len(sizes) > 1:
        told = " and ".join(f"{size} ids for {name}" for size, name in sizes.items())
        raise ConfigError(f"sources: expected one vocabulary, found {told}")
