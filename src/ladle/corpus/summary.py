"""What a preparation did, for people and as JSON."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any


@dataclass(frozen=True, slots=True, kw_only=True)
class Summary:
    """The counts of a corpus, and how long making it took. new: False when the corpus was there already."""

    path: str
    new: bool
    seconds: float
    files: int
    input_bytes: int
    documents: int
    empty_documents: int
    skipped_files: int
    replaced: int
    tokens: int
    dtype: str
    tokenizer: str
    vocab_size: int
    markers: dict[str, int]
    allowed_special: list[str]
    splits: dict[str, dict[str, int]]

    @classmethod
    def of(cls, manifest: Mapping[str, Any], *, path: str, new: bool, seconds: float) -> Summary:
        """From a manifest that `prepare` wrote."""
        made = manifest["made"]
        splits = {
            name: {"documents": split["documents"], "tokens": split["tokens"], "shards": len(split["shards"])} | learned_in(split)
            for name, split in manifest["splits"].items()
        }
        return cls(
            path=path,
            new=new,
            seconds=seconds,
            files=made["inputs"]["files"],
            input_bytes=made["inputs"]["bytes"],
            documents=made["counts"]["documents"],
            empty_documents=made["counts"]["empty_documents"],
            skipped_files=made["counts"]["skipped_files"],
            replaced=made["counts"]["replaced"],
            tokens=sum(split["tokens"] for split in splits.values()),
            dtype=manifest["dtype"],
            tokenizer=made["tokenizer"],
            vocab_size=manifest["vocab_size"],
            markers=made["counts"]["markers"],
            allowed_special=made["options"]["allowed_special"],
            splits=splits,
        )

    @property
    def megabytes_per_second(self) -> float:
        """Input bytes / 10^6 a second of the whole preparation."""
        return self.input_bytes / 1e6 / max(self.seconds, 1e-9)

    def to_dict(self) -> dict[str, Any]:
        """Plain values."""
        return {**asdict(self), "megabytes_per_second": round(self.megabytes_per_second, 3)}

    def __str__(self) -> str:
        speed = (
            f"in {self.seconds:.1f} s, {self.megabytes_per_second:.1f} MB/s" if self.new else "already prepared; nothing to do"
        )
        counts = f"{plural(self.documents, 'document')}, {plural(self.tokens, 'token')} of {self.dtype}"
        lines = [
            f"{self.path}: {plural(self.files, 'file')}, {self.input_bytes / 1e6:,.1f} MB, {speed}",
            f"  {counts}, tokenizer {self.tokenizer} (vocabulary {self.vocab_size:,})",
        ]
        lines += [
            f"  {name:<5}  {plural(split['tokens'], 'token')} in {plural(split['documents'], 'document')}, "
            f"{plural(split['shards'], 'shard')}" + share_learned(split)
            for name, split in sorted(self.splits.items())
        ]
        if self.empty_documents:
            lines.append(f"  {plural(self.empty_documents, 'empty document')} left out")
        if self.skipped_files:
            lines.append(f"  {plural(self.skipped_files, 'file')} left out: not UTF-8")
        if self.replaced:
            lines.append(f"  {plural(self.replaced, 'place')} read as U+FFFD: not UTF-8")
        for marker, count in self.markers.items():
            if count:
                how = "taken as the control id" if marker in self.allowed_special else "kept as text"
                lines.append(f"  {marker} is written {plural(count, 'time')} in the text, {how}")
        return "\n".join(lines)


def learned_in(split: Mapping[str, Any]) -> dict[str, int]:
    """How many tokens of a split are to be learned, as "learned", from its manifest; nothing where all are."""
    shards = split["shards"]
    if not any("learned" in shard for shard in shards):
        return {}
    return {"learned": sum(shard.get("learned", shard["tokens"]) for shard in shards)}


def share_learned(split: Mapping[str, int]) -> str:
    """The same for people, of what has "tokens" and perhaps "learned"."""
    return f", {100 * split['learned'] / split['tokens']:.1f} % to be learned" if "learned" in split else ""


def plural(count: int, noun: str, many: str = "") -> str:
    """A count and its noun, as people write them. many: the noun's plural, where it is not the noun and an s."""
    return f"{count:,} {noun if count == 1 else many or noun + 's'}"
