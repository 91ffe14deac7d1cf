"""Study the effect of low precision on a loss curve: four machines, three seeds.

A small classifier learns scikit-learn's digits with plain SGD on this computer
("native"), and on an emulated chip in BF16, in FP8 and in FP8 without scaling. For each
seed, every machine sees the same weights and batches. The table has the last losses,
and the picture has the curves.

    python examples/study_policies.py --plot losses.png --folder runs
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Annotated, Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import typer
from sklearn.datasets import load_digits

import neuronjax as nj

POLICIES = {
    "native": "native",
    "bf16": "bf16",
    "fp8": "fp8",  # scaled: a power of two for each tensor
    "fp8 unscaled": nj.Policy(auto_cast="matmult", auto_cast_type="fp8"),
}
SIZES = (64, 32, 10)
BATCH = 64
LEARNING_RATE = 0.2

Params = list[tuple[jax.Array, jax.Array]]


def initial(seed: int) -> Params:
    """Weights and biases of every layer, after He."""
    rng = np.random.default_rng(seed)
    shapes = itertools.pairwise(SIZES)
    return [
        (
            jnp.asarray(rng.normal(0, np.sqrt(2 / rows), (rows, columns)), jnp.float32),
            jnp.zeros(columns),
        )
        for rows, columns in shapes
    ]


def batches(steps: int, seed: int) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Images [BATCH, 64] in [0, 1] and labels [BATCH]."""
    pixels, labels = map(np.asarray, load_digits(return_X_y=True))
    rng = np.random.default_rng(seed)
    for _ in range(steps):
        rows = rng.integers(0, len(labels), BATCH)
        yield (pixels[rows] / 16).astype(np.float32), labels[rows].astype(np.int32)


def loss_of(params: Params, images: Any, labels: Any) -> jax.Array:
    """Mean cross entropy in nats."""
    *hidden, (head, bias) = params
    x = images
    for weights, biases in hidden:
        x = jax.nn.relu(x @ weights + biases)
    logits = x @ head + bias
    return optax.softmax_cross_entropy_with_integer_labels(logits, labels).mean()


def train_step(params: Params, images: Any, labels: Any) -> tuple[Params, jax.Array]:
    """One step of SGD."""
    loss, gradients = jax.value_and_grad(loss_of)(params, images, labels)
    update = lambda p, g: p - LEARNING_RATE * g  # noqa: E731
    return jax.tree.map(update, params, gradients), loss


def train(jit: Callable[..., Any], seed: int, *, steps: int) -> Iterator[float]:
    """What `nj.study` runs: `jit` is that of the machine at hand."""
    step, params = jit(train_step), initial(seed)
    for images, labels in batches(steps, seed):
        params, loss = step(params, images, labels)
        yield float(loss)


def run(
    *, steps: int, seeds: int, folder: Path | None = None, progress: bool = True
) -> nj.Study:
    """The study."""
    return nj.study(
        train,
        policies=POLICIES,
        target="trn2",
        seeds=seeds,
        options={"steps": steps},
        folder=folder,
        progress=progress,
    )


def main(
    steps: Annotated[int, typer.Option(min=1, help="Of a run.")] = 120,
    seeds: Annotated[int, typer.Option(min=1, help="Runs of each machine.")] = 3,
    folder: Annotated[Path | None, typer.Option(help="Keeps the runs.")] = None,
    plot: Annotated[Path | None, typer.Option(help="Draws the curves.")] = None,
) -> None:
    """Compares training losses of a small classifier under four policies."""
    found = run(steps=steps, seeds=seeds, folder=folder)
    print(found)
    if plot is not None:
        found.plot(smooth=10).savefig(plot)


if __name__ == "__main__":
    typer.run(main)
