"""The peers, each by its own documented reading path: grain, litdata, Megatron's GPTDataset, torchdata's StatefulDataLoader.

They live in an environment of their own (bench/requirements.txt). A peer that cannot be imported is reported, with the
reason, and left out. All read the same tokens, in one process with one thread of their own, and give torch int64.
"""

from __future__ import annotations

import contextlib
import importlib
import io
import logging
import os
import shutil
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import torch

from ladle.bench.contenders import Loader, Windows
from ladle.bench.rounds import Contender
from ladle.corpus.split import Split

NEEDS = {
    "grain": "grain.python",
    "litdata": "litdata",
    "megatron-core": "megatron.core.datasets.gpt_dataset",
    "torchdata": "torchdata.stateful_dataloader",
}


def peers(path: Path, split: Split, scratch: Path) -> tuple[list[Contender], dict[str, str]]:
    """(those that are installed, why the others are not). path: the split's one .bin. scratch: for their own files."""
    build = {"grain": _grain, "litdata": _litdata, "megatron-core": _megatron, "torchdata": _torchdata}
    found, missing = [], {}
    logging.disable(logging.WARNING)
    warnings.simplefilter("ignore")
    for name, module in NEEDS.items():
        try:
            with contextlib.redirect_stderr(io.StringIO()):
                importlib.import_module(module)
        except Exception as error:
            missing[name] = f"not installed: {type(error).__name__}: {error}"
        else:
            found.append(build[name](path, split, scratch))
    return found, missing


def _torchdata(path: Path, split: Split, scratch: Path) -> Contender:
    from torchdata.stateful_dataloader import StatefulDataLoader

    @contextmanager
    def opened(batch_size: int, block_size: int) -> Iterator[Loader]:
        windows = Windows(path, split.dtype, block_size)
        yield Loader(StatefulDataLoader(windows, batch_size=batch_size, shuffle=True, drop_last=True))

    return Contender(name="torchdata StatefulDataLoader, 0 workers", open=opened)


def _grain(path: Path, split: Split, scratch: Path) -> Contender:
    """A map dataset with grain's own shuffle and batch, read in the caller's thread (its 16 threads are slower here)."""
    import grain.python as grain

    class Rows:
        def __init__(self, block_size: int) -> None:
            self._tokens, self._T = np.memmap(path, dtype=split.dtype, mode="r"), block_size

        def __len__(self) -> int:
            return (len(self._tokens) - 1) // self._T

        def __getitem__(self, index: int) -> np.ndarray:
            return self._tokens[index * self._T : (index + 1) * self._T + 1]

    def pair(row: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        row = row.astype(np.int64)
        return row[:-1], row[1:]

    @contextmanager
    def opened(batch_size: int, block_size: int) -> Iterator[Loader]:
        dataset = grain.MapDataset.source(Rows(block_size)).shuffle(seed=1).repeat().map(pair).batch(batch_size)
        options = grain.ReadOptions(num_threads=0, prefetch_buffer_size=0)
        yield Loader(dataset.to_iter_dataset(options), lambda batch: tuple(map(torch.from_numpy, batch)))

    return Contender(name="grain, 0 threads", open=opened)


def _pieces(tokens: np.ndarray) -> np.ndarray:
    """What litdata.optimize calls for each piece: here the identity (at module level, since it is pickled)."""
    return tokens


def _litdata(path: Path, split: Split, scratch: Path) -> Contender:
    """Its TokensLoader over chunks that its own optimize wrote, in its StreamingDataLoader without workers."""
    import litdata
    from litdata.streaming.item_loader import TokensLoader

    @contextmanager
    def opened(batch_size: int, block_size: int) -> Iterator[Loader]:
        os.environ["DATA_OPTIMIZER_CACHE_FOLDER"] = str(scratch / "litdata-cache")  # else it leaves files behind
        os.environ["DATA_OPTIMIZER_DATA_CACHE_FOLDER"] = str(scratch / "litdata-data")
        # A chunk must hold whole blocks, so each block size has its own copy of the tokens.
        folder, row = scratch / f"litdata-{block_size}", block_size + 1
        tokens = np.memmap(path, dtype=split.dtype, mode="r")
        chunk = row * max(1, (1 << 25) // row)  # 64 MB of uint16, litdata's usual size
        pieces = [tokens[i : i + chunk] for i in range(0, len(tokens) // row * row, chunk)]
        pieces[-1] = pieces[-1][: len(pieces[-1]) // row * row]
        with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
            litdata.optimize(
                fn=_pieces,
                inputs=[np.asarray(piece) for piece in pieces],
                output_dir=str(folder),
                chunk_size=chunk,
                num_workers=1,
                item_loader=TokensLoader(block_size=row),
                start_method="fork",
                verbose=False,
            )
        os.sync()  # else the kernel writes that copy out while others are timed
        dataset = litdata.StreamingDataset(str(folder), item_loader=TokensLoader(block_size=row), shuffle=True, seed=1)
        loader = litdata.StreamingDataLoader(dataset, batch_size=batch_size, num_workers=0, drop_last=True)

        def read(rows: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
            wide = rows.to(torch.int64)
            return wide[:, :-1].contiguous(), wide[:, 1:].contiguous()

        try:
            yield Loader(loader, read)
        finally:
            shutil.rmtree(folder, ignore_errors=True)

    return Contender(name="litdata TokensLoader, 0 workers", open=opened)


def _megatron(path: Path, split: Split, scratch: Path) -> Contender:
    """GPTDataset over an IndexedDataset of the corpus's documents, with its indices built in advance, in a DataLoader."""
    from megatron.core.datasets import indexed_dataset
    from megatron.core.datasets.gpt_dataset import GPTDataset, GPTDatasetConfig
    from megatron.core.datasets.utils import Split as Part

    class Tokenizer:
        vocab_size, eod, unique_identifiers = split.vocab_size, 0, {"class": "none"}

    prefix = scratch / "megatron"

    def write_index() -> None:
        ends = split.document_ends().astype(np.int64)
        lengths = np.diff(ends, prepend=0)
        Path(indexed_dataset.get_bin_path(str(prefix))).symlink_to(path.resolve())
        with indexed_dataset._IndexWriter(indexed_dataset.get_idx_path(str(prefix)), np.uint16) as index:
            index.write(lengths.tolist(), None, range(len(lengths) + 1))

    @contextmanager
    def opened(batch_size: int, block_size: int) -> Iterator[Loader]:
        if not Path(indexed_dataset.get_idx_path(str(prefix))).exists():
            write_index()
        config = GPTDatasetConfig(
            random_seed=1,
            sequence_length=block_size,
            split="1,0,0",
            blend=([str(prefix)], None),
            path_to_cache=str(scratch / "megatron-cache"),
            tokenizer=Tokenizer(),
            reset_position_ids=False,
            reset_attention_mask=False,
            eod_mask_loss=False,
            create_attention_mask=False,
        )
        documents = indexed_dataset.IndexedDataset(str(prefix), mmap=True)
        indices = np.arange(len(documents), dtype=np.int32)
        dataset = GPTDataset(documents, str(prefix), indices, None, Part.train, config)
        loader = torch.utils.data.DataLoader(dataset, batch_size=batch_size, drop_last=True)
        yield Loader(loader, lambda batch: (batch["tokens"], batch["labels"]))

    return Contender(name="Megatron GPTDataset, 0 workers", open=opened, joins=True)
