"""Conversion from every format back to float32, exactly.

It uses uint32 arithmetic and one exact subtraction, so it does not depend on how a host
flushes subnormals. `rounding` is the opposite direction.
"""

from __future__ import annotations

import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from neuronjax.errors import InvalidProgramError
from neuronjax.numerics.float_format import FLOAT32, FloatFormat, get_format
from neuronjax.numerics.host_kernels import choice

SIGN = np.uint32(0x8000_0000)
_INF = np.uint32(0x7F80_0000)
_QUIET_NAN = np.uint32(0x7FC0_0000)
_IMPLICIT = np.uint32(0x0080_0000)
_ONE = np.uint32(1)
_ZERO = np.uint32(0)


def bits_of(x: jax.Array) -> jax.Array:
    return lax.bitcast_convert_type(x, jnp.uint32)


def float_of(bits: jax.Array) -> jax.Array:
    return lax.bitcast_convert_type(bits, jnp.float32)


def widen(x: jax.Array) -> jax.Array:
    """Return an array of any float dtype as float32, exactly; float32 as it is.

    bfloat16 subnormals and the e8m0 code 0 give float32 subnormals, which the next
    instruction reads as zeros.

    Raises:
        InvalidProgramError: the dtype of `x` is not that of a known format.
    """
    fmt = get_format(x.dtype)
    if fmt is FLOAT32:
        return x
    if x.dtype in (jnp.bfloat16, jnp.float16):
        wide = widen_finite(x)
        canonical = float_of((bits_of(wide) & SIGN) | _QUIET_NAN)
        return lax.select(wide != wide, canonical, wide)
    if fmt.width < 8:
        # XLA (jaxlib 0.12, CPU) fails to compile bitcasts of FP4 in loops over arrays
        # of FP4. Its conversion is exact, and FP4 has no NaN that it could change.
        return x.astype(jnp.float32)
    codes = lax.bitcast_convert_type(x, fmt.code_dtype)
    return decode_words(codes.astype(jnp.uint32), fmt)


def narrowed(codes: jax.Array, fmt: FloatFormat) -> jax.Array:
    """Return the array of `fmt.dtype` with the given codes; the inverse of a bitcast.
    Bits of the codes above `fmt.width` must be zero."""
    if fmt.width < 8:  # as in `widen`
        return decode_words(codes.astype(jnp.uint32), fmt).astype(fmt.dtype)
    return lax.bitcast_convert_type(codes.astype(fmt.code_dtype), fmt.dtype)


def from_codes(codes: jax.Array, fmt: FloatFormat) -> jax.Array:
    """Return the elements of `fmt.dtype` with the given codes, as the inverse of
    `microscaling.to_codes`. XLA keeps two FP4 elements in a byte, NumPy one. On a CPU
    with kernels, a kernel packs the FP4 elements. Elsewhere XLA packs them, which takes
    ten times as long."""
    codes = codes.astype(fmt.code_dtype)
    if fmt.width != 4:
        return narrowed(codes, fmt)

    def packed(codes: jax.Array) -> jax.Array:
        from neuronjax.numerics.host_kernels import nibbles  # needs llvmlite

        return nibbles.packed(codes, fmt.dtype)

    return choice.by_kernel(packed, functools.partial(narrowed, fmt=fmt), codes)


def widen_finite(x: jax.Array) -> jax.Array:
    """Return `widen(x)` in fewer operations; NaNs of BF16 or FP16 may keep payloads.
    Use it where no operand's NaN is returned, such as in a contraction."""
    if x.dtype == jnp.bfloat16:
        bits = lax.bitcast_convert_type(x, jnp.uint16).astype(jnp.uint32)
        return float_of(bits << np.uint32(16))
    return x.astype(jnp.float32) if x.dtype == jnp.float16 else widen(x)


def decode(codes: jax.Array, fmt: FloatFormat) -> jax.Array:
    """Return the float32 values of codes, exactly; every NaN as the quiet NaN. Bits of
    the codes above `fmt.width` must be zero.

    Raises:
        InvalidProgramError: `codes` has another dtype.
    """
    require(codes, fmt.code_dtype, "codes")
    return decode_words(codes.astype(jnp.uint32), fmt)


def decode_words(codes: jax.Array, fmt: FloatFormat) -> jax.Array:
    """Return `decode` of codes that were widened to uint32 with their padding."""
    if fmt.padding_bits:
        codes = codes >> np.uint32(fmt.padding_bits)
    magnitude = codes
    sign = _ZERO
    if fmt.signed:
        sign_bit = np.uint32(1 << (fmt.width - 1))
        magnitude = codes & (sign_bit - _ONE)
        sign = (codes & sign_bit) << np.uint32(32 - fmt.width)
    bits = _widened_magnitude(magnitude, fmt)
    if fmt.has_inf:
        bits = jnp.where(magnitude == np.uint32(fmt.overflow_code), _INF, bits)
    if fmt.nan != "none":
        last = np.uint32(fmt.overflow_code if fmt.has_inf else fmt.max_code)
        bits = jnp.where(magnitude > last, _QUIET_NAN, bits)
    return float_of(bits | sign)


def _widened_magnitude(code: jax.Array, fmt: FloatFormat) -> jax.Array:
    raised = code << np.uint32(FLOAT32.mantissa_bits - fmt.mantissa_bits)
    if not fmt.has_zero:  # e8m0: code 0 is 2^-127, a float32 subnormal
        return jnp.where(code == _ZERO, np.uint32(1 << 22), raised)
    if fmt.exponent_bits == FLOAT32.exponent_bits:
        return raised
    lowest = np.uint32((FLOAT32.bias + fmt.min_exponent) << FLOAT32.mantissa_bits)
    # A subnormal has no implicit bit, so `lowest` is subtracted again, exactly.
    with_implicit = raised + lowest
    subnormal = float_of(with_implicit) - lowest.view(np.float32)
    return jnp.where(
        code < np.uint32(1 << fmt.mantissa_bits),
        bits_of(subnormal),
        with_implicit - _IMPLICIT,
    )


def require(array: jax.Array, dtype: Any, name: str) -> None:
    if array.dtype != dtype:
        raise InvalidProgramError(
            f"{name} is {array.dtype}, expected {np.dtype(dtype)}",
            remedy="convert it first: `widen` takes the low-precision float dtypes",
        )
