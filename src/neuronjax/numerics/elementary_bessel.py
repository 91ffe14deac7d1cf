"""FP32 exponentially scaled modified Bessel function of order 1, by sealed arithmetic.

e^-|x| |I1(x)| is e^-|x| |x| P(x^2) for |x| < 7 and Q(1/|x|) / sqrt |x| from 7 on. All
coefficients of P are positive and Q is nearly constant, so no terms cancel.
Coefficients are minimax fits made as in `elementary_exponential`. For order 0 JAX
itself emits multiplications and additions.
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
    inverse,
    magnitude,
    polynomial,
    quotient,
    with_sign,
)
from neuronjax.numerics.elementary_exponential import exp_in_range
from neuronjax.numerics.exact import seal

I1_NEAR_END = np.float32(7)
# I1(x) / x as a polynomial in x^2 on |x| <= 7; relative error 8.2e-9.
I1_NEAR = (
    0.5,
    0.0624999888,
    0.00260417769,
    5.42500784e-05,
    6.78642095e-07,
    5.61661517e-09,
    3.50658808e-11,
    1.1768032e-13,
    8.94877921e-16,
)
# e^-x I1(x) sqrt(x) as a polynomial in 1/x for x >= 7; relative error 2.2e-8, from the
# rounding of the first coefficient.
I1_FAR = (
    0.398942292,
    -0.14961189,
    -0.0455408357,
    -0.107774951,
    1.7716434,
    -27.3863735,
    225.42305,
    -972.876404,
    1690.47888,
)


def bessel_i1e(x: jax.Array, zero: jax.Array) -> jax.Array:
    """Return e^-|x| I1(x), with the sign of x; at the infinities it is zero."""
    size = magnitude(x)
    near = size < I1_NEAR_END
    inside = jnp.where(near, size, np.float32(0))
    outside = jnp.where(near, I1_NEAR_END, size)
    reciprocal = inverse(outside, zero)
    variable = seal(jnp.where(near, inside * inside, reciprocal), zero)
    p = seal(polynomial(choose(near, I1_NEAR, I1_FAR), variable, zero), zero)
    small = exp_in_range(-inside, zero) * seal(inside * p, zero)
    large = quotient(p, seal(lax.sqrt(outside), zero), zero)
    result = with_sign(jnp.where(near, small, large), x)
    result = jnp.where(size == INF, with_sign(jnp.zeros_like(x), x), result)
    return jnp.where(x == x, result, NAN)
