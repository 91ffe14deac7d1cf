"""FP32 log, log1p, the inverse hyperbolic functions, and power.

log: x = 2^k m with m in sqrt(1/2)..sqrt(2), f = m - 1, s = f / (2 + f), and
log m = f - (f^2/2 - s (f^2/2 + s^2 P(s^2))), the form of fdlibm's e_log.c.
power: 2^(y log2|x|), where log2|x| and y log2|x| are sums of two FP32 numbers; the
splitting into 12 bits and a rest is that of fdlibm's e_pow.c. Coefficients are
minimax fits made as in `elementary_exponential`.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from neuronjax.numerics.elementary_core import (
    EXPONENT,
    INF,
    MANTISSA,
    MIN_NORMAL,
    NAN,
    SIGN,
    bits_of,
    float_of,
    flush,
    inverse,
    magnitude,
    polynomial,
    quotient,
    scale,
    truncate,
    with_sign,
)
from neuronjax.numerics.elementary_exponential import EXP_FINE, LN2_HIGH, LN2_LOW, TINY
from neuronjax.numerics.exact import seal

SQRT_HALF_BITS = np.uint32(0x3F3504F3)
# P in log m = f - (f^2/2 - s (f^2/2 + s^2 P(s^2))); relative error 8e-10.
LOG = (0.666667759, 0.399775535, 0.298721552)
# P in 3 atanh(s)/s = 3 + s^2 + s^4 P(s^2), |s| <= 0.172; error of atanh(s)/s 4e-14.
ATANH = (0.600000024, 0.428565562, 0.333830863, 0.255003393, 0.463155836)
# 2 / (3 ln 2), whole and as 12 bits plus the rest.
LOG2_SCALE = np.float32(0.9617966939259756)
LOG2_SCALE_HIGH = np.float32(float.fromhex("0x1.ec6p-1"))
LOG2_SCALE_LOW = np.float32(0.9617966939259756 - float.fromhex("0x1.ec6p-1"))
# ln 2, whole and as 12 bits plus the rest.
LN2 = np.float32(0.6931471805599453)
LN2_12 = np.float32(float.fromhex("0x1.62ep-1"))
LN2_REST = np.float32(0.6931471805599453 - float.fromhex("0x1.62ep-1"))


def split_exponent(x: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Return (k, m) with x = 2^k m, m in sqrt(1/2)..sqrt(2), for positive normal x."""
    bits = bits_of(x) - SQRT_HALF_BITS
    k = lax.bitcast_convert_type(bits, jnp.int32) >> 23
    return k.astype(jnp.float32), float_of((bits & MANTISSA) + SQRT_HALF_BITS)


def log_of_parts(k: jax.Array, f: jax.Array, zero: jax.Array) -> jax.Array:
    """Return k ln 2 + log(1 + f) for integral k and f in -0.293..0.415."""
    s = quotient(f, f + np.float32(2), zero)
    square = s * s
    half = seal((np.float32(0.5) * f) * f, zero)
    rest = half + seal(square * polynomial(LOG, square, zero), zero)
    low = seal(s * rest, zero) + k * LN2_LOW
    return k * LN2_HIGH + (f - (half - low))


def in_log_range(x: jax.Array, result: jax.Array) -> jax.Array:
    """Return `result` where x is positive, normal and finite, and log x elsewhere."""
    normal = (bits_of(x) - np.uint32(0x00800000)) < np.uint32(0x7F000000)
    zero_or_nan = jnp.where(magnitude(x) < MIN_NORMAL, -INF, NAN)
    return jnp.where(normal, result, jnp.where(x == INF, INF, zero_or_nan))


def log(x: jax.Array, zero: jax.Array) -> jax.Array:
    """Return the natural logarithm; subnormals count as zero and give -infinity."""
    k, m = split_exponent(x)
    return in_log_range(x, log_of_parts(k, m - np.float32(1), zero))


def log1p(x: jax.Array, zero: jax.Array) -> jax.Array:
    """Return log(1 + x), corrected for the rounding error of the sum 1 + x."""
    x = flush(x)
    total = seal(x + np.float32(1), zero)
    share = total - np.float32(1)
    error = (np.float32(1) - (total - share)) + (x - share)
    k, m = split_exponent(total)
    exponent = jnp.maximum(127 - k.astype(jnp.int32), 0).astype(jnp.uint32)
    f = (m - np.float32(1)) + error * float_of(exponent << np.uint32(23))
    result = in_log_range(total, log_of_parts(k, f, zero))
    return jnp.where(magnitude(x) < TINY, x, result)


def asinh(x: jax.Array, zero: jax.Array) -> jax.Array:
    """Return the inverse hyperbolic sine, log1p(|x| + x^2 / (1 + sqrt(1 + x^2)))."""
    x = flush(x)
    size = magnitude(x)
    huge = size > np.float32(2.0**28)
    near = jnp.where(huge, np.float32(1), size)
    square = seal(near * near, zero)
    root = lax.sqrt(square + np.float32(1))
    fraction = quotient(square, seal(root, zero) + np.float32(1), zero)
    argument = jnp.where(huge, size, near + fraction)
    result = log1p(argument, zero) + jnp.where(huge, LN2, np.float32(0))
    result = jnp.where(size < np.float32(2.0**-13), x, with_sign(result, x))
    return jnp.where(x == x, result, NAN)


