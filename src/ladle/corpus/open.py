"""Open a folder of tokens: ours, or one that nanoGPT's scripts made."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from functools import cache, partial
from pathlib import Path
from typing import TYPE_CHECKING

from ladle.corpus import format, manifest, nanogpt
from ladle.corpus.corpus import Corpus
from ladle.corpus.documents import ShardFiles, Sources, StoredDocuments
from ladle.corpus.mask import LossMask, header_of
from ladle.corpus.shard import FileShard, Pool, Shard
from ladle.corpus.split import Split
from ladle.errors import ConfigError, FormatError

if TYPE_CHECKING:
    from ladle.corpus.manifest import Manifest, ShardEntry
    from ladle.tokens import Tokenizer


def open(path: str | os.PathLike[str], *, generation: int | None = None) -> Corpus:
    """Open a corpus that `prepare` made, or a nanoGPT folder (train.bin, val.bin, optional meta.pkl), read-only.

    Costs the same for any number of tokens: only the manifest and the files' sizes are read.
    generation: an earlier state of a corpus that was appended to, from 0; by default the latest.
    Raises FormatError naming the file and the field for anything that is not as the manifest says.
    """
    folder = Path(path)
    if os.path.lexists(folder / format.MANIFEST):
        return _ours(folder, generation)
    if nanogpt.is_one(folder):
        return nanogpt.open(folder)
    found = "no such folder" if not folder.exists() else "a file" if not folder.is_dir() else "neither"
    raise FormatError(
        folder, None, "corpus", f"a folder with {format.MANIFEST}, or with train.bin", found, "make one with `ladle prepare`"
    )


def reopened(path: Path, generation: int | None, fingerprint: str) -> Corpus:
    """What a pickled corpus becomes where it arrives: the same one, opened anew. Raises FormatError if it is another."""
    corpus = open(path, generation=generation)
    _same(path, fingerprint, corpus.fingerprint)
    return corpus


def reopened_split(path: Path, generation: int | None, name: str, fingerprint: str) -> Split:
    """The same of one split."""
    split = open(path, generation=generation)[name]
    _same(path, fingerprint, split.fingerprint)
    return split


def _same(path: Path, expected: str, found: str) -> None:
    if found != expected:
        why = "the corpus was made anew while this was on its way to another process"
        raise FormatError(path, None, "fingerprint", expected, found, why)


def _ours(folder: Path, generation: int | None) -> Corpus:
    read = manifest.read(folder / format.MANIFEST)
    manifest.check_files(folder, read)
    last = len(read.generations) - 1
    number = last if generation is None else generation
    if type(number) is not int or not 0 <= number <= last:
        raise ConfigError(f"{folder}: generation: expected 0 to {last}, found {number!r}")
    whole, counts = read.generations[number]
    pool, sources = Pool(), Sources(folder / format.SOURCES, read.raw["sources"])
    tokenizer = cache(partial(tokenizer_of, read))
    splits = {
        name: _split(
            folder=folder,
            read=read,
            name=name,
            entries=shards[: counts[name]],
            pool=pool,
            sources=sources,
            tokenizer=tokenizer,
            generation=number,
        )
        for name, shards in read.splits.items()
    }
    return Corpus(
        path=folder, manifest=read.raw, splits=splits, fingerprint=lambda: whole, tokenizer=tokenizer, generation=number
    )


def _split(
    *,
    folder: Path,
    read: Manifest,
    name: str,
    entries: Sequence[ShardEntry],
    pool: Pool,
    sources: Sources,
    tokenizer: Callable[[], Tokenizer | None],
    generation: int,
) -> Split:
    fingerprint = cache(lambda: read.fingerprint({name: len(entries)}))
    files = [ShardFiles(folder, e.name, e.num_tokens, e.num_documents, read.itemsize, e.first[0], e.masked) for e in entries]
    dtype = format.TOKEN_DTYPES[read.dtype]
    return Split(
        name=name,
        where=f"{folder / name}",
        shards=[FileShard(f.path("bin"), dtype, f.num_tokens, pool, (f.path("sums"), f.num_bytes("sums"))) for f in files],
        dtype=dtype,
        vocab_size=read.vocab_size,
        max_id=max((e.max_id for e in entries), default=None),
        num_documents=sum(e.num_documents for e in entries),
        fingerprint=fingerprint,
        tokenizer=tokenizer,
        documents=StoredDocuments(files, sources),
        mask=_mask(files, pool) if any(f.masked for f in files) else None,
        remake=lambda: (reopened_split, (folder.absolute(), generation, name, fingerprint())),
    )


def _mask(files: Sequence[ShardFiles], pool: Pool) -> LossMask:
    """The shards' masks: files of bytes, whose header is read as part of them."""
    parts: list[Shard | None] = []
    for f in files:
        sums, first = (f.path("sums"), f.num_bytes("sums")), format.first_sum("mask", **f.counts)
        mask = (
            FileShard(f.path("mask"), format.MASK_DTYPE, f.num_bytes("mask"), pool, sums, first_sum=first) if f.masked else None
        )
        parts.append(mask)
    headers = [header_of(f.num_tokens) if f.masked else b"" for f in files]
    return LossMask(parts, headers, [f.num_tokens for f in files])


def tokenizer_of(read: Manifest) -> Tokenizer | None:
    """Build the manifest's tokenizer. Raises FormatError when it is not the one whose hash was stored."""
    from ladle.tokens import from_identity

    if read.tokenizer is None:
        return None
    tokenizer = from_identity(read.tokenizer)
    if tokenizer.hash != read.tokenizer_hash:
        raise FormatError(read.path, None, "tokenizer_hash", read.tokenizer_hash, tokenizer.hash, "the tokenizer's files changed")
    for field, found in (("vocab_size", read.vocab_size), ("end_of_text", read.raw.get("end_of_text"))):
        if found != (expected := getattr(tokenizer, field)):
            raise FormatError(read.path, None, field, f"the tokenizer's {expected}", found, "the manifest was altered")
    return tokenizer
