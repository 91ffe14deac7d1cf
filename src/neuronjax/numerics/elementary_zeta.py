"""FP32 Hurwitz zeta function and polygamma functions by sealed arithmetic.

For q > 0 this is the Euler-Maclaurin formula after N = `TERMS` terms, the smallest
added first:

    zeta(s, q) = sum_k<N (q + k)^-s + a^-s (a / (s - 1) + 1/2 + s / (12 a) (1 - ...))

with a = q + N. The rounding error of q + k is corrected to first order. For q < 0 and
integral s, with f the fraction of q, g = 1 - f and (-1)^s the sign,

    zeta(s, q) = zeta(s, f) + (-1)^s (zeta(s, g) - zeta(s, 1 - q)),

where the three values of zeta may cancel: the error is relative to the largest of them.
polygamma(n, x) is (-1)^(n+1) n! zeta(n + 1, x), polygamma(0, x) is digamma. Both
functions scale q + k by 2^-e before the power, so that only the result can overflow or
underflow.
"""

from __future__ import annotations

import math

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from neuronjax.numerics.elementary_core import (
    INF,
    NAN,
    bits_of,
    flush,
    magnitude,
    power_of_two,
    quotient,
    scale,
    truncate,
    with_sign,
)
from neuronjax.numerics.elementary_exponential import exp2
from neuronjax.numerics.elementary_gamma import digamma
from neuronjax.numerics.elementary_logarithm import power
from neuronjax.numerics.exact import seal

TERMS = 9
# With b(j) = |B_2j / (2j)!|: b(j - 1) / b(j) for j = 2..6.
RATIOS = (60.0, 42.0, 40.0, 39.6, 39.506511)
# For s above this, all but the first TERMS terms are negligible. For s up to this, s^2
# does not overflow.
LARGE = np.float32(256)
# The exponent s is clipped to this: here powers of every base but 1 are 0 or Inf.
LARGEST = np.float32(2.0**31)
# The largest n of polygamma(n, x), and n! as (mantissa in 1/2..1, exponent).
LARGEST_ORDER = 100
FACTORIALS = [math.frexp(math.factorial(n)) for n in range(LARGEST_ORDER + 1)]
MANTISSAS = np.array([mantissa for mantissa, _ in FACTORIALS], np.float32)
EXPONENTS = np.array([exponent for _, exponent in FACTORIALS], np.float32)
ONE, HALF = np.float32(1), np.float32(0.5)


def zeta(s: jax.Array, q: jax.Array, zero: jax.Array) -> jax.Array:
    """Return the sum over k >= 0 of (q + k)^-s. It is NaN for s < 1 and Inf at s = 1,
    as in XLA. At q = 0, -1, -2, ... it is Inf for even s and NaN otherwise; left of 0
    it is NaN if s is not an integer."""
    s, q = flush(s), flush(q)
    exponent = _exponent(jnp.where(q > ONE, q, ONE))
    total = _sum(s, q, exponent, zero)
    # The product of s and the exponent is split into an integer and a fraction; both
    # partial products are exact.
    order = jnp.minimum(s, LARGEST)
    high = truncate(order)
    whole = jnp.round(exponent * high)
    fraction = (exponent * high - whole) + exponent * (order - high)
    size = seal(magnitude(total) * seal(exp2(-fraction, zero), zero), zero)
    shift = jnp.clip(-whole, -300, 300)
    result = jnp.where(size > 0, scale(jnp.where(size > 0, size, ONE), shift), size)
    result = with_sign(result, total)
    at_infinite_order = jnp.where(q > 1, np.float32(0), jnp.where(q == 1, ONE, INF))
    result = jnp.where((s == INF) & (q > 0), at_infinite_order, result)
    result = jnp.where(q == INF, np.float32(0), result)
    return _special(s, q, result)


def polygamma(n: jax.Array, x: jax.Array, zero: jax.Array) -> jax.Array:
    """Return the n-th derivative of digamma; NaN if n is negative, not an integer, or
    above 100."""
    n, x = flush(n), flush(x)
    is_order = (n >= 0) & (n <= LARGEST_ORDER) & (jnp.floor(n) == n)
    order = jnp.where(is_order, n, ONE)
    s = order + ONE
    exponent = _exponent(_smallest_base(x))
    total = _sum(s, x, exponent, zero)
    row = order.astype(jnp.int32)
    size = seal(magnitude(total) * jnp.asarray(MANTISSAS)[row], zero)
    shift = jnp.clip(jnp.asarray(EXPONENTS)[row] - exponent * s, -300, 300)
    result = jnp.where(size == 0, size, scale(jnp.where(size == 0, ONE, size), shift))
    result = jnp.where(x == INF, np.float32(0), result)
    odd_order = (row & 1) == 1
    sign = jnp.where(odd_order, total, -total)
    result = _special(s, x, with_sign(result, sign))
    pole = (x <= 0) & (jnp.floor(x) == x) & odd_order
    result = jnp.where(pole, INF, result)
    result = jnp.where(order == 0, digamma(x, zero), result)
    return jnp.where(is_order & (x == x), result, NAN)


