"""Train with tensor parallelism (Megatron): devices share heads and hidden units.

Attention and MLP are cut by columns at their start and by rows at their end, so a
device computes a term of their result without communication. `leave` is the sum of the
terms; its conjugate `enter` sums the gradients in the backward pass.

    python -m examples.parallel.tensor_parallel
"""

from __future__ import annotations

import functools
from typing import Any

import jax
from jax import lax
from jax.sharding import PartitionSpec as P

import neuronjax as nj
from examples.parallel import model, training

MESH = nj.make_mesh((4,), ("tp",))

CUT = {
    "qkv": P(None, None, None, "tp"),  # [L, D, 3, H, K] by heads
    "out": P(None, "tp"),  # [L, H, K, D] by heads
    "up": P(None, None, "tp"),  # [L, D, F] by columns
    "down": P(None, "tp"),  # [L, F, D] by rows
}


# Megatron's f: a copy forward, a sum backward.
@jax.custom_vjp
def enter(x: jax.Array) -> jax.Array:
    return x


enter.defvjp(lambda x: (x, None), lambda _, g: (lax.psum(g, "tp"),))


# Megatron's g: a sum forward, a copy backward.
@jax.custom_vjp
def leave(x: jax.Array) -> jax.Array:
    return lax.psum(x, "tp")


leave.defvjp(lambda x: (lax.psum(x, "tp"), None), lambda _, g: (g,))

block = functools.partial(model.block, enter=enter, leave=leave)


def value_and_grad(params: Any, tokens: jax.Array) -> tuple[jax.Array, Any]:
    """All devices end with the same loss, and the same gradients outside of `CUT`."""
    return jax.value_and_grad(model.loss)(params, tokens, block)


STRATEGY = training.Strategy(
    mesh=MESH,
    params=training.specs(model.init, CUT),
    batch=P(),
    value_and_grad=value_and_grad,
)

if __name__ == "__main__":
    training.main(STRATEGY)
