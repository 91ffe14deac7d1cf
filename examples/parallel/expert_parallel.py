"""Train with expert parallelism: each device has its own sequences and experts.

The MLP of a layer becomes a Switch mixture: a token goes to the one expert that its
router prefers. Each expert gets at most CAPACITY tokens of a sequence; the other tokens
go to none. One all_to_all moves tokens to the experts' devices, and a second one moves
the results back.

    python -m examples.parallel.expert_parallel
"""

from __future__ import annotations

import functools
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jax.sharding import PartitionSpec as P

import neuronjax as nj
from examples.parallel import model, training
from examples.parallel.model import Operator, identity

MESH = nj.make_mesh((4,), ("ep",))
E, CAPACITY = 4, 8
CUT = {"up": P(None, "ep"), "down": P(None, "ep")}  # [L, E, ...]


def init(seed: int = 0) -> Any:
    """The model with E copies of each MLP, each disturbed, and a router."""
    params = model.init(seed)
    keys = jax.random.split(jax.random.key(seed + 1), 3)

    def copies(x: jax.Array, key: jax.Array) -> jax.Array:
        noise = jax.random.normal(key, (x.shape[0], E, *x.shape[1:]))
        return x[:, None] + 0.1 * noise

    layers = params["layers"]
    experts = {
        "router": jax.random.normal(keys[0], (*layers["norm_mlp"].shape, E)),
        "up": copies(layers["up"], keys[1]),
        "down": copies(layers["down"], keys[2]),
    }
    return {**params, "layers": {**layers, **experts}}


def mixture(
    layer: Any,
    x: jax.Array,
    *,
    dispatch: Operator = identity,
    combine: Operator = identity,
) -> jax.Array:
    """[B, T, D] -> [B, T, D] by way of [B, E, CAPACITY, D]."""
    gates = jax.nn.softmax(x @ layer["router"])
    best = lax.top_k(gates, 1)[1][..., 0]
    chosen = jax.nn.one_hot(best, E, dtype=jnp.int32)
    place = jnp.cumsum(chosen, axis=1) * chosen - 1  # in the expert's queue
    slots = jax.nn.one_hot(place, CAPACITY)  # [B, T, E, CAPACITY]
    inputs = dispatch(jnp.einsum("btec,btd->becd", slots, x))
    hidden = jax.nn.relu(jnp.einsum("becd,edf->becf", inputs, layer["up"]))
    outputs = combine(jnp.einsum("becf,efd->becd", hidden, layer["down"]))
    return jnp.einsum("btec,becd->btd", slots * gates[..., None], outputs)


def dispatch(x: jax.Array) -> jax.Array:
    """[B, E, CAPACITY, D] -> [B * devices, E / devices, CAPACITY, D]."""
    return lax.all_to_all(x, "ep", split_axis=1, concat_axis=0, tiled=True)


def combine(x: jax.Array) -> jax.Array:
    """The way back."""
    return lax.all_to_all(x, "ep", split_axis=0, concat_axis=1, tiled=True)


whole_block = functools.partial(model.block, mlp=mixture)
block = functools.partial(
    model.block,
    mlp=functools.partial(mixture, dispatch=dispatch, combine=combine),
)


def local_loss(params: Any, tokens: jax.Array) -> jax.Array:
    return model.loss(params, tokens, block) / lax.axis_size("ep")


SPECS = training.specs(init, CUT)


def value_and_grad(params: Any, tokens: jax.Array) -> tuple[jax.Array, Any]:
    """An expert's gradient is whole: all_to_all brought it every device's tokens."""
    loss, grads = jax.value_and_grad(local_loss)(params, tokens)
    return lax.psum(loss, "ep"), training.sum_replicated(grads, SPECS, "ep")


STRATEGY = training.Strategy(
    mesh=MESH,
    params=SPECS,
    batch=P("ep"),
    value_and_grad=value_and_grad,
    init=init,
    whole_loss=functools.partial(model.loss, block=whole_block),
)

if __name__ == "__main__":
    training.main(STRATEGY)