def _special(s: jax.Array, q: jax.Array, value: jax.Array) -> jax.Array:
    """Return `value`, replaced by Inf or NaN at poles and where zeta is undefined."""
    integral = jnp.floor(s) == s
    even = integral & (jnp.floor(s * HALF) == s * HALF)
    pole = (q <= 0) & (jnp.floor(q) == q)
    value = jnp.where((q < 0) & ~integral, NAN, value)
    value = jnp.where(pole, jnp.where(even, INF, NAN), value)
    value = jnp.where(s == ONE, INF, value)
    return jnp.where((s < ONE) | (s != s) | (q != q) | (q == -INF), NAN, value)


def _smallest_base(q: jax.Array) -> jax.Array:
    """Return the smallest |q + k| over k; its power is the largest term."""
    fraction = q - jnp.floor(q)
    other = jnp.ceil(q) - q
    smallest = jnp.where(q > 0, q, jnp.minimum(fraction, other))
    return jnp.where((smallest > 0) & (smallest < INF), smallest, ONE)


def _exponent(x: jax.Array) -> jax.Array:
    """Return floor(log2 x) of a positive normal number, clipped to -126..126."""
    exponent = (bits_of(x) >> 23).astype(jnp.int32) - 127
    return jnp.clip(exponent, -126, 126).astype(jnp.float32)


def _sum(s: jax.Array, q: jax.Array, exponent: jax.Array, zero: jax.Array) -> jax.Array:
    """Return zeta(s, q) 2^(s exponent); an arbitrary number where zeta is undefined."""
    negative = q < 0
    fraction = jnp.where(negative, q - jnp.floor(q), q)
    usable = (fraction > 0) & (fraction < INF)
    whole = jnp.where(usable, fraction, ONE)
    other = jnp.where(negative & usable, jnp.ceil(q) - q, ONE)
    beyond = jnp.where(negative & usable, ONE - q, ONE)
    bases = jnp.stack([whole, other, beyond])
    order = jnp.minimum(jnp.where(s > ONE, s, np.float32(2)), LARGEST)
    orders, exponents = (jnp.broadcast_to(x, bases.shape) for x in (order, exponent))
    right, left, rest = _positive(orders, exponents, bases, zero)
    mirrored = left - rest
    half = order * HALF
    mirrored = jnp.where(jnp.floor(half) == half, mirrored, -mirrored)
    return jnp.where(negative, right + mirrored, right)


def _positive(
    s: jax.Array, exponent: jax.Array, q: jax.Array, zero: jax.Array
) -> jax.Array:
    """Return zeta(s, q) 2^(s exponent) for q > 0 and s > 1."""
    unit = power_of_two(-exponent)

    def term(k: jax.Array) -> tuple[jax.Array, jax.Array]:
        a = seal(q + k, zero)
        part = a - q
        lost = (q - (a - part)) + (k - part)
        value = seal(power(seal(a * unit, zero), -s, zero), zero)
        shift = seal(s * quotient(lost, a, zero), zero)
        change = seal(value * shift, zero)
        return value - jnp.where(lost == 0, np.float32(0), change), a

    def add(i: jax.Array, total: jax.Array) -> jax.Array:
        return total + term((TERMS - 1 - i).astype(jnp.float32))[0]

    # k depends on `zero`, which is known only at run time, so XLA folds nothing.
    last, a = term(TERMS + zero)
    tail = seal(last * _tail(s, a, zero), zero)
    tail = jnp.where(s > LARGE, np.float32(0), tail)
    return lax.fori_loop(0, TERMS, add, tail)


def _tail(s: jax.Array, a: jax.Array, zero: jax.Array) -> jax.Array:
    """Return a / (s - 1) + 1/2 + s / (12 a) (1 - (s+1)(s+2) / (60 a^2) (1 - ...))."""
    s = jnp.minimum(s, LARGE)
    inverse = quotient(jnp.ones_like(a), a, zero)
    square = seal(inverse * inverse, zero)
    series = jnp.ones_like(a)
    for j, ratio in reversed([*enumerate(RATIOS)]):
        factor = seal((s + np.float32(2 * j + 1)) * (s + np.float32(2 * j + 2)), zero)
        factor = seal(factor * np.float32(1 / ratio), zero)
        series = ONE - seal(seal(factor * square, zero) * series, zero)
    first = seal(seal(s * np.float32(1 / 12), zero) * inverse, zero)
    correction = HALF + seal(first * series, zero)
    return quotient(a, s - ONE, zero) + correction
