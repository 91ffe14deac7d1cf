"""FP32 log-gamma and digamma functions by sealed arithmetic.

lgamma: t P(t) with t = x - 1 or x - 2; near MINIMUM, lgamma(MINIMUM) + t P(t) with
t = x - MINIMUM; from 3 on Stirling's series, with log x as a sum of two FP32 numbers.
digamma: (x - x0) P(x) about its zero x0 on 1..2, one step of the recurrence on 0..1 and
2..3, and from 3 on the asymptotic series. Left of 0, reflection formulas give both
functions as differences. Where the terms of a difference cancel, the error is
counted relative to the terms (`ULP_FLOOR` of `elementary`). Coefficients are
minimax fits made as in `elementary_exponential`.
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
    quotient,
    truncate,
)
from neuronjax.numerics.elementary_logarithm import (
    LN2,
    LN2_12,
    LN2_REST,
    log,
    log2_parts,
)
from neuronjax.numerics.exact import seal

# lgamma(1 + t) / t as a polynomial in t on |t| <= 1/2; relative error 1.2e-8.
LGAMMA_1 = (
    -0.577215672,
    0.822467029,
    -0.40068531,
    0.270587474,
    -0.207391888,
    0.169259131,
    -0.143872917,
    0.130115479,
    -0.114441149,
    0.068776086,
    -0.0667910203,
    0.175205931,
    -0.155281037,
)
# lgamma(2 + t) / t as a polynomial in t on -1/2..1; relative error 1.6e-8. It has as
# many coefficients as LGAMMA_1, because `choose` selects one of the two.
LGAMMA_2 = (
    0.422784328,
    0.322467029,
    -0.067351684,
    0.0205809046,
    -0.00739497226,
    0.00289440411,
    -0.00114414387,
    0.000464472832,
    -0.00030013622,
    0.000217197521,
    -7.02241232e-05,
    0.0,
    0.0,
)
# (lgamma(MINIMUM + d) - lgamma(MINIMUM)) / d as a polynomial in d, for MINIMUM + d in
# 1.25..1.75; relative error 2e-10.
LGAMMA_MINIMUM = (
    0.0,
    0.483836114,
    -0.147587717,
    0.0646259487,
    -0.0327893049,
    0.0179335047,
    -0.0102847321,
    0.00661935238,
    -0.0040929704,
    0.0,
    0.0,
    0.0,
    0.0,
)
# x (lgamma x - (x - 1/2) log x + x - HALF_LOG_2PI) as a polynomial in 1/x^2 for x >= 3;
# relative error of lgamma 1.2e-9.
STIRLING = (0.0833331645, -0.00276993634, 0.000679244229)
HALF_LOG_2PI = np.float32(0.9189385332046728)
# (sin(pi f) / (pi f) - 1) / f^2 as a polynomial in f^2 on |f| <= 1/2; relative error of
# the sine 8e-11.
SINC = (-1.64493406, 0.811742008, -0.190745384, 0.0261047427, -0.00221547997)
# digamma(x) / (x - x0) as a polynomial in x - 3/2 on 1..2; relative error 8.8e-9.
DIGAMMA = (
    0.951055884,
    -0.423627436,
    0.240541562,
    -0.14840126,
    0.0950099304,
    -0.0620254613,
    0.0406044461,
    -0.0259371027,
    0.0181222875,
    -0.0161229894,
    0.0094268024,
)
# x^2 (log x - 1/(2x) - digamma x) as a polynomial in 1/x^2 for x >= 3; relative error
# of digamma 2.8e-9.
DIGAMMA_FAR = (0.0833324119, -0.00828645565, 0.00323274778)
# pi f cot(pi f) / (1 - 4 f^2) as a polynomial in f^2 on |f| <= 1/2; relative error
# 1.5e-8.
COT = (1.0, 0.710128248, 0.676156938, 0.661913753, 0.745608985, 0.233491957, 1.74368513)


def float_and_rest(value: float) -> tuple[np.float32, np.float32]:
    """Return `value` as a sum of two float32 numbers."""
    return np.float32(value), np.float32(value - float(np.float32(value)))


# At MINIMUM digamma is 0 and lgamma has its minimum. ZEROS are MINIMUM - 1, MINIMUM and
# MINIMUM + 1, each as two float32 numbers.
MINIMUM = 1.4616321449683623413
ZEROS = tuple(float_and_rest(MINIMUM + n) for n in (-1, 0, 1))
LOWEST, LOWEST_REST = float_and_rest(-0.12148629053584960810)
HALF, ONE, THREE = np.float32(0.5), np.float32(1), np.float32(3)


def fraction_of(x: jax.Array) -> jax.Array:
    """Return `x` minus the nearest integer, exactly; zero for every |x| >= 2^23."""
    return x - lax.round(x, lax.RoundingMethod.TO_NEAREST_EVEN)


def stirling(x: jax.Array, zero: jax.Array) -> jax.Array:
    """Return lgamma x for x >= 3 by Stirling's series. It is (x - 1/2) (log x - 1) +
    HALF_LOG_2PI - 1/2 + P(1/x^2)/x."""
    log2_high, log2_low = log2_parts(x, zero)
    # log x - 1 = high + low; the first product and the subtraction are exact.
    whole = log2_high * LN2_12 - ONE
    rest = seal(log2_high * LN2_REST, zero) + seal(log2_low * LN2, zero)
    high = truncate(whole + rest)
    low = rest - (high - whole)
    factor = x - HALF
    factor_high = truncate(factor)
    tail = seal((factor - factor_high) * high, zero) + seal(factor * low, zero)
    reciprocal = seal(inverse(x, zero), zero)
    series = polynomial(STIRLING, seal(reciprocal * reciprocal, zero), zero)
    constant = (HALF_LOG_2PI - HALF) + seal(reciprocal * series, zero)
    return factor_high * high + (tail + constant)


def lgamma(x: jax.Array, zero: jax.Array) -> jax.Array:
    """Return log |Gamma(x)|: infinite at 0, -1, -2, ... and at both infinities. It is
    lgamma(1 + x) - log |x| for |x| <= 1/2. Left of -1/2, with f = `fraction_of(x)`, it
    is -log |x sin(pi f) / pi| - lgamma |x|."""
    x = flush(x)
    size = magnitude(x)
    small, middle = size <= HALF, size < THREE
    near_1, lowest = size < np.float32(1.25), magnitude(size - 1.5) <= 0.25
    offset = jnp.where(small, x, size - jnp.where(near_1, ONE, np.float32(2)))
    # The seal keeps XLA from adding up the constants of (x - a) - b.
    from_minimum = seal(size - ZEROS[1][0], zero) - ZEROS[1][1]
    offset = jnp.where(lowest, from_minimum, jnp.where(middle, offset, np.float32(0)))
    p = choose(near_1, LGAMMA_1, LGAMMA_2)
    p = [
        jnp.where(lowest, np.float32(a), b)
        for a, b in zip(LGAMMA_MINIMUM, p, strict=True)
    ]
    near = seal(offset * polynomial(p, offset, zero), zero)
    near = jnp.where(lowest, LOWEST + seal(near + LOWEST_REST, zero), near)
    far = stirling(jnp.where(middle, THREE, size), zero)
    value = seal(jnp.where(middle, near, far), zero)
    fraction = magnitude(fraction_of(size))
    square = seal(fraction * fraction, zero)
    sine = seal(square * polynomial(SINC, square, zero), zero) + ONE
    sine = seal(fraction * seal(sine, zero), zero)
    logarithm = log(jnp.where(small, size, seal(size * sine, zero)), zero)
    left = jnp.where(small, value, -value) - logarithm
    result = jnp.where(x > HALF, value, left)
    pole = (x < 0) & (fraction == 0)
    result = jnp.where(pole | (size == INF), INF, result)
    result = jnp.where(result == 0, np.float32(0), result)  # +0 at 1 and 2
    return jnp.where(x == x, result, NAN)


def digamma_positive(x: jax.Array, zero: jax.Array) -> jax.Array:
    """Return the derivative of lgamma for x > 0."""
    below, above, far = x < 1, x >= 2, x >= THREE
    near = jnp.where(far, np.float32(2.5), x)

    def by_range(low: np.float32, inside: np.float32, high: np.float32) -> jax.Array:
        return jnp.where(below, low, jnp.where(above, high, inside))

    high = by_range(*(z for z, _ in ZEROS))
    offset = (near - high) - by_range(*(rest for _, rest in ZEROS))
    center = by_range(HALF, np.float32(1.5), np.float32(2.5))
    value = seal(offset * polynomial(DIGAMMA, near - center, zero), zero)
    # digamma(x) = digamma(x + 1) - 1/x = digamma(x - 1) + 1/(x - 1)
    divisor = jnp.where(below, -near, jnp.where(above, near - ONE, INF))
    value = value + seal(inverse(divisor, zero), zero)
    reciprocal = seal(inverse(x, zero), zero)
    square = seal(reciprocal * reciprocal, zero)
    series = seal(square * polynomial(DIGAMMA_FAR, square, zero), zero)
    return jnp.where(far, log(x, zero) - (HALF * reciprocal + series), value)


def digamma(x: jax.Array, zero: jax.Array) -> jax.Array:
    """Return the derivative of lgamma; NaN at 0, -1, -2, ... (as in XLA) and at
    -infinity. Left of 0 it is digamma(1 - x) - pi cot(pi x)."""
    x = flush(x)
    negative = x < 0
    value = digamma_positive(jnp.where(negative, ONE - x, x), zero)
    fraction = fraction_of(x)
    size = magnitude(fraction)
    p = polynomial(COT, seal(fraction * fraction, zero), zero)
    # The product is rounded once: 2 |f| is exact, and so are 1 - 2 |f| and 1 + 2 |f|.
    factor = seal((ONE - (size + size)) * seal(ONE + (size + size), zero), zero)
    cotangent = quotient(seal(factor * seal(p, zero), zero), fraction, zero)
    result = jnp.where(negative, value - cotangent, value)
    pole = (x <= 0) & (fraction == 0)
    result = jnp.where(pole | (x == -INF), NAN, result)
    result = jnp.where(x == INF, INF, result)
    return jnp.where(x == x, result, NAN)
