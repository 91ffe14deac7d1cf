"""A mixture-of-experts layer with top-k routing, trained by Adafactor.

Two dispatches of the same layer: one-hot masks multiplied in (Switch Transformer), and
indices gathered and scattered. Each expert takes at most `capacity` tokens, first come
first served; the rest pass by.
"""

from __future__ import annotations

import functools
from collections.abc import Callable

import jax
import jax.numpy as jnp
import optax

from tests.zoo.program import (
    Function,
    Program,
    PyTree,
    Size,
    parameters,
    train_step,
    uniform,
    warm_state,
)

EXPERTS, CHOICES = 4, 2
#: (tokens N, width D, hidden H).
_SIZES: dict[Size, tuple[int, int, int]] = {"tiny": (10, 8, 20), "small": (64, 32, 80)}

Layer = Callable[[PyTree, jax.Array], tuple[jax.Array, jax.Array]]


def route(router: jax.Array, x: jax.Array) -> tuple[jax.Array, ...]:
    """The chosen experts, their weights, their queue positions and the balance loss.

    Returns:
        choice, weight, position: [N, CHOICES]; and a float32 scalar.
    """
    probabilities = jax.nn.softmax(x @ router, axis=-1)
    weight, choice = jax.lax.top_k(probabilities, CHOICES)
    weight /= weight.sum(axis=-1, keepdims=True)
    taken = jax.nn.one_hot(choice.reshape(-1), EXPERTS, dtype=jnp.int32)
    queue = (jnp.cumsum(taken, axis=0) * taken).sum(axis=-1) - 1
    load = taken.astype(jnp.float32).mean(axis=0)
    balance = EXPERTS * (load * probabilities.mean(axis=0)).sum()
    return choice, weight, queue.reshape(choice.shape), balance


def capacity(tokens: int) -> int:
    """Three quarters of what perfectly balanced experts would need."""
    return max(1, 3 * tokens * CHOICES // (4 * EXPERTS))


def experts(params: PyTree, batches: jax.Array) -> jax.Array:
    """Every expert's MLP on its own batch, [EXPERTS, capacity, D]."""
    hidden = jax.nn.relu(jnp.einsum("ecd,edh->ech", batches, params["up"]))
    return jnp.einsum("ech,ehd->ecd", hidden, params["down"])


def masked(params: PyTree, x: jax.Array) -> tuple[jax.Array, jax.Array]:
    """The layer with one-hot dispatch and combine tensors."""
    choice, weight, position, balance = route(params["router"], x)
    slots = jax.nn.one_hot(position, capacity(len(x)))
    dispatch = jax.nn.one_hot(choice, EXPERTS)[..., None] * slots[:, :, None, :]
    batches = jnp.einsum("nkec,nd->ecd", dispatch, x)
    combine = (dispatch * weight[..., None, None]).sum(axis=1)
    return x + jnp.einsum("nec,ecd->nd", combine, experts(params, batches)), balance


def indexed(params: PyTree, x: jax.Array) -> tuple[jax.Array, jax.Array]:
    """The layer with scattered inputs and gathered outputs."""
    choice, weight, position, balance = route(params["router"], x)
    batches = jnp.zeros((EXPERTS, capacity(len(x)), x.shape[1]), x.dtype)
    source = jnp.broadcast_to(x[:, None], (*choice.shape, x.shape[1]))
    batches = batches.at[choice, position].add(source, mode="drop")
    outputs = (
        experts(params, batches).at[choice, position].get(mode="fill", fill_value=0)
    )
    return x + (outputs * weight[..., None]).sum(axis=1), balance


def _train(
    layer: Layer, seed: int, size: Size = "tiny"
) -> tuple[Function, tuple[PyTree, ...]]:
    tokens, width, hidden = _SIZES[size]
    shapes = {
        "router": (width, EXPERTS),
        "up": (EXPERTS, width, hidden),
        "down": (EXPERTS, hidden, width),
    }
    params = parameters(
        {name: jax.ShapeDtypeStruct(s, jnp.float32) for name, s in shapes.items()}, seed
    )
    optimizer = optax.adafactor(1e-2, min_dim_size_to_factor=8)

    def loss(params: PyTree, x: jax.Array, y: jax.Array) -> tuple[jax.Array, PyTree]:
        out, balance = layer(params, x)
        return jnp.square(out - y).mean() + 0.01 * balance, {"balance": balance}

    x, y = (uniform(seed + i, (tokens, width)) for i in (1, 2))
    state = warm_state(optimizer, params, seed)
    return train_step(loss, optimizer), (params, state, x, y)


PROGRAMS = (
    Program(name="moe_masked_adafactor", make=functools.partial(_train, masked)),
    Program(name="moe_indexed_adafactor", make=functools.partial(_train, indexed)),
)
