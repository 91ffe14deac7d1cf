"""FP32 square roots, cube root, reciprocal, quotient and remainder.

XLA's `sqrt` and `divide` are IEEE operations and its `remainder` is exact. The
functions here keep XLA from replacing them (1 / sqrt by rsqrt, a / b by a product),
flush subnormals, and return the same NaN on every host.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from neuronjax.numerics.elementary_core import (
    INF,
    MANTISSA,
    bits_of,
    float_of,
    flush,
    inverse,
    magnitude,
    no_nan_payload,
    polynomial,
    quotient,
    truncate,
    with_sign,
)
from neuronjax.numerics.exact import seal

# A first approximation of cbrt m on 1/2..1, a polynomial in m; relative error 9.2e-6.
CBRT = (0.402389795, 1.13999832, -0.954382122, 0.54664582, -0.134661019)
CBRT_2 = np.float32(1.2599210498948732)
CBRT_4 = np.float32(1.5874010519681994)


def sqrt(x: jax.Array, zero: jax.Array) -> jax.Array:
    """Return the correctly rounded square root: NaN for x < 0, and -0 for -0."""
    return no_nan_payload(lax.sqrt(seal(x, zero)))


def rsqrt(x: jax.Array, zero: jax.Array) -> jax.Array:
    """Return 1 / sqrt(x), both operations correctly rounded; infinite at zeros."""
    root = seal(lax.sqrt(flush(x)), zero)
    return no_nan_payload(inverse(root, zero))


def reciprocal(x: jax.Array, zero: jax.Array) -> jax.Array:
    """Return the correctly rounded 1 / x."""
    return no_nan_payload(inverse(flush(x), zero))


def divide(x: jax.Array, y: jax.Array, zero: jax.Array) -> jax.Array:
    """Return the correctly rounded x / y. The seal lets XLA fuse the division: without
    a seal, `no_nan_payload` would read the quotient twice."""
    return no_nan_payload(seal(quotient(x, y, zero), zero))


def remainder(x: jax.Array, y: jax.Array, zero: jax.Array) -> jax.Array:
    """Return x - y trunc(x / y), which is exact, with the sign of x (C's fmod)."""
    result = flush(no_nan_payload(lax.rem(flush(x), seal(flush(y), zero))))
    return jnp.where(result == 0, with_sign(jnp.zeros_like(x), x), result)


def cbrt(x: jax.Array, zero: jax.Array) -> jax.Array:
    """Return the cube root. With |x| = 8^k a and a in 1/2..4, one corrected Newton step
    improves an approximation t of the root of a. t has 12 bits, so t^2 is exact
    (fdlibm's s_cbrt.c)."""
    x = flush(x)
    bits = bits_of(magnitude(x))
    exponent = bits >> 23
    third = (exponent * np.uint32(21846)) >> 16  # exponent // 3, for 0..255
    rest = exponent - third * np.uint32(3)
    mantissa = float_of((bits & MANTISSA) | np.uint32(126 << 23))
    a = float_of(bits_of(mantissa) + (rest << 23))
    root_of_rest = jnp.where(rest == 1, CBRT_2, jnp.where(rest == 2, CBRT_4, 1))
    t = truncate(polynomial(CBRT, mantissa, zero) * root_of_rest)
    other = seal(quotient(a, t * t, zero), zero)
    step = quotient(other - t, (t + t) + other, zero)
    root = t + seal(t * step, zero)
    result = float_of(bits_of(root) + (third << 23) - np.uint32(42 << 23))
    result = jnp.where((bits == 0) | (magnitude(x) == INF), magnitude(x), result)
    return no_nan_payload(jnp.where(x == x, with_sign(result, x), x))
