"""Elementary functions of complex numbers from those of real ones.

The vendor does not document any; these formulas are modelled. Each is accurate relative
to |result| (the smaller part may not be), does not overflow unless its result does, has
the branch cuts of C99 with signed zeros, and the infinities of C99 Annex G where they
cost little. The bounds are measured in tests/conformance/test_complex.py.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from neuronjax.lowering.complex_builder import (
    Pair,
    Real,
    power_of_two,
    where,
    where_pair,
)


def add(z: Pair, w: Pair) -> Pair:
    return Pair(z.re + w.re, z.im + w.im)


def multiply(z: Pair, w: Pair) -> Pair:
    """Return z w within 2.3 ULP: each product and the sum is rounded."""
    return Pair(z.re * w.re - z.im * w.im, z.re * w.im + z.im * w.re)


def square(z: Pair) -> Pair:
    return multiply(z, z)


def divide(z: Pair, w: Pair) -> Pair:
    """Return z conj(w) / |w|^2, with w scaled to 2 <= max(|re|, |im|) < 4.

    z is scaled only near the range's limits. Factors of 2^64 and the scale of w are
    undone on the quotient, in an order that cannot overflow before the result does. An
    infinite z or w is replaced by the signs of its infinite parts, and the quotient is
    multiplied by Inf or 0; z / 0 is z * Inf (C99, Annex G.5.1).
    """
    numerator, outer = _numerator(z)
    denominator, inner = _denominator(w)
    (a, b), (c, d) = numerator, denominator
    norm = c * c + d * d
    by_zero = norm.equals(0.0)
    infinity = norm.like(np.inf).with_sign_of(w.re)

    def part(sum_: Real, part_of_z: Real) -> Real:
        quotient = sum_ / norm * inner * outer
        return where(by_zero, infinity * part_of_z, quotient)

    return Pair(part(a * c + b * d, z.re), part(b * c - a * d, z.im))


def _numerator(z: Pair) -> tuple[Pair, Real]:
    """Return z scaled, and the factor that undoes the scaling."""
    magnitude = _larger(z)
    huge, small = magnitude > 2.0**100, magnitude < 2.0**-90
    scale = where(huge, 2.0**-64, where(small, 2.0**64, 1.0))
    undo = where(huge, 2.0**64, where(small, 2.0**-64, 1.0))
    scaled, infinite = _scaled(z, scale)
    return scaled, where(infinite, np.inf, undo)


def _denominator(w: Pair) -> tuple[Pair, Real]:
    """Return s w, and the scale s by which a quotient by s w must be multiplied."""
    _, scale = power_of_two(_larger(w))
    scaled, infinite = _scaled(w, scale)
    return scaled, where(infinite, 0.0, scale)


def _scaled(z: Pair, scale: Real) -> tuple[Pair, Real]:
    """Return z * scale, and whether a part of z is infinite; if so, the first result
    has the signs of the infinite parts, and 0 for a finite one."""
    re, im = z.re.is_infinite(), z.im.is_infinite()
    signs = (part.function("sign") for part in z)
    ones = [where(i, s, 0.0) for i, s in zip((re, im), signs, strict=True)]
    infinite = re | im
    parts = [where(infinite, d, p * scale) for d, p in zip(ones, z, strict=True)]
    return Pair(*parts), infinite


def _larger(z: Pair) -> Real:
    return abs(z.re).maximum(abs(z.im))


def is_infinite(z: Pair) -> Real:
    """Return whether a part is infinite, whatever the other one is."""
    return z.re.is_infinite() | z.im.is_infinite()


def modulus(z: Pair) -> Real:
    """Return |z| within 2.1 ULP; Inf if a part is infinite, even beside a NaN."""
    _, length, scale = _polar(z)
    # The length is halved first, because half of the scale may be subnormal.
    return where(is_infinite(z), np.inf, length * 0.5 * scale)


def _polar(z: Pair) -> tuple[Pair, Real, Real]:
    """Return z / s, |z / s| (2 to 6), and 2 s, a power of two; s may be subnormal."""
    scale, inverse = power_of_two(_larger(z))
    scaled = Pair(z.re * inverse, z.im * inverse)
    length = (scaled.re * scaled.re + scaled.im * scaled.im).function("sqrt")
    return scaled, length, scale


def sign(z: Pair) -> Pair:
    """Return z / |z|, and zero for zero."""
    scaled, length, _ = _polar(z)
    is_zero = length.equals(0.0)
    re, im = (where(is_zero, 0.0, part / length) for part in scaled)
    return Pair(re, im)


def extreme(z: Pair, w: Pair, direction: str) -> Pair:
    """Return the later ("GT") or earlier ("LT") of two in lexicographic order."""
    first = where(
        z.re.equals(w.re), z.im.compare(direction, w.im), z.re.compare(direction, w.re)
    )
    return Pair(where(first, z.re, w.re), where(first, z.im, w.im))


# exp(80) is finite; above it, exp of half the argument is squared.
_LARGE = 80.0


def _product(a: Real, b: Real, *, infinite_wins: bool = False) -> Real:
    """Return a * b, where zero times Inf or NaN gives zero. `a` grows, like exp(x); `b`
    is a sine or cosine, which is NaN if its argument is infinite. `infinite_wins` says
    whether an infinite `a` times a NaN gives `a`."""
    product = a * b
    special = where(b.equals(0.0), where(a < 0.0, -b, b), product)
    special = where(a.equals(0.0), a, special)
    if infinite_wins:
        special = where(a.is_infinite() & b.differs(0.0), a, special)
    return where(product.is_nan(), special, product)


def _halved(x: Real) -> tuple[Real, Real]:
    """Return whether x is large, and x, or half of x if it is large."""
    large = abs(x) > _LARGE
    return large, where(large, x * 0.5, x)


def exponential(z: Pair) -> Pair:
    """Return e^x (cos y + i sin y)."""
    large, half = _halved(z.re)
    growth = half.function("exponential")

    def part(trigonometric: str) -> Real:
        turn = z.im.function(trigonometric)
        wins = trigonometric == "cosine"
        once = _product(growth, turn, infinite_wins=wins)
        return where(large, _product(once, growth), once)

    return Pair(part("cosine"), part("sine"))


def exponential_minus_one(z: Pair) -> Pair:
    """Return (expm1 x) cos y - 2 sin^2(y/2) + i e^x sin y, accurate at 0."""
    growth = z.re.function("exponential_minus_one")
    half = (z.im * 0.5).function("sine")
    re = _product(growth, z.im.function("cosine")) - 2.0 * half * half
    im = _product(growth + 1.0, z.im.function("sine"))
    # Above 32 the 1 is less than half a unit of the result.
    return where_pair(z.re > 32.0, exponential(z), Pair(re, im))


def logarithm(z: Pair) -> Pair:
    """Return log|z| + i atan2(y, x)."""
    larger, smaller = _larger(z), abs(z.re).minimum(abs(z.im))
    excess = (larger - 1.0) * (larger + 1.0) + smaller * smaller
    return Pair(_log_modulus(z, excess), z.im.function("atan2", z.re))


def log_plus_one(z: Pair) -> Pair:
    """Return log(1 + z), accurate near zero."""
    shifted = Pair(z.re + 1.0, z.im)
    excess = z.re * (z.re + 2.0) + z.im * z.im
    return Pair(_log_modulus(shifted, excess), z.im.function("atan2", shifted.re))


def _log_modulus(z: Pair, excess: Real) -> Real:
    """Return log|z|, computed from `excess` = |z|^2 - 1 near the unit circle."""
    x, y = abs(z.re), abs(z.im)
    larger, smaller = x.maximum(y), x.minimum(y)
    ratio = where(larger.equals(smaller), 1.0, smaller / larger)
    near = (larger > 0.5) & (larger < 2.0)
    beyond = where(near, excess, ratio * ratio).function("log_plus_one") * 0.5
    result = where(near, beyond, larger.function("log") + beyond)
    return where(is_infinite(z), np.inf, result)


def square_root(z: Pair) -> Pair:
    """Return sqrt z with the parts w = sqrt((|x| + |z|)/2) and y/(2w), swapped for x <
    0."""
    root, _, undo = _scaled_root(z)
    infinite = z.im.is_infinite()
    re, im = root.re * undo, root.im * undo
    return Pair(where(infinite, np.inf, re), where(infinite, z.im, im))


def reciprocal_square_root(z: Pair) -> Pair:
    """Return conj(sqrt z) / |z|; zero gives Inf."""
    root, length, undo = _scaled_root(z)
    re, im = root.re / length / undo, -root.im / length / undo
    re = where(length.equals(0.0), np.inf, re)
    infinite = is_infinite(z)
    return Pair(where(infinite, 0.0, re), where(infinite, 0.0, im))


def _scaled_root(z: Pair) -> tuple[Pair, Real, Real]:
    """Return sqrt(s z), |s z| and 1 / sqrt(s), with s = 1/4 for a large z, else s = 4.
    With this scale neither |s z| nor its half is out of range."""
    large = _larger(z) > 1.0
    scale, undo = where(large, 0.25, 4.0), where(large, 2.0, 0.5)
    x, y = z.re * scale, z.im * scale
    length = modulus(Pair(x, y))
    root = ((abs(x) + length) * 0.5).function("sqrt")
    other = where(root.equals(0.0), y, y / (root * 2.0))
    right, left = Pair(root, other), Pair(abs(other), root.with_sign_of(y))
    return where_pair(x >= 0.0, right, left), length, undo


def cube_root(z: Pair) -> Pair:
    """Return the principal cube root: cbrt|z| at a third of the angle."""
    large = _larger(z) > 1.0
    scale, undo = where(large, 0.125, 1.0), where(large, 2.0, 1.0)
    radius = modulus(Pair(z.re * scale, z.im * scale)).function("cbrt") * undo
    angle = z.im.function("atan2", z.re) / 3.0
    return Pair(
        _product(radius, angle.function("cosine")),
        _product(radius, angle.function("sine")),
    )


def power(z: Pair, w: Pair) -> Pair:
    """Return exp(w log z); z^0 is 1. The error grows with |w log z|."""
    base = logarithm(z)
    re = _product(base.re, w.re) - _product(base.im, w.im)
    im = _product(base.re, w.im) + _product(base.im, w.re)
    result = exponential(Pair(re, im))
    trivial = w.re.equals(0.0) & w.im.equals(0.0)
    return Pair(where(trivial, 1.0, result.re), where(trivial, 0.0, result.im))


def arc_tangent_2(y: Pair, x: Pair) -> Pair:
    """Return -i log((x + i y) / sqrt(x^2 + y^2))."""
    numerator = add(x, y.times_i())
    norm = add(square(x), square(y))
    return logarithm(divide(numerator, square_root(norm))).over_i()


# -- trigonometric and hyperbolic ------------------------------------------------------


def sinh(z: Pair) -> Pair:
    """Return sinh x cos y + i cosh x sin y."""
    return _hyperbolic(z, odd=True)


def cosh(z: Pair) -> Pair:
    """Return cosh x cos y + i sinh x sin y."""
    return _hyperbolic(z, odd=False)


def _hyperbolic(z: Pair, *, odd: bool) -> Pair:
    large, half = _halved(z.re)
    even_part, odd_part = half.function("chlo.cosh"), half.function("chlo.sinh")
    # sinh x = 2 sinh(x/2) cosh(x/2); beyond 80 cosh x = 2 cosh(x/2)^2 to the last bit.
    rest = even_part * 2.0

    def part(growth: Real, turn: Real, wins: bool) -> Real:
        once = _product(growth, turn, infinite_wins=wins)
        return where(large, _product(once, rest), once)

    cosine, sine = z.im.function("cosine"), z.im.function("sine")
    growths = (odd_part, even_part) if odd else (even_part, odd_part)
    return Pair(part(growths[0], cosine, True), part(growths[1], sine, False))


def cosine(z: Pair) -> Pair:
    return cosh(z.times_i())


def tanh(z: Pair) -> Pair:
    """Return (sinh x cosh x + i sin y cos y) / (sinh^2 x + cos^2 y)."""
    x, y = z
    odd, even = x.function("chlo.sinh"), x.function("chlo.cosh")
    sine_y, cosine_y = y.function("sine"), y.function("cosine")
    norm = odd * odd + cosine_y * cosine_y
    # Above 20 tanh x is 1, and where the norm overflows the other part is 0.
    re = where(abs(x) > 20.0, x.function("sign"), odd * even / norm)
    re = where(x.equals(0.0), x, re)
    im = sine_y * cosine_y / norm
    im = where(x.is_infinite() & im.is_nan(), 0.0, im)
    return Pair(re, where(y.equals(0.0), y, im))


def logistic(z: Pair) -> Pair:
    """Return 1 / (1 + e^-z), with e = e^-|x|, m = 1 - e, c = cos(y/2), s = sin(y/2).
    The denominator is |1 + e^(-|x| + iy)|^2 = m^2 + 4 e c^2, a sum of positive
    terms."""
    decay = -abs(z.re)
    e = decay.function("exponential")
    m = -decay.function("exponential_minus_one")
    half = z.im * 0.5
    c, s = half.function("cosine"), half.function("sine")
    square = c * c * 2.0
    norm = m * m + e * square * 2.0
    re = where(z.re < 0.0, e * (square - m), m + e * square)
    return Pair(re / norm, e * (s * c * 2.0) / norm)


# -- inverses --------------------------------------------------------------------------


def _root_around_one(z: Pair) -> tuple[Pair, Pair]:
    """Return sqrt(1 - z) and sqrt(1 + z); the sign of a zero selects the branch."""
    minus = square_root(Pair(1.0 - z.re, -z.im))
    return minus, square_root(Pair(z.re + 1.0, z.im))


def arc_sine(z: Pair) -> Pair:
    """Return asin z as in Kahan, "Branch cuts for complex elementary functions" (1987).
    With a = sqrt(1 - z) and b = sqrt(1 + z) it is atan2(x, Re(a b)) + i
    asinh(Im(conj(a) b)), in which no difference cancels."""
    a, b = _root_around_one(z)
    re = z.re.function("atan2", a.re * b.re - a.im * b.im)
    im = (a.re * b.im - a.im * b.re).function("chlo.asinh")
    at_infinity = Pair(
        z.re.function("atan2", abs(z.im)), im.like(np.inf).with_sign_of(z.im)
    )
    return where_pair(is_infinite(z), at_infinity, Pair(re, im))


def arc_cosine(z: Pair) -> Pair:
    """Return 2 atan2(Re a, Re b) + i asinh(Im(conj(b) a)), a and b as in `arc_sine`."""
    a, b = _root_around_one(z)
    re = a.re.function("atan2", b.re) * 2.0
    im = (b.re * a.im - b.im * a.re).function("chlo.asinh")
    at_infinity = Pair(
        abs(z.im).function("atan2", z.re), -im.like(np.inf).with_sign_of(z.im)
    )
    return where_pair(is_infinite(z), at_infinity, Pair(re, im))


def arc_cosh(z: Pair) -> Pair:
    """Return asinh(Re(conj(c) b)) + 2i atan2(Im c, Re b), b, c = sqrt(z + 1), sqrt(z -
    1)."""
    b = square_root(Pair(z.re + 1.0, z.im))
    c = square_root(Pair(z.re - 1.0, z.im))
    re = (c.re * b.re + c.im * b.im).function("chlo.asinh")
    im = c.im.function("atan2", b.re) * 2.0
    at_infinity = Pair(re.like(np.inf), z.im.function("atan2", z.re))
    return where_pair(is_infinite(z), at_infinity, Pair(re, im))


def arc_tanh(z: Pair) -> Pair:
    """Return log1p(4|x| / |1-z|^2)/4 + i atan2(y, ((1-x)(1+x) - y^2)/2)/2. Near the
    pole, where the square is out of range, the first part is log(2 / |1-z|)/2."""
    x, y = abs(z.re), z.im
    distance = modulus(Pair(1.0 - x, y))
    near = distance < 2.0**-40
    far = (x / distance * 4.0 / distance).function("log_plus_one") * 0.25
    close = (2.0 / distance).function("log") * 0.5
    re = where(near, close, far).with_sign_of(z.re)
    im = y.function("atan2", ((1.0 - x) * (x + 1.0) - y * y) * 0.5) * 0.5
    infinite = is_infinite(z)
    quarter_turn = im.like(np.pi / 2).with_sign_of(y)
    return Pair(
        where(infinite, re.like(0.0).with_sign_of(z.re), re),
        where(infinite, quarter_turn, im),
    )


def _turned(function: Callable[[Pair], Pair]) -> Callable[[Pair], Pair]:
    """Return the function z -> -i function(i z)."""
    return lambda z: function(z.times_i()).over_i()


sine, tangent = _turned(sinh), _turned(tanh)
arc_sinh, arc_tangent = _turned(arc_sine), _turned(arc_tanh)
