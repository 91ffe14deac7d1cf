"""What a program of the zoo is, and the inputs that all of them share.

Inputs are the same bits on every host: they are made of the raw output of NumPy's
PCG64, whose stream is guaranteed, by integer arithmetic and one exact scaling, never by
a host's `exp` or `erf_inv`. Optimizer states are warm (moments not zero, count 3): the
first step of Adam is the sign of the gradient, which hides its low bits.
"""

from __future__ import annotations

import dataclasses
import math
import zlib
from collections.abc import Callable
from typing import Any, Literal

import jax
import jax.numpy as jnp
import numpy as np
import optax

Size = Literal["tiny", "small"]
PyTree = Any
Function = Callable[..., PyTree]
Make = Callable[..., tuple[Function, tuple[PyTree, ...]]]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Program:
    """A named pure function and a way to make its arguments.

    Attributes:
        name: unique, usable as a pytest id and as a file name.
        make: (seed, size="tiny") -> (function, arguments). The function is pure, the
            arguments are pytrees of concrete arrays.
        batch_argnums: the arguments whose leading axis is the batch. Not empty only for
            a per-example program: example i of every output depends on example i of
            these alone.
    """

    name: str
    make: Make
    batch_argnums: tuple[int, ...] = ()


# ---- Arrays.


def uniform(seed: int, shape: tuple[int, ...], scale: float = 1.0) -> jax.Array:
    """float32 in [-scale, scale), 24 random bits each."""
    raw = np.random.PCG64(seed).random_raw(math.prod(shape))
    centred = (raw >> np.uint64(40)).astype(np.int64) - 2**23
    values = centred.astype(np.float32) * np.float32(2.0**-23) * np.float32(scale)
    return jnp.asarray(values.reshape(shape))


def integers(seed: int, shape: tuple[int, ...], high: int) -> jax.Array:
    """int32 in [0, high)."""
    raw = np.random.PCG64(seed).random_raw(math.prod(shape))
    values = (raw >> np.uint64(33)) % np.uint64(high)
    return jnp.asarray(values.astype(np.int32).reshape(shape))


def images_and_labels(
    seed: int, shape: tuple[int, ...], classes: int
) -> tuple[jax.Array, jax.Array]:
    """(float32 inputs of `shape`, int32 labels of its leading axis)."""
    return uniform(seed + 1, shape), integers(seed + 2, shape[:1], classes)


# ---- Parameters and optimizer states, filled from their shapes alone.


def parameters(abstract: PyTree, seed: int) -> PyTree:
    """Values for the leaves of a tree of shapes, as an initialiser would give.

    Matrices and filters get a variance of 1 / fan in, norm scales and variances values
    about 1, all else (biases, running means) values about 0, and integers 0.
    """

    def fill(path: jax.tree_util.KeyPath, leaf: jax.ShapeDtypeStruct) -> jax.Array:
        name = jax.tree_util.keystr(path)
        leaf_seed = seed + zlib.crc32(name.encode())
        if leaf.ndim >= 2 and "scale" not in name:
            fan_in = math.prod(leaf.shape[:-1])
            values = uniform(leaf_seed, leaf.shape, math.sqrt(3 / fan_in))
        else:
            offset = float("scale" in name or "var" in name)
            values = offset + uniform(leaf_seed, leaf.shape, 0.125)
        return values.astype(leaf.dtype)

    return jax.tree_util.tree_map_with_path(fill, abstract)


def warm_state(
    optimizer: optax.GradientTransformation, params: PyTree, seed: int
) -> PyTree:
    """The state of an optimizer as if after 3 steps: small positive moments."""

    def fill(path: jax.tree_util.KeyPath, leaf: jax.ShapeDtypeStruct) -> jax.Array:
        if jnp.issubdtype(leaf.dtype, jnp.integer):
            return jnp.full(leaf.shape, 3, leaf.dtype)
        leaf_seed = seed + zlib.crc32(jax.tree_util.keystr(path).encode())
        return (2e-4 + uniform(leaf_seed, leaf.shape, 1e-4)).astype(leaf.dtype)

    state = jax.eval_shape(optimizer.init, params)
    return jax.tree_util.tree_map_with_path(fill, state)


# ---- The train step.


def train_step(
    loss: Callable[..., tuple[jax.Array, PyTree]],
    optimizer: optax.GradientTransformation,
) -> Function:
    """(params, opt_state, *batch) -> (params, opt_state, loss, metrics).

    Args:
        loss: (params, *batch) -> (scalar loss, auxiliary metrics).
        optimizer: what turns gradients into updates.
    """

    def step(params: PyTree, opt_state: PyTree, *batch: PyTree) -> tuple:
        (value, aux), grads = jax.value_and_grad(loss, has_aux=True)(params, *batch)
        updates, opt_state = optimizer.update(grads, opt_state, params)
        metrics = {"aux": aux, "grad_norm": optax.tree.norm(grads)}
        return optax.apply_updates(params, updates), opt_state, value, metrics

    return step


def cross_entropy(logits: jax.Array, labels: jax.Array) -> tuple[jax.Array, PyTree]:
    """(mean cross entropy in nats, accuracy) of [B, C] logits and [B] labels."""
    each = optax.softmax_cross_entropy_with_integer_labels(logits, labels)
    return each.mean(), (jnp.argmax(logits, axis=-1) == labels).mean()
