"""Makes src/ladle/tokens/data/gpt2-merges.xz from OpenAI's own vocab.bpe; run once, the result is committed.

    python tools/make_gpt2_data.py path/to/vocab.bpe

vocab.bpe lists GPT-2's 50 000 merges in order, a pair of tokens a line. A token is known by its rank long before it is
merged again, so a pair of tokens is a pair of ranks: two columns of 50 000 uint16, which xz packs into about 156 KB.
"""

from __future__ import annotations

import hashlib
import lzma
import sys
from pathlib import Path

import numpy as np

from ladle.tokens.gpt2 import BYTES_BY_RANK

# The hash that tiktoken publishes for the file (tiktoken_ext/openai_public.py).
VOCAB_BPE_SHA256 = "1ce1664773c50f3e0cc8842619a93edc4624525b728b188a9e0be33b7726adc5"
TARGET = Path(__file__).parent.parent / "src/ladle/tokens/data/gpt2-merges.xz"
FILTERS = [{"id": lzma.FILTER_LZMA2, "preset": 9 | lzma.PRESET_EXTREME, "lc": 0, "lp": 1, "pb": 0}]


def letters() -> list[str]:
    """The printable character by which vocab.bpe writes each byte, in rank order."""
    shown = [chr(byte) for byte in BYTES_BY_RANK[:188]]
    return shown + [chr(256 + place) for place in range(68)]


def main(vocab_bpe: Path) -> None:
    contents = vocab_bpe.read_bytes()
    found = hashlib.sha256(contents).hexdigest()
    if found != VOCAB_BPE_SHA256:
        sys.exit(f"{vocab_bpe}: expected sha256 {VOCAB_BPE_SHA256}, found {found}")
    rank = {letter: place for place, letter in enumerate(letters())}
    pairs = []
    for line in contents.decode().split("\n")[1:-1]:
        left, right = line.split(" ")
        pairs.append((rank[left], rank[right]))
        rank[left + right] = len(rank)
    columns = np.array(pairs, dtype="<u2").T
    TARGET.write_bytes(lzma.compress(columns.tobytes(), format=lzma.FORMAT_XZ, filters=FILTERS))
    print(f"{TARGET}: {len(pairs)} merges, {TARGET.stat().st_size} bytes")


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    main(Path(sys.argv[1]))
