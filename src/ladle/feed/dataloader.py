"""A text as a torch Dataset and DataLoader, for scripts that have such a pair: `GPTDataset`, `create_dataloader`.

One id array for any number of windows, one gather a batch, an order that takes no memory and no global generator.
For corpora on disk, resuming and ranks there is `ladle.Feed`.
"""

from __future__ import annotations

import logging
import warnings
from collections.abc import Collection, Iterator, Sequence
from operator import index as as_index
from typing import Any

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view
from numpy.typing import NDArray

from ladle.corpus import format
from ladle.corpus.split import Split
from ladle.errors import ConfigError, MissingExtra
from ladle.feed.coverage import Coverage
from ladle.order.permutation import BLOCK, hash_key
from ladle.order.stream import Order
from ladle.tokens import END_OF_TEXT
from ladle.tokens import tokenizer as find_tokenizer

try:
    import torch
    from torch import Tensor
    from torch.utils.data import DataLoader, Dataset, Sampler, default_collate, get_worker_info
except ModuleNotFoundError as error:
    raise MissingExtra("a torch DataLoader", "torch", "torch") from error

log = logging.getLogger(__name__)

WRITTEN_END = frozenset({END_OF_TEXT})


class GPTDataset(Dataset[tuple[Tensor, Tensor]]):
    """Windows of a text as (inputs, targets), targets being the inputs one token later.

    text: a str, or a split (`ladle.from_ids(array)`), which is read into memory and keeps its own ids.
    tokenizer: any name or object `ladle` takes, a `tiktoken.Encoding` among them; not looked at for a split.
    max_length: L, tokens in a window. stride: S, tokens from one window's start to the next one's.
    allowed_special: markers that become control ids where the text spells them out; set() reads them as text.

    `dataset[i]` is two int64 tensors [L], their own memory; item i starts at token i * S, for every start below N - L.
    Memory: 2 bytes a token (4 where the vocabulary is above 65 536); workers share it, however they are started.
    Raises ConfigError for a size below 1 and for a text of L tokens or fewer; warns where S > L skips targets.
    """

    def __init__(
        self,
        text: str | Split,
        tokenizer: object,
        max_length: int,
        stride: int,
        *,
        allowed_special: Collection[str] = WRITTEN_END,
    ) -> None:
        ids = _ids(text, tokenizer, allowed_special)
        # A tensor, since torch's pickler puts one into shared memory, once for all workers; of a signed type, since
        # unsigned ones do not survive Python's.
        self._bits = torch.from_numpy(ids.view(f"i{ids.itemsize}"))
        self._coverage = Coverage(num_tokens=len(ids), max_length=max_length, stride=stride)
        if skipped := self._coverage.skipped:
            warnings.warn(
                f"stride {stride} > max_length {max_length}: {skipped:,} of {len(ids) - 1:,} targets stand in no window; "
                f"stride={max_length} covers them",
                stacklevel=2,
            )

    def coverage(self, batch_size: int = 1, *, drop_last: bool = False) -> Coverage:
        """How often tokens are targets and what is left out, under this way of batching."""
        whole = self._coverage
        return Coverage(
            num_tokens=whole.num_tokens,
            max_length=whole.max_length,
            stride=whole.stride,
            batch_size=batch_size,
            drop_last=drop_last,
        )

    def __len__(self) -> int:
        """Number of windows."""
        return self._coverage.num_windows

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        """Window `index` as (inputs, targets), int64 [L] each. Counts from the end below 0; IndexError outside."""
        start = self._place(index) * self._coverage.stride
        window = self._tokens()[start : start + self._coverage.max_length + 1]
        return torch.from_numpy(window[:-1].astype(np.int64)), torch.from_numpy(window[1:].astype(np.int64))

    def __getitems__(self, indices: Sequence[int]) -> Gathered:
        """Many windows by one gather; torch's DataLoader asks for a batch this way."""
        places = np.fromiter((self._place(index) for index in indices), dtype=np.int64, count=len(indices))
        windows = sliding_window_view(self._tokens(), self._coverage.max_length + 1)
        return Gathered(windows[places * self._coverage.stride])

    def _tokens(self) -> NDArray[Any]:
        """uint16 or uint32 [N]."""
        return self._bits.numpy().view(f"u{self._bits.itemsize}")

    def _place(self, index: int) -> int:
        place, size = as_index(index), len(self)
        if not -size <= place < size:
            raise IndexError(f"window {place} of a dataset of {size}")
        return place % size


class Gathered(Sequence[tuple[Tensor, Tensor]]):
    """One gathered batch: samples for any collate function, both tensors at once for ours.

    rows: uint16 or uint32 [B, L + 1], owned. From a worker process the rows travel as they are, through its pipe, and widen
    where they arrive: an eighth of the bytes, no shared memory to run out of, no open file for every batch that is kept.
    """

    def __init__(self, rows: NDArray[Any]) -> None:
        self._rows = rows
        self._tensors: list[Tensor] | None = None

    @property
    def tensors(self) -> list[Tensor]:
        """[inputs, targets], int64 [B, L] each, contiguous, sharing no element."""
        if self._tensors is None:
            self._tensors = widen(self._rows)
        return self._tensors

    def __len__(self) -> int:
        return len(self._rows)

    def __getitem__(self, index: Any) -> Any:
        inputs, targets = self.tensors
        return inputs[index], targets[index]

    def __reduce__(self) -> tuple[Any, ...]:
        return widen, (self._rows,)  # what arrives is the batch itself


