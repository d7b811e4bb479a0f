"""Text to a corpus on disk: survey the inputs, plan, run the tasks, write the manifest last."""

from __future__ import annotations

import itertools
import json
import os
import sys
import time
from collections import Counter
from collections.abc import Collection, Iterable, Sequence
from pathlib import Path
from typing import Any, TextIO

from ladle.corpus import format, manifest, record_task, records
from ladle.corpus.corpus import Corpus
from ladle.corpus.open import open as open_corpus
from ladle.corpus.plan import FIELDS, Options, plan
from ladle.corpus.progress import Progress
from ladle.corpus.summary import Summary
from ladle.corpus.survey import Survey, survey
from ladle.corpus.task import Written, run
from ladle.corpus.workplace import workplace, workplace_of
from ladle.corpus.write import write_file
from ladle.errors import ConfigError, TextError
from ladle.text import RECORD_SUFFIXES, TEXT_SUFFIXES, Source, find
from ladle.tokens import Tokenizer
from ladle.tokens import tokenizer as build

PathLike = str | os.PathLike[str]


def prepare(
    inputs: PathLike | Iterable[PathLike],
    out: PathLike,
    *,
    tokenizer: Any = "gpt2",
    split: str = "auto",
    val_fraction: float = 0.1,
    end_of_text: bool | None = None,
    allowed_special: Collection[str] = (),
    shard_bytes: int | None = None,
    encoding_errors: str = "strict",
    text_field: str | None = None,
    train_spans_field: str | None = None,
    mask_spans_field: str | None = None,
    chat_field: str | None = None,
    train_roles: Collection[str] = ("assistant",),
    progress: bool = False,
) -> Corpus:
    """Tokenise files and folders of text (UTF-8) into a corpus folder, and open it.

    inputs: files, and folders searched for text; one file is one document. out: a folder that does not exist, is empty, or
    holds a corpus made from the same inputs with the same options, in which case nothing is done.
    tokenizer: "gpt2", "bytes", "chars", a tiktoken encoding's name, the path of a tokenizer.json, or a Tokenizer.
    split: "hash" puts a document into val by its content, so that equal documents land on the same side; "tail" takes the
    inputs' end, cutting a single document at character int(n * (1 - val_fraction)); "auto" is tail below 100 documents.
    val_fraction: val's share; 0 makes no val. end_of_text: append that id after each document; by default wherever the
    tokenizer has one. allowed_special: markers such as "<|endoftext|>" that become control ids where they are written; by
    default they are text, and counted. shard_bytes: input bytes a shard (default 64 MiB, more for large inputs).
    encoding_errors: what to do about bytes that are no UTF-8: "strict" raises, "replace" reads them as U+FFFD, "skip" leaves the
    file out; both are counted. progress: draw it on stderr.

    With one of the field options the inputs are JSON lines (.jsonl; folders are searched for them), and each record is a
    document: text_field names its text ("text" by default). train_spans_field: the record's [[first, last), ...] characters
    that are to be learned, the rest being only read; mask_spans_field: those that are not. A token is where its last byte is.
    chat_field: a list of {"role", "content"}, of which the contents of train_roles are learned. Each says it token by token in
    the corpus's loss mask (docs/format.md), which feeds honour. A document's end of text is learned where its last token is.
    A record that lacks the field is refused. Records are shared out by "hash".

    The bytes written depend on the inputs and the options alone. They appear under `out` all at once: whatever ends the
    process before leaves nothing there. Memory does not grow with the inputs' size.
    Raises ConfigError for arguments that cannot be right and for an `out` that holds something else, naming the difference;
    TextError for inputs without text or that are no text; TokenError; OSError for what the system refuses.
    """
    begun = time.perf_counter()
    target, stream = _target(out), sys.stderr if progress else None
    coder = None if tokenizer == "chars" else build(tokenizer)
    options = Options(
        split=split,
        val_fraction=_fraction(val_fraction),
        end_of_text=_ends_text(coder, end_of_text),
        allowed_special=_markers(allowed_special),
        shard_bytes=shard_bytes,
        encoding_errors=encoding_errors,
        text_field=text_field,
        train_spans_field=train_spans_field,
        mask_spans_field=mask_spans_field,
        chat_field=chat_field,
        train_roles=_markers(train_roles, "train_roles"),
    )
    sources = _sources(inputs, target, RECORD_SUFFIXES if options.records else TEXT_SUFFIXES)
    if options.records:
        if coder is None:
            raise ConfigError("tokenizer: expected one with a vocabulary of its own for JSON lines, found 'chars'")
        records.check(sources, options, coder)
    new = not _holds_corpus(target)
    if new:
        with workplace(target) as folder:
            if _holds_corpus(target):
                raise ConfigError(f"{target}: another process prepared it just now; run again to compare")
            _write(folder, _survey(sources, options, stream), options, coder, stream)
    else:
        _check_same(target, _survey(sources, options, stream), options, coder)
    corpus = open_corpus(out)
    corpus.summary = Summary.of(corpus.manifest, path=os.fspath(out), new=new, seconds=time.perf_counter() - begun)
    return corpus


