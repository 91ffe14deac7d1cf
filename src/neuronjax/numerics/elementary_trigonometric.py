"""FP32 sin, cos, tan, atan, atan2, asin and acos by sealed arithmetic.

The argument reduction is Payne and Hanek's in uint32 arithmetic for every |x| > pi/4:
the 24-bit mantissa times the 96 bits of 2/pi that matter at that exponent, modulo 4.
The result is exact to 2^-62 of a quadrant, so there is no bound on |x|, and integers
need no seal. The fraction becomes an angle in radians as a sum of two FP32 numbers.
Coefficients are minimax fits made as in `elementary_exponential`.
"""

from __future__ import annotations

import itertools
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from neuronjax.numerics.elementary_core import (
    INF,
    MANTISSA,
    NAN,
    SIGN,
    bits_of,
    float_of,
    flush,
    magnitude,
    polynomial,
    quotient,
    truncate,
    with_sign,
)
from neuronjax.numerics.exact import seal

# 2/pi = 0.636..., after 32 zero bits, in words of 32 bits.
TWO_OVER_PI = (
    0x00000000,
    0xA2F9836E,
    0x4E441529,
    0xFC2757D1,
    0xF534DDC0,
    0xDB629599,
    0x3C439041,
    0xFE5163AB,
)
# The exponent field at which `two_over_pi_window` begins at bit 0.
FIRST_EXPONENT = np.uint32(120)
QUARTER_PI = np.float32(0.7853981633974483)
# pi/2 in FP32; its upper 12 bits and the rest; pi/2 minus its FP32 value.
HALF_PI = np.float32(1.5707963267948966)
HALF_PI_12 = np.float32(float.fromhex("0x1.92p0"))
HALF_PI_REST = np.float32(1.5707963267948966 - float.fromhex("0x1.92p0"))
HALF_PI_ERROR = np.float32(-4.3711390001862426e-08)
PI, SIXTH = np.float32(np.pi), np.float32(1 / 6)
# (sin r - r) / r^3 and (cos r - 1 + r^2/2) / r^4 as polynomials in r^2 on
# |r| <= pi/4; relative errors 4e-9 and 1.2e-10.
SIN = (-0.166666552, 0.00833218731, -0.000195179076)
COS = (0.0416666456, -0.00138873095, 2.44323292e-05)
# (atan t - t) / t^3 as a polynomial in t^2 on |t| <= 1; relative error 2.6e-9.
ATAN = (
    -0.333332986,
    0.199985296,
    -0.142640159,
    0.109508798,
    -0.0839930028,
    0.0578811988,
    -0.0310966931,
    0.0108684711,
    -0.0017827613,
)
# (asin t - t) / t^3 as a polynomial in t^2 on |t| <= 1/2; relative error 4.9e-9.
ASIN = (0.166667521, 0.0749530941, 0.0454691499, 0.0241847821, 0.0421582907)


class Angle(NamedTuple):
    """The parts of |x| = quadrant * pi/2 + high + low, with the quadrant modulo 4."""

    quadrant: jax.Array
    high: jax.Array
    low: jax.Array


def high_word(a: jax.Array, b: jax.Array) -> jax.Array:
    """Return the upper 32 bits of the product of a 24-bit and a 32-bit uint."""
    low_half = np.uint32(0xFFFF)
    a_high, a_low = a >> 16, a & low_half
    b_high, b_low = b >> 16, b & low_half
    cross = a_low * b_high
    middle = ((a_low * b_low) >> 16) + (cross & low_half) + a_high * b_low
    return a_high * b_high + (cross >> 16) + (middle >> 16)


def two_over_pi_window(exponent: jax.Array) -> tuple[jax.Array, jax.Array, jax.Array]:
    """Return 96 bits of 2/pi from bit `exponent - 120` on, as three words."""
    position = jnp.maximum(exponent, FIRST_EXPONENT) - FIRST_EXPONENT
    index, shift = position >> 5, position & np.uint32(31)

    def word(offset: int) -> jax.Array:
        candidates = TWO_OVER_PI[offset : offset + 5]
        chosen = jnp.full_like(index, np.uint32(candidates[0]))
        for i, candidate in enumerate(candidates[1:], start=1):
            chosen = jnp.where(index == i, np.uint32(candidate), chosen)
        return chosen

    words = [word(offset) for offset in range(4)]
    back = np.uint32(31) - shift
    w0, w1, w2 = (
        (first << shift) | ((second >> 1) >> back)
        for first, second in itertools.pairwise(words)
    )
    return w0, w1, w2


