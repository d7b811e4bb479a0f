"""A corpus described in a few lines."""

from __future__ import annotations

from typing import Any

from ladle.corpus import format
from ladle.corpus.corpus import Corpus


def inspect(corpus: Corpus) -> str:
    """What a corpus holds and how it was made, for people. Reads the manifest and the splits' sizes, no tokens."""
    manifest = corpus.manifest
    made = manifest.get("made", {})
    ours = manifest["format"] == format.FORMAT
    lines = [f"{corpus.path}: {manifest['format']}" + (f" version {manifest['version']}" if ours else " folder")]
    lines.append(_line("tokenizer", _tokenizer(manifest)))
    lines.append(_line("vocabulary", "unknown" if manifest["vocab_size"] is None else f"{manifest['vocab_size']:,} ids"))
    lines.append(_line("dtype", f"{manifest['dtype']}, little-endian"))
    if ours:
        lines.append(_line("end of text", "none" if manifest.get("end_of_text") is None else f"id {manifest['end_of_text']}"))
    for name, split in corpus.splits.items():
        documents = "documents unknown" if split.num_documents is None else f"{split.num_documents:,} documents"
        largest = "" if split.max_id is None else f", largest id {split.max_id}"
        lines.append(_line(name, f"{split.num_tokens:,} tokens, {documents}, {len(split.shards)} shards{largest}"))
    if "inputs" in made:
        lines.append(_line("made from", f"{made['inputs']['files']:,} files, {made['inputs']['bytes']:,} bytes"))
    lines += [_line(key, str(value)) for key, value in made.get("options", {}).items()]
    lines.append(_line("fingerprint", corpus.fingerprint))
    return "\n".join(lines)


def _line(key: str, value: str) -> str:
    return f"  {key:<16} {value}"


def _tokenizer(manifest: dict[str, Any]) -> str:
    if name := manifest.get("made", {}).get("tokenizer"):
        return str(name)
    identity = manifest.get("tokenizer")
    return str(identity.get("kind")) if identity else "unknown"
