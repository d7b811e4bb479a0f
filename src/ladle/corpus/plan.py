"""Preparing as a plan: which source goes into which shard and which split, decided before any of it is written.

A task is a fixed range of sources. Its shards' bytes depend on the plan alone, never on who runs it or when, so tasks
may run in any order, at once, or again.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ladle.corpus.survey import Survey
from ladle.errors import ConfigError

SHARD_BYTES = 1 << 26  # bytes of text a task, doubled until there are at most MOST_TASKS
MOST_TASKS = 4096
MOST_SOURCES = 1 << 20  # a task, which bounds what its writer keeps in memory
TAIL_BELOW = 100  # documents, for split="auto"
SPLITS = ("auto", "hash", "tail")
ENCODING_ERRORS = ("strict", "replace", "skip")
ROLES = ("assistant", "developer", "function", "system", "tool", "user")  # of chat messages, whatever is trained
FIELDS = ("text_field", "train_spans_field", "mask_spans_field", "chat_field")  # of records


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """What a caller decides about a corpus, the tokenizer aside. Raises ConfigError for values that cannot be right.

    split: "hash" (a document's content decides), "tail" (the inputs' end is val), "auto". val_fraction: val's share, 0 to
    below 1; 0 makes no val. end_of_text: append that id after each document. allowed_special: markers that become control
    ids where they are written. shard_bytes: bytes of text a shard task, or None to choose. encoding_errors: what to do about
    bytes that are no UTF-8: "strict", "replace" or "skip". text_field, train_spans_field, mask_spans_field, chat_field,
    train_roles: of JSON lines, see `prepare`; without any of them the inputs are text.
    """

    split: str
    val_fraction: float
    end_of_text: bool
    allowed_special: tuple[str, ...]
    shard_bytes: int | None
    encoding_errors: str
    text_field: str | None = None
    train_spans_field: str | None = None
    mask_spans_field: str | None = None
    chat_field: str | None = None
    train_roles: tuple[str, ...] = ("assistant",)

    def __post_init__(self) -> None:
        for name, allowed in (("split", SPLITS), ("encoding_errors", ENCODING_ERRORS)):
            if getattr(self, name) not in allowed:
                raise ConfigError(f"{name}: expected one of {', '.join(allowed)}, found {getattr(self, name)!r}")
        if not 0 <= self.val_fraction < 1:
            raise ConfigError(f"val_fraction: expected 0 or more and below 1, found {self.val_fraction}")
        if self.shard_bytes is not None and (type(self.shard_bytes) is not int or self.shard_bytes < 1):
            raise ConfigError(f"shard_bytes: expected an integer, 1 or more, found {self.shard_bytes!r}")
        for name in FIELDS:
            value = getattr(self, name)
            if value is not None and (not isinstance(value, str) or not value):
                raise ConfigError(f"{name}: expected a field's name, found {value!r}")
        given = [name for name in ("train_spans_field", "mask_spans_field", "chat_field") if getattr(self, name)]
        if len(given) > 1 or (self.chat_field and self.text_field):
            found = ", ".join([*given, *(["text_field"] if self.text_field and self.chat_field else [])])
            raise ConfigError(
                f"fields: expected one of train_spans_field, mask_spans_field and chat_field (alone), found {found}"
            )
        if not self.train_roles or (self.train_roles != ("assistant",) and self.chat_field is None):
            raise ConfigError(
                f"train_roles: expected at least one, and a chat_field, found {', '.join(self.train_roles) or 'none'}"
            )
        for role in self.train_roles:
            if not role.replace("_", "").replace("-", "").isalnum():
                raise ConfigError(f"train_roles: expected letters and digits, found {role!r}")
        if self.records and self.encoding_errors != "strict":
            raise ConfigError(f"encoding_errors: expected 'strict' for JSON lines, found {self.encoding_errors!r}")

    @property
    def records(self) -> bool:
        """Whether the inputs are JSON lines, one document a record."""
        return any(getattr(self, name) for name in FIELDS)

    @property
    def spans_option(self) -> str | None:
        """The name of the option by which records have spans, or None."""
        return next((name for name in ("train_spans_field", "mask_spans_field") if getattr(self, name)), None)

    @property
    def has_loss_mask(self) -> bool:
        """Whether some tokens may not be learned."""
        return bool(self.train_spans_field or self.mask_spans_field or self.chat_field)

    @property
    def reading(self) -> str:
        """The files that are not left out are read with these errors."""
        return "replace" if self.encoding_errors == "replace" else "strict"

    def to_dict(self) -> dict[str, object]:
        """For the manifest, and to compare with one."""
        fields = {name: value for name in FIELDS if (value := getattr(self, name)) is not None}
        roles = {"train_roles": list(self.train_roles)} if self.chat_field else {}
        return {
            **fields,
            **roles,
            "split": self.split,
            "val_fraction": self.val_fraction,
            "end_of_text": self.end_of_text,
            "allowed_special": sorted(self.allowed_special),
            "shard_bytes": self.shard_bytes,
            "encoding_errors": self.encoding_errors,
        }


@dataclass(frozen=True, slots=True)
class Task:
    """Sources [first, end), wholly. number: its place in the plan, and in its shards' names."""

    number: int
    first: int
    end: int


