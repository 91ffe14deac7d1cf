"""Blocks of scalar instructions, executed on all elements of arrays at once.

`jax.vmap` of the runner executes a body for each element, so a body may contain any
instruction, including loops and branches. GpSimdE reduces and maps with such blocks.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import prod

import jax
import jax.numpy as jnp
from jax import lax

from neuronjax.errors import InternalError
from neuronjax.execution.engines.dispatch import Arrays, Registers, execute
from neuronjax.execution.engines.fold import reduced_axis_first
from neuronjax.ir.block_set import MapBlock, ReduceBlock
from neuronjax.ir.instruction import Block
from neuronjax.ir.instruction_set import Rng
from neuronjax.numerics.random_bits import fold

# A function (step, *arrays) -> arrays; the number of the step enters the keys of
# stochastic rounding.
Body = Callable[..., Arrays]


def on_elements(body: Block, captured: Sequence[jax.Array], r: Registers) -> Body:
    """Return a function `(step, *arrays) -> arrays` that runs a body on every element.
    The body takes one scalar per array, then the captured values, which are the same
    for all elements. The uint32 scalar `step` numbers the uses of the body by this
    instruction. All arrays and results have the same shape."""
    if r.run is None:
        raise InternalError("Registers.run is None, but an instruction has a block")
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


@execute.register
def map_block(i: MapBlock, x: Sequence[jax.Array], r: Registers) -> Arrays:
    count = len(x) - i.captures
    return on_elements(i.body, x[count:], r)(0, *x[:count])


@execute.register
def reduce_block(i: ReduceBlock, x: Sequence[jax.Array], r: Registers) -> Arrays:
    """Reduce by a left fold along the reduced axes, with all other axes in parallel."""
    count = (len(x) - i.captures) // 2
    inputs = [reduced_axis_first(a, i.axes) for a in x[:count]]
    body = on_elements(i.body, x[2 * count :], r)
    length, rest = inputs[0].shape
    start = tuple(jnp.broadcast_to(a, (rest,)) for a in x[count : 2 * count])

    def step(carry: tuple, row: tuple) -> tuple[tuple, None]:
        number, *elements = row
        return body(number, *carry, *elements), None

    order = lax.iota(jnp.uint32, length)
    out, _ = lax.scan(step, start, (order, *inputs))
    shapes = [buffer.type.shape for buffer in i.results]
    return tuple(lax.reshape(a, s) for a, s in zip(out, shapes, strict=True))


@execute.register
def rng(i: Rng, x: Sequence[jax.Array], r: Registers) -> Arrays:
    """Return a new state, and random bits by Philox or threefry, whose integer
    algorithms XLA defines exactly."""
    state, bits = i.results
    words = lax.bitcast_convert_type(x[0], jnp.uint32).reshape(-1)
    new_key, out = lax.rng_bit_generator(
        words,
        bits.type.shape,
        dtype=bits.type.dtype,  # type: ignore[arg-type]
        algorithm=lax.RandomAlgorithm[f"RNG_{i.algorithm}"],
    )
    new_key = lax.bitcast_convert_type(
        lax.reshape(new_key, (*state.type.shape, 2)), state.type.dtype
    )
    return (new_key, out)
