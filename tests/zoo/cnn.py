"""A ResNet-style convolutional network with batch norm, trained by SGD with momentum.

Its 3x3 convolutions over 15 channels contract over 135 elements: more than one tile of
128 rows. The train step carries the running statistics beside the parameters.
"""

from __future__ import annotations

import functools

import jax
import jax.numpy as jnp
import optax
from flax import nnx

from tests.zoo.program import (
    Function,
    Program,
    PyTree,
    Size,
    cross_entropy,
    images_and_labels,
    parameters,
    warm_state,
)

CLASSES = 10
_WIDTH: dict[Size, int] = {"tiny": 15, "small": 32}
_IMAGES: dict[Size, tuple[int, ...]] = {"tiny": (2, 9, 9, 3), "small": (8, 24, 24, 3)}


class Residual(nnx.Module):
    """Two 3x3 convolutions with batch norm, the first strided, and a 1x1 shortcut."""

    def __init__(self, inputs: int, outputs: int, strides: int, rngs: nnx.Rngs) -> None:
        conv = functools.partial(nnx.Conv, use_bias=False, rngs=rngs)
        self.first = conv(inputs, outputs, (3, 3), strides=strides)
        self.second = conv(outputs, outputs, (3, 3))
        self.shortcut = conv(inputs, outputs, (1, 1), strides=strides)
        self.first_norm = nnx.BatchNorm(outputs, momentum=0.9, rngs=rngs)
        self.second_norm = nnx.BatchNorm(outputs, momentum=0.9, rngs=rngs)

    def __call__(self, x: jax.Array, *, train: bool) -> jax.Array:
        y = self.first_norm(self.first(x), use_running_average=not train)
        y = self.second(jax.nn.relu(y))
        y = self.second_norm(y, use_running_average=not train)
        return jax.nn.relu(y + self.shortcut(x))


class ResNet(nnx.Module):
    """Stem, max pool, two residual blocks, average pool, global mean, linear head."""

    def __init__(self, width: int, rngs: nnx.Rngs) -> None:
        self.stem = nnx.Conv(3, width, (3, 3), rngs=rngs)
        self.blocks = nnx.List(
            [Residual(width, width, 1, rngs), Residual(width, 2 * width, 2, rngs)]
        )
        self.head = nnx.Linear(2 * width, CLASSES, rngs=rngs)

    def __call__(self, x: jax.Array, *, train: bool) -> jax.Array:
        x = nnx.max_pool(self.stem(x), (3, 3), strides=(2, 2), padding="SAME")
        for block in self.blocks:
            x = block(x, train=train)
        x = nnx.avg_pool(x, (2, 2), strides=(1, 1))
        return self.head(jnp.mean(x, axis=(1, 2)))


def _model(seed: int, size: Size) -> tuple[nnx.GraphDef, PyTree, PyTree]:
    model = nnx.eval_shape(lambda: ResNet(_WIDTH[size], nnx.Rngs(0)))
    graphdef, params, statistics = nnx.split(model, nnx.Param, nnx.BatchStat)
    return graphdef, parameters(params, seed), parameters(statistics, seed)


def _train(seed: int, size: Size = "tiny") -> tuple[Function, tuple[PyTree, ...]]:
    graphdef, params, statistics = _model(seed, size)
    optimizer = optax.sgd(0.05, momentum=0.9, nesterov=True)

    def loss(
        params: PyTree, statistics: PyTree, x: jax.Array, y: jax.Array
    ) -> tuple[jax.Array, PyTree]:
        model = nnx.merge(graphdef, params, statistics, copy=True)
        value, accuracy = cross_entropy(model(x, train=True), y)
        return value, (nnx.state(model, nnx.BatchStat), accuracy)

    def step(
        params: PyTree, statistics: PyTree, opt_state: PyTree, *batch: jax.Array
    ) -> tuple:
        grad = jax.value_and_grad(loss, has_aux=True)
        (value, (statistics, accuracy)), grads = grad(params, statistics, *batch)
        updates, opt_state = optimizer.update(grads, opt_state, params)
        params = optax.apply_updates(params, updates)
        return params, statistics, opt_state, value, accuracy

    batch = images_and_labels(seed, _IMAGES[size], CLASSES)
    state = warm_state(optimizer, params, seed)
    return step, (params, statistics, state, *batch)


def _forward(seed: int, size: Size = "tiny") -> tuple[Function, tuple[PyTree, ...]]:
    graphdef, params, statistics = _model(seed, size)
    images, _ = images_and_labels(seed, _IMAGES[size], CLASSES)

    def apply(params: PyTree, statistics: PyTree, x: jax.Array) -> jax.Array:
        return nnx.merge(graphdef, params, statistics)(x, train=False)

    return apply, (params, statistics, images)


PROGRAMS = (
    Program(name="cnn_sgd_momentum", make=_train),
    Program(name="cnn_forward", make=_forward, batch_argnums=(2,)),
)
