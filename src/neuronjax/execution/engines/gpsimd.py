"""GpSimdE: reductions and maps by any block, random bits.

Scatters, windows and sorts have files of their own.
"""

from __future__ import annotations

from collections.abc import Sequence

import jax
import jax.numpy as jnp
from jax import lax

from neuronjax.execution.engines.bodies import on_elements
from neuronjax.execution.engines.dispatch import Arrays, Registers, execute
from neuronjax.execution.engines.fold import reduced_axis_first
from neuronjax.ir.block_set import MapBlock, ReduceBlock
from neuronjax.ir.instruction_set import Rng


@execute.register
def map_block(i: MapBlock, x: Sequence[jax.Array], r: Registers) -> Arrays:
    count = len(x) - i.captures
    return on_elements(i.body, x[count:], r)(0, *x[:count])


@execute.register
def reduce_block(i: ReduceBlock, x: Sequence[jax.Array], r: Registers) -> Arrays:
    """A left fold, every other axis in parallel."""
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
    """Philox and threefry are integer algorithms that XLA defines exactly."""
    algorithms = {
        "DEFAULT": lax.RandomAlgorithm.RNG_DEFAULT,
        "PHILOX": lax.RandomAlgorithm.RNG_PHILOX,
        "THREE_FRY": lax.RandomAlgorithm.RNG_THREE_FRY,
    }
    state, bits = i.results
    key = x[0]
    words = lax.bitcast_convert_type(key, jnp.uint32).reshape(-1)
    new_key, out = lax.rng_bit_generator(
        words,
        bits.type.shape,
        dtype=bits.type.dtype,  # type: ignore[arg-type]
        algorithm=algorithms[i.algorithm],
    )
    new_key = lax.bitcast_convert_type(
        lax.reshape(new_key, (*state.type.shape, 2)), state.type.dtype
    )
    return (new_key, out)
