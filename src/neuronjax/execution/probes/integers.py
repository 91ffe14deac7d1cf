"""Integers that wrap around: sums, products and conversions whose type is too narrow.

What the result should be is known in FP32 to a share of 2^-22; a result that has
wrapped around, or saturated in a sum, is off by half the range of its type or more.
"""

from __future__ import annotations

from collections.abc import Sequence

import jax
import jax.numpy as jnp
import numpy as np

from neuronjax.ir.instruction import Instruction
from neuronjax.ir.instruction_set import TensorCopy, TensorReduce, TensorTensor
from neuronjax.numerics.float_format import FORMATS
from neuronjax.numerics.widening import widen_finite

_ELEMENTWISE = {"add": jnp.add, "subtract": jnp.subtract, "multiply": jnp.multiply}


def is_word(dtype: np.dtype) -> bool:
    """Unsigned words of 32 and 64 bits: hashes and generators of random numbers mean
    them to wrap around."""
    return dtype.kind == "u" and dtype.itemsize >= 4


def may_wrap(i: Instruction) -> bool:
    """Whether `wraps` looks at an instruction."""
    if not i.results or not i.operands:
        return False
    given, written = i.operands[0].type.dtype, i.results[0].type.dtype
    if written.kind not in "iu" or written.itemsize > 4 or is_word(given):
        return False
    if isinstance(i, TensorCopy):
        if is_word(written) or given.kind == "b":
            return False
        other = given.kind != written.kind and given.itemsize == written.itemsize
        return _is_float(given) or given.itemsize > written.itemsize or other
    if isinstance(i, TensorTensor):
        return i.op in _ELEMENTWISE
    return isinstance(i, TensorReduce) and i.op == "add"


def _is_float(dtype: np.dtype) -> bool:
    return dtype.name in FORMATS


def wraps(
    i: Instruction, operands: Sequence[jax.Array], result: jax.Array
) -> jax.Array:
    """Whether any element of a result has wrapped around, or is beyond its type."""
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
    """Inf and NaN are another fault."""
    info = np.iinfo(result.dtype)
    is_float = x.dtype.name in FORMATS
    wide = widen_finite(x) if is_float and x.dtype != jnp.float32 else x
    wide = jnp.trunc(wide.astype(jnp.float32))
    # Of 32 bits the largest number is rounded up, to the first that is too large.
    high = np.float32(info.max)
    above = wide >= high if float(high) > info.max else wide > high
    return jnp.any((above | (wide < np.float32(info.min))) & jnp.isfinite(wide))