def widen(rows: NDArray[Any]) -> list[Tensor]:
    """Rows of L + 1 ids, [B, L + 1], as [inputs, targets], int64 [B, L] each: one allocation, no shared element."""
    block = np.empty((2, rows.shape[0], rows.shape[1] - 1), dtype=np.int64)
    block[0], block[1] = rows[:, :-1], rows[:, 1:]
    return [torch.from_numpy(part) for part in block]


def collate(samples: Sequence[Any]) -> Any:
    """[inputs, targets], int64 [B, L] each, as torch's own collate function gives, without stacking again."""
    if not isinstance(samples, Gathered):
        return default_collate(list(samples))
    return samples if get_worker_info() is not None else samples.tensors


class Shuffled(Sampler[int]):
    """Every window once an epoch, in a fresh order each epoch: a pure function of (seed, epoch), without memory.

    Each new iteration is the next epoch, whether or not the last one was finished; `set_epoch` chooses another.
    """

    def __init__(self, num_windows: int, seed: int) -> None:
        self._order = Order(kind="shuffled", n=num_windows, seed=seed)
        self.epoch = 0

    def set_epoch(self, epoch: int) -> None:
        """The epoch that the next iteration hands out."""
        self.epoch = epoch

    def __len__(self) -> int:
        return self._order.n

    def __iter__(self) -> Iterator[int]:
        # A generator: the epoch is counted when the first window is asked for, since torch's worker
        # processes make two iterators an epoch and use one.
        first = self.epoch * self._order.n
        self.epoch += 1
        for done in range(0, self._order.n, BLOCK):
            _, windows = self._order.windows(first + done, min(BLOCK, self._order.n - done))
            yield from windows.tolist()


def create_dataloader(  # noqa: PLR0917  the order that its readers type
    text: str | Split,
    batch_size: int = 4,
    max_length: int = 256,
    stride: int = 128,
    shuffle: bool = True,
    drop_last: bool = True,
    num_workers: int = 0,
    *,
    tokenizer: object = "gpt2",
    seed: int = 0,
    allowed_special: Collection[str] = WRITTEN_END,
    **options: Any,
) -> DataLoader[tuple[Tensor, Tensor]]:
    """A torch DataLoader over the windows of a text: batches of int64 inputs and targets [batch_size, max_length].

    text, max_length, stride, tokenizer, allowed_special: as in `GPTDataset`. shuffle: a fresh order each epoch, decided
    by seed and the epoch's number alone; torch's global generator is neither asked nor moved. drop_last: leave out an
    epoch's last batch where it is smaller. num_workers, options: torch's DataLoader's own; a `sampler` or
    `batch_sampler` takes the place of shuffle (and of batch_size and drop_last), and a `generator` of your own that of seed.
    How often each token is a target, and what is left out, is logged (INFO, logger "ladle.feed.dataloader") and told by
    `loader.dataset.coverage(loader.batch_size, drop_last=loader.drop_last)`.
    Raises ConfigError where the text gives no window, or fewer than one batch under drop_last.
    """
    dataset = GPTDataset(text, tokenizer, max_length, stride, allowed_special=allowed_special)
    if options.get("batch_sampler") is None:
        coverage = dataset.coverage(batch_size, drop_last=drop_last)
        log.info("%s", coverage)
        options |= {"batch_size": coverage.batch_size, "drop_last": drop_last}
        if options.get("sampler") is None:
            own = shuffle and options.get("generator") is None
            options |= {"sampler": Shuffled(len(dataset), seed)} if own else {"shuffle": shuffle}
    if options.get("generator") is None:  # or torch would draw each epoch's worker seed from the global one
        options["generator"] = torch.Generator().manual_seed(hash_key("workers", seed))
    options.setdefault("collate_fn", collate)
    if not torch.accelerator.is_available():  # nothing to pin for, and torch would warn of it at each epoch
        options.pop("pin_memory", None)
    return DataLoader(dataset, num_workers=num_workers, **options)


def _ids(text: str | Split, tokenizer: object, allowed_special: Collection[str]) -> NDArray[Any]:
    """uint16 or uint32 [N], owned."""
    if isinstance(text, Split):
        return text.read(0, text.num_tokens)
    if not isinstance(text, str):
        raise ConfigError(
            f"text: expected a str or a split, found {type(text).__name__}; ladle.from_ids(array) makes a split of ids"
        )
    chosen = find_tokenizer(tokenizer, text=[text])
    dtype = format.TOKEN_DTYPES[format.dtype_name(chosen.vocab_size)]
    parts = chosen.encode_pieces([text], allowed_special=allowed_special)
    return np.concatenate([np.empty(0, dtype), *(part.astype(dtype) for part in parts)])
