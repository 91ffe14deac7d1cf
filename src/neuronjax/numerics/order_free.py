"""Reductions with the same result in any order: of integers and booleans, and extremes.
XLA may choose the order. The largest and smallest floats are found among integers in
the order of the floats, because XLA's float reductions lose NaNs on some shapes. NaN
wins, -0 is below +0, and subnormals count as zeros. Sums and products of floats are not
here: their order is part of an instruction.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from neuronjax.numerics.elementary_core import flush

REDUCTIONS: Mapping[str, Callable[..., jax.Array]] = {
    "maximum": lax.reduce_max,
    "minimum": lax.reduce_min,
    "and": lax.reduce_and,
    "or": lax.reduce_or,
    "xor": lax.reduce_xor,
    "add": lax.reduce_sum,
    "multiply": lax.reduce_prod,
}
ON_BOOLEANS: Mapping[str, str] = {
    "add": "or",
    "maximum": "or",
    "multiply": "and",
    "minimum": "and",
}


def reduce_integers(op: str, x: jax.Array, axes: tuple[int, ...]) -> jax.Array:
    """Reduce `x` over `axes` by an op of `REDUCTIONS`; integers wrap around, and the
    sum of booleans is their logical or."""
    name = ON_BOOLEANS.get(op, op) if x.dtype == jnp.bool_ else op
    return REDUCTIONS[name](x, axes=axes)


def total_order(x: jax.Array) -> jax.Array:
    """Return signed integers ordered as IEEE totalOrder orders the floats `x`."""
    bits = lax.bitcast_convert_type(x, jnp.dtype(f"int{x.dtype.itemsize * 8}"))
    largest = jnp.asarray(jnp.iinfo(bits.dtype).max, bits.dtype)
    return jnp.where(bits < 0, bits ^ largest, bits)


def extreme_key(op: str, x: jax.Array) -> jax.Array:
    """Return int32 keys in the order of the float32 `x`; a NaN gets the key that always
    wins the "maximum" or "minimum". Keys of subnormals are next to those of zeros;
    `extreme_of_key` flushes the result."""
    nan = np.float32(np.nan) if op == "maximum" else -np.float32(np.nan)
    return total_order(jnp.where(x != x, nan, x))


def extreme_of_key(key: jax.Array) -> jax.Array:
    """Return the float32 number of a key of `extreme_key`; subnormals become zeros."""
    bits = jnp.where(key < 0, key ^ jnp.int32(0x7FFFFFFF), key)
    return flush(lax.bitcast_convert_type(bits, jnp.float32))


def reduce_extreme(op: str, x: jax.Array, axes: tuple[int, ...]) -> jax.Array:
    """Return the largest or smallest (`op` "minimum") of float32 `x` over `axes`."""
    return extreme_of_key(REDUCTIONS[op](extreme_key(op, x), axes=axes))
