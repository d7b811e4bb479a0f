"""What a trial changes, put back as it was: parameters, gradients, buffers, an optimizer's moments, random states."""

from __future__ import annotations

import copy
import random
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from torch import nn


@contextmanager
def kept(things: Sequence[Any]) -> Iterator[None]:
    """Every thing with a state_dict, and the random states of Python, NumPy and torch, are at the end what they were.

    things: modules (buffers that no state_dict names, gradients and train/eval included), optimizers, schedulers, scalers.
    The copies lie in the host's memory, so that a device has no less room.
    """
    back = [_random()]
    for thing in things:
        if isinstance(thing, nn.Module):
            back.append(_module(thing))
        elif isinstance(thing, torch.optim.Optimizer):
            back.append(_optimizer(thing))
        else:
            back.append(_stateful(thing))
    try:
        yield
    finally:
        for put_back in reversed(back):
            put_back()


def _random() -> Callable[[], None]:
    python, numpy, cpu = random.getstate(), np.random.get_state(), torch.get_rng_state()
    cuda = torch.cuda.get_rng_state_all() if torch.cuda.is_initialized() else None  # type: ignore[no-untyped-call]

    def put_back() -> None:
        random.setstate(python)
        np.random.set_state(numpy)
        torch.set_rng_state(cpu)
        if cuda is not None:
            torch.cuda.set_rng_state_all(cuda)

    return put_back


def _module(module: nn.Module) -> Callable[[], None]:
    values = [(t, _copied(t)) for t in (*module.parameters(), *module.buffers())]
    gradients = [(p, p.grad, _copied(p.grad)) for p in module.parameters()]
    modes = [(m, m.training) for m in module.modules()]

    def put_back() -> None:
        with torch.no_grad():
            for tensor, value in values:
                tensor.copy_(value)
            for p, gradient, value in gradients:
                p.grad = gradient
                if gradient is not None:
                    gradient.copy_(value)
        for m, training in modes:
            m.training = training

    return put_back


def _optimizer(optimizer: torch.optim.Optimizer) -> Callable[[], None]:
    state = {p: {key: _copied(value) for key, value in slots.items()} for p, slots in optimizer.state.items()}
    places = {
        p: {key: value.device for key, value in s.items() if isinstance(value, torch.Tensor)} for p, s in optimizer.state.items()
    }
    groups = [{key: _copied(value) for key, value in group.items() if key != "params"} for group in optimizer.param_groups]

    def put_back() -> None:
        optimizer.state.clear()
        for p, slots in state.items():
            optimizer.state[p] = {key: value.to(places[p][key]) if key in places[p] else value for key, value in slots.items()}
        for group, values in zip(optimizer.param_groups, groups, strict=True):
            group.update(values)

    return put_back


def _stateful(thing: Any) -> Callable[[], None]:
    state = copy.deepcopy(thing.state_dict())
    return lambda: thing.load_state_dict(state)


def _copied(value: Any) -> Any:
    return value.detach().cpu().clone() if isinstance(value, torch.Tensor) else copy.deepcopy(value)
