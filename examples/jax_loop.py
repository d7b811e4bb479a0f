"""JAX: global int32 arrays over a mesh of all devices, and a resume from one integer.

python examples/jax_loop.py --out runs/jax --steps 60
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

import ladle

WIDTH = 32
Parameters = dict[str, Any]


def initial(vocab_size: int) -> Parameters:
    shapes = {"embed": (vocab_size, WIDTH), "query": (WIDTH, WIDTH), "key": (WIDTH, WIDTH), "value": (WIDTH, WIDTH)}
    keys = jax.random.split(jax.random.key(1), len(shapes))
    return {name: 0.1 * jax.random.normal(key, shape) for (name, shape), key in zip(shapes.items(), keys, strict=True)}


def loss_of(parameters: Parameters, x: jax.Array, y: jax.Array) -> jax.Array:
    """The mean over the targets that count (y >= 0) of one attention layer's cross-entropy."""
    hidden = parameters["embed"][x]
    query, key, value = (hidden @ parameters[name] for name in ("query", "key", "value"))
    causal = jnp.tril(jnp.ones((x.shape[1], x.shape[1]), bool))
    scores = jnp.where(causal, query @ key.mT / WIDTH**0.5, -jnp.inf)
    logits = (hidden + jax.nn.softmax(scores) @ value) @ parameters["embed"].T
    losses = -jnp.take_along_axis(jax.nn.log_softmax(logits), jnp.maximum(y, 0)[..., None], axis=-1)[..., 0]
    return jnp.where(y >= 0, losses, 0).sum() / (y >= 0).sum()


@jax.jit
def update(parameters: Parameters, x: jax.Array, y: jax.Array) -> tuple[Parameters, jax.Array]:
    loss, slopes = jax.value_and_grad(loss_of)(parameters, x, y)
    return jax.tree.map(lambda weight, slope: weight - 0.5 * slope, parameters, slopes), loss


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path("runs/jax"))
    parser.add_argument("--steps", type=int, default=60)
    options = parser.parse_args()
    out = options.out
    out.mkdir(parents=True, exist_ok=True)

    over = NamedSharding(Mesh(np.array(jax.devices()), ("rows",)), PartitionSpec("rows"))
    (out / "sums.txt").write_text("".join(f"{a} + {b} = {a + b}\n" for a in range(40) for b in range(40)))
    with (
        ladle.prepare(out / "sums.txt", out / "corpus", tokenizer="bytes") as corpus,
        ladle.Feed(corpus["train"], batch_size=8, block_size=64, seed=1, framework="jax", device=over) as feed,
        open(out / "log.jsonl", "a", encoding="utf-8") as log,
    ):
        parameters, step = initial(corpus["train"].vocab_size), 0
        if (out / "checkpoint.npz").exists():
            saved = dict(np.load(out / "checkpoint.npz"))
            feed.load_state_dict(json.loads(str(saved.pop("feed"))))
            step = int(saved.pop("step"))
            parameters = {name: jnp.asarray(weight) for name, weight in saved.items()}

        while step < options.steps:
            batch = next(feed)  # x, y: int32 (8, 64), each device holding its rows
            parameters, loss = update(parameters, *batch)
            step += 1
            print(json.dumps({"step": step, "loss": float(loss), "digest": batch.digest}), file=log, flush=True)
            if step % 10 == 0:
                np.savez(out / "checkpoint.tmp.npz", step=step, feed=json.dumps(batch.state), **parameters)
                (out / "checkpoint.tmp.npz").replace(out / "checkpoint.npz")  # whole, or not at all


if __name__ == "__main__":
    main()
