"""One seed for every generator; two runs give equal losses to the bit."""

from __future__ import annotations

import os
import random
import subprocess
import sys

import numpy as np
import pytest
import torch

import ladle
from ladle.errors import ConfigError
from ladle.train import set_seed

RUN = """
import random, sys
import numpy as np, torch
from torch import nn
import ladle

ladle.set_seed(int(sys.argv[1]))
model = nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.Flatten(), nn.Dropout(0.3), nn.Linear(8 * 36, 10))
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
for _ in range(8):
    x = torch.randn(16, 3, 8, 8) + random.random() + float(np.random.rand())
    loss = nn.functional.cross_entropy(model(x), torch.from_numpy(np.random.randint(0, 10, 16)))
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    print(loss.item().hex())
"""


@pytest.fixture(autouse=True)
def put_back():
    states = random.getstate(), np.random.get_state(), torch.get_rng_state()
    flags = torch.backends.cudnn.benchmark, torch.backends.cudnn.deterministic, torch.are_deterministic_algorithms_enabled()
    yield
    random.setstate(states[0])
    np.random.set_state(states[1])
    torch.set_rng_state(states[2])
    torch.backends.cudnn.benchmark, torch.backends.cudnn.deterministic = flags[:2]
    torch.use_deterministic_algorithms(flags[2])
    os.unsetenv("CUBLAS_WORKSPACE_CONFIG")


def drawn():
    return random.random(), float(np.random.rand()), float(torch.rand(()))


def test_every_generator_starts_again():
    ladle.set_seed(7)
    first = drawn()
    assert drawn() != first
    set_seed(7)
    assert drawn() == first
    set_seed(8)
    assert all(a != b for a, b in zip(drawn(), first, strict=True))


def losses(seed):
    done = subprocess.run([sys.executable, "-c", RUN, str(seed)], capture_output=True, text=True, check=True, timeout=100)
    return done.stdout.split()


@pytest.mark.slow
def test_two_processes_have_equal_losses_to_the_bit():
    once, again, other = losses(1), losses(1), losses(2)
    assert len(once) == 8
    assert once == again
    assert once != other


def test_deterministic_kernels_and_what_they_cost():
    plain = set_seed(1)
    assert "seed 1: random, NumPy and torch; costs nothing" in plain
    assert not torch.are_deterministic_algorithms_enabled()
    said = set_seed(1, deterministic=True)
    assert "Costs: cuDNN does not search" in said
    assert torch.are_deterministic_algorithms_enabled()
    assert torch.backends.cudnn.deterministic
    assert not torch.backends.cudnn.benchmark
    # what C code and child processes see
    code = "import os; print(os.environ.get('CUBLAS_WORKSPACE_CONFIG'))"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == ":4096:8\n"
    set_seed(1)
    assert torch.are_deterministic_algorithms_enabled(), "False leaves the settings as they are"


@pytest.mark.parametrize("seed", [-1, 2**32, 1.0, True, "1"])
def test_what_is_no_seed(seed):
    before = torch.get_rng_state()
    with pytest.raises(ConfigError, match=r"seed: expected a whole number from 0 to 2\*\*32 - 1, found"):
        set_seed(seed)
    assert torch.equal(torch.get_rng_state(), before)


def test_the_largest_seed():
    set_seed(2**32 - 1)
