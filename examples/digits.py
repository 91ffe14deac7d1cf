"""Train handwritten digits on an emulated Trainium2: dense and 4:16 sparse weights.

A small Flax classifier learns scikit-learn's digits (1,797 images of 8 by 8 pixels,
part of that package) twice on the emulated chip in BF16: once with dense weights, and
once with masks that close step by step until 4 of every 16 weights are left (SR-STE).
The table compares the accuracy on test images, and the bytes of the weights.

    python -m examples.digits --steps 300
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Iterator
from typing import Annotated, Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import typer
from flax import nnx
from rich import box
from rich.console import Console
from rich.table import Table
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split

import neuronjax as nj
from examples.sparse_training import (
    Schedule,
    cubic,
    magnitude_masks,
    masked_params,
    matching,
)
from neuronjax.numerics.sparsity import SparseArray, get_pattern

TARGET = "trn2"
PATTERN = "4:16"
KERNELS = matching("kernel", axis=0)  # Flax's kernels are [inputs, outputs]
DENSE_POLICY = nj.Policy(auto_cast="matmult", auto_cast_type="bf16")
# Of the evaluation. Training multiplies masked dense weights, for the masks move.
SPARSE_POLICY = dataclasses.replace(DENSE_POLICY, sparsity=PATTERN)

BATCH = 128
LEARNING_RATE = 3e-3
DECAY = 2e-4  # pulls pruned weights toward zero: the value of Zhou et al. 2021
DENSE_STEPS, CLOSING_STEPS = 0.1, 0.5  # parts of the run; then the pattern holds


@dataclasses.dataclass(frozen=True, kw_only=True)
class Digits:
    """Images [N, 64] in [0, 1], labels [N]; a quarter is kept for the test."""

    train_images: np.ndarray
    train_labels: np.ndarray
    test_images: np.ndarray
    test_labels: np.ndarray

    @classmethod
    def load(cls, seed: int) -> Digits:
        pixels, digits = map(np.asarray, load_digits(return_X_y=True))
        images = (pixels / 16).astype(np.float32)  # 17 levels
        labels = digits.astype(np.int32)
        train, test = train_test_split(
            np.arange(len(labels)), test_size=0.25, stratify=labels, random_state=seed
        )
        return cls(
            train_images=images[train],
            train_labels=labels[train],
            test_images=images[test],
            test_labels=labels[test],
        )

    def batches(self, steps: int, seed: int) -> Iterator[tuple[np.ndarray, np.ndarray]]:
        """Whole batches, in a new order every epoch."""
        rng = np.random.default_rng(seed)
        order = np.empty(0, np.int64)
        for _ in range(steps):
            if len(order) < BATCH:
                order = rng.permutation(len(self.train_labels))
            chosen, order = order[:BATCH], order[BATCH:]
            yield self.train_images[chosen], self.train_labels[chosen]


class Classifier(nnx.Module):
    """64 pixels -> 128 -> 64 -> 10 logits."""

    def __init__(self, rngs: nnx.Rngs) -> None:
        self.first = nnx.Linear(64, 128, rngs=rngs)
        self.second = nnx.Linear(128, 64, rngs=rngs)
        self.head = nnx.Linear(64, 10, rngs=rngs)

    def __call__(self, images: jax.Array) -> jax.Array:
        x = nnx.relu(self.first(images))
        return self.head(nnx.relu(self.second(x)))


OPTIMIZER = optax.adam(LEARNING_RATE)


def prune(params: Any, kept: Any) -> Any:
    """Keeps `kept` weights of every group; of whole groups, all: the dense model."""
    masks = magnitude_masks(params, PATTERN, axis_of=KERNELS, kept=kept)
    return masked_params(params, masks, decay=DECAY)


def training_step(graphdef: nnx.GraphDef) -> nj.Emulated:
    """(params, state, kept, images, labels) -> (params, state), on the emulated chip.

    The number of kept weights is an argument, so one compiled step serves every model.
    """

    def loss(params: Any, kept: jax.Array, images: Any, labels: Any) -> jax.Array:
        logits = nnx.merge(graphdef, prune(params, kept))(images)
        return optax.softmax_cross_entropy_with_integer_labels(logits, labels).mean()

    @functools.partial(nj.jit, target=TARGET, policy=DENSE_POLICY)
    def step(params: Any, state: Any, kept: Any, images: Any, labels: Any) -> Any:
        gradients = jax.grad(loss)(params, kept, images, labels)
        updates, state = OPTIMIZER.update(gradients, state, params)
        return optax.apply_updates(params, updates), state

    return step


@dataclasses.dataclass(frozen=True, kw_only=True)
class Result:
    """A trained model.

    Attributes:
        name: "dense" or the pattern.
        params: as they are evaluated; pruned in the sparse model.
        predict: the emulated function of (params, images) that gives the logits.
        accuracy: fraction of the test images.
        weight_bytes: of all kernels in BF16, with their tags in the sparse model.
    """

    name: str
    params: Any
    predict: nj.Emulated
    accuracy: float
    weight_bytes: int


def run(*, steps: int, seed: int) -> tuple[Result, Result]:
    """The dense and the sparse model, from the same start and the same batches."""
    digits = Digits.load(seed)
    graphdef, start = nnx.split(Classifier(nnx.Rngs(seed)))
    step = training_step(graphdef)

    def logits(params: Any, images: Any) -> jax.Array:
        return nnx.merge(graphdef, params)(images)

    def trained(schedule: Schedule) -> Any:
        params, state = start, OPTIMIZER.init(start)
        for index, batch in enumerate(digits.batches(steps, seed)):
            params, state = step(params, state, schedule(index), *batch)
        return prune(params, schedule(steps))

    def result(name: str, schedule: Schedule, policy: nj.Policy) -> Result:
        params = trained(schedule)
        predict = nj.jit(logits, target=TARGET, policy=policy)
        found = predict(params, digits.test_images)
        return Result(
            name=name,
            params=params,
            predict=predict,
            accuracy=accuracy(found, digits.test_labels),
            weight_bytes=weight_bytes(params, sparse=policy.sparsity is not None),
        )

    begin = int(DENSE_STEPS * steps)
    closing = cubic(
        PATTERN, begin=begin, end=begin + max(1, int(CLOSING_STEPS * steps))
    )
    return (
        result("dense", lambda _: jnp.int32(get_pattern(PATTERN).group), DENSE_POLICY),
        result(PATTERN, closing, SPARSE_POLICY),
    )


def accuracy(logits: jax.Array, labels: np.ndarray) -> float:
    """The fraction of images whose largest logit is that of their label."""
    return float(np.mean(np.argmax(logits, axis=-1) == labels))


def kernels(params: Any) -> list[jax.Array]:
    """The weights of all layers, in BF16 as the chip holds them."""
    return [x.astype(jnp.bfloat16) for x in jax.tree.leaves(params) if x.ndim == 2]


def weight_bytes(params: Any, *, sparse: bool) -> int:
    """Bytes of the kernels; `from_dense` refuses one that breaks the pattern."""
    if not sparse:
        return sum(kernel.nbytes for kernel in kernels(params))
    compressed = (SparseArray.from_dense(k, PATTERN, axis=0) for k in kernels(params))
    return sum(kernel.nbytes for kernel in compressed)


def table(results: tuple[Result, Result], steps: int) -> Table:
    """One row per model; the first is the reference."""
    shown = Table(
        title=f"Digits, {steps} steps of BF16 training on an emulated {TARGET}",
        title_justify="left",
        box=box.SIMPLE_HEAD,
    )
    shown.add_column("weights", style="bold")
    for heading in ("test accuracy", "weight bytes", "smaller by"):
        shown.add_column(heading, justify="right")
    for result in results:
        ratio = results[0].weight_bytes / result.weight_bytes
        accuracy, size = f"{result.accuracy:.2%}", f"{result.weight_bytes:,}"
        shown.add_row(result.name, accuracy, size, f"{ratio:.2f}×")
    return shown


def main(
    steps: Annotated[int, typer.Option(min=1, help="Training steps.")] = 300,
    seed: Annotated[int, typer.Option(help="Of weights, split and batches.")] = 0,
) -> None:
    """Trains a digit classifier dense and 4:16 sparse on an emulated Trainium2."""
    Console(width=80).print(table(run(steps=steps, seed=seed), steps))


if __name__ == "__main__":
    typer.run(main)
