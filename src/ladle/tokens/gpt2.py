"""GPT-2's tokens and its near kin, from the merges shipped with Ladle: exact ids with no download.

The file data/gpt2-merges.xz holds 50 000 pairs of ranks (data/README.md says how it was made and whose it is).
Rebuilding is joining: token 256 + i is the token of its left rank followed by the token of its right rank.
r50k_base is the same table; p50k_base and p50k_edit add 24 runs of spaces. The tests compare each with the hash
that tiktoken publishes for the file it would download.
"""

from __future__ import annotations

import functools
import lzma
from importlib import resources
from typing import TYPE_CHECKING

import numpy as np

from ladle.tokens.markers import END_OF_TEXT as MARKER

if TYPE_CHECKING:
    import tiktoken

NUM_MERGES = 50_000
END_OF_TEXT = 50_256
# The split pattern of the GPT-2 release, in tiktoken's spelling, which finds the same matches faster.
PATTERN = r"""'(?:[sdmt]|ll|ve|re)| ?\p{L}++| ?\p{N}++| ?[^\s\p{L}\p{N}]++|\s++$|\s+(?!\S)|\s"""
# GPT-2 ranks the 188 printable bytes of Latin-1 first, then the other 68, each group in byte order.
BYTES_BY_RANK = sorted(range(256), key=lambda byte: (not chr(byte).isprintable() or byte == 32, byte))

_END = {MARKER: END_OF_TEXT}
_FILL_IN = {"<|fim_prefix|>": 50_281, "<|fim_middle|>": 50_282, "<|fim_suffix|>": 50_283}
# Each encoding's markers, and the hash tiktoken publishes for its ranks as a .tiktoken file (gpt2's are r50k_base's).
_R50K = "306cd27f03c1a714eca7108e03d66b7dc042abe8c258b44c199a7ed9838dd930"
_P50K = "94b5ca7dff4d00767bc256fdd1b27e5b17361d7b8a5f968547f9f23eb70d2069"
SHIPPED: dict[str, tuple[dict[str, int], str]] = {
    "gpt2": (_END, _R50K),
    "p50k_base": (_END, _P50K),
    "p50k_edit": (_END | _FILL_IN, _P50K),
    "r50k_base": (_END, _R50K),
}


def merges() -> np.ndarray:
    """The merges in order: uint16 (50 000, 2), the ranks of the left and the right token."""
    packed = (resources.files("ladle.tokens") / "data" / "gpt2-merges.xz").read_bytes()
    return np.frombuffer(lzma.decompress(packed), dtype="<u2").reshape(2, NUM_MERGES).T


def ranks(name: str = "gpt2") -> dict[bytes, int]:
    """Every mergeable token's bytes and its rank, which is its id. name: one of SHIPPED."""
    tokens = [bytes([byte]) for byte in BYTES_BY_RANK]
    for left, right in merges().tolist():
        tokens.append(tokens[left] + tokens[right])
    table = {token: rank for rank, token in enumerate(tokens)}
    if name.startswith("p50k"):
        table |= {b" " * run: END_OF_TEXT - 1 + run for run in range(2, 26)}
    return table


@functools.lru_cache(maxsize=len(SHIPPED))
def encoding(name: str = "gpt2") -> tiktoken.Encoding:
    """The `tiktoken.Encoding` of a name in SHIPPED, built once a process from the shipped merges in about 0.1 s."""
    import tiktoken

    return tiktoken.Encoding(name, pat_str=PATTERN, mergeable_ranks=ranks(name), special_tokens=SHIPPED[name][0])
