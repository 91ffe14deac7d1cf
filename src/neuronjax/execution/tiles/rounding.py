"""Reading operands as FP32, and the one rounding of a write.

Engines compute in FP32 and round once, to the dtype of the view that is written.
Integers are read exactly where an instruction says so. An FP32 result is written to an
integer by rounding to nearest even with saturation; an integer result is written to a
narrower integer with saturation.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from neuronjax.execution.tiles.registry import Bits
from neuronjax.ir.nki_dtypes import DTypeInfo
from neuronjax.numerics.exact import opaque, seal
from neuronjax.numerics.float_format import get_format
from neuronjax.numerics.rounding import cast, round_to_format, round_to_int
from neuronjax.numerics.widening import widen


def wide(x: jax.Array, zero: jax.Array | None = None) -> jax.Array:
    """Return an operand in FP32, as an engine reads it; integers beyond 2^24 are
    rounded. With `zero` an integer operand, which may be a constant, is made opaque."""
    if x.dtype == jnp.float32:
        return x
    if x.dtype.kind in "iub":
        x = x.astype(jnp.float32)
        return x if zero is None else opaque(x, zero)
    return widen(x)


def rounded(
    x: jax.Array | Bits,
    dtype: DTypeInfo,
    zero: jax.Array,
    random: jax.Array | None = None,
) -> jax.Array:
    """Return a result, float32 or integers or `Bits`, in the carrier of the dtype that
    is written. `random` has uint32 bits of its shape for stochastic rounding."""
    if isinstance(x, Bits):
        same = x.array.dtype == dtype.carrier
        return x.array if same else lax.bitcast_convert_type(x.array, dtype.carrier)
    if dtype.kind == "packed" or x.dtype.kind in "iub":
        if dtype.is_float:
            return rounded(opaque(x.astype(jnp.float32), zero), dtype, zero, random)
        if x.dtype == jnp.bool_ or x.dtype == dtype.numeric:
            return x.astype(dtype.numeric)
        source, target = jnp.iinfo(x.dtype), jnp.iinfo(dtype.numeric)
        low, high = max(source.min, target.min), min(source.max, target.max)
        bounds = (jnp.asarray(v, x.dtype) for v in (low, high))
        return lax.clamp(next(bounds), x, next(bounds)).astype(dtype.numeric)
    if x.dtype != np.float32:
        x = widen(x)
    if dtype.is_integer:
        return round_to_int(x, dtype.numeric)
    if dtype.name == "float32":
        return seal(x, zero)
    how: dict = dict(random_bits=random)
    if random is not None:
        how["rounding"] = "stochastic"
    fmt = get_format(dtype.name)
    if dtype.name == "tfloat32":
        return round_to_format(x, fmt, **how)
    return lax.bitcast_convert_type(cast(x, fmt, **how), dtype.carrier)