def _target(out: PathLike) -> Path:
    """Where the corpus will lie, all links followed. Raises ConfigError for an `out` that cannot appear by a rename."""
    if not os.fspath(out):
        raise ConfigError("out: expected a folder to make, found an empty path; the current folder is '.'")
    try:
        target = Path(os.path.realpath(out))
    except FileNotFoundError:
        raise ConfigError(f"{out}: out: expected a folder to make, found that the current folder was removed") from None
    if target.is_symlink():
        raise ConfigError(f"{out}: out: expected a folder to make, found a link that leads back to itself")
    empty = target.is_dir() and not any(target.iterdir())  # the corpus takes an empty folder's place
    if empty and (target.is_mount() or target.samefile(os.curdir)):
        found = "a mount point" if target.is_mount() else "the current folder"
        raise ConfigError(f"{out}: out: expected a folder that can be replaced, found {found}; name a folder in it")
    return target


def _markers(allowed_special: Collection[str], name: str = "allowed_special") -> tuple[str, ...]:
    """The markers, sorted. Raises ConfigError for one text, whose letters would be taken for markers."""
    if isinstance(allowed_special, str) or not all(isinstance(marker, str) for marker in allowed_special):
        raise ConfigError(
            f"{name}: expected a collection of {'roles' if name == 'train_roles' else 'markers'}, found {allowed_special!r}"
        )
    return tuple(sorted(set(allowed_special)))


def _fraction(value: Any) -> float:
    try:
        return float(value)
    except (TypeError, ValueError):
        raise ConfigError(f"val_fraction: expected a number, found {value!r}") from None


def _ends_text(coder: Tokenizer | None, asked: bool | None) -> bool:
    """Whether documents get an end of text. coder: None for "chars", which has one only when asked for."""
    if asked and coder is not None and coder.end_of_text is None:
        raise ConfigError(f"end_of_text: expected a tokenizer that has an end-of-text id, found {coder.name!r}, which has none")
    return asked if asked is not None else coder is not None and coder.end_of_text is not None


def _sources(inputs: PathLike | Iterable[PathLike], target: Path, suffixes: Collection[str]) -> Sequence[Source]:
    """The input files, without those of the corpus itself where it lies inside an input folder."""
    given = [inputs] if isinstance(inputs, str | os.PathLike) else list(inputs)
    sources: Sequence[Source] = find(given, suffixes=suffixes)
    roots = [os.path.realpath(root) for root in given]
    if any(os.path.commonpath([root, target]) == root for root in roots):
        own = (target, workplace_of(target))
        sources = [s for s in sources if not any(Path(os.path.realpath(s.path)).is_relative_to(folder) for folder in own)]
    return sources


def _holds_corpus(target: Path) -> bool:
    """Whether out holds a corpus. Raises ConfigError when it holds anything else."""
    if (target / format.MANIFEST).exists():
        return True
    if target.exists() and not target.is_dir():
        raise ConfigError(f"{target}: out: expected a folder to make, found a file")
    if target.exists() and any(target.iterdir()):
        raise ConfigError(f"{target}: out: expected a new or empty folder, or a corpus, found a folder that holds other things")
    return False


def _survey(sources: Sequence[Source], options: Options, stream: TextIO | None) -> Survey:
    total = sum(source.num_bytes for source in sources)
    with Progress("reading", total, stream) as progress:
        return survey(sources, encoding_errors=options.encoding_errors, progress=progress)


