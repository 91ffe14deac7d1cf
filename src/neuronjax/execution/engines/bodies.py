"""Blocks of scalar instructions executed on all elements of arrays at once.

Each lane is a run of its own (`jax.vmap` of the runner), so any instruction may stand
in a body, loops and branches included.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import prod

import jax
import jax.numpy as jnp
from jax import lax

from neuronjax.errors import InternalError
from neuronjax.execution.engines.dispatch import Arrays, Registers
from neuronjax.ir.instruction import Block
from neuronjax.numerics.random_bits import fold

# Of a step's number in a loop (it enters the keys of stochastic rounding) and arrays.
Body = Callable[..., Arrays]


def on_elements(body: Block, captured: Sequence[jax.Array], r: Registers) -> Body:
    """The function `(step, *arrays) -> arrays` that runs a body on every element.

    Args:
        body: takes one scalar per array, then what it captures.
        captured: what the body captures, the same for all elements.
        r: the registers of the instruction that has the body.

    Returns:
        A function of a uint32 scalar, the number of the step among the uses of the body
        by this instruction, and arrays of one shape, which is that of its results.
    """
    if r.run is None:
        raise InternalError("an instruction with a body needs a runner")
    run = r.run
    stochastic = any(i.rounding == "stochastic" for i in body.walk())

    def element(key: jax.Array, *scalars: jax.Array) -> Arrays:
        return tuple(run(body, (*scalars, *captured), key))

    def apply(step: jax.Array | int, *arrays: jax.Array) -> Arrays:
        shape = arrays[0].shape
        if not prod(shape):
            types = [view.type for view in body.results]
            return tuple(jnp.zeros((*shape, *t.shape), t.dtype) for t in types)
        key = fold(r.key, jnp.uint32(step))
        if not shape:
            return element(key, *arrays)
        lanes = lax.iota(jnp.uint32, prod(shape))
        keys = jax.vmap(fold, (None, 0))(key, lanes) if stochastic else key
        axes = (0 if stochastic else None, *[0] * len(arrays))
        flat = [lax.reshape(a, (prod(shape),)) for a in arrays]
        out = jax.vmap(element, axes)(keys, *flat)
        return tuple(lax.reshape(a, (*shape, *a.shape[1:])) for a in out)

    return apply
