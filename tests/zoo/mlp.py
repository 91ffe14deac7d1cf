"""Multi-layer perceptrons under every optimizer: NNX, Linen, and mixed precision.

The first matrix product contracts over 203 features: two tiles of 128 rows on the
tensor engine, and no multiple of 16.
"""

from __future__ import annotations

import functools
from collections.abc import Callable

import jax
import jax.numpy as jnp
import optax
from flax import linen, nnx

from tests.zoo.program import (
    Function,
    Program,
    PyTree,
    Size,
    cross_entropy,
    images_and_labels,
    parameters,
    train_step,
    warm_state,
)

FEATURES, CLASSES = 203, 10
_HIDDEN: dict[Size, int] = {"tiny": 24, "small": 96}
_BATCH: dict[Size, int] = {"tiny": 4, "small": 32}


class MLP(nnx.Module):
    """203 -> hidden -> hidden -> 10 with biases, GELU then tanh."""

    def __init__(self, hidden: int, rngs: nnx.Rngs) -> None:
        self.first = nnx.Linear(FEATURES, hidden, rngs=rngs)
        self.second = nnx.Linear(hidden, hidden, rngs=rngs)
        self.last = nnx.Linear(hidden, CLASSES, rngs=rngs)

    def __call__(self, x: jax.Array) -> jax.Array:
        x = jax.nn.gelu(self.first(x))
        return self.last(jnp.tanh(self.second(x)))


class LinenMLP(linen.Module):
    """The same sizes in Linen, with ReLU, exact GELU (erf) and a layer norm."""

    hidden: int

    @linen.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        x = linen.relu(linen.Dense(self.hidden)(x))
        x = linen.LayerNorm()(x)
        x = linen.gelu(linen.Dense(self.hidden)(x), approximate=False)
        return linen.Dense(CLASSES)(x)


def _nnx(size: Size, seed: int) -> tuple[Function, PyTree]:
    """(apply(params, x), params)."""
    model = nnx.eval_shape(lambda: MLP(_HIDDEN[size], nnx.Rngs(0)))
    graphdef, shapes = nnx.split(model)
    apply = lambda params, x: nnx.merge(graphdef, params)(x)  # noqa: E731
    return apply, parameters(shapes, seed)


def _linen(size: Size, seed: int) -> tuple[Function, PyTree]:
    model = LinenMLP(_HIDDEN[size])
    x = jax.ShapeDtypeStruct((1, FEATURES), jnp.float32)
    shapes = jax.eval_shape(model.init, jax.random.key(0), x)
    return model.apply, parameters(shapes, seed)


def _in_bfloat16(size: Size, seed: int) -> tuple[Function, PyTree]:
    """The NNX model on bfloat16 copies of float32 parameters and inputs."""
    apply, params = _nnx(size, seed)

    def mixed(params: PyTree, x: jax.Array) -> jax.Array:
        low = jax.tree.map(lambda p: p.astype(jnp.bfloat16), (params, x))
        return apply(*low).astype(jnp.float32)

    return mixed, params


def _all_bfloat16(size: Size, seed: int) -> tuple[Function, PyTree]:
    """The NNX model with bfloat16 parameters, and so a bfloat16 optimizer state."""
    apply, params = _in_bfloat16(size, seed)
    return apply, jax.tree.map(lambda p: p.astype(jnp.bfloat16), params)


def _train(
    build: Callable[[Size, int], tuple[Function, PyTree]],
    optimizer: optax.GradientTransformation,
    seed: int,
    size: Size = "tiny",
) -> tuple[Function, tuple[PyTree, ...]]:
    apply, params = build(size, seed)

    def loss(params: PyTree, x: jax.Array, y: jax.Array) -> tuple[jax.Array, PyTree]:
        return cross_entropy(apply(params, x), y)

    batch = images_and_labels(seed, (_BATCH[size], FEATURES), CLASSES)
    return train_step(loss, optimizer), (
        params,
        warm_state(optimizer, params, seed),
        *batch,
    )


def _forward(seed: int, size: Size = "tiny") -> tuple[Function, tuple[PyTree, ...]]:
    apply, params = _nnx(size, seed)
    x, _ = images_and_labels(seed, (_BATCH[size], FEATURES), CLASSES)
    return apply, (params, x)


_VARIANTS = {
    "mlp_sgd": (_nnx, optax.sgd(0.1)),
    "mlp_adam": (_nnx, optax.adam(1e-3)),
    "mlp_adamw": (_nnx, optax.adamw(1e-3, weight_decay=0.01)),
    "mlp_lion": (_nnx, optax.lion(1e-4)),
    "mlp_adafactor": (_nnx, optax.adafactor(1e-2, min_dim_size_to_factor=16)),
    "mlp_linen_adam": (_linen, optax.adam(1e-3)),
    "mlp_mixed_bf16_sgd": (_in_bfloat16, optax.sgd(0.1, momentum=0.9)),
    "mlp_bf16_adam": (_all_bfloat16, optax.adam(1e-3)),
}

PROGRAMS = (
    *(
        Program(name=name, make=functools.partial(_train, build, optimizer))
        for name, (build, optimizer) in _VARIANTS.items()
    ),
    Program(name="mlp_forward", make=_forward, batch_argnums=(1,)),
)
