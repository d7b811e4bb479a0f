"""From a loader's arguments to its course: which order, cut how, and whether it is one for training."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import ArrayLike
from torch.utils.data import IterableDataset, Subset, TensorDataset

from ladle.batching.order import Bucketed, Drawn, Function, SampleOrder, Sequential, Shuffled
from ladle.batching.replay import Replay, ReplayedBatches
from ladle.batching.tail import FEW, Cut, Tail
from ladle.batching.walk import Course, Given, Sliced
from ladle.errors import ConfigError
from ladle.feed.arguments import flag, integer
from ladle.order.permutation import I64
from ladle.order.weights import Weighted, class_weights
from ladle.rows.buckets import Buckets
from ladle.rows.buckets import Tail as BucketTail

Choice = Literal["auto"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Arguments:
    """What decides the order: `loader`'s arguments of these names, with the rank's place in the world."""

    batch_size: int | None
    shuffle: bool
    seed: int
    drop_last: bool | Choice
    tail: Literal["even"] | None
    weights: ArrayLike | None
    balance: Any
    replacement: bool
    num_draws: int | None
    lengths: ArrayLike | None
    batch_tokens: int | None
    longest_first: bool
    multiple_of: int
    sampler: Any
    batch_sampler: Any
    training: bool | None
    world_size: int

    def __post_init__(self) -> None:
        for name in ("shuffle", "replacement", "longest_first"):
            flag(name, getattr(self, name))
        for name, low in (("batch_size", 1), ("batch_tokens", 1), ("num_draws", 1), ("seed", None)):
            if (value := getattr(self, name)) is not None:
                object.__setattr__(self, name, integer(name, value) if low is None else integer(name, value, low))
        if self.drop_last != "auto":
            flag("drop_last", self.drop_last)
        if self.tail not in {None, "even"}:
            raise ConfigError(f"tail: expected None or 'even', found {self.tail!r}")
        if self.tail == "even" and self.drop_last is True:
            raise ConfigError("drop_last: expected no True with tail='even', which leaves nothing to drop, found both")
        self._refuse_pairs()

    def _refuse_pairs(self) -> None:
        ways = {
            "weights": self.weights is not None,
            "balance": self.balance is not None,
            "lengths": self.lengths is not None,
            "sampler": self.sampler is not None,
            "batch_sampler": self.batch_sampler is not None,
        }
        given = [name for name, is_given in ways.items() if is_given]
        if len(given) > 1:
            raise ConfigError(f"{given[0]}: expected one way to order the samples, found {' and '.join(given)}")
        if self.shuffle and given and given[0] in {"sampler", "batch_sampler"}:
            raise ConfigError(f"shuffle: expected False with {given[0]}=, which decides the order, found True")
        if self.batch_tokens is not None and self.lengths is None:
            raise ConfigError("lengths: expected one a sample with batch_tokens=, found none")
        if self.batch_sampler is not None and self.batch_size is not None:
            raise ConfigError(
                f"batch_size: expected none with batch_sampler=, whose batches have their own, found {self.batch_size}"
            )
        if self.batch_sampler is not None and (self.drop_last is True or self.tail is not None):
            raise ConfigError("drop_last, tail: expected none with batch_sampler=, which cuts the batches, found one")

    @property
    def is_training(self) -> bool:
        """As told, else whether the order is another each epoch."""
        return self.training if self.training is not None else self.shuffle or self._decides

    @property
    def _decides(self) -> bool:
        return any(way is not None for way in (self.weights, self.balance, self.sampler, self.batch_sampler))

    @property
    def rows(self) -> int | None:
        """Samples a batch of one rank; None where batches are cut otherwise."""
        cut_otherwise = self.batch_sampler is not None or self.batch_tokens is not None
        return 1 if self.batch_size is None and not cut_otherwise else self.batch_size

    @property
    def cut(self) -> Cut:
        """How an order of samples is cut."""
        tail: Tail = self.tail or ("auto" if self.is_training else "keep")
        if self.drop_last != "auto":
            tail = "drop" if self.drop_last else self.tail or "keep"
        return Cut(batch=(self.rows or 1) * self.world_size, ranks=self.world_size, tail=tail)


def stream_cut(arguments: Arguments) -> Cut:
    """How an iterable dataset is cut. Raises ConfigError for what needs a dataset with a length."""
    given = {
        "shuffle": arguments.shuffle or None,
        **{name: getattr(arguments, name) for name in ("weights", "balance", "lengths", "sampler", "batch_sampler", "tail")},
    }
    for name, value in given.items():
        if value is not None:
            raise ConfigError(f"{name}: expected none for an IterableDataset, whose rows come as they come, found {name}=")
    tail: Tail = "drop" if arguments.drop_last is True else "keep"
    return Cut(batch=(arguments.rows or 1) * arguments.world_size, ranks=arguments.world_size, tail=tail)


def course(dataset: Any, arguments: Arguments) -> tuple[Course, I64 | None]:
    """(the course over a map-style dataset, its lengths where they were given).

    Raises ConfigError for an empty dataset, one smaller than the ranks, or than a batch that must be full, and for arguments
    that contradict each other or the dataset.
    """
    n = _samples(dataset)
    if n < arguments.world_size:
        raise ConfigError(f"dataset: expected at least one sample for each of {arguments.world_size} ranks, found {n}")
    if arguments.lengths is not None:
        buckets = _buckets(arguments, n)
        return Given(Bucketed(buckets)), buckets.lengths
    if arguments.batch_sampler is not None:
        return Given(ReplayedBatches(arguments.batch_sampler, n, arguments.seed, arguments.world_size)), None
    order, cut = _order(dataset, arguments, n), arguments.cut
    size = order.size(0)
    if not cut.batches(size, size):
        raise ConfigError(
            f"batch_size: expected at most {size // arguments.world_size} of {size} samples on {arguments.world_size} rank(s) "
            f"where batches that are not full are dropped, found {arguments.rows}: an epoch would have no batch; "
            f"set drop_last=False"
        )
    return Sliced(order, cut), None


def labels_of(dataset: Any) -> Any:
    """The label of each sample, where the dataset has them at hand (`labels`, `targets`, the last of its tensors), or None."""
    if isinstance(dataset, Subset):
        inner = labels_of(dataset.dataset)
        return None if inner is None else np.asarray(inner)[np.asarray(dataset.indices, dtype=np.int64)]
    if isinstance(dataset, TensorDataset):
        last = dataset.tensors[-1]
        return last.numpy() if last.ndim == 1 and not last.is_floating_point() else None
    for name in ("labels", "targets"):
        if (found := getattr(dataset, name, None)) is not None and not callable(found):
            return found
    return None


def _samples(dataset: Any) -> int:
    if isinstance(dataset, IterableDataset) or not hasattr(dataset, "__getitem__") or not hasattr(dataset, "__len__"):
        raise ConfigError(
            f"dataset: expected one with __len__ and __getitem__, or an IterableDataset, found {type(dataset).__name__}"
        )
    if not (n := len(dataset)):
        raise ConfigError(f"dataset: expected at least one sample, found none in this {type(dataset).__name__}")
    return n


def _order(dataset: Any, arguments: Arguments, n: int) -> SampleOrder:
    sampler, seed = arguments.sampler, arguments.seed
    if sampler is not None:
        is_function = isinstance(sampler, Callable) and not isinstance(sampler, Iterable)  # type: ignore[arg-type]
        return Function(sampler, n, seed) if is_function else Replay(sampler, n, seed)
    if arguments.weights is not None or arguments.balance is not None:
        weights = arguments.weights if arguments.balance is None else class_weights(_classes(dataset, arguments.balance))
        weighted = Weighted(
            np.asarray(weights), seed, replacement=arguments.replacement, num_draws=arguments.num_draws, num_samples=n
        )
        return Drawn(weighted)
    if arguments.num_draws is not None:
        raise ConfigError("num_draws: expected weights= or balance= with it, found neither")
    return Shuffled(n, seed) if arguments.shuffle else Sequential(n)


def _classes(dataset: Any, balance: Any) -> Any:
    if not isinstance(balance, str):
        return balance
    if balance != "class":
        raise ConfigError(f"balance: expected 'class', or one label a sample, found {balance!r}")
    if (labels := labels_of(dataset)) is None:
        raise ConfigError(
            f"balance: expected a dataset with `labels` or `targets` (one a sample) for 'class', found neither in this "
            f"{type(dataset).__name__}; pass the labels themselves: balance=labels"
        )
    return labels


def _buckets(arguments: Arguments, n: int) -> Buckets:
    ranks = arguments.world_size

    def make(tail: BucketTail) -> Buckets:
        return Buckets(
            np.asarray(arguments.lengths),
            batch_size=None if arguments.rows is None else arguments.rows * ranks,
            batch_tokens=None if arguments.batch_tokens is None else arguments.batch_tokens * ranks,
            seed=arguments.seed,
            shuffle=arguments.shuffle,
            longest_first=arguments.longest_first,
            multiple_of=arguments.multiple_of,
            tail=tail,
            at_least=ranks,
            num_samples=n,
        )

    if arguments.tail is None and arguments.drop_last is not True:
        if arguments.drop_last == "auto" and arguments.is_training and n > ranks:
            try:
                dropping = make("drop")
            except ConfigError:  # nothing would be left; even batches say what is wrong, if anything is
                return make("even")
            return dropping if (n - dropping.num_samples) * FEW <= n else make("even")
        return make("short" if ranks == 1 else "even")
    return make("drop" if arguments.drop_last is True else "even")