def reduce_half_pi(x: jax.Array, zero: jax.Array) -> Angle:
    """Return |x| as an angle with high + low in -pi/4..pi/4."""
    bits = bits_of(magnitude(x))
    mantissa = (bits & MANTISSA) | np.uint32(0x00800000)
    w0, w1, w2 = two_over_pi_window(bits >> 23)
    addend = high_word(mantissa, w2)
    low_word = mantissa * w1 + addend
    carry = (low_word < addend).astype(jnp.uint32)
    product = mantissa * w0 + high_word(mantissa, w1) + carry
    small = magnitude(x) < QUARTER_PI
    quadrant = (product + np.uint32(1 << 29)) >> 30
    fraction = (product << 2) | (low_word >> 30)
    high, low = quadrant_to_radians(fraction, low_word << 2, zero)
    return Angle(
        jnp.where(small, np.uint32(0), quadrant),
        jnp.where(small, magnitude(x), high),
        jnp.where(small, np.float32(0), low),
    )


def quadrant_to_radians(
    fraction: jax.Array, rest: jax.Array, zero: jax.Array
) -> tuple[jax.Array, jax.Array]:
    """Return (fraction * 2^-32 + rest * 2^-64) pi/2, with `fraction` signed."""
    signed = lax.bitcast_convert_type(fraction & np.uint32(0xFFFFFF00), jnp.int32)
    middle = ((fraction & np.uint32(0xFF)) << 16) | (rest >> 16)
    a = signed.astype(jnp.float32) * np.float32(2.0**-32)
    b = middle.astype(jnp.int32).astype(jnp.float32) * np.float32(2.0**-48)
    c = (rest & np.uint32(0xFFFF)).astype(jnp.int32).astype(jnp.float32)
    s = a + b
    s_error = (b - (s - a)) + c * np.float32(2.0**-64)
    s_high = truncate(s)
    head = s_high * HALF_PI_12
    tail = seal(s * HALF_PI_REST, zero) + seal(s_error * HALF_PI, zero)
    tail = (s - s_high) * HALF_PI_12 + tail
    high = head + tail
    return high, tail - (high - head)


