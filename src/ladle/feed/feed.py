"""The feed: (corpus, recipe, seed, position) -> batch, and a consumer that walks along it."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping
from functools import partial
from itertools import count
from threading import RLock
from types import TracebackType
from typing import Any, Literal, Self, TextIO

from ladle.corpus.split import Split
from ladle.errors import ClosedError, ConfigError
from ladle.feed.appearances import Appearance, appearances
from ladle.feed.arguments import flag, integer
from ladle.feed.audit import Certificate, audit
from ladle.feed.batch import Batch
from ladle.feed.budget import Budget, BudgetStream, refuse_with_budget
from ladle.feed.delivery import delivery, processes
from ladle.feed.extent import Extent
from ladle.feed.mixture import Mixture
from ladle.feed.pieces import PieceRows
from ladle.feed.prefetch import Prefetcher
from ladle.feed.producer import Shape, Ticket
from ladle.feed.provenance import Span, packed_spans, spans
from ladle.feed.ranks import topology
from ladle.feed.recipe import INDEPENDENT, Amendment, History, Recipe
from ladle.feed.report import FeedReport, report
from ladle.feed.shares import Share, shares
from ladle.feed.state import FeedState
from ladle.feed.streams import batches_of, is_packed, stream_of
from ladle.order.permutation import LARGEST
from ladle.order.stream import Kind
from ladle.rows.packs import Deal, Overlong, Policy
from ladle.rows.windows import Tail


class Feed:
    """Batches of one split, for ever, in an order that is a function of the seed and the position.

    source: a Split (`corpus["train"]`, `ladle.from_text(...)`, `ladle.from_ids(...)`); it stays the caller's to close.
    batch_size: rows of a global batch, all ranks together (B). block_size: targets a row (T).
    batch_tokens: instead of batch_size, the slots a global batch may have: its rows are whole documents of like lengths, padded
    to the longest of them, none longer than T (see overlong). The position then counts rows, and a batch ends with its epoch.
    seed: -2**63 to 2**64 - 1. order: "shuffled" (every window once an epoch, in a fresh order), "sequential" (as they lie), or
    "random" (independent windows, with replacement: no epochs).
    window: W, the unit that is shuffled; T divides it. None: T. Give it from the start to change T later.
    stride: targets from one window's start to the next, at most W (None: W). score: "all" | "new" targets of overlaps.
    tail: "cover" (the last window is moved back and masks what it repeats: every token but the first is a target
    exactly once an epoch), "drop" or "pad". epoch_offset: shift the cuts each epoch. shuffle_block: see `Order`.
    pack: None (windows), or documents kept whole in rows of T: "best_fit" (best-fit-decreasing: nearly no padding), "sequential"
    (in order, a new row where the next document does not fit) or "single" (one a row). overlong: what becomes of a document
    longer than T: "split", "drop" or "error". deal: "fresh" puts other documents together each epoch. pack_cache: the folder
    that keeps the plan (None: beside the corpus).
    mask_documents: of windows: no target lies in another document than its input, and batches know where documents end.
    loss_mask: whether the corpus's own mask of targets counts (None: where it has one).
    ignore_index: what y holds where a target does not count. epochs, total_tokens: make the feed finite (slots).
    rank, world_size: this process's slice of the global batch; None: from torch.distributed where it is initialised.
    framework: "torch", "numpy", or "jax" (int32; rank and world_size are then JAX's processes where they are not given).
    device: where x and y are delivered: a torch device; or a jax device, or a sharding over a mesh, whose x and y are
    then global arrays of all B rows.
    prefetch: batches made ahead by one thread; 0 makes them in the caller's.
    max_mapped: bytes of mapped pages that may stay resident (None: 4 GiB or a quarter of memory).

    One thread at a time walks a feed or looks into it. Several feeds may share a source.
    Raises ConfigError for arguments that cannot be right, before the first batch. Has close() and works in `with`.
    """

    def __init__(
        self,
        source: Split | Mixture,
        *,
        block_size: int,
        batch_size: int | None = None,
        batch_tokens: int | None = None,
        seed: int = 0,
        order: Kind = "shuffled",
        window: int | None = None,
        stride: int | None = None,
        score: Literal["all", "new"] = "all",
        tail: Tail = "cover",
        epoch_offset: bool = False,
        shuffle_block: int | None = None,
        pack: Policy | None = None,
        overlong: Overlong = "split",
        deal: Deal = "fixed",
        pack_cache: str | os.PathLike[str] | None = None,
        mask_documents: bool = False,
        loss_mask: bool | None = None,
        ignore_index: int = -100,
        epochs: int | None = None,
        total_tokens: int | None = None,
        rank: int | None = None,
        world_size: int | None = None,
        device: Any = None,
        framework: Literal["torch", "numpy", "jax"] = "torch",
        prefetch: int = 2,
        max_mapped: int | None = None,
    ) -> None:
        self.arguments = {name: value for name, value in locals().items() if name not in {"self", "source"}}
        if not isinstance(source, Split | Mixture):
            found = type(source).__name__  # type: ignore[unreachable]
            raise ConfigError(f"source: expected a split, found {found}; use ladle.open(path)['train'] or ladle.from_ids(array)")
        if (batch_size is None) == (batch_tokens is None):
            raise ConfigError(f"batch_size, batch_tokens: expected one of them, found {batch_size!r} and {batch_tokens!r}")
        batch_tokens = None if batch_tokens is None else integer("batch_tokens", batch_tokens, 1)
        batch_size = 1 if batch_size is None else integer("batch_size", batch_size, 1)
        block_size = integer("block_size", block_size, 1)
        seed = integer("seed", seed, -(2**63), 2**64)
        window = block_size if window is None else integer("window", window, 1)
        stride = None if stride is None or stride == window else integer("stride", stride)
        shuffle_block = None if shuffle_block is None else integer("shuffle_block", shuffle_block)
        ignore_index = integer("ignore_index", ignore_index, -(2**31), 2**31)
        prefetch = integer("prefetch", prefetch, 0, 4097)
        max_mapped = None if max_mapped is None else integer("max_mapped", max_mapped, 0)
        if batch_tokens is not None:
            refuse_with_budget(framework=framework, window=window, block_size=block_size, total_tokens=total_tokens)
        if rank is None and world_size is None:
            rank, world_size = processes(framework)
        self._topology = rank, world_size
        rank, world_size = topology(rank, world_size)
        if batch_tokens is None and world_size > batch_size:
            raise ConfigError(f"batch_size: expected at least a row for each of {world_size} ranks, found {batch_size} rows")
        self.source, self.seed = source, seed
        self.recipe = Recipe(
            seed=seed,
            window=window,
            order=order,
            stride=stride,
            tail=tail,
            epoch_offset=epoch_offset,
            shuffle_block=shuffle_block,
            score=score,
            pack=pack,
            overlong=overlong,
            deal=deal,
            mask_documents=flag("mask_documents", mask_documents),
            loss_mask=None if loss_mask is None else flag("loss_mask", loss_mask),
            batch_tokens=batch_tokens,
        )
        if pack is not None and window != block_size:
            raise ConfigError(
                f"window: expected block_size ({block_size}) with pack={pack!r}, found {window}: a row is packed whole"
            )
        self.stream = stream_of(self.recipe, source, pack_cache)
        if isinstance(self.stream, BudgetStream):
            self.shape: Shape = Budget.of(self.stream, block_size, rank, world_size)
        else:
            self.shape = Shape(batch_size=batch_size, block_size=block_size, rank=rank, world_size=world_size)
        self.history = _history(self.recipe, source)
        self._position = 0
        self._extent = Extent.of(self.stream, epochs, total_tokens, mixed=isinstance(source, Mixture))
        if isinstance(source, Mixture):
            source.check_end(self.stream, self.end)
        tokens = source.joined if isinstance(source, Mixture) else source
        send, self._close_device = delivery(framework, device, self.shape, tokens)
        self._producer = batches_of(
            self.recipe, source, self.stream, self.shape, ignore_index=ignore_index, send=send, max_mapped=max_mapped
        )
        self._look, self._walk = self._producer(), self._producer(advise=True)
        self._prefetcher = Prefetcher(self._walk, partial(Ticket.following, shape=self.shape), prefetch) if prefetch else None
        self._begun = self._closed = False
        self._taking = RLock()  # threads that share a feed take turns, and each batch goes to one of them

    # --- the walk ---

    @property
    def position(self) -> int:
        """Slots received so far, all ranks together."""
        return self._position

    @property
    def end(self) -> int | None:
        """The position at which a finite feed ends, or None."""
        return self._extent.end

    @property
    def slots_per_epoch(self) -> int:
        """n * W; with batch_tokens= an epoch's rows. Raises ConfigError for order="random" and for a mixture: no epochs."""
        return self._extent.slots_per_epoch

    @property
    def batches_per_epoch(self) -> int:
        """Batches from one epoch's border to the next at this batch and block size; the last may be partly masked."""
        return self.shape.batches(self.slots_per_epoch)

    def __len__(self) -> int:
        """Batches from position 0 to the end of a finite feed. Raises TypeError for an endless one."""
        return self._extent.batches(self.shape)

    def __bool__(self) -> bool:
        """True: asking whether there is a feed is no question about its length."""
        return True

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> Batch:
        return self._take(self.end)

    def epoch(self) -> Iterator[Batch]:
        """Batches up to the next epoch's border, at fixed shape: rows past it are wholly masked. Then the feed stands at it."""
        self._check_open()
        _ = self.slots_per_epoch  # raises where there are no epochs
        return self.iteration()

    def iteration(self) -> Iterator[Batch]:
        """Batches up to the next epoch's border where there are epochs, else to the end: what a framework calls an epoch."""
        limit = self.iteration_end(self._position)
        while limit is None or self._position < limit:
            yield self._take(limit)

    def iteration_end(self, position: int) -> int | None:
        """Where an iteration that begins here ends, in slots; None: never."""
        return self._extent.iteration_end(position)

    def share(self, start: int, first: int, every: int) -> Iterator[Batch]:
        """Batches number first, first + every, ... of the iteration that begins at position `start`: one worker's of several.

        A pure function: nothing moves, and no thread is used.
        """
        self._check_open()
        if not self._begun:
            self._begin()
        ticket = Ticket(start, self.iteration_end(start), self.history)
        walk, limit = self._producer(advise=True, every=every), ticket.limit
        for number in count(first, every):
            place = ticket.next_position(self.shape, number)
            if limit is not None and place >= limit:
                return
            yield walk(ticket._replace(position=place)).arrive()

    def _take(self, limit: int | None) -> Batch:
        with self._taking:
            self._check_open()
            if not self._begun:
                self._begin()
            ticket = Ticket(self._position, limit, self.history)
            if limit is not None and ticket.position >= limit:
                raise StopIteration
            batch = (self._walk(ticket) if self._prefetcher is None else self._prefetcher.take(ticket)).arrive()
            self._position = batch.next_position
            return batch

    def _begin(self) -> None:
        """Before the first batch: torch.distributed may have been initialised since this feed was made."""
        now, mine = topology(*self._topology), (self.shape.rank, self.shape.world_size)
        if now != mine:
            raise ConfigError(
                f"rank, world_size: this feed was made as {mine}, and torch.distributed now says {now}; "
                f"make the feed after init_process_group, or pass rank= and world_size="
            )
        self._begun = True

    # --- looking, without moving ---

    def at(self, position: int) -> Batch:
        """The batch that begins at this position (slots). A pure function: nothing moves."""
        self._check_open()
        place = integer("position", position, 0)
        if self.end is not None and place >= self.end:
            raise IndexError(f"position: expected below the feed's end at {self.end} slots, found {place}")
        return self._look(Ticket(place, self.end, self.history)).arrive()

    def __getitem__(self, step: int) -> Batch:
        """Batch number `step` counted from position 0 at this batch and block size; negative from the end of a finite feed."""
        return self.at(self.shape.after(0, self._step(step)))

    def where(self, step: int, row: int) -> list[Span]:
        """The documents in a row of the global batch number `step`, in order, with their provenance."""
        rows, T = self.shape.rows(self.shape.after(0, self._step(step))), self.shape.block_size
        place = integer("row", row, 0, len(rows))
        found = self._look.rows(rows.start, len(rows)).part(place, place + 1)
        if isinstance(found, PieceRows) and is_packed(self.stream):
            return packed_spans(self.source, found.pieces)
        return spans(self.source, int(found.start[0]), T + 1)

    def steps_of(self, document: object, epochs: Iterable[int] = range(1)) -> list[Appearance]:
        """Every row that holds some of a document, in these epochs: (epoch, step, row, columns), by inverting the order.

        document: its number in the split; of a mixture (source's name, number), and epochs are then that source's own.
        Raises ConfigError for order="random", which has no inverse, and for a document that is not there.
        """
        if self.recipe.order == "random":
            raise ConfigError(f"steps_of: expected order 'shuffled' or 'sequential', found 'random': {INDEPENDENT}")
        return appearances(self, document, epochs)

    def shares(self, position: int | None = None) -> dict[str, Share]:
        """What each source has given by this position (slots; None: where the feed stands): {name: its slots, share, epochs}.

        Of a mixture its sources, by name; else the one split.
        """
        names = self.source.names if isinstance(self.source, Mixture) else [self.source.name]
        return shares(names, self.stream, self._position if position is None else integer("position", position, 0))

    def audit(self, *, epochs: int | None = None, total_tokens: int | None = None, progress: TextIO | None = None) -> Certificate:
        """Follow the plan from position 0 and certify what it hands out: see `ladle.feed.audit.audit`."""
        return audit(self, epochs=epochs, total_tokens=total_tokens, progress=progress)

    def report(self) -> FeedReport:
        """What each source has given before the feed's position: targets trained, masked and excluded, share, epochs."""
        return report(self)

    # --- leaving documents out ---

    def exclude(self, documents: object, from_position: int | None = None) -> None:
        """Mask the targets that lie in these documents from a position on (slots; None: where the feed stands).

        documents: numbers in the split; of a mixture {source's name: numbers}. Their tokens are still read as inputs; no
        model is taught to write them. Nothing else moves, and the recipe says so: states saved up to that position still
        load, later ones load into feeds with the same exclusions (`feed.exclusions` lists them as plain values, for a
        checkpoint). A document excluded twice keeps the earlier position.
        Raises ConfigError for a position before the feed's own, since what was handed out stays as it was.
        """
        self._check_open()
        if self.recipe.batch_tokens is not None:
            raise ConfigError("exclude: expected windows or packs, found batch_tokens=, whose position counts samples")
        place = self._position if from_position is None else integer("from_position", from_position, 0)
        if place < self._position:
            raise ConfigError(
                f"from_position: expected at least the feed's position {self._position}, found {place}: what was handed out "
                f"stays as it was; exclude in a new feed, before load_state_dict()"
            )
        self.history = self.history.excluding(self.history.exclusions.plus(self.source, documents, place))

    @property
    def exclusions(self) -> list[dict[str, Any]]:
        """What `exclude` was told, as plain JSON values: [{"from_position": slots, "documents": ...}, ...]."""
        return self.history.exclusions.to_list()

    def _step(self, step: int) -> int:
        """The number of a batch, from 0. Raises IndexError outside a finite feed, ConfigError where none could be."""
        if self.end is None:
            return integer("step", step, 0, LARGEST // self.shape.slots)
        number = integer("step", step, -LARGEST)
        place = number + len(self) if number < 0 else number
        if not 0 <= place < len(self):
            raise IndexError(f"step: expected {-len(self)} to {len(self) - 1} in a feed of {len(self)} batches, found {number}")
        return place

    # --- state ---

    def state_dict(self) -> dict[str, object]:
        """Where the consumer stands: plain JSON values, under 400 bytes, the same on every rank."""
        return self.state_at(self._position)

    def state_at(self, position: int) -> dict[str, object]:
        """What `state_dict` gives where the feed stands at this position (slots)."""
        return FeedState(self.history, integer("position", position, 0)).to_dict()

    def load_state_dict(self, state: Mapping[str, object]) -> None:
        """Continue from a saved state, also under another batch size, block size, rank or prefetch depth.

        Takes effect at once, before or after iteration has begun. Raises StateError if it belongs to another stream.
        """
        self._check_open()
        self._position = FeedState(self.history, 0).position_from(state)

    def __reduce__(self) -> tuple[Any, ...]:
        """A feed pickles as its source, its arguments and its position; what was made ahead is made anew where it arrives.

        The rank goes with it. Raises ClosedError, and what the source raises.
        """
        self._check_open()
        if not self._begun:
            self._begin()
        mine = {"rank": self.shape.rank, "world_size": self.shape.world_size}
        return _remade, (self.source, {**self.arguments, **mine}), (self.history, self._position)

    def __setstate__(self, state: tuple[History, int]) -> None:
        self.history, self._position = state

    # --- lifetime ---

    def close(self) -> None:
        """End the thread and free the device's buffers. The source stays open. Safe to call twice."""
        if not self._closed:
            self._closed = True  # at once: a thread that walks ends at its next batch
            with self._taking:
                if self._prefetcher is not None:
                    self._prefetcher.close()
                self._close_device()

    def _check_open(self) -> None:
        if self._closed:
            raise ClosedError("this feed is closed; make another from the same source and load its state_dict()")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None) -> None:
        self.close()

    def __repr__(self) -> str:
        B, T, budget = self.shape.batch_size, self.shape.block_size, self.recipe.batch_tokens
        size = f"batch_size={B}" if budget is None else f"batch_tokens={budget}"
        return f"Feed({self.source.where}, {size}, block_size={T}, order={self.recipe.order!r}, position={self.position})"


def _history(recipe: Recipe, source: Split | Mixture) -> History:
    if isinstance(source, Mixture):
        return History(recipe, source.start(), source.amendments(recipe.window))
    return History(recipe, Amendment(from_position=0, content={}, corpora={"": source.fingerprint}))


def _remade(source: Split | Mixture, arguments: Mapping[str, Any]) -> Feed:
    return Feed(source, **arguments)
