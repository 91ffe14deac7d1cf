"""FP32 exp, exp2, expm1, tanh, logistic, sinh and cosh by sealed arithmetic.

exp: x = n ln 2 + r with |r| <= 0.347, where n ln 2 is subtracted as two products that
are exact (16-bit constants times an 8-bit integer), e^r = 1 + r + r^2 P(r), and 2^n is
an integer addition to the exponent. Coefficients are minimax fits (iteratively
reweighted least squares at 400 Chebyshev nodes, rounded lowest order first).
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from neuronjax.numerics.elementary_core import (
    INF,
    NAN,
    bits_of,
    choose,
    float_of,
    flush,
    inverse,
    magnitude,
    polynomial,
    power_of_two,
    quotient,
    scale,
    shifted_integer,
    with_sign,
)
from neuronjax.numerics.exact import seal

LOG2_E = np.float32(1.4426950408889634)
# ln 2 to 32 bits in two pieces of 16: n * piece is exact for |n| <= 255.
LN2_HIGH = np.float32(float.fromhex("0x1.62e4p-1"))
LN2_LOW = np.float32(float.fromhex("0x1.7f7ep-20"))
# (e^r - 1 - r) / r^2 as polynomials in r on |r| <= 0.347; relative error of expm1
# 1.4e-8 with EXP and 4.4e-10 with EXP_FINE.
EXP = (0.49999997, 0.166665465, 0.0416674353, 0.00836627185, 0.00138706958)
EXP_FINE = (
    0.5,
    0.166666657,
    0.0416664928,
    0.00833354425,
    0.00139323424,
    0.000197633912,
)
# (2^r - 1) / r as a polynomial in r on |r| <= 0.5; relative error of 2^r 3e-9.
EXP2 = (
    0.693147182,
    0.240226477,
    0.0555035993,
    0.00961850584,
    0.00133908063,
    0.000153264627,
)
# (tanh x - x) / x^3 as a polynomial in x^2 on |x| <= 0.626; relative error 4.5e-9.
TANH = (-0.333332807, 0.133314073, -0.0537367836, 0.0206294768, -0.0056941919)
TANH_SMALL = np.float32(0.625)
# ((e^2r - 1) / 2 - r) / r^2 as a polynomial in r: EXP's coefficients times powers of
# two.
HALF_EXPM1 = tuple(2.0**k * c for k, c in enumerate(EXP, start=1))

# The largest x with a finite e^x, and the smallest x with a normal e^x.
EXP_MAX = np.float32(float.fromhex("0x1.62e42ep6"))
EXP_MIN = np.float32(float.fromhex("-0x1.5d589ep6"))
# For |x| below this, expm1, log1p and similar functions of x round to x.
TINY = np.float32(2.0**-25)


def reduce_ln2(x: jax.Array) -> tuple[jax.Array, jax.Array, jax.Array]:
    """Return (n, high, low) with x = n ln 2 + (high - low); `high` is exact."""
    n = lax.round(x * LOG2_E, lax.RoundingMethod.TO_NEAREST_EVEN)
    return n, x - n * LN2_HIGH, n * LN2_LOW


def exp_parts(x: jax.Array, zero: jax.Array) -> tuple[jax.Array, jax.Array, jax.Array]:
    """Return (n, 1 + h, h) with e^x = 2^n (1 + h), for x in about -100..100."""
    n, high, low = reduce_ln2(x)
    r = high - low
    h = r + seal((r * r) * polynomial(EXP, r, zero), zero)
    return n, h + np.float32(1), h


def exp_in_range(x: jax.Array, zero: jax.Array) -> jax.Array:
    """Return e^x for EXP_MIN <= x <= EXP_MAX, and an arbitrary number elsewhere."""
    n, one_plus_h, _ = exp_parts(x, zero)
    return float_of(bits_of(one_plus_h) + shifted_integer(n))


def exp(x: jax.Array, zero: jax.Array) -> jax.Array:
    """Return e^x; results below 2^-126 are zero."""
    result = exp_in_range(x, zero)
    high = jnp.where(x <= EXP_MAX, result, jnp.where(x > EXP_MAX, INF, NAN))
    return jnp.where(x < EXP_MIN, np.float32(0), high)


def exp2(x: jax.Array, zero: jax.Array) -> jax.Array:
    """Return 2^x; results below 2^-126 are zero."""
    near = jnp.where(magnitude(x) < 200, x, with_sign(jnp.full_like(x, 200), x))
    n = lax.round(near, lax.RoundingMethod.TO_NEAREST_EVEN)
    r = near - n
    h = seal(r * polynomial(EXP2, r, zero), zero)
    return jnp.where(x == x, scale(h + np.float32(1), n), NAN)


def expm1_in_range(x: jax.Array, zero: jax.Array) -> jax.Array:
    """Return e^x - 1 for x in -30..EXP_MAX, inaccurately for |x| < TINY.

    With s = 2^(n-1) the result is twice the sum of s - 1/2, s r and s r^2 P(r); 2^n
    itself would overflow at n = 128. The rounding error of s - 1/2 + s r is added."""
    n, high, low = reduce_ln2(x)
    r = high - low
    r_error = (high - r) - low
    tail = r_error + seal((r * r) * polynomial(EXP_FINE, r, zero), zero)
    s = power_of_two(n - np.float32(1))
    constant = s - np.float32(0.5)
    head = constant + s * r
    head_error = s * r - (head - constant)
    return np.float32(2) * (head + (head_error + s * tail))


def expm1(x: jax.Array, zero: jax.Array) -> jax.Array:
    """Return e^x - 1, accurate near zero."""
    x = flush(x)
    near = jnp.where(x > -30, x, np.float32(-30))
    result = expm1_in_range(near, zero)
    result = jnp.where(magnitude(x) < TINY, x, result)
    return jnp.where(x <= EXP_MAX, result, jnp.where(x > EXP_MAX, INF, NAN))


def tanh(x: jax.Array, zero: jax.Array) -> jax.Array:
    """Return the hyperbolic tangent: x + x^3 P(x^2) for |x| < 0.625, otherwise
    1 - 1 / (e^2|x| / 2 + 1/2) with the sign of x.

    With 2|x| = n ln 2 + 2 r, (e^2r - 1) / 2 is r + r^2 Q(r): P and Q have five
    coefficients each, so one evaluation serves both ranges. The dividend 1 needs no
    `quotient`: if XLA replaces 1 / y by 1 * (1 / y), the result is the same.
    """
    size = magnitude(x)
    small = size < TANH_SMALL
    near = jnp.where(size < 10, size, np.float32(10))
    half = np.float32(0.5)
    n = lax.round(near * (LOG2_E + LOG2_E), lax.RoundingMethod.TO_NEAREST_EVEN)
    r = (near - n * (half * LN2_HIGH)) - n * (half * LN2_LOW)
    base = jnp.where(small, size, r)
    variable = jnp.where(small, size * size, r)
    p = polynomial(choose(small, TANH, HALF_EXPM1), variable, zero)
    near_zero = base + seal(base * (variable * p), zero)
    half_e = float_of(bits_of(near_zero + half) + shifted_integer(n))
    large = np.float32(1) - lax.div(jnp.ones_like(x), half_e + half)
    result = with_sign(jnp.where(small, near_zero, large), x)
    return jnp.where(x == x, result, NAN)


def logistic(x: jax.Array, zero: jax.Array) -> jax.Array:
    """Return 1 / (1 + e^-x). With e = e^-|x| it is 1 / (1 + e) for x >= 0, else
    e / (1 + e). The rounding errors of e and of 1 + e are known, so the result is
    corrected to first order, with a reciprocal of 1 + e that is right to 6 %."""
    size = magnitude(x)
    near = jnp.where(size < 88, size, np.float32(88))
    n, one_plus_h, h = exp_parts(-near, zero)
    one_plus_h = seal(one_plus_h, zero)
    s = power_of_two(n)
    e = s * one_plus_h
    e_error = s * (h - (one_plus_h - np.float32(1)))
    divisor = seal(e + np.float32(1), zero)
    divisor_error = (e - (divisor - np.float32(1))) + e_error
    rough = np.float32(1.457) - np.float32(0.5) * divisor
    dividend = jnp.where(x < 0, e, np.float32(1))
    dividend_error = jnp.where(x < 0, e_error, np.float32(0))
    q = quotient(dividend, divisor, zero)
    error = dividend_error - seal((dividend * rough) * divisor_error, zero)
    result = q + seal(rough * error, zero)
    result = jnp.where(x < EXP_MIN, np.float32(0), result)
    return jnp.where(x == x, result, NAN)


def sinh(x: jax.Array, zero: jax.Array) -> jax.Array:
    """Return the hyperbolic sine: (t + t / (t + 1)) / 2 with t = e^|x| - 1 for |x| < 9,
    else e^|x| / 2, with the sign of x."""
    x = flush(x)
    size = magnitude(x)
    t = seal(expm1_in_range(jnp.where(size < 9, size, np.float32(9)), zero), zero)
    middle = np.float32(0.5) * (t + quotient(t, t + np.float32(1), zero))
    result = jnp.where(size < 9, middle, half_exp(size, zero))
    result = jnp.where(size < np.float32(2.0**-13), x, with_sign(result, x))
    return jnp.where(x == x, result, NAN)


def cosh(x: jax.Array, zero: jax.Array) -> jax.Array:
    """Return the hyperbolic cosine (e + 1 / e) / 2, e = e^|x|; e / 2 for |x| >= 9."""
    size = magnitude(x)
    e = exp_in_range(jnp.where(size < 9, size, np.float32(9)), zero)
    middle = np.float32(0.5) * (e + inverse(e, zero))
    return jnp.where(size < 9, middle, half_exp(size, zero))


def half_exp(x: jax.Array, zero: jax.Array) -> jax.Array:
    """Return e^x / 2 for x >= 0 or NaN; finite also for x a little above EXP_MAX."""
    near = jnp.where(x < 100, x, np.float32(100))
    n, one_plus_h, _ = exp_parts(near, zero)
    return jnp.where(x == x, scale(one_plus_h, n - np.float32(1)), NAN)