def sin_and_cos(angle: Angle, zero: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Return (sin, cos) of `angle.high + angle.low`."""
    r = angle.high
    square = seal(r * r, zero)
    half = np.float32(0.5) * square
    slope = seal(angle.low * (np.float32(1) - half), zero)
    sin = r + (slope + seal(r * (square * polynomial(SIN, square, zero)), zero))
    head = seal(np.float32(1) - half, zero)
    tail = seal((square * square) * polynomial(COS, square, zero), zero)
    tail = tail - seal(r * angle.low, zero)
    cos = head + (((np.float32(1) - head) - half) + tail)
    return sin, cos


def turn(quadrant: jax.Array, sin: jax.Array, cos: jax.Array) -> jax.Array:
    """Return sin(quadrant * pi/2 + r) from sin r and cos r."""
    value = jnp.where((quadrant & 1) == 0, sin, cos)
    return float_of(bits_of(value) ^ ((quadrant & 2) << 30))


def sin(x: jax.Array, zero: jax.Array) -> jax.Array:
    """Return the sine of x in radians, for all finite x."""
    x = flush(x)
    angle = reduce_half_pi(x, zero)
    result = turn(angle.quadrant, *sin_and_cos(angle, zero))
    result = float_of(bits_of(result) ^ (bits_of(x) & SIGN))
    return jnp.where(magnitude(x) < INF, result, NAN)


def sin_as_scalar_engine(x: jax.Array, zero: jax.Array) -> jax.Array:
    """Return the sine as ScalarE computes it: a cubic beyond -pi..pi.

    Documented (nki/api/nki.api.shared.rst): beyond -pi..pi the fitted polynomial is
    continued as a cubic, and sin(9.0) is about 27.65. ASSUMPTION: it is the Taylor
    polynomial of the sine at pi, (x - pi)^3 / 6 - (x - pi), and odd; its value at 9 is
    27.652. Within -pi..pi this is `sin`; the engine's own accuracy there is not
    documented.
    """
    size = magnitude(x)
    beyond = size - PI
    slope = seal(seal(beyond * beyond, zero) * SIXTH, zero) - np.float32(1)
    cubic = float_of(bits_of(seal(beyond * slope, zero)) ^ (bits_of(x) & SIGN))
    result = jnp.where(size <= PI, sin(x, zero), cubic)
    return jnp.where(x == x, result, NAN)


def cos(x: jax.Array, zero: jax.Array) -> jax.Array:
    """Return the cosine of x in radians, for all finite x."""
    angle = reduce_half_pi(x, zero)
    result = turn(angle.quadrant + np.uint32(1), *sin_and_cos(angle, zero))
    return jnp.where(magnitude(x) < INF, result, NAN)


def tan(x: jax.Array, zero: jax.Array) -> jax.Array:
    """Return the tangent of x in radians, for all finite x."""
    x = flush(x)
    angle = reduce_half_pi(x, zero)
    sin, cos = (seal(value, zero) for value in sin_and_cos(angle, zero))
    odd = (angle.quadrant & 1) == 1
    result = quotient(jnp.where(odd, -cos, sin), jnp.where(odd, sin, cos), zero)
    result = float_of(bits_of(result) ^ (bits_of(x) & SIGN))
    result = jnp.where(magnitude(x) < np.float32(2.0**-13), x, result)
    return jnp.where(magnitude(x) < INF, result, NAN)


def odd_series(
    t: jax.Array, coefficients: tuple[float, ...], zero: jax.Array
) -> jax.Array:
    """Return t + t^3 P(t^2), where P has these coefficients."""
    square = t * t
    return t + seal(t * (square * polynomial(coefficients, square, zero)), zero)


def atan(x: jax.Array, zero: jax.Array) -> jax.Array:
    """Return the inverse tangent, in -pi/2..pi/2."""
    return atan2(x, jnp.full_like(x, 1), zero)


def atan2(y: jax.Array, x: jax.Array, zero: jax.Array) -> jax.Array:
    """Return the angle of the point (x, y), -pi..pi, with IEEE 754's special cases."""
    y, x = flush(y), flush(x)
    size_y, size_x = magnitude(y), magnitude(x)
    steep, left = size_y > size_x, bits_of(x) >= SIGN
    smaller = jnp.where(steep, size_x, size_y)
    larger = jnp.where(steep, size_y, size_x)
    ratio = quotient(smaller, larger, zero)
    ratio = jnp.where(smaller == larger, np.float32(1), ratio)
    ratio = jnp.where(smaller == 0, np.float32(0), flush(ratio))
    angle = odd_series(ratio, ATAN, zero)
    angle = jnp.where(steep != left, -angle, angle)
    quarters = jnp.where(steep, np.float32(1), jnp.where(left, 2, 0))
    quarters = quarters.astype(jnp.float32)
    # `quarters` is 0, 1 or 2, so both products are exact.
    result = quarters * HALF_PI + (angle + quarters * HALF_PI_ERROR)
    result = with_sign(magnitude(result), y)
    return jnp.where((x == x) & (y == y), result, NAN)


def asin_parts(
    size: jax.Array, zero: jax.Array
) -> tuple[jax.Array, jax.Array, jax.Array]:
    """Return (is_large, a, error), where asin(size) is pi/2 - 2 (a + error) if
    `is_large`, else a."""
    far = size > np.float32(0.5)
    square = seal(np.float32(0.5) * (np.float32(1) - size), zero)
    root = seal(lax.sqrt(jnp.where(far, square, np.float32(1))), zero)
    root_high = truncate(root)
    root_low = root - root_high
    # square - root^2, with every product but the last exact.
    residual = (square - root_high * root_high) - seal(
        root_low * (root + root_high), zero
    )
    t = jnp.where(far, root, size)
    t = jnp.where(square == 0, np.float32(0), t)
    error = quotient(np.float32(0.5) * residual, root, zero)
    error = jnp.where(far & (square > 0), error, np.float32(0))
    t_square = t * t
    tail = seal(t * (t_square * polynomial(ASIN, t_square, zero)), zero)
    return far, t, tail + error


def asin(x: jax.Array, zero: jax.Array) -> jax.Array:
    """Return the inverse sine, in -pi/2..pi/2; NaN outside -1..1."""
    x = flush(x)
    far, head, tail = asin_parts(magnitude(x), zero)
    two = np.float32(2)
    folded = HALF_PI - (two * head + (two * tail - HALF_PI_ERROR))
    result = with_sign(jnp.where(far, folded, head + tail), x)
    return jnp.where(magnitude(x) <= 1, result, NAN)


def acos(x: jax.Array, zero: jax.Array) -> jax.Array:
    """Return the inverse cosine, in 0..pi; NaN outside -1..1."""
    x = flush(x)
    far, head, tail = asin_parts(magnitude(x), zero)
    two, negative = np.float32(2), x < 0
    right = two * (head + tail)
    left = two * HALF_PI - (two * head + (two * tail - two * HALF_PI_ERROR))
    head, tail = (jnp.where(negative, -part, part) for part in (head, tail))
    near = HALF_PI - (head + (tail - HALF_PI_ERROR))
    result = jnp.where(far, jnp.where(negative, left, right), near)
    return jnp.where(magnitude(x) <= 1, result, NAN)
