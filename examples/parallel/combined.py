"""Combine data, pipeline and tensor parallelism on a mesh of three axes.

The pipeline gets a block whose operators communicate along "tp". Its result is averaged
along "dp". Neither part depends on the other.

    python -m examples.parallel.combined
"""

from __future__ import annotations

from typing import Any

import jax
from jax import lax
from jax.sharding import PartitionSpec as P

import neuronjax as nj
from examples.parallel import model, pipeline, tensor_parallel, training

MESH = nj.make_mesh((2, 2, 2), ("dp", "pp", "tp"))
# Layers along "pp", and each of them as tensor parallelism does it.
CUT = {
    name: P("pp", *spec[1:])
    for name, spec in tensor_parallel.STRATEGY.params["layers"].items()
}


def value_and_grad(params: Any, tokens: jax.Array) -> tuple[jax.Array, Any]:
    found = pipeline.value_and_grad(params, tokens, tensor_parallel.block)
    return lax.pmean(found, "dp")


STRATEGY = training.Strategy(
    mesh=MESH,
    params=training.specs(model.init, CUT),
    batch=P("dp"),
    value_and_grad=value_and_grad,
)

if __name__ == "__main__":
    training.main(STRATEGY)
