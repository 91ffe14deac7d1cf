"""Find where an FP8 training loop loses its gradients, from statistics of every cast.

A small classifier learns scikit-learn's digits on an emulated Trainium2. Its matmul
operands are FP8 without scaling. The deeper gradients of a mean over the batch are too
small for e5m2 and are flushed to zero. The table shows the op and the share that is
lost. The statistics of all steps are merged during the run.

    python examples/collect_statistics.py --steps 40
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Annotated, Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import typer
from sklearn.datasets import load_digits

import neuronjax as nj

UNSCALED = nj.Policy(auto_cast="matmult", auto_cast_type="fp8")
SIZES = (64, 64, 64, 10)
BATCH = 1024
LEARNING_RATE = 0.2

Params = dict[str, jax.Array]


def initial(seed: int = 0) -> Params:
    """Weights of every layer, after He."""
    rng = np.random.default_rng(seed)
    return {
        f"layer{n}": jnp.asarray(
            rng.normal(0, np.sqrt(2 / rows), (rows, columns)), jnp.float32
        )
        for n, (rows, columns) in enumerate(itertools.pairwise(SIZES))
    }


def batches(steps: int, seed: int = 0) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Images [BATCH, 64] in [0, 1] and labels [BATCH]."""
    pixels, labels = map(np.asarray, load_digits(return_X_y=True))
    rng = np.random.default_rng(seed)
    for _ in range(steps):
        rows = rng.integers(0, len(labels), BATCH)
        yield (pixels[rows] / 16).astype(np.float32), labels[rows].astype(np.int32)


def loss_of(params: Params, images: Any, labels: Any) -> jax.Array:
    """Mean cross entropy in nats."""
    *hidden, head = params.values()
    x = images
    for n, weights in enumerate(hidden):
        with jax.named_scope(f"layer{n}"):
            x = jax.nn.relu(x @ weights)
    with jax.named_scope("head"):
        logits = x @ head
    return optax.softmax_cross_entropy_with_integer_labels(logits, labels).mean()


def train_step(params: Params, images: Any, labels: Any) -> tuple[Params, jax.Array]:
    """One step of SGD."""
    loss, gradients = jax.value_and_grad(loss_of)(params, images, labels)
    update = lambda p, g: p - LEARNING_RATE * g  # noqa: E731
    return jax.tree.map(update, params, gradients), loss


def run(steps: int) -> tuple[list[float], nj.Statistics]:
    """The losses, and the statistics of all steps together."""
    collect = nj.Collect(kinds=("cast", "update"))
    step = nj.jit(train_step, target="trn2", policy=UNSCALED, collect=collect)
    params, losses, merged = initial(), [], None
    for images, labels in batches(steps):
        (params, loss), found = step(params, images, labels)
        merged = found if merged is None else merged.merge(found)
        losses.append(float(loss))
    assert merged is not None
    return losses, merged


def main(
    steps: Annotated[int, typer.Option(min=1, help="Of the run.")] = 40,
) -> None:
    """Trains in unscaled FP8 and shows what was lost where."""
    losses, found = run(steps)
    print(f"loss {losses[0]:.3f} -> {losses[-1]:.3f} after {steps} steps")
    print(found.table(limit=12))
    metrics = found.as_metrics()
    print(f"of all non-zero operands {metrics['cast/underflow']:.1%} were flushed")


if __name__ == "__main__":
    typer.run(main)
