"""Building blocks of the FP32 elementary functions: bits, splitting, polynomials.

XLA may fuse a product with the next addition. To keep the result the same, each product
is either sealed (`exact.seal`), or exact because its factors have few significant bits
(`truncate`, Cody-Waite constants, powers of two): a fused multiply-add then rounds as
the separate operations do. Everything else is a sum, a selection or integer arithmetic.
FP32 subnormals are zeros; NaN is always 0x7FC00000.
"""

from __future__ import annotations

from collections.abc import Sequence

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from neuronjax.numerics.exact import seal, zero_bits
from neuronjax.numerics.widening import (
    SIGN as SIGN,
    bits_of as bits_of,
    float_of as float_of,
)

INF = np.float32(np.inf)
NAN = np.float32(np.nan)
MIN_NORMAL = np.float32(2.0**-126)
MAGNITUDE = np.uint32(0x7FFFFFFF)
EXPONENT = np.uint32(0x7F800000)
MANTISSA = np.uint32(0x007FFFFF)
# 1.5 * 2^23: the low bits of the float `n + INTEGER` are n in two's complement.
INTEGER = np.float32(12582912.0)


def magnitude(x: jax.Array) -> jax.Array:
    return float_of(bits_of(x) & MAGNITUDE)


def with_sign(x: jax.Array, sign_source: jax.Array) -> jax.Array:
    """Return `x`, which must be >= 0, with the sign bit of `sign_source`."""
    return float_of(bits_of(x) | (bits_of(sign_source) & SIGN))


def flush(x: jax.Array) -> jax.Array:
    """Replace subnormals by zeros of the same sign, on any host. This is needed only
    before selections and operations on bits: FP32 arithmetic of XLA already flushes."""
    bits = bits_of(x)
    return float_of(jnp.where((bits & EXPONENT) == 0, bits & SIGN, bits))


def no_nan_payload(x: jax.Array) -> jax.Array:
    """Replace every NaN by `NAN`, because the sign of a new NaN depends on the host."""
    return jnp.where(x == x, x, NAN)


def truncate(x: jax.Array) -> jax.Array:
    """Return `x` truncated to 12 significant bits: a product of two results is exact.

    >>> float(truncate(jnp.float32(1 + 2**-20)))
    1.0
    """
    return float_of(bits_of(x) & np.uint32(0xFFFFF000))


def quotient(a: jax.Array, b: jax.Array, zero: jax.Array) -> jax.Array:
    """Return IEEE float32 `a / b` of equal shapes, even if both are broadcasts.

    XLA moves elementwise operations, also seals, in front of a broadcast, and then
    turns `a / broadcast(b)` into `a * (1 / b)`. To prevent this, `b` is made to depend
    on each element's index, and also on `a`, since `vmap` may add a batch dimension to
    `a` alone.
    """
    index = lax.iota(jnp.uint32, a.size).reshape(a.shape)
    return lax.div(a, float_of(bits_of(b) ^ ((bits_of(a) ^ index) & zero_bits(zero))))


def inverse(x: jax.Array, zero: jax.Array) -> jax.Array:
    """Return IEEE float32 `1 / x`, which XLA cannot merge with the op that made x."""
    return quotient(jnp.ones_like(x), x, zero)


def polynomial(
    coefficients: Sequence[float | jax.Array], x: jax.Array, zero: jax.Array
) -> jax.Array:
    """Return the polynomial of `x` with these coefficients, the lowest first. Products
    are sealed. Estrin's scheme takes half the time of Horner's rule, because more of
    its operations are independent."""
    values = [c if isinstance(c, jax.Array) else np.float32(c) for c in coefficients]
    while len(values) > 1:
        pairs = zip(values[0::2], values[1::2], strict=False)
        last = values[len(values) & ~1 :]
        values = [low + seal(high * x, zero) for low, high in pairs] + last
        x = x * x
    return jnp.asarray(values[0])


def choose(
    condition: jax.Array, yes: tuple[float, ...], no: tuple[float, ...]
) -> list[jax.Array]:
    """Return the coefficients `yes` where `condition` holds, else `no`."""
    pairs = zip(yes, no, strict=True)
    return [jnp.where(condition, np.float32(a), np.float32(b)) for a, b in pairs]


def shifted_integer(n: jax.Array) -> jax.Array:
    """Return `n << 23` as uint32, for integral float32 `n` of less than 22 bits."""
    return bits_of(n + INTEGER) << np.uint32(23)


def power_of_two(n: jax.Array) -> jax.Array:
    """Return 2^n as float32 for integral float32 `n` in -126..127."""
    return float_of(shifted_integer(n) + np.uint32(127 << 23))


def scale(x: jax.Array, n: jax.Array) -> jax.Array:
    """Return `x * 2^n` for positive normal `x` and integral float32 `n` in -300..300.
    Only integer arithmetic is used; the result may be zero or infinity."""
    mantissa_and_exponent = lax.bitcast_convert_type(x, jnp.int32)
    exponent = (mantissa_and_exponent >> 23) + n.astype(jnp.int32)
    result = float_of(bits_of(x) + shifted_integer(n))
    result = jnp.where(exponent > 0, result, np.float32(0))
    return jnp.where(exponent < 255, result, INF)