def acosh(x: jax.Array, zero: jax.Array) -> jax.Array:
    """Return the inverse hyperbolic cosine, log1p(t + sqrt(2 t + t^2)), t = x - 1."""
    huge = x > np.float32(2.0**28)
    t = seal(jnp.where(huge, np.float32(1), x - np.float32(1)), zero)
    root = lax.sqrt(np.float32(2) * t + seal(t * t, zero))
    argument = jnp.where(huge, x, t + seal(root, zero))
    result = log1p(argument, zero) + jnp.where(huge, LN2, np.float32(0))
    return jnp.where(x >= 1, result, NAN)


def atanh(x: jax.Array, zero: jax.Array) -> jax.Array:
    """Return the inverse hyperbolic tangent, log1p(2 |x| / (1 - |x|)) / 2."""
    x = flush(x)
    size = magnitude(x)
    ratio = quotient(np.float32(2) * size, seal(np.float32(1) - size, zero), zero)
    result = np.float32(0.5) * log1p(ratio, zero)
    result = jnp.where(size < np.float32(2.0**-13), x, with_sign(result, x))
    return jnp.where(size <= 1, result, NAN)


def log2_parts(x: jax.Array, zero: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Return log2(x) as a 12-bit float32 and a remainder, for positive normal x."""
    k, m = split_exponent(x)
    f, g = m - np.float32(1), m + np.float32(1)
    reciprocal = inverse(g, zero)
    s = f * reciprocal
    s_high, g_high = truncate(s), truncate(g)
    g_low = m - (g_high - np.float32(1))
    s_low = reciprocal * ((f - s_high * g_high) - seal(s_high * g_low, zero))
    square = s * s
    r = seal((square * square) * polynomial(ATANH, square, zero), zero)
    r = r + seal(s_low * (s_high + s), zero)
    # product_high + product_low is s (3 + s^2 + r); times 2 / (3 ln 2) it is log2 m.
    high_square = s_high * s_high
    t_high = truncate((high_square + np.float32(3)) + r)
    t_low = r - ((t_high - np.float32(3)) - high_square)
    product_high = s_high * t_high
    product_low = seal(s_low * t_high, zero) + seal(t_low * s, zero)
    p_high = truncate(product_high + product_low)
    p_low = product_low - (p_high - product_high)
    z_high = LOG2_SCALE_HIGH * p_high
    z_low = seal(LOG2_SCALE_LOW * p_high, zero) + seal(p_low * LOG2_SCALE, zero)
    high = truncate((z_high + z_low) + k)
    return high, z_low - ((high - k) - z_high)


def exp2_of_parts(high: jax.Array, low: jax.Array, zero: jax.Array) -> jax.Array:
    """Return 2^(high + low) for |high| < 300 and |low| < 1. If `high` is a product, it
    must be exact, because XLA may fuse it."""
    n = lax.round(high + low, lax.RoundingMethod.TO_NEAREST_EVEN)
    fraction = high - n
    t = truncate(fraction + low)
    rest = low - (t - fraction)
    u = t * LN2_12
    v = seal(rest * LN2, zero) + seal(t * LN2_REST, zero)
    z = u + v
    z_error = v - (z - u)
    head = seal(z + np.float32(1), zero)
    head_error = z - (head - np.float32(1))
    tail = z_error + seal((z * z) * polynomial(EXP_FINE, z, zero), zero)
    return scale(head + (head_error + tail), n)


def power_of_positive(x: jax.Array, y: jax.Array, zero: jax.Array) -> jax.Array:
    """Return x^y for x > 0, normal and finite, and any y but NaN."""
    # For |y| >= 2^33 and x != 1 the power is 0 or infinite, because |log2 x| >= 2^-24.
    limit = with_sign(jnp.full_like(y, 2.0**33), y)
    y = jnp.where(magnitude(y) < np.float32(2.0**33), y, limit)
    high, low = log2_parts(x, zero)
    y_high = truncate(y)
    product_low = (y - y_high) * high + seal(y * low, zero)
    product_high = y_high * high
    total = product_high + product_low
    out = magnitude(total) > 200
    product_high = jnp.where(out, with_sign(jnp.full_like(x, 200), total), product_high)
    product_low = jnp.where(out, np.float32(0), product_low)
    return exp2_of_parts(product_high, product_low, zero)


def power(x: jax.Array, y: jax.Array, zero: jax.Array) -> jax.Array:
    """Return x^y with the special cases of IEEE 754 pow: 1^y = x^0 = 1 even for NaN."""
    x, y = flush(x), flush(y)
    size = magnitude(x)
    half = np.float32(0.5) * y
    integral = lax.floor(y) == y
    odd = integral & (lax.floor(half) != half)
    extreme = (size == 0) | ((bits_of(x) & EXPONENT) == EXPONENT)
    base = jnp.where(extreme, np.float32(1), size)
    result = power_of_positive(base, y, zero)
    at_extreme = jnp.where((size == 0) == (y < 0), INF, np.float32(0))
    result = jnp.where(extreme, at_extreme, result)
    sign = jnp.where(odd, bits_of(x) & SIGN, np.uint32(0))
    result = float_of(bits_of(result) | sign)
    undefined = (x < 0) & (x > -INF) & ~integral
    result = jnp.where(undefined | (x != x) | (y != y), NAN, result)
    return jnp.where((x == 1) | (y == 0), np.float32(1), result)