@dataclass(frozen=True, slots=True)
class Part:
    """Characters [first, end) of a document, and their split. end: None for all that is left."""

    split: str
    first: int
    end: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """What to do with the surveyed sources.

    val_below: by hash, a document is val when its digest's first 8 bytes, as a big-endian integer, are below this.
    border: by tail, the first source that is val, or the one that is cut. cut: the character at which it is cut, 0 if whole.
    """

    survey: Survey
    options: Options
    tasks: tuple[Task, ...]
    val_below: int = 0
    border: int | None = None
    cut: int = 0

    def parts(self, source: int) -> list[Part]:
        """How one source's document is shared out."""
        if self.border is None:
            value = int.from_bytes(self.survey.digest(source)[:8], "big")
            return [Part("val" if value < self.val_below else "train", 0, None)]
        if source == self.border and self.cut:
            return [Part("train", 0, self.cut), Part("val", self.cut, None)]
        return [Part("train" if source < self.border else "val", 0, None)]


def plan(survey: Survey, options: Options) -> Plan:
    """Decide. A pure function of what was surveyed and the options."""
    tasks = _tasks(survey, options.shard_bytes)
    documents = np.flatnonzero(survey.text_bytes)
    by_tail = options.split == "tail" or (options.split == "auto" and len(documents) < TAIL_BELOW)
    if options.val_fraction == 0 or len(documents) == 0:
        return Plan(survey=survey, options=options, tasks=tasks)
    if not by_tail:
        return Plan(survey=survey, options=options, tasks=tasks, val_below=int(options.val_fraction * (1 << 64)))
    if len(documents) == 1:
        only = int(documents[0])
        characters = int(survey.characters[only])
        if characters < 2:
            return Plan(survey=survey, options=options, tasks=tasks)
        cut = int(characters * (1 - options.val_fraction))
        return Plan(survey=survey, options=options, tasks=tasks, border=only, cut=max(1, min(cut, characters - 1)))
    before = np.cumsum(survey.text_bytes[documents])
    goal = float(before[-1]) * (1 - options.val_fraction)
    border = int(np.argmin(np.abs(before[:-1] - goal))) + 1
    return Plan(survey=survey, options=options, tasks=tasks, border=int(documents[border]))


def usual_shard_bytes(survey: Survey) -> int:
    """Bytes of text a task: SHARD_BYTES, doubled until there are at most MOST_TASKS."""
    total, shard_bytes = int(survey.text_bytes.sum()), SHARD_BYTES
    while shard_bytes * MOST_TASKS < total:
        shard_bytes *= 2
    return shard_bytes


def _tasks(survey: Survey, shard_bytes: int | None) -> tuple[Task, ...]:
    """Consecutive sources until they reach shard_bytes; at least one a task."""
    shard_bytes = shard_bytes or usual_shard_bytes(survey)
    tasks: list[Task] = []
    first = size = 0
    for source, num_bytes in enumerate(survey.text_bytes.tolist()):
        size += num_bytes
        if size >= shard_bytes or source + 1 - first == MOST_SOURCES:
            tasks.append(Task(len(tasks), first, source + 1))
            first, size = source + 1, 0
    if first < len(survey.sources):
        tasks.append(Task(len(tasks), first, len(survey.sources)))
    return tuple(tasks)
