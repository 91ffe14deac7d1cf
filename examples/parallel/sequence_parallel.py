"""Train with sequence parallelism (Megatron): tensor parallelism with cut residuals.

Between attention and MLP, a device has only a part of the positions. all_gather
replaces the copy before them, and psum_scatter the sum after them; together they move
as many bytes. Each is the gradient of the other, so the backward pass needs no code.
But norms, embedding and head see only some positions, so their gradients must be
summed.

    python -m examples.parallel.sequence_parallel
"""

from __future__ import annotations

import functools
from typing import Any

import jax
from jax import lax

from examples.parallel import model, tensor_parallel, training


def enter(x: jax.Array) -> jax.Array:
    """[B, T / devices, D] -> [B, T, D]."""
    return lax.all_gather(x, "tp", axis=1, tiled=True)


def leave(x: jax.Array) -> jax.Array:
    """[B, T, D], a term on each device -> [B, T / devices, D], summed."""
    return lax.psum_scatter(x, "tp", scatter_dimension=1, tiled=True)


block = functools.partial(model.block, enter=enter, leave=leave)


def local_loss(params: Any, tokens: jax.Array) -> jax.Array:
    """What this device's positions contribute to the mean over all."""
    devices = lax.axis_size("tp")
    count = (tokens.shape[1] - 1) // devices
    start = count * lax.axis_index("tp")
    own = lax.dynamic_slice_in_dim(tokens, start, count + 1, axis=1)
    x = model.embed(params, own[:, :-1], start)
    x = model.blocks(params["layers"], x, block)
    return model.cross_entropy(params, x, own[:, 1:]) / devices


SPECS = tensor_parallel.STRATEGY.params


def value_and_grad(params: Any, tokens: jax.Array) -> tuple[jax.Array, Any]:
    loss, grads = jax.value_and_grad(local_loss)(params, tokens)
    return lax.psum(loss, "tp"), training.sum_replicated(grads, SPECS, "tp")


STRATEGY = training.Strategy(
    mesh=tensor_parallel.MESH,
    params=SPECS,
    batch=tensor_parallel.STRATEGY.batch,
    value_and_grad=value_and_grad,
)

if __name__ == "__main__":
    training.main(STRATEGY)
