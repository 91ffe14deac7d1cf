# ruff: noqa: ANN001, ANN201
"""What README's fragments of code take for granted: names, and a training step."""

import dataclasses

import jax
import jax.numpy as jnp
import optax
from jax.sharding import PartitionSpec as P

import neuronjax as nj

__all__ = ["P", "args", "dataclasses", "jax", "jnp", "loss", "nj", "step", "w", "x"]


def loss(params, x, y):
    hidden = jnp.tanh(x @ params["w1"])
    return jnp.mean((hidden @ params["w2"] - y) ** 2)


optimizer = optax.adam(1e-2)


@nj.jit(target="trn2", policy="fp8")
def step(params, state, x, y):
    value, grads = jax.value_and_grad(loss)(params, x, y)
    updates, state = optimizer.update(grads, state)
    return optax.apply_updates(params, updates), state, value


x = jax.random.normal(jax.random.key(0), (64, 32))
y = jnp.sin(x[:, :1])
params = {"w1": jnp.full((32, 48), 0.1) * x[:32, :1], "w2": jnp.full((48, 1), 0.1)}
w = params["w1"]
args = (params, optimizer.init(params), x, y)
