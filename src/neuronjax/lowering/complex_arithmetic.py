"""Arithmetic of complex numbers in real and imaginary parts.

The vendor is silent on how its compiler does it, so this is modelled: multiplication by
its definition (four products, two sums, no recovery of infinities, as NumPy and XLA);
division and the modulus scaled by powers of two, so that nothing over- or underflows in
between, with the infinities of C99 Annex G. Errors are in units of 2^-24 |result|.
"""

from __future__ import annotations

import numpy as np

from neuronjax.lowering.complex_builder import Pair, Real, power_of_two, where


def add(z: Pair, w: Pair) -> Pair:
    return Pair(z.re + w.re, z.im + w.im)


def subtract(z: Pair, w: Pair) -> Pair:
    return Pair(z.re - w.re, z.im - w.im)


def negate(z: Pair) -> Pair:
    return Pair(-z.re, -z.im)


def conjugate(z: Pair) -> Pair:
    return Pair(z.re, -z.im)


def multiply(z: Pair, w: Pair) -> Pair:
    """Error at most 2.3: a rounding of each product and of the sum."""
    return Pair(z.re * w.re - z.im * w.im, z.re * w.im + z.im * w.re)


def square(z: Pair) -> Pair:
    return multiply(z, z)


def divide(z: Pair, w: Pair) -> Pair:
    """z conj(w) / |w|^2 with w scaled to 2 <= max(|re|, |im|) < 4.

    z is only scaled near the ends of the range. Factors of 2^64 and the scale of w are
    undone on the quotient, in an order that cannot overflow before the result does.
    An infinite z or w is replaced by its direction and the quotient multiplied with Inf
    or 0; z / 0 is z * Inf (C99, Annex G.5.1).
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
    """z scaled, and the factor that undoes it."""
    magnitude = _larger(z)
    huge, small = magnitude > 2.0**100, magnitude < 2.0**-90
    scale = where(huge, 2.0**-64, where(small, 2.0**64, 1.0))
    undo = where(huge, 2.0**64, where(small, 2.0**-64, 1.0))
    infinite, direction = _direction(z)
    re, im = (
        where(infinite, d, part * scale) for d, part in zip(direction, z, strict=True)
    )
    return Pair(re, im), where(infinite, np.inf, undo)


def _denominator(w: Pair) -> tuple[Pair, Real]:
    """w scaled, and the factor that a quotient by it must get."""
    _, scale = power_of_two(_larger(w))
    infinite, direction = _direction(w)
    re, im = (
        where(infinite, d, part * scale) for d, part in zip(direction, w, strict=True)
    )
    return Pair(re, im), where(infinite, 0.0, scale)


def _direction(z: Pair) -> tuple[Real, Pair]:
    """Whether a part is infinite, and 1, -1 or 0 by which parts are."""
    re, im = z.re.is_infinite(), z.im.is_infinite()
    signs = (part.function("sign") for part in z)
    ones = [where(i, s, 0.0) for i, s in zip((re, im), signs, strict=True)]
    return re | im, Pair(*ones)


def _larger(z: Pair) -> Real:
    return abs(z.re).maximum(abs(z.im))


def is_infinite(z: Pair) -> Real:
    """Whether a part is, whatever the other one is."""
    return z.re.is_infinite() | z.im.is_infinite()


def modulus(z: Pair) -> Real:
    """|z|, at most 2.1 off; Inf if a part is, also beside a NaN."""
    _, length, scale = _polar(z)
    # Halved first: half of the scale may be subnormal.
    return where(is_infinite(z), np.inf, length * 0.5 * scale)


def _polar(z: Pair) -> tuple[Pair, Real, Real]:
    """z / s, |z / s| and 2 s for a power of two s, |z / s| in 2 to 6."""
    scale, inverse = power_of_two(_larger(z))
    scaled = Pair(z.re * inverse, z.im * inverse)
    length = (scaled.re * scaled.re + scaled.im * scaled.im).function("sqrt")
    return scaled, length, scale


def sign(z: Pair) -> Pair:
    """z / |z|, zero for zero."""
    scaled, length, _ = _polar(z)
    is_zero = length.equals(0.0)
    re, im = (where(is_zero, 0.0, part / length) for part in scaled)
    return Pair(re, im)


def equals(z: Pair, w: Pair) -> Real:
    return z.re.equals(w.re) & z.im.equals(w.im)


def differs(z: Pair, w: Pair) -> Real:
    return z.re.differs(w.re) | z.im.differs(w.im)


def maximum(z: Pair, w: Pair) -> Pair:
    """The later one in lexicographic order."""
    return _extreme(z, w, "GT")


def minimum(z: Pair, w: Pair) -> Pair:
    """The earlier one in lexicographic order."""
    return _extreme(z, w, "LT")


def _extreme(z: Pair, w: Pair, direction: str) -> Pair:
    first = where(
        z.re.equals(w.re), z.im.compare(direction, w.im), z.re.compare(direction, w.re)
    )
    return Pair(where(first, z.re, w.re), where(first, z.im, w.im))
