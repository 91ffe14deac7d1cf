"""Search the lowest precision of every layer of a Flax classifier of digits.

The example trains a small network on scikit-learn's digits in FP32 on this computer.
Then it searches the lowest precision of each layer with which the logits of 256
held-out images stay within 5 % of the FP32 ones. It prints the precision of each layer,
every decision, the policy as Python, and the resulting accuracy.

    python examples/search_precision.py --tolerance 0.02 --plot search.png
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import typer
from flax import nnx
from sklearn.datasets import load_digits

import neuronjax as nj

BATCH = 64
HELD_OUT = 256
RATE = 3e-3


class Classifier(nnx.Module):
    """64 pixels to 10 logits."""

    def __init__(self, rngs: nnx.Rngs) -> None:
        self.pixels = nnx.Linear(64, 96, rngs=rngs)
        self.wide = nnx.Linear(96, 96, rngs=rngs)
        self.narrow = nnx.Linear(96, 32, rngs=rngs)
        self.head = nnx.Linear(32, 10, rngs=rngs)

    def __call__(self, images: jax.Array) -> jax.Array:
        """Logits [batch, 10] of images [batch, 64]."""
        hidden = nnx.gelu(self.pixels(images))
        hidden = hidden + nnx.gelu(self.wide(hidden))
        return self.head(nnx.gelu(self.narrow(hidden)))


def digits() -> tuple[np.ndarray, np.ndarray]:
    """Images [1797, 64] and their labels."""
    images, labels = map(np.asarray, load_digits(return_X_y=True))
    order = np.random.default_rng(0).permutation(len(labels))
    return images[order].astype(np.float32), labels[order].astype(np.int32)


def trained(images: Any, labels: Any, steps: int) -> tuple[Any, Any]:
    """The network's structure and its parameters after some steps of Adam."""
    graphdef, params = nnx.split(Classifier(nnx.Rngs(0)))
    optimizer = optax.adam(RATE)
    state = optimizer.init(params)

    @jax.jit
    def step(params: Any, state: Any, x: Any, y: Any) -> tuple[Any, Any]:
        def loss(params: Any) -> jax.Array:
            logits = nnx.merge(graphdef, params)(x)
            return optax.softmax_cross_entropy_with_integer_labels(logits, y).mean()

        updates, state = optimizer.update(jax.grad(loss)(params), state, params)
        return optax.apply_updates(params, updates), state

    rng = np.random.default_rng(1)
    for _ in range(steps):
        rows = rng.integers(0, len(labels), BATCH)
        params, state = step(params, state, images[rows], labels[rows])
    return graphdef, params


def run(
    *, tolerance: float, target: str, strategy: str, steps: int, progress: bool = True
) -> tuple[nj.PrecisionSearch, dict[str, float]]:
    """The search, and accuracies on the held-out images before and after."""
    images, labels = digits()
    x, y = jnp.asarray(images[:HELD_OUT]), labels[:HELD_OUT]
    graphdef, params = trained(images[HELD_OUT:], labels[HELD_OUT:], steps)

    def classifier(params: Any, images: jax.Array) -> jax.Array:
        return nnx.merge(graphdef, params)(images)

    found = nj.search_precision(
        classifier,
        target=target,
        tolerance=tolerance,
        strategy=strategy,
        objective="preference",  # the model stands in for one whose casts would pay
        progress=progress,
    )(params, x)
    policies = {"fp32": "fp32", "searched": found.policy}
    accuracies = {
        name: float(
            np.mean(
                np.argmax(nj.jit(classifier, target=target, policy=p)(params, x), -1)
                == y
            )
        )
        for name, p in policies.items()
    }
    return found, accuracies


def main(
    tolerance: Annotated[float, typer.Option(help="Relative L2 of the logits.")] = 0.05,
    target: Annotated[str, typer.Option(help="A chip.")] = "trn3",
    strategy: Annotated[str, typer.Option(help="greedy or bisection.")] = "greedy",
    steps: Annotated[int, typer.Option(min=1, help="Of the training.")] = 400,
    plot: Annotated[Path | None, typer.Option(help="Draws what was tried.")] = None,
) -> None:
    """Searches the lowest precision of every layer of a small classifier."""
    found, accuracies = run(
        tolerance=tolerance, target=target, strategy=strategy, steps=steps
    )
    print(found)
    print(found.as_code())
    for name, accuracy in accuracies.items():
        print(f"accuracy on held-out images, {name}: {accuracy:.1%}")
    if plot is not None:
        found.plot().savefig(plot)


if __name__ == "__main__":
    typer.run(main)
