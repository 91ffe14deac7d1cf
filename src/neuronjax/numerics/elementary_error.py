"""FP32 error function, its complement and its inverse by sealed arithmetic.

erf: x + x P(x^2) for |x| < 0.93, then 1 - exp(x Q(x)). erfc: 1 - erf for |x| < 0.5,
then exp(-x^2) t P(t) with t = 1 / (1 + x/2) and x^2 as a sum of two FP32 numbers.
erf_inv: x P(w) for w < 5, else x P(sqrt(w)), with w = -log(1 - x^2) (Giles,
"Approximating the erfinv function"). Coefficients are minimax fits made as in
`elementary_exponential`.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from neuronjax.numerics.elementary_core import (
    INF,
    NAN,
    choose,
    flush,
    inverse,
    magnitude,
    polynomial,
    scale,
    truncate,
    with_sign,
)
from neuronjax.numerics.elementary_exponential import exp_in_range, exp_parts
from neuronjax.numerics.elementary_logarithm import log_of_parts, split_exponent
from neuronjax.numerics.exact import seal

ERF_SMALL = np.float32(0.93)
# erf(x)/x - 1 as a polynomial in x^2 on |x| <= 0.93; relative error 1.8e-8.
ERF = (
    0.128379151,
    -0.376124889,
    0.11281731,
    -0.0267629661,
    0.00498735253,
    -0.00059595838,
)
# log(erfc(x))/x as a polynomial in x on 0.93..3.93; relative error of erf 2.9e-9.
LOG_ERFC = (
    -1.12851119,
    -0.635728955,
    -0.10524793,
    0.0228811093,
    -0.00321221421,
    0.00021365477,
)
# exp(x^2) erfc(x) / t as a polynomial in t - 1/2 with t = 1 / (1 + x/2), for x in
# 0..9.3; relative error 1.7e-8.
ERFC = (
    0.510791361,
    0.687160671,
    0.558941603,
    0.145769358,
    -0.171964735,
    -0.103703976,
    0.0969209895,
    0.0547708236,
    -0.0713857263,
    -0.0200932398,
    0.0369338468,
)
# erf_inv(x)/x as polynomials: in w - 2.5 for w < 5, in sqrt(w) - 3 from 5 on, with w =
# -log(1 - x^2); relative errors 4.0e-8 (from rounding the first coefficient), 1.2e-8.
ERF_INV_NEAR = (
    1.50140941,
    0.24664028,
    -0.0041776686,
    -0.00125275552,
    0.000218577392,
    -4.94356618e-06,
    -3.52367647e-06,
    4.59971034e-07,
    2.81885839e-08,
    -8.23839574e-09,
)
ERF_INV_FAR = (
    2.83297682,
    1.00167513,
    0.00944513921,
    -0.00763873104,
    0.00568754179,
    -0.00359358103,
    0.00148376042,
    -6.02725886e-05,
    -0.000308360031,
    0.000116332791,
)


def erf(x: jax.Array, zero: jax.Array) -> jax.Array:
    size = magnitude(x)
    small = size < ERF_SMALL
    # Both polynomials have six coefficients, so one evaluation serves both ranges.
    variable = jnp.where(small, seal(x * x, zero), jnp.where(size < 4, size, 4))
    p = polynomial(choose(small, ERF, LOG_ERFC), variable, zero)
    large = np.float32(1) - exp_in_range(variable * p, zero)
    # The product x p would underflow for a small x; the scale of 2^24 is exact.
    scaled = x * np.float32(2.0**24)
    near_zero = (scaled + seal(scaled * p, zero)) * np.float32(2.0**-24)
    result = jnp.where(small, near_zero, with_sign(large, x))
    return jnp.where(x == x, result, NAN)


def erfc(x: jax.Array, zero: jax.Array) -> jax.Array:
    """Return the complementary error function; results below 2^-126 are zero."""
    size = magnitude(x)
    near = jnp.where(size < np.float32(9.3), size, np.float32(9.3))
    high = truncate(near)
    # near^2 = high^2 + (near - high) (near + high); the first product is exact.
    low = seal((near - high) * (near + high), zero)
    n, one_plus_h, _ = exp_parts(-(high * high), zero)
    divisor = seal(near * np.float32(0.5) + np.float32(1), zero)
    t = seal(inverse(divisor, zero), zero)
    p = t * polynomial(ERFC, t - np.float32(0.5), zero)
    tail = p * exp_in_range(-low, zero)
    positive = scale(tail * one_plus_h, n)
    result = jnp.where(x < 0, np.float32(2) - positive, positive)
    series = x + seal(x * polynomial(ERF, seal(x * x, zero), zero), zero)
    result = jnp.where(size < np.float32(0.5), np.float32(1) - series, result)
    return jnp.where(x == x, result, NAN)


def erf_inv(x: jax.Array, zero: jax.Array) -> jax.Array:
    """Return the inverse error function; infinite at -1 and 1, NaN beyond."""
    x = flush(x)
    size = magnitude(x)
    inside = jnp.where(size < 1, size, np.float32(0))
    k, m = split_exponent((np.float32(1) - inside) * (np.float32(1) + inside))
    w = -log_of_parts(k, m - np.float32(1), zero)
    near = w < 5
    root = lax.sqrt(jnp.where(near, np.float32(9), w))
    variable = jnp.where(near, w - np.float32(2.5), root - np.float32(3))
    p = polynomial(choose(near, ERF_INV_NEAR, ERF_INV_FAR), variable, zero)
    result = jnp.where(size == 1, with_sign(jnp.full_like(x, INF), x), x * p)
    return jnp.where(size <= 1, result, NAN)
