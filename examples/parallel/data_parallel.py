"""Train with data parallelism: every device has all parameters and its own sequences.

Each step has one all-reduce of the gradients. Its algorithm decides how often it
rounds; the policy names the algorithm, or else the size of the gradients selects it.

    python -m examples.parallel.data_parallel
"""

from __future__ import annotations

from typing import Any

import jax
from jax import lax
from jax.sharding import PartitionSpec as P

import neuronjax as nj
from examples.parallel import model, training

MESH = nj.make_mesh((4,), ("dp",))


def value_and_grad(params: Any, tokens: jax.Array) -> tuple[jax.Array, Any]:
    return lax.pmean(jax.value_and_grad(model.loss)(params, tokens), "dp")


STRATEGY = training.Strategy(
    mesh=MESH,
    params=training.specs(model.init),
    batch=P("dp"),
    value_and_grad=value_and_grad,
)

if __name__ == "__main__":
    training.main(STRATEGY)
