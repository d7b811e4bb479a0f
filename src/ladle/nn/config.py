"""The shape of a GPT, and the published ones."""

from __future__ import annotations

from dataclasses import dataclass

from ladle.errors import ConfigError

POSITIONS = ("learned", "sinusoidal", "rotary", "none")


@dataclass(frozen=True, slots=True, kw_only=True)
class GPTConfig:
    """vocab_size: logical ids (V); pad_vocab_to: the token table's rows are rounded up to a multiple of it.

    block_size: the longest row, in tokens (T). layers, heads, width (C): as the GPT-2 paper counts them.
    dropout: share of activations dropped in training. bias: in linear layers and norms.
    positions: one of "learned" (a table of block_size rows), "sinusoidal", "rotary", "none".
    Raises ConfigError for anything that cannot be built.
    """

    vocab_size: int = 50257
    block_size: int = 1024
    layers: int = 12
    heads: int = 12
    width: int = 768
    dropout: float = 0.0
    bias: bool = True
    positions: str = "learned"
    pad_vocab_to: int = 1

    def __post_init__(self) -> None:
        for name in ("vocab_size", "block_size", "layers", "heads", "width", "pad_vocab_to"):
            if (value := getattr(self, name)) < 1:
                raise ConfigError(f"{name}: expected >= 1, found {value}")
        if not 0.0 <= self.dropout < 1.0:
            raise ConfigError(f"dropout: expected 0 <= dropout < 1, found {self.dropout}")
        if self.positions not in POSITIONS:
            raise ConfigError(f"positions: expected one of {', '.join(POSITIONS)}, found {self.positions!r}")
        if self.width % self.heads:
            raise ConfigError(f"width: expected a multiple of heads ({self.heads}), found {self.width}")
        if self.positions == "rotary" and self.width // self.heads % 2:
            raise ConfigError(f"width: rotary positions need an even width a head, found {self.width} / {self.heads} heads")


GPT2 = {
    "gpt2": GPTConfig(),
    "gpt2-medium": GPTConfig(layers=24, heads=16, width=1024),
    "gpt2-large": GPTConfig(layers=36, heads=20, width=1280),
    "gpt2-xl": GPTConfig(layers=48, heads=25, width=1600),
}
