"""FP32 arithmetic on real and complex arrays, as tuples of parts: (re,) or (re, im).

One set of functions handles both, so an algorithm is written once. Products are sealed
and quotients are correctly rounded, so XLA's rewrites change no bit (`numerics.exact`).
"""

from __future__ import annotations

from collections.abc import Callable

import jax
import jax.numpy as jnp

from neuronjax.execution.engines.dispatch import Arrays, Registers, write
from neuronjax.ir.instruction import Instruction
from neuronjax.numerics.elementary_core import magnitude, quotient
from neuronjax.numerics.exact import seal, sealed_product
from neuronjax.numerics.random_bits import fold

Parts = tuple[jax.Array, ...]


def each(function: Callable[[jax.Array], jax.Array], parts: Parts) -> Parts:
    """Return the results of a function for each part."""
    return tuple([function(x) for x in parts])


def product(a: Parts, b: Parts, zero: jax.Array) -> Parts:
    """Return (ar br - ai bi, ar bi + ai br) with six roundings; shapes broadcast."""
    if len(a) == 1:
        return (sealed_product(a[0], b[0], zero),)
    (ar, ai), (br, bi) = a, b
    return (
        sealed_product(ar, br, zero) - sealed_product(ai, bi, zero),
        sealed_product(ar, bi, zero) + sealed_product(ai, br, zero),
    )


def difference(a: Parts, b: Parts) -> Parts:
    """Return a - b, with one rounding per part."""
    return tuple(x - y for x, y in zip(a, b, strict=True))


def conjugate(a: Parts) -> Parts:
    """Return `a` with the sign of the imaginary part changed."""
    return (a[0], *(-x for x in a[1:]))


def ratio(a: Parts, b: Parts, zero: jax.Array) -> Parts:
    """Return a / b of equal shapes; complex numbers are divided by Smith's method. With
    |br| >= |bi|: r = bi / br, d = br + bi r, ((ar + ai r) / d, (ai - ar r) / d).
    Otherwise real and imaginary parts are exchanged first."""
    if len(a) == 1:
        return (quotient(a[0], b[0], zero),)
    (ar, ai), (br, bi) = a, b
    exchange = magnitude(br) < magnitude(bi)
    p, q = jnp.where(exchange, ai, ar), jnp.where(exchange, ar, ai)
    large, small = jnp.where(exchange, bi, br), jnp.where(exchange, br, bi)
    r = seal(quotient(small, large, zero), zero)
    d = large + sealed_product(small, r, zero)
    re = quotient(p + sealed_product(q, r, zero), d, zero)
    im = quotient(q - sealed_product(p, r, zero), d, zero)
    return (re, jnp.where(exchange, -im, im))


def write_parts(parts: Parts, i: Instruction, r: Registers) -> Arrays:
    """Round each part once to the result type; parts have different rounding keys."""
    keys = [r.key, *(fold(r.key, jnp.uint32(n)) for n in range(1, len(parts)))]
    return tuple(
        write(x, i, r._replace(key=key)) for x, key in zip(parts, keys, strict=True)
    )
