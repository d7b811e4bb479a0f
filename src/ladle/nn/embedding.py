"""Ids to vectors: the token table and the positions, as one input module."""

from __future__ import annotations

from typing import TypeVar

import torch
from torch import Tensor, nn

from ladle.errors import ConfigError, TokenError
from ladle.nn import positions as places

M = TypeVar("M", bound=nn.Module)


class Embedding(nn.Module):
    """Look each id up in a table of vectors, and tell where it stands.

    vocab_size: logical ids (V). width: C. pad_vocab_to: the table has V rounded up to a multiple of it; the rows
    beyond V are zero at the start and belong to no id. positions: "learned" (a table of max_positions rows),
    "sinusoidal", "rotary" or "none" (rotary adds nothing here: `angles` gives attention what it turns by, head_width wide).
    seed: of the initial tables (None: left undrawn, for an owner that calls `initialise`).

    Ids are checked before the look-up: on the CPU always; on a device only with `check_on_device=True`, because the
    answer has to travel back and the host would wait for it at every step. `train` does not need that wait: it
    compares the corpus's largest id with V before any work. Inside torch.compile nothing is checked.
    """

    def __init__(
        self,
        vocab_size: int,
        width: int,
        *,
        max_positions: int = 1024,
        positions: str = "learned",
        head_width: int | None = None,
        pad_vocab_to: int = 1,
        check_on_device: bool = False,
        device: torch.device | str | None = None,
        seed: int | None = 0,
    ) -> None:
        super().__init__()
        for name, value in (("vocab_size", vocab_size), ("width", width), ("pad_vocab_to", pad_vocab_to)):
            if value < 1:
                raise ConfigError(f"{name}: expected >= 1, found {value}")
        self.vocab_size = vocab_size
        self.max_positions = max_positions if positions == "learned" else None
        self.check_on_device = check_on_device
        rows = -(-vocab_size // pad_vocab_to) * pad_vocab_to
        self.wte = undrawn(nn.Embedding, rows, width, device=device)
        self.wpe = places.make(positions, max_positions=max_positions, width=width, head_width=head_width or width, device=device)
        if seed is not None:
            self.initialise(generator_on(self.wte.weight.device, seed))

    @torch.no_grad()
    def initialise(self, generator: torch.Generator | None) -> None:
        """Normal, 0.02 wide, as GPT-2's; drawn from `generator` (None: on the meta device, where nothing is drawn)."""
        if generator is None:
            return
        self.wte.weight[: self.vocab_size].normal_(0.0, 0.02, generator=generator)
        self.wte.weight[self.vocab_size :].zero_()
        for table in self.wpe.parameters():
            table.normal_(0.0, 0.02, generator=generator)

    def forward(self, ids: Tensor, positions: Tensor | None = None) -> Tensor:
        """ids: integers (B, T). positions: int64 (B, T), or None to count 0 .. T - 1. Returns (B, T, C).

        Raises TokenError naming the first id out of range, its row and column and V; ConfigError for a row longer
        than a learned table, or a position outside it.
        """
        ids = self.checked(ids)
        positions = self.counted(ids) if positions is None else self.given(ids, positions)
        return self.wpe.add(self.wte(ids), positions)

    def angles(self, ids: Tensor, positions: Tensor | None = None) -> Tensor | None:
        """What attention turns queries and keys by: float32 (T or (B, T), head_width / 2), or None for other kinds."""
        return self.wpe.angles(self.counted(ids) if positions is None else positions)

    def checked(self, ids: Tensor) -> Tensor:
        """ids as int32 or int64 (B, T), each known to be in [0, V) where it can be known cheaply."""
        if ids.dim() != 2:
            raise ConfigError(f"ids: expected two dimensions (B, T), found shape {tuple(ids.shape)}")
        if ids.dtype not in (torch.int64, torch.int32):
            if ids.is_floating_point() or ids.is_complex() or ids.dtype == torch.bool:
                raise ConfigError(f"ids: expected integers, found {ids.dtype}")
            ids = ids.long()  # torch looks up no uint16
        if self.looks_at(ids):
            check_ids(ids, self.vocab_size)
        return ids

    def counted(self, ids: Tensor) -> Tensor:
        """0 .. T - 1, int64 (T,)."""
        length = ids.shape[1]
        if self.max_positions is not None and length > self.max_positions:
            raise ConfigError(
                f"a row of {length} tokens does not fit the position table of {self.max_positions} rows; shorten the row, "
                f"or build the model with block_size >= {length}"
            )
        return torch.arange(length, device=ids.device)

    def given(self, ids: Tensor, positions: Tensor) -> Tensor:
        """The caller's positions, of the ids' shape and inside a learned table."""
        if positions.shape != ids.shape:
            raise ConfigError(f"positions: expected the ids' shape {tuple(ids.shape)}, found {tuple(positions.shape)}")
        if self.max_positions is not None and self.looks_at(positions):
            check_ids(positions, self.max_positions, noun="position", table="position table's length", error=ConfigError)
        return positions

    def looks_at(self, values: Tensor) -> bool:
        """Whether values can be checked here without making the host wait unasked."""
        return not torch.compiler.is_compiling() and (values.device.type == "cpu" or self.check_on_device)


def check_ids(
    ids: Tensor,
    size: int,
    *,
    noun: str = "id",
    table: str = "vocabulary's size",
    error: type[TokenError | ConfigError] = TokenError,
) -> None:
    """Raise for the first value of ids (B, T) outside [0, size). One pass over ids; waits for a device if they lie on one."""
    if ids.device.type == "meta" or not ids.numel():
        return
    low, high = torch.aminmax(ids)
    if int(low) >= 0 and int(high) < size:
        return
    row, column = ((ids < 0) | (ids >= size)).nonzero()[0].tolist()
    raise error(
        f"{noun} {int(ids[row, column])} at row {row}, column {column}: expected 0 <= {noun} < {size} (the {table}); "
        f"the batch and the model disagree: were they made with the same {'block size' if noun == 'position' else 'tokenizer'}?"
    )


def undrawn(kind: type[M], *sizes: int, device: torch.device | str | None, **options: bool) -> M:
    """A layer whose weights are not drawn yet: `initialise` does it, from the model's own generator and no global one."""
    return kind(*sizes, device="meta", **options).to_empty(device=device or torch.get_default_device())


def generator_on(device: torch.device, seed: int) -> torch.Generator | None:
    """A generator of one's own, so that no global state moves; None on the meta device, where nothing is drawn."""
    return None if device.type == "meta" else torch.Generator(device).manual_seed(seed)
