"""Everything a training run is told: one frozen value, one validator, no torch."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from typing import Any, Self

from ladle.errors import ConfigError, StateError
from ladle.nn.config import POSITIONS, GPTConfig

ORDERS = ("shuffled", "sequential", "random")
PACKS = ("best_fit", "sequential", "single")
OVERLONG = ("split", "drop", "error")
DEALS = ("fixed", "fresh")
DTYPES = ("float32", "bfloat16")
RULES = ("none", "linear", "sqrt")

# May differ when a run is resumed: the batches stay equal to the bit; the losses too, where the numerics are the same.
FREE = frozenset(
    [
        "batch_size",
        "micro_batch_size",
        "prefetch",
        "steps",
        "eval_every",
        "eval_batch_size",
        "checkpoint_every",
        "keep",
        "device",
        "dtype",
        "compile",
        "sample_tokens",
    ]
)
NUMERICS = ("batch_size", "micro_batch_size", "device", "dtype", "compile")


def _option(default: Any, text: str) -> Any:
    return field(default=default, metadata={"help": text})


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainConfig:
    """One run; beside each value stands what it is, as in `ladle train --help`.

    Raises ConfigError naming the first value that cannot be right; warm-up may be longer than the run.
    """

    # the model
    layers: int = _option(4, "blocks of the GPT")
    heads: int = _option(4, "attention heads a block")
    width: int = _option(128, "width of the residual stream (C)")
    block_size: int = _option(64, "tokens a row (T)")
    dropout: float = _option(0.0, "share of activations dropped while training")
    bias: bool = _option(True, "biases in linear layers and norms")
    positions: str = _option("learned", f"how the model knows places: {', '.join(POSITIONS)}")
    vocab_size: int | None = _option(None, "logical ids; by default the corpus says")
    pad_vocab_to: int = _option(1, "round the token table up to a multiple of this")
    # the stream
    batch_size: int = _option(12, "rows an update, over all micro-batches and ranks (B)")
    micro_batch_size: int | None = _option(None, "rows a rank passes through the model at once; by default all of its own")
    order: str = _option("shuffled", f"order of the windows: {', '.join(ORDERS)}")
    pack: str | None = _option(None, f"keep documents whole in the rows, apart from each other: {', '.join(PACKS)}")
    overlong: str = _option("split", f"what becomes of documents longer than a row, where they are packed: {', '.join(OVERLONG)}")
    deal: str = _option("fixed", f"of packed documents into rows, in each epoch: {', '.join(DEALS)}")
    mask_documents: bool = _option(False, "of windows that cut across documents: no token looks, or is led, into another one")
    seed: int = _option(1337, "of the initial weights, the order and the dropout")
    prefetch: int = _option(2, "batches made ahead by a thread")
    # the schedule
    steps: int = _option(2000, "updates")
    learning_rate: float = _option(1e-3, "at the peak")
    min_learning_rate: float = _option(1e-4, "at the end of the decay")
    warmup_steps: int = _option(100, "updates until the peak")
    decay_steps: int | None = _option(None, "update at which the decay ends; by default the last; 0: no decay")
    base_batch_size: int = _option(32, "rows an update for which the learning rates were chosen, where scale_rate is used")
    scale_rate: str = _option("none", f"scale the learning rates from base_batch_size to batch_size: {', '.join(RULES)}")
    # the optimizer
    weight_decay: float = _option(0.1, "of matrices; biases and norms are not decayed")
    beta1: float = _option(0.9, "of AdamW")
    beta2: float = _option(0.99, "of AdamW")
    grad_clip: float = _option(1.0, "longest gradient (norm over all parameters); 0: no limit")
    # beside the training
    eval_every: int = _option(250, "updates between evaluations over the whole val split; 0: only at the end")
    eval_batch_size: int = _option(64, "rows at once while evaluating")
    checkpoint_every: int = _option(250, "updates between checkpoints; 0: only at the end")
    keep: int = _option(2, "checkpoints kept")
    sample_tokens: int = _option(200, "length of the generated sample at the end")
    # the machine
    device: str = _option("auto", "cpu, cuda, cuda:1, mps; auto takes the best there is")
    dtype: str = _option("float32", f"of the model's arithmetic: {', '.join(DTYPES)} (by autocast)")
    compile: bool = _option(False, "torch.compile the model")

    def __post_init__(self) -> None:
        for f in fields(self):
            _check_kind(f.name, getattr(self, f.name), str(f.type))
        for least, names in (
            (1, "block_size batch_size eval_batch_size base_batch_size steps keep"),
            (0, "prefetch warmup_steps eval_every checkpoint_every sample_tokens weight_decay grad_clip min_learning_rate"),
        ):
            for name in names.split():
                if not least <= (value := getattr(self, name)) < math.inf:
                    raise ConfigError(f"{name}: expected >= {least}, found {value}")
        for name, least in (("micro_batch_size", 1), ("vocab_size", 1), ("decay_steps", 0)):
            if (value := getattr(self, name)) is not None and value < least:
                raise ConfigError(f"{name}: expected >= {least} (or nothing), found {value}")
        for name in ("beta1", "beta2"):
            if not 0.0 <= (value := getattr(self, name)) < 1.0:
                raise ConfigError(f"{name}: expected 0 <= {name} < 1, found {value}")
        for name, known in (
            ("order", ORDERS),
            ("pack", PACKS),
            ("overlong", OVERLONG),
            ("deal", DEALS),
            ("dtype", DTYPES),
            ("scale_rate", RULES),
        ):
            if (value := getattr(self, name)) is not None and value not in known:
                raise ConfigError(f"{name}: expected one of {', '.join(known)}, found {value!r}")
        for name, usual in (("overlong", "split"), ("deal", "fixed")):
            if self.pack is None and (value := getattr(self, name)) != usual:
                raise ConfigError(f"{name}: expected {usual!r} without pack, found {value!r}: it says how documents are packed")
        if not 0.0 < self.learning_rate < math.inf:
            raise ConfigError(f"learning_rate: expected > 0, found {self.learning_rate}")
        if self.min_learning_rate > self.learning_rate:
            raise ConfigError(f"min_learning_rate: expected <= {self.learning_rate} (the peak), found {self.min_learning_rate}")
        self.shape(self.vocab_size or 1)

    def shape(self, vocab_size: int) -> GPTConfig:
        """The model of this run, over that many ids. Raises ConfigError."""
        return GPTConfig(
            vocab_size=vocab_size,
            block_size=self.block_size,
            layers=self.layers,
            heads=self.heads,
            width=self.width,
            dropout=self.dropout,
            bias=self.bias,
            positions=self.positions,
            pad_vocab_to=self.pad_vocab_to,
        )

    @property
    def documents(self) -> dict[str, Any]:
        """What keeps documents apart, as `Feed` and `evaluate` take it; nothing of it for plain windows."""
        if self.pack is None and not self.mask_documents:
            return {}
        return {"pack": self.pack, "overlong": self.overlong, "mask_documents": self.mask_documents}

    @property
    def last_decay_step(self) -> int:
        """decay_steps, or the run's length where none was given."""
        return self.steps if self.decay_steps is None else self.decay_steps

    def passes(self, world_size: int) -> int:
        """Micro-batches a rank passes through the model in one update: the most any rank has."""
        rows = -(-self.batch_size // world_size)
        return -(-rows // (self.micro_batch_size or rows))

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON values."""
        return {f.name: getattr(self, f.name) for f in fields(self)}

    def check_resumes(self, saved: Mapping[str, Any]) -> list[str]:
        """Compare with the configuration a checkpoint was made under.

        Returns the names of the differences that keep the batches but not the last bits of the losses. Raises StateError
        naming every value that may not change within a run, with what to give to continue it.
        """
        mine = self.to_dict() | {"decay_steps": self.last_decay_step}
        theirs = type(self)().to_dict() | dict(saved)  # an older run was not asked what is asked now
        if theirs.get("decay_steps") is None:
            theirs["decay_steps"] = theirs.get("steps")
        wrong = [name for name in mine if name not in FREE and mine[name] != theirs.get(name)]
        if wrong:
            by_default = {"decay_steps": " (the number of steps, as none was given)"} if self.decay_steps is None else {}
            told = "; ".join(
                f"{name}: expected {theirs.get(name)!r}, found {mine[name]!r}{by_default.get(name, '')}" for name in wrong
            )
            raise StateError(f"the checkpoint was made under another configuration: {told}; give it the same, or train anew")
        return [name for name in NUMERICS if mine[name] != theirs.get(name)]

    @classmethod
    def preset(cls, name: str, **changes: Any) -> Self:
        """A preset by name, with changes. Raises ConfigError for an unknown one."""
        if name not in PRESETS:
            raise ConfigError(f"preset: expected one of {', '.join(sorted(PRESETS))}, found {name!r}")
        return replace(cls(**PRESETS[name]), **changes)


def _check_kind(name: str, value: Any, kind: str) -> None:
    """A value must be of its field's kind; a whole number may stand for a float, True may not stand for 1."""
    if value is None and kind.endswith("| None"):
        return
    kinds = {"int": int, "float": int | float, "bool": bool, "str": str}[kind.removesuffix(" | None")]
    if not isinstance(value, kinds) or isinstance(value, bool) != (kinds is bool):
        raise ConfigError(f"{name}: expected {kind}, found {value!r}")


PRESETS: dict[str, dict[str, Any]] = {
    # The size and the steps of nanoGPT's published run for a small CPU, about 0.8 million parameters. The rate is twice its
    # 1e-3: over as few steps as these that ends at a val loss of 1.82 instead of 1.91 (bench/train.py).
    "cpu-small": {
        "layers": 4,
        "heads": 4,
        "width": 128,
        "block_size": 64,
        "batch_size": 12,
        "bias": False,
        "steps": 2000,
        "learning_rate": 2e-3,
        "min_learning_rate": 1e-4,
        "warmup_steps": 100,
        "beta2": 0.99,
    },
    # Seconds, not minutes, on two cores.
    "demo": {
        "layers": 4,
        "heads": 4,
        "width": 128,
        "block_size": 64,
        "batch_size": 16,
        "steps": 400,
        "learning_rate": 2e-3,
        "min_learning_rate": 2e-4,
        "warmup_steps": 40,
        "eval_every": 200,
        "checkpoint_every": 100,
    },
    # GPT-2's smallest, 124 million parameters, as nanoGPT reproduces it: about half a million tokens an update.
    "gpt2": {
        "layers": 12,
        "heads": 12,
        "width": 768,
        "block_size": 1024,
        "batch_size": 480,
        "micro_batch_size": 12,
        "pad_vocab_to": 64,
        "steps": 600_000,
        "learning_rate": 6e-4,
        "min_learning_rate": 6e-5,
        "warmup_steps": 2000,
        "beta2": 0.95,
        "eval_every": 1000,
        "eval_batch_size": 12,
        "checkpoint_every": 1000,
        "dtype": "bfloat16",
    },
}
