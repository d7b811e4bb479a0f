"""A small reference GPT: the GPT-2 architecture, to be read in one sitting.

Shapes: B rows, T tokens a row, C width, V logical ids. Source: Radford et al. 2019 and OpenAI's published model:
layer norm before each half of a block, one fused projection for queries, keys and values, GELU by its tanh formula,
residual projections initialised smaller by sqrt(2 * layers), the head tied to the token table. Parameters carry
GPT-2's names (embed.wte, embed.wpe, h.0.attn.c_attn, ..., ln_f); the head has none of its own.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812  its name in the field
from torch.nn.attention.flex_attention import BlockMask, flex_attention

from ladle.errors import ConfigError
from ladle.nn.config import GPTConfig
from ladle.nn.embedding import Embedding, check_ids, generator_on, undrawn
from ladle.nn.positions import rotate

Device = torch.device | str | None
Mask = Tensor | BlockMask | None


class Attention(nn.Module):
    """Causal self-attention with one fused projection."""

    def __init__(self, config: GPTConfig, device: Device) -> None:
        super().__init__()
        self.heads, self.dropout = config.heads, config.dropout
        self.c_attn = undrawn(nn.Linear, config.width, 3 * config.width, bias=config.bias, device=device)
        self.c_proj = undrawn(nn.Linear, config.width, config.width, bias=config.bias, device=device)

    def forward(self, x: Tensor, angles: Tensor | None, attn_mask: Mask) -> Tensor:
        rows, length, width = x.shape
        queries, keys, values = (
            part.view(rows, length, self.heads, -1).transpose(1, 2) for part in self.c_attn(x).split(width, dim=2)
        )
        if angles is not None:
            queries, keys = rotate(queries, angles), rotate(keys, angles)
        mixed = self.mix(queries, keys, values, attn_mask)
        out: Tensor = self.c_proj(mixed.transpose(1, 2).reshape(rows, length, width))
        return F.dropout(out, self.dropout, self.training)

    def mix(self, queries: Tensor, keys: Tensor, values: Tensor, attn_mask: Mask) -> Tensor:
        """Values by how well queries meet keys: (B, heads, T, D) each."""
        dropout = self.dropout if self.training else 0.0
        if not isinstance(attn_mask, BlockMask):
            return F.scaled_dot_product_attention(
                queries, keys, values, attn_mask=attn_mask, dropout_p=dropout, is_causal=attn_mask is None
            )
        if dropout:
            raise ConfigError(
                f"dropout: expected 0 with a BlockMask, found {dropout}: FlexAttention drops nothing; use a boolean mask"
            )
        mixed: Tensor = flex_attention(queries, keys, values, block_mask=attn_mask)
        return mixed


class MLP(nn.Module):
    """Four times as wide inside."""

    def __init__(self, config: GPTConfig, device: Device) -> None:
        super().__init__()
        self.dropout = config.dropout
        self.c_fc = undrawn(nn.Linear, config.width, 4 * config.width, bias=config.bias, device=device)
        self.c_proj = undrawn(nn.Linear, 4 * config.width, config.width, bias=config.bias, device=device)

    def forward(self, x: Tensor) -> Tensor:
        return F.dropout(self.c_proj(F.gelu(self.c_fc(x), approximate="tanh")), self.dropout, self.training)


class Block(nn.Module):
    """x + attention(norm(x)), then x + mlp(norm(x))."""

    def __init__(self, config: GPTConfig, device: Device) -> None:
        super().__init__()
        self.ln_1 = nn.LayerNorm(config.width, bias=config.bias, device=device)
        self.attn = Attention(config, device)
        self.ln_2 = nn.LayerNorm(config.width, bias=config.bias, device=device)
        self.mlp = MLP(config, device)

    def forward(self, x: Tensor, angles: Tensor | None, attn_mask: Mask) -> Tensor:
        x = x + self.attn(self.ln_1(x), angles, attn_mask)
        out: Tensor = x + self.mlp(self.ln_2(x))
        return out


class GPT(nn.Module):
    """`logits, loss = GPT(config)(ids, targets)`.

    device: where the parameters are made ("meta" makes none: counting the largest is free). seed: of the initial
    weights, drawn from a generator of the model's own. check_on_device: see Embedding.
    """

    def __init__(self, config: GPTConfig, *, device: Device = None, seed: int = 0, check_on_device: bool = False) -> None:
        super().__init__()
        self.config = config
        self.embed = Embedding(
            config.vocab_size,
            config.width,
            max_positions=config.block_size,
            positions=config.positions,
            head_width=config.width // config.heads,
            pad_vocab_to=config.pad_vocab_to,
            check_on_device=check_on_device,
            device=device,
            seed=None,
        )
        self.h = nn.ModuleList(Block(config, device) for _ in range(config.layers))
        self.ln_f = nn.LayerNorm(config.width, bias=config.bias, device=device)
        self.initialise(seed)

    @torch.no_grad()
    def initialise(self, seed: int) -> None:
        """Normal, 0.02 wide; projections into the residual stream narrower by sqrt(2 * layers); biases 0."""
        generator = generator_on(self.ln_f.weight.device, seed)
        self.embed.initialise(generator)
        for name, weight in self.h.named_parameters():
            if name.endswith(("c_attn.weight", "c_fc.weight")):
                weight.normal_(0.0, 0.02, generator=generator)
            elif name.endswith("c_proj.weight"):
                weight.normal_(0.0, 0.02 / math.sqrt(2 * self.config.layers), generator=generator)
            elif name.endswith("bias"):
                weight.zero_()

    def num_parameters(self) -> int:
        """All of them, the position table included, the tied head counted once: as the published sizes are."""
        return sum(p.numel() for p in self.parameters())

    def forward(
        self,
        ids: Tensor,
        targets: Tensor | None = None,
        positions: Tensor | None = None,
        attn_mask: Mask = None,
        *,
        ignore_index: int = -100,
        reduction: str = "mean",
    ) -> tuple[Tensor, Tensor | None]:
        """Logits (B, T, V), and the loss against targets (B, T), or None without them.

        ids: integers (B, T). positions: int64 (B, T), or None to count from 0. attn_mask: bool, broadcastable to
        (B, heads, T, T), True where a query may look, or FlexAttention's BlockMask (compile the model then); it replaces the
        causal mask, so it must be causal itself. `batch.attention_mask()` and `batch.block_mask()` are.
        targets equal to ignore_index do not count. reduction: "mean" over those that count (0 where none does),
        "sum" for gradient accumulation. The loss is float32 under autocast too.
        Raises TokenError, ConfigError (see Embedding).
        """
        logits = self.logits(self.hidden(ids, positions, attn_mask))
        if targets is None:
            return logits, None
        return logits, self.loss(logits, targets, ignore_index=ignore_index, reduction=reduction)

    def hidden(self, ids: Tensor, positions: Tensor | None = None, attn_mask: Mask = None) -> Tensor:
        """The last block's output after ln_f: (B, T, C)."""
        x = F.dropout(self.embed(ids, positions), self.config.dropout, self.training)
        angles = self.embed.angles(ids, positions)
        for block in self.h:
            x = block(x, angles, attn_mask)
        out: Tensor = self.ln_f(x)
        return out

    def logits(self, hidden: Tensor) -> Tensor:
        """(..., C) to (..., V). The padding's rows never leave the model, so no padded id can win."""
        return F.linear(hidden, self.embed.wte.weight)[..., : self.config.vocab_size]

    def loss(self, logits: Tensor, targets: Tensor, *, ignore_index: int = -100, reduction: str = "mean") -> Tensor:
        """Cross entropy, in float32 at least. TokenError for a target that is neither an id nor ignore_index (on the CPU)."""
        if reduction not in ("mean", "sum"):
            raise ConfigError(f"reduction: expected 'mean' or 'sum', found {reduction!r}")
        if targets.shape != logits.shape[:-1]:
            raise ConfigError(f"targets: expected the ids' shape {tuple(logits.shape[:-1])}, found {tuple(targets.shape)}")
        if self.embed.looks_at(targets):
            check_ids(targets.masked_fill(targets == ignore_index, 0), self.config.vocab_size, noun="target")
        flat = logits.flatten(0, -2)
        flat = flat if flat.dtype == torch.float64 else flat.float()
        total = F.cross_entropy(flat, targets.flatten(), ignore_index=ignore_index, reduction="sum")
        return total if reduction == "sum" else total / (targets != ignore_index).sum().clamp(min=1)
