"""Where a token stands: four ways to tell a model, behind one interface.

A kind acts in up to two places: `add` at the input, on vectors (B, T, C); `angles` for attention, which turns its
queries and keys by them with `rotate`. Positions are int64, (B, T) when given (packed rows start again at 0 in
each segment), or (T,) when counted. Only a learned table has a longest row; the others are computed, not stored.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from ladle.errors import ConfigError
from ladle.nn.config import POSITIONS

BASE = 10000.0  # wavelengths run from 2 pi to BASE * 2 pi, in both computed kinds


class Positions(nn.Module):
    """No positions at all ("none"), and what the other kinds share."""

    kind = "none"

    def add(self, vectors: Tensor, positions: Tensor) -> Tensor:  # noqa: ARG002  the interface's
        """vectors: (B, T, C). Returns the same shape."""
        return vectors

    def angles(self, positions: Tensor) -> Tensor | None:  # noqa: ARG002
        """float32 (..., T, head_width / 2) to turn queries and keys by, or None where attention does not turn them."""
        return None


class Learned(Positions):
    """A table of max_positions rows, one added to each vector: GPT-2's way. It knows nothing beyond its last row."""

    kind = "learned"

    def __init__(self, max_positions: int, width: int, *, device: torch.device | str | None = None) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(max_positions, width, device=device))

    def add(self, vectors: Tensor, positions: Tensor) -> Tensor:
        return vectors + nn.functional.embedding(positions, self.weight)


class Sinusoidal(Positions):
    """Sines and cosines of the position, added. Source: Vaswani et al. 2017, section 3.5 (even dimensions sine, odd cosine)."""

    kind = "sinusoidal"

    def add(self, vectors: Tensor, positions: Tensor) -> Tensor:
        width = vectors.shape[-1]
        angles = turns(positions, (width + 1) // 2)
        waves = torch.stack((angles.sin(), angles.cos()), dim=-1).flatten(-2)
        return vectors + waves[..., :width].to(vectors.dtype)


class Rotary(Positions):
    """Nothing is added; attention turns its queries and keys. Source: Su et al. 2021, halves paired as in GPT-NeoX."""

    kind = "rotary"

    def __init__(self, head_width: int) -> None:
        super().__init__()
        self.head_width = head_width

    def angles(self, positions: Tensor) -> Tensor | None:
        return turns(positions, self.head_width // 2)


def make(kind: str, *, max_positions: int, width: int, head_width: int, device: torch.device | str | None = None) -> Positions:
    """One of POSITIONS by name. Raises ConfigError for another name."""
    match kind:
        case "learned":
            return Learned(max_positions, width, device=device)
        case "sinusoidal":
            return Sinusoidal()
        case "rotary":
            return Rotary(head_width)
        case "none":
            return Positions()
    raise ConfigError(f"positions: expected one of {', '.join(POSITIONS)}, found {kind!r}")


def turns(positions: Tensor, pairs: int) -> Tensor:
    """float32 (..., pairs): position / BASE ** (i / pairs), the angle of pair i."""
    rates = BASE ** (-torch.arange(pairs, device=positions.device, dtype=torch.float32) / pairs)
    return positions[..., None].float() * rates


def rotate(vectors: Tensor, angles: Tensor) -> Tensor:
    """Turn each pair (i, i + D / 2) of vectors (B, heads, T, D) by angles (T, D / 2) or (B, T, D / 2). Lengths are kept."""
    if angles.dim() == 3:
        angles = angles[:, None]
    cos, sin = angles.cos().to(vectors.dtype), angles.sin().to(vectors.dtype)
    first, second = vectors.chunk(2, dim=-1)
    return torch.cat((first * cos - second * sin, first * sin + second * cos), dim=-1)
