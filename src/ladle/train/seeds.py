"""One seed for every generator: the one function of the house that touches global state."""

from __future__ import annotations

import os
import random

import numpy as np
import torch

from ladle.errors import ConfigError


def set_seed(seed: int = 42, deterministic: bool = False) -> str:
    """Seed Python's `random`, NumPy's global generator, and torch's on the CPU and on every device.

    seed: 0 to 2**32 - 1, what NumPy's takes. A CUDA device's generator is seeded when it is first used: nothing is
    initialised here. Call it first thing, before the model is made.

    deterministic: True also chooses torch's deterministic kernels for the whole process: cuDNN's deterministic algorithms
    without its search for the fastest, torch.use_deterministic_algorithms, and CUBLAS_WORKSPACE_CONFIG=:4096:8, which
    cuBLAS needs before its first use (this is the one environment variable that Ladle writes; it reads none). False leaves
    these settings as they are.

    Returns what now holds and what it costs, to print or to log. Not covered: the order of sets of strings
    (PYTHONHASHSEED must be set before Python starts), another build of torch, another number of threads, atomics in
    kernels of others. Ladle's own order needs no seed of this kind: a feed's is its argument. Raises ConfigError.
    """
    if isinstance(seed, bool) or not isinstance(seed, int) or not 0 <= seed < 2**32:
        raise ConfigError(f"seed: expected a whole number from 0 to 2**32 - 1, found {seed!r}")
    random.seed(seed)
    np.random.seed(seed)
    torch.manual_seed(seed)
    if not deterministic:
        return (
            f"seed {seed}: random, NumPy and torch; costs nothing. The CPU repeats to the bit with the same threads and build; "
            "some CUDA kernels add in another order each time (deterministic=True)"
        )
    os.putenv("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    torch.backends.cudnn.benchmark = False
    torch.backends.cudnn.deterministic = True
    torch.use_deterministic_algorithms(True)
    return (
        f"seed {seed}: random, NumPy and torch, deterministic kernels only. Costs: cuDNN does not search for its fastest "
        "convolution, indexing and scattering on CUDA are slower, 24 MiB a CUDA stream for cuBLAS, new tensors are filled; "
        "an operation without such a kernel raises an error that names it"
    )
