"""A corpus described in a few lines."""

from __future__ import annotations

from ladle.corpus import format
from ladle.corpus.corpus import Corpus
from ladle.corpus.summary import learned_in, plural, share_learned


def inspect(corpus: Corpus) -> str:
    """What a corpus holds and how it was made, for people. Reads the manifest, the splits' sizes, no tokens."""
    manifest = corpus.manifest
    made = manifest.get("made") or {}
    ours = manifest["format"] == format.FORMAT
    lines = [f"{corpus.path}: {manifest['format']}" + (f" version {manifest['version']}" if ours else " folder")]
    kind = (manifest.get("tokenizer") or {}).get("kind") if ours else getattr(corpus.tokenizer, "name", None)
    lines.append(_line("tokenizer", made.get("tokenizer") or kind or "unknown"))
    lines.append(_line("vocabulary", "unknown" if manifest["vocab_size"] is None else f"{manifest['vocab_size']:,} ids"))
    lines.append(_line("dtype", f"{manifest['dtype']}, little-endian"))
    if ours:
        lines.append(_line("end of text", "none" if manifest.get("end_of_text") is None else f"id {manifest['end_of_text']}"))
    for name, split in corpus.splits.items():
        documents = "documents unknown" if split.num_documents is None else plural(split.num_documents, "document")
        largest = "" if split.max_id is None else f", largest id {split.max_id}"
        counts = f"{plural(split.num_tokens, 'token')}, {documents}, {plural(len(split.shards), 'shard')}"
        if split.mask is not None:
            listed = manifest["splits"][name]["shards"][: len(split.shards)]
            largest += share_learned({"tokens": split.num_tokens} | learned_in({"shards": listed}))
        lines.append(_line(name, counts + largest))
    if made:
        lines.append(_line("made from", f"{plural(made['inputs']['files'], 'file')}, {plural(made['inputs']['bytes'], 'byte')}"))
    lines += [_line(key, str(value)) for key, value in made.get("options", {}).items()]
    lines.append(_line("fingerprint", corpus.fingerprint))
    return "\n".join(lines)


def _line(key: str, value: str) -> str:
    return f"  {key:<16} {value}"
