"""Train with fully sharded data parallelism (ZeRO-3): each device keeps a part of all.

Parameters, gradients and Adam's moments are cut along the first axis that is not the
axis of layers. A layer is gathered when it is needed, and then discarded:
`jax.checkpoint` makes the backward pass gather it a second time. The gradient of
all_gather is psum_scatter, so the gradients are summed and cut without further code.

    python -m examples.parallel.fsdp
"""

from __future__ import annotations

from typing import Any

import jax
from jax import lax
from jax.sharding import PartitionSpec as P

import neuronjax as nj
from examples.parallel import model, training

MESH = nj.make_mesh((4,), ("fsdp",))


def specs(params: Any) -> Any:
    whole = jax.tree.map(lambda _: P("fsdp"), params)
    layers = jax.tree.map(lambda _: P(None, "fsdp"), params["layers"])
    return {**whole, "layers": layers}


def gathered(shards: Any) -> Any:
    """Whole parameters; the transpose is psum_scatter."""
    return jax.tree.map(lambda x: lax.all_gather(x, "fsdp", tiled=True), shards)


@jax.checkpoint
def block(shards: Any, x: jax.Array) -> jax.Array:
    return model.block(gathered(shards), x)


def local_loss(shards: Any, tokens: jax.Array) -> jax.Array:
    """What this device contributes to the mean over all devices."""
    outer = {name: x for name, x in shards.items() if name != "layers"}
    params = {**gathered(outer), "layers": shards["layers"]}
    return model.loss(params, tokens, block) / lax.axis_size("fsdp")


def value_and_grad(shards: Any, tokens: jax.Array) -> tuple[jax.Array, Any]:
    loss, grads = jax.value_and_grad(local_loss)(shards, tokens)
    return lax.psum(loss, "fsdp"), grads


STRATEGY = training.Strategy(
    mesh=MESH,
    params=specs(jax.eval_shape(model.init)),
    batch=P("fsdp"),
    value_and_grad=value_and_grad,
)

if __name__ == "__main__":
    training.main(STRATEGY)
