"""A run's configuration: one value, one validator, one rule for resuming."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import FrozenInstanceError, fields, replace

import pytest

from ladle.errors import ConfigError, StateError
from ladle.order.stream import KINDS
from ladle.train import PRESETS, TrainConfig
from ladle.train.config import ORDERS


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"steps": 0}, "steps: expected >= 1, found 0"),
        ({"steps": 2.5}, "steps: expected int, found 2.5"),
        ({"steps": "10"}, "steps: expected int, found '10'"),
        ({"keep": True}, "keep: expected int, found True"),
        ({"bias": 1}, "bias: expected bool, found 1"),
        ({"learning_rate": None}, "learning_rate: expected float, found None"),
        ({"decay_steps": 1.0}, r"decay_steps: expected int \| None, found 1.0"),
        ({"batch_size": -3}, "batch_size: expected >= 1, found -3"),
        ({"micro_batch_size": 0}, r"micro_batch_size: expected >= 1 \(or nothing\), found 0"),
        ({"warmup_steps": -1}, "warmup_steps: expected >= 0, found -1"),
        ({"grad_clip": float("nan")}, "grad_clip: expected >= 0, found nan"),
        ({"weight_decay": float("inf")}, "weight_decay: expected >= 0, found inf"),
        ({"learning_rate": 0.0}, "learning_rate: expected > 0, found 0.0"),
        ({"learning_rate": float("nan")}, "learning_rate: expected > 0, found nan"),
        ({"min_learning_rate": 1.0}, r"min_learning_rate: expected <= 0.001 \(the peak\), found 1.0"),
        ({"beta2": 1.0}, "beta2: expected 0 <= beta2 < 1, found 1.0"),
        ({"order": "sorted"}, "order: expected one of shuffled, sequential, random, found 'sorted'"),
        ({"dtype": "float16"}, "dtype: expected one of float32, bfloat16, found 'float16'"),
        ({"scale_rate": "cubic"}, "scale_rate: expected one of none, linear, sqrt, found 'cubic'"),
        ({"heads": 3}, r"width: expected a multiple of heads \(3\), found 128"),
    ],
)
def test_errors(change: dict, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        TrainConfig(**change)


def test_frozen_and_plain() -> None:
    assert TrainConfig(grad_clip=1).grad_clip == 1
    config = TrainConfig()
    with pytest.raises(FrozenInstanceError):
        config.steps = 3  # type: ignore[misc]
    assert TrainConfig(**json.loads(json.dumps(config.to_dict()))) == config
    assert all(f.metadata["help"] for f in fields(TrainConfig))


def test_presets() -> None:
    for name in PRESETS:
        TrainConfig.preset(name)
    with pytest.raises(ConfigError, match="preset: expected one of cpu-small, demo, gpt2, found 'huge'"):
        TrainConfig.preset("huge")
    assert TrainConfig.preset("cpu-small", steps=7).steps == 7


def test_cpu_small_is_the_published_run() -> None:
    config = TrainConfig.preset("cpu-small")
    assert (config.layers, config.heads, config.width, config.block_size, config.batch_size) == (4, 4, 128, 64, 12)
    assert (config.steps, config.dropout, config.beta2, config.warmup_steps) == (2000, 0.0, 0.99, 100)


def test_the_gpt2_preset_counts_the_published_parameters() -> None:
    from ladle.nn import GPT

    assert GPT(TrainConfig.preset("gpt2", pad_vocab_to=1).shape(50257), device="meta").num_parameters() == 124_439_808


def test_passes_count_the_whole_world() -> None:
    """2 machines of 8 ranks, 512 rows an update, 4 a pass: 8 passes; half the world would say 16."""
    config = TrainConfig(batch_size=512, micro_batch_size=4)
    assert config.passes(16) == 8
    assert config.passes(8) == 16
    assert TrainConfig(batch_size=5).passes(2) == 1
    assert TrainConfig(batch_size=7, micro_batch_size=4).passes(1) == 2


def test_resuming_names_every_value_that_may_not_change() -> None:
    saved = TrainConfig().to_dict()
    assert TrainConfig().check_resumes(saved) == []
    with pytest.raises(StateError) as caught:
        TrainConfig(learning_rate=5e-4, width=64).check_resumes(saved)
    assert str(caught.value) == (
        "the checkpoint was made under another configuration: width: expected 128, found 64; "
        "learning_rate: expected 0.001, found 0.0005; give it the same, or train anew"
    )


def test_a_longer_run_is_told_which_decay_to_keep() -> None:
    saved = TrainConfig(steps=20).to_dict()
    assert TrainConfig(steps=40, decay_steps=20).check_resumes(saved) == []
    with pytest.raises(StateError, match=r"decay_steps: expected 20, found 40 \(the number of steps, as none was given\); give"):
        TrainConfig(steps=40).check_resumes(saved)


def test_resuming_allows_what_leaves_the_stream_alone_and_says_what_moves_the_last_bits() -> None:
    saved = TrainConfig().to_dict()
    assert TrainConfig(eval_every=1, keep=9, sample_tokens=0, prefetch=0).check_resumes(saved) == []
    assert TrainConfig(batch_size=6, micro_batch_size=2).check_resumes(saved) == ["batch_size", "micro_batch_size"]


def test_a_longer_run_must_say_where_the_decay_ends() -> None:
    saved = TrainConfig(steps=2000).to_dict()
    with pytest.raises(StateError, match="decay_steps: expected 2000, found 4000"):
        TrainConfig(steps=4000).check_resumes(saved)
    assert TrainConfig(steps=4000, decay_steps=2000).check_resumes(saved) == []


def test_a_configuration_needs_no_torch() -> None:
    code = "import sys, ladle.train; ladle.train.TrainConfig.preset('demo'); assert 'torch' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True)


def test_replace_validates() -> None:
    with pytest.raises(ConfigError, match="keep"):
        replace(TrainConfig(), keep=0)


def test_the_orders_are_the_feeds() -> None:
    """Written twice, since `ladle train --help` may not wait for NumPy."""
    assert set(ORDERS) == set(KINDS)