def _check_same(target: Path, surveyed: Survey, options: Options, coder: Tokenizer | None) -> None:
    """Raise ConfigError, naming the first difference, unless the corpus at target came from these inputs and options."""
    there = manifest.read(target / format.MANIFEST)
    made = there.raw.get("made")
    if not isinstance(made, dict) or not isinstance(made.get("options"), dict):
        raise ConfigError(f"{target}: out: holds a corpus that `prepare` did not make; choose another folder")
    hint = "choose another folder, or remove this one"
    name = "chars" if coder is None else coder.name
    wanted = {"tokenizer": name, **options.to_dict()}
    found = {"tokenizer": made.get("tokenizer"), **made["options"]}
    for key in [
        *wanted,
        *sorted(set(found) & {*FIELDS, "train_roles"} - set(wanted)),
    ]:  # fields are said only where they are given
        if found.get(key) != wanted.get(key):
            raise ConfigError(
                f"{target}: holds a corpus made with {key} {found.get(key)!r}, and {wanted.get(key)!r} is asked for now; {hint}"
            )
    if coder is not None and coder.hash != there.tokenizer_hash:
        raise ConfigError(f"{target}: holds a corpus made with another tokenizer of the name {name!r}; {hint}")
    path = target / format.SOURCES
    before = path.read_bytes().splitlines(keepends=True) if path.exists() else []
    for old, new in itertools.zip_longest(before, surveyed.lines()):
        if old != new:
            raise ConfigError(f"{target}: holds a corpus made from other inputs: {_difference(old, new)}; {hint}")


def _difference(old: bytes | None, new: bytes | None) -> str:
    """How one line of sources.jsonl differs, in words."""
    if old is None or new is None:
        return f"{json.loads(new or old or b'{}').get('name')} is " + ("new" if old is None else "no longer there")
    was, now = json.loads(old), json.loads(new)
    if was.get("name") != now["name"]:
        return f"{now['name']} stands where {was.get('name')} stood"
    return f"{now['name']} has other contents ({was.get('bytes')} bytes then, {now['bytes']} now)"


def _write(folder: Path, surveyed: Survey, options: Options, coder: Tokenizer | None, stream: TextIO | None) -> None:
    """Fill an empty folder with the corpus, the manifest last."""
    if coder is None:
        pieces = (
            p
            for s, skip in zip(surveyed.sources, surveyed.skipped, strict=True)
            if not skip
            for p in s.pieces(encoding_errors=options.reading)
        )
        coder = build("chars", text=pieces, end_of_text=options.end_of_text)
    sources_bytes, sources_sha256 = write_file(folder / format.SOURCES, surveyed.lines())
    with Progress("tokenising", int(surveyed.text_bytes.sum()), stream) as progress:
        if options.records:
            written = record_task.write(surveyed, options, tokenizer=coder, folder=folder, progress=progress)
        else:
            planned = plan(surveyed, options)
            written = [run(task, planned, tokenizer=coder, folder=folder, progress=progress) for task in planned.tasks]
    names = ("train", "val") if options.val_fraction else ("train",)
    shards = {name: [task.shards[name] for task in written if name in task.shards] for name in names}
    if not any(shards.values()):
        raise TextError(f"no text to prepare: {len(surveyed.sources)} files, all of them empty or left out")
    if not shards["train"]:
        hint = "a smaller val_fraction" if options.records else "split='tail'"
        raise TextError(f"no document is left for train: by {options.split!r} all of them are val; use {hint}")
    content = format.manifest(
        shards,
        vocab_size=coder.vocab_size,
        end_of_text=coder.end_of_text,
        tokenizer=coder.identity(),
        tokenizer_hash=coder.hash,
        sources={"count": len(surveyed.sources), "bytes": sources_bytes, "sha256": sources_sha256},
        made=_made(written, surveyed, options, coder),
    )
    write_file(folder / format.MANIFEST, [format.readable(content)])


def _made(written: Sequence[Written], surveyed: Survey, options: Options, coder: Tokenizer) -> dict[str, Any]:
    """What the manifest tells of how the corpus was made."""
    empty, skipped = sum(task.empty_documents for task in written), int(surveyed.skipped.sum())
    documents = len(surveyed.sources) - empty - skipped  # a cut one is in two shards
    if options.records:
        documents = sum(shard["documents"] for task in written for shard in task.shards.values())
    markers = Counter[str]()
    for task in written:
        markers.update(task.markers)
    return {
        "tokenizer": coder.name,
        "options": options.to_dict(),
        "inputs": {"files": len(surveyed.sources), "bytes": sum(source.num_bytes for source in surveyed.sources)},
        "counts": {
            "documents": documents,
            "empty_documents": empty,
            "skipped_files": skipped,
            "replaced": int(surveyed.replaced.sum()),
            "markers": dict(markers),
        },
    }
