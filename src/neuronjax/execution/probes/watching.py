"""What is looked at of a result as a whole, in one pass: its largest magnitude.

As bits of float32 Inf is above all numbers and NaN above Inf, so that one maximum says
whether an array is finite.
"""

from __future__ import annotations

from collections.abc import Sequence

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from neuronjax.execution.probes.collect import Probe
from neuronjax.execution.probes.integers import wraps
from neuronjax.ir.instruction import Instruction
from neuronjax.numerics.float_format import FORMATS
from neuronjax.numerics.widening import widen_finite

INF_BITS = np.uint32(0x7F80_0000)
_MAGNITUDE = np.uint32(0x7FFF_FFFF)


def watch(
    probe: Probe, i: Instruction, operands: Sequence[jax.Array], result: jax.Array
) -> jax.Array:
    """uint32: of floats the bits of the largest magnitude, Inf and NaN included; of
    integers 1 if one is beyond its type."""
    if probe.kind == "integer":
        return wraps(i, operands, result).astype(jnp.uint32)
    return top(result)


@jax.jit
def top(x: jax.Array) -> jax.Array:
    """The bits of the largest magnitude; 0 of what is no float."""
    if x.dtype.name not in FORMATS or not x.size:
        return jnp.uint32(0)
    wide = x if x.dtype == jnp.float32 else widen_finite(x)
    bits = lax.bitcast_convert_type(wide, jnp.uint32) & _MAGNITUDE
    return jnp.max(bits)


def any_nonfinite(arrays: Sequence[jax.Array]) -> jax.Array:
    """Whether any of some arrays has an Inf or NaN."""
    tops = [jnp.uint32(0), *map(top, arrays)]
    return jnp.max(jnp.stack(tops)) >= INF_BITS
