"""Watch a whole result in one pass: its largest magnitude, or whether it wraps around.

For floats `watch` returns the largest magnitude: as bits of float32, Inf is above all
numbers and NaN above Inf, so one maximum says whether an array is finite. For integers
it returns whether a sum, product or conversion exceeds its type. The true result is
computed in FP32, to a relative error of 2^-22; a result that has wrapped around, or
saturated in a sum, is off by half the range of its type or more.
"""

from __future__ import annotations

from collections.abc import Sequence

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from neuronjax.execution.probes.collect import Probe
from neuronjax.ir.instruction import Instruction
from neuronjax.ir.instruction_set import TensorCopy, TensorReduce, TensorTensor
from neuronjax.numerics.float_format import FORMATS
from neuronjax.numerics.widening import widen_finite

INF_BITS = np.uint32(0x7F80_0000)
_MAGNITUDE = np.uint32(0x7FFF_FFFF)


def watch(
    probe: Probe, i: Instruction, operands: Sequence[jax.Array], result: jax.Array
) -> jax.Array:
    """Return a uint32 that describes a result. For floats it has the bits of the
    largest magnitude, with Inf and NaN included; for integers it is 1 if an element is
    beyond its type."""
    if probe.kind == "integer":
        return wraps(i, operands, result).astype(jnp.uint32)
    return top(result)


@jax.jit
def top(x: jax.Array) -> jax.Array:
    """Return the bits of the largest magnitude; 0 if the array is not of floats."""
    if x.dtype.name not in FORMATS or not x.size:
        return jnp.uint32(0)
    bits = lax.bitcast_convert_type(widen_finite(x), jnp.uint32) & _MAGNITUDE
    return jnp.max(bits)


def any_nonfinite(arrays: Sequence[jax.Array]) -> jax.Array:
    tops = [jnp.uint32(0), *map(top, arrays)]
    return jnp.max(jnp.stack(tops)) >= INF_BITS


_ELEMENTWISE = {"add": jnp.add, "subtract": jnp.subtract, "multiply": jnp.multiply}


def is_word(dtype: np.dtype) -> bool:
    """Return whether a dtype is an unsigned word of 32 or 64 bits. Hashes and random
    number generators wrap these around on purpose."""
    return dtype.kind == "u" and dtype.itemsize >= 4


def may_wrap(i: Instruction) -> bool:
    """Return whether `wraps` applies to an instruction."""
    if not i.results or not i.operands:
        return False
    given, written = i.operands[0].type.dtype, i.results[0].type.dtype
    if written.kind not in "iu" or written.itemsize > 4 or is_word(given):
        return False
    if isinstance(i, TensorCopy):
        if is_word(written) or given.kind == "b":
            return False
        other = given.kind != written.kind and given.itemsize == written.itemsize
        return given.name in FORMATS or given.itemsize > written.itemsize or other
    if isinstance(i, TensorTensor):
        return i.op in _ELEMENTWISE
    return isinstance(i, TensorReduce) and i.op == "add"


def wraps(
    i: Instruction, operands: Sequence[jax.Array], result: jax.Array
) -> jax.Array:
    """Return whether the true value of any element is beyond the result's type."""
    if isinstance(i, TensorCopy):
        return _converts(operands[0], result)
    wide = [x.astype(jnp.float32) for x in operands]
    if isinstance(i, TensorReduce):
        return _is_off(jnp.sum(wide[0], axis=i.axes) + wide[1], result)
    assert isinstance(i, TensorTensor)
    return _is_off(_ELEMENTWISE[i.op](*wide), result)


@jax.jit
def _is_off(exact: jax.Array, result: jax.Array) -> jax.Array:
    quarter = 2.0 ** (8 * result.dtype.itemsize - 2)
    return jnp.any(jnp.abs(exact - result.astype(jnp.float32)) > quarter)


@jax.jit
def _converts(x: jax.Array, result: jax.Array) -> jax.Array:
    """Return whether a conversion exceeds its type by a finite number."""
    info = np.iinfo(result.dtype)
    wide = widen_finite(x) if x.dtype.name in FORMATS else x.astype(jnp.float32)
    wide = jnp.trunc(wide)
    # The largest int32 is rounded up in FP32, to the first number that is too large.
    high = np.float32(info.max)
    above = wide >= high if float(high) > info.max else wide > high
    return jnp.any((above | (wide < np.float32(info.min))) & jnp.isfinite(wide))
