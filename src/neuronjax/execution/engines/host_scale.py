"""Scaling to FP8 by kernels compiled for the host's processor; see `tensor`.

A tensor is scaled in two passes over memory and a few operations of the program. XLA
would need six kernels, compiled anew for every tensor of every program.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp

from neuronjax.execution.engines.tensor import has_host_kernels
from neuronjax.ir.instruction_set import TensorScalar
from neuronjax.numerics.float_format import get_format
from neuronjax.numerics.widening import from_codes

#: The op of a reduction that only `execution.shortcuts` creates.
LARGEST_MAGNITUDE = "abs_max"
_STORED = (jnp.float32, jnp.bfloat16)


def reads(dtype: object) -> bool:
    """Return whether host kernels exist that read elements of this dtype."""
    return dtype in _STORED and has_host_kernels()


def largest_magnitude(x: jax.Array) -> jax.Array:
    """Return the largest magnitude, a scalar; 0 if there are no elements."""
    from neuronjax.execution.host_kernels import scaling  # needs llvmlite

    if not x.size:
        return jnp.zeros((), jnp.float32)
    return scaling.largest_magnitudes(x.reshape(1, -1))[0]


def casts(i: TensorScalar) -> bool:
    """Return whether a kernel executes an instruction: a product rounded to FP8. It
    assumes that the scale is not NaN, as of a scale made from an amax."""
    dtype = i.results[0].type.dtype
    if i.op != "multiply" or i.rounding != "rne" or i.write_format is not None:
        return False
    if dtype.kind in "iub" or get_format(dtype).width != 8:
        return False
    return get_format(dtype).signed and reads(i.operands[0].type.dtype)


def scaled(i: TensorScalar, x: jax.Array, scale: jax.Array) -> jax.Array:
    """Return the elements times the scale, rounded once."""
    from neuronjax.execution.host_kernels import scaling  # needs llvmlite

    fmt = get_format(i.results[0].type.dtype)
    if not x.size:
        return jnp.zeros(x.shape, fmt.dtype)
    saturates = i.overflow == "saturate"
    rows = x.reshape(1, -1), scale.reshape(1)
    codes = scaling.scaled_codes(*rows, fmt.name, saturates)
    return from_codes(codes.reshape(x.shape), fmt)
