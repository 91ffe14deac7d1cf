"""Tiny models whose bits are guarded: their functions and the types of their arguments.

Arguments are drawn from a seed; labels come from them, for integers are not drawn.
"""

from __future__ import annotations

import functools

import jax
import jax.numpy as jnp

import neuronjax as nj

_float = functools.partial(jax.ShapeDtypeStruct, dtype=jnp.float32)
MESH = nj.make_mesh((4,), ("dp",))


def mlp_step(params, x):
    """Forward, backward and one step of momentum."""

    def loss(weights):
        hidden = jax.nn.gelu(x @ weights["up"], approximate=False)
        return jnp.mean(jax.nn.log_softmax(hidden @ weights["down"]) ** 2)

    value, gradients = jax.value_and_grad(loss)(params["weights"])
    velocity = jax.tree.map(lambda v, g: 0.5 * v + g, params["velocity"], gradients)
    weights = jax.tree.map(lambda w, v: w - 0.125 * v, params["weights"], velocity)
    return {"weights": weights, "velocity": velocity}, value


def mlp_types():
    weights = {"up": _float((8, 16)), "down": _float((16, 4))}
    return {"weights": weights, "velocity": weights}, _float((6, 8))


def attention(params, x):
    """One causal head over [sequence, width]."""
    q, k, v = (x @ params[name] for name in "qkv")
    mask = jnp.tril(jnp.ones((x.shape[0], x.shape[0]), bool))
    scores = jnp.where(mask, q @ k.T / jnp.sqrt(q.shape[-1]), -jnp.inf)
    return jax.nn.softmax(scores) @ v


def attention_types():
    return {name: _float((32, 32)) for name in "qkv"}, _float((32, 32))


def recurrent(params, x):
    """A scan whose state feeds back, so that a wrong bit spreads."""

    def step(state, row):
        state = jnp.tanh(state @ params["state"] + row @ params["input"])
        return state, jnp.sum(state)

    return jax.lax.scan(step, jnp.zeros(8), x)


def recurrent_types():
    return {"state": _float((8, 8)), "input": _float((4, 8))}, _float((12, 4))


def data_parallel(params, x):
    """Gradients averaged over four devices, in BF16."""
    spec = jax.sharding.PartitionSpec

    @functools.partial(
        jax.shard_map,
        mesh=MESH,
        in_specs=(spec(), spec("dp")),
        out_specs=spec(),
        check_vma=False,
    )
    def gradient(params, x):
        def loss(w):
            return jnp.mean((x @ w) ** 2)

        own = jax.grad(loss)(params["w"])
        return jax.lax.pmean(own.astype(jnp.bfloat16), "dp")

    return gradient(params, x)


def data_parallel_types():
    return {"w": _float((8, 8))}, _float((16, 8))
