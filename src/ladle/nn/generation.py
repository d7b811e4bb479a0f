"""Text from a model, one id at a time."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F  # noqa: N812  its name in the field

from ladle.errors import ConfigError
from ladle.nn.gpt import GPT


@torch.no_grad()
def generate(
    model: GPT,
    ids: Tensor,
    max_new_tokens: int,
    *,
    temperature: float = 1.0,
    top_k: int | None = None,
    generator: torch.Generator | None = None,
) -> Tensor:
    """Continue ids (B, T), T >= 1, by max_new_tokens. Returns int64 (B, T + max_new_tokens).

    temperature: divides the logits; 0 takes the likeliest id. top_k: keep only the k likeliest (ties with the last one kept).
    generator: where chance comes from, on the ids' device; by default a fresh one of seed 0. No global state is
    touched, and the model's training mode is left as it was. Context beyond block_size falls off the left.
    Raises ConfigError, TokenError.
    """
    if ids.dim() != 2 or not ids.shape[1]:
        raise ConfigError(f"ids: expected (B, T) with T >= 1, found shape {tuple(ids.shape)}")
    for name, wrong, found in (
        ("max_new_tokens", max_new_tokens < 0, max_new_tokens),
        ("temperature", not temperature >= 0, temperature),
        ("top_k", top_k is not None and top_k < 1, top_k),
    ):
        if wrong:
            raise ConfigError(f"{name}: expected {'>= 1' if name == 'top_k' else '>= 0'}, found {found}")
    generator = generator or torch.Generator(ids.device).manual_seed(0)
    was_training = model.training
    model.eval()
    try:
        ids = ids.long()
        for _ in range(max_new_tokens):
            hidden = model.hidden(ids[:, -model.config.block_size :])
            ids = torch.cat((ids, _choose(model.logits(hidden[:, -1]).float(), temperature, top_k, generator)), dim=1)
    finally:
        model.train(was_training)
    return ids


def _choose(logits: Tensor, temperature: float, top_k: int | None, generator: torch.Generator) -> Tensor:
    """(B, V) to (B, 1)."""
    if temperature == 0:
        return logits.argmax(dim=-1, keepdim=True)
    if top_k is not None:
        least = logits.topk(min(top_k, logits.shape[-1])).values[:, -1:]
        logits = logits.masked_fill(logits < least, float("-inf"))
    return torch.multinomial(F.softmax(logits / temperature, dim=-1), 1, generator=generator)
