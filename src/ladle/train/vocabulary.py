"""Ids and the model's vocabulary: they are compared before any device sees one."""

from __future__ import annotations

import copy
from collections.abc import Mapping

from ladle.corpus.corpus import Corpus
from ladle.corpus.split import Split
from ladle.errors import ConfigError, TokenError


def find_splits(corpus: Corpus | Mapping[str, Split], vocab_size: int | None) -> dict[str, Split]:
    """ "train", and "val" where there is one with a target, every id of which fits one vocabulary.

    vocab_size: of the model; None: the corpus says. Each split comes back as a copy whose vocab_size is the model's: where
    the largest id is known nothing more is checked, where it is not (foreign files) the feed checks each batch on the host.
    Raises ConfigError without a train split or a known size, TokenError with both sizes where ids do not fit.
    """
    if (train := _get(corpus, "train")) is None:
        raise ConfigError(f"corpus: expected a split named 'train', found {', '.join(sorted(_names(corpus))) or 'none'}")
    val = _get(corpus, "val")
    found = {"train": train} | ({"val": val} if val is not None and val.num_tokens > 1 else {})
    size = _size(train) if vocab_size is None else vocab_size
    return {name: _bounded(split, size) for name, split in found.items()}


def _names(corpus: Corpus | Mapping[str, Split]) -> list[str]:
    return list(corpus.splits if isinstance(corpus, Corpus) else corpus)


def _get(corpus: Corpus | Mapping[str, Split], name: str) -> Split | None:
    """A split, or None where there is none of that name; one that is there but damaged raises its own error."""
    try:
        return corpus[name]
    except (ConfigError, KeyError):
        return None


def _size(split: Split) -> int:
    if split.vocab_size is None:
        hint = "" if split.max_id is None else f" (its largest id is {split.max_id})"
        raise ConfigError(
            f"vocab_size: expected a number of ids, found none: {split.where} does not say which tokenizer made it{hint}; "
            "give vocab_size, 50257 for GPT-2's"
        )
    return split.vocab_size


def _bounded(split: Split, size: int) -> Split:
    needed = split.vocab_size if split.max_id is None else split.max_id + 1
    if needed is not None and needed > size:
        what = "its tokenizer has" if split.max_id is None else f"its largest id is {split.max_id}, so it needs"
        raise TokenError(
            f"{split.where}: {what} {needed} ids, but the model's vocabulary has {size}; "
            "raise vocab_size, or prepare the text with the model's tokenizer"
        )
    bounded = copy.copy(split)
    bounded.vocab_size = size
    return bounded
