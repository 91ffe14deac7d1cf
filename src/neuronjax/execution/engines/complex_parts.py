"""FP32 arithmetic on real and complex arrays as tuples of parts: (re,) or (re, im).

One set of functions serves both, so that an algorithm is written once. Products are
sealed and quotients correctly rounded, so no rewrite of XLA changes a bit
(`numerics.exact`).
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
    """The function of every part, for what moves or scales numbers."""
    return tuple([function(x) for x in parts])


def product(a: Parts, b: Parts, zero: jax.Array) -> Parts:
    """(ar br - ai bi, ar bi + ai br), five roundings; shapes broadcast."""
    if len(a) == 1:
        return (sealed_product(a[0], b[0], zero),)
    (ar, ai), (br, bi) = a, b
    return (
        sealed_product(ar, br, zero) - sealed_product(ai, bi, zero),
        sealed_product(ar, bi, zero) + sealed_product(ai, br, zero),
    )


def difference(a: Parts, b: Parts) -> Parts:
    """a - b, each part rounded once."""
    return tuple(x - y for x, y in zip(a, b, strict=True))


def conjugate(a: Parts) -> Parts:
    """a with the sign of the imaginary part changed."""
    return (a[0], *(-x for x in a[1:]))


def ratio(a: Parts, b: Parts, zero: jax.Array) -> Parts:
    """a / b of equal shapes; of complex numbers by Smith's method.

    With |br| >= |bi|: r = bi / br, d = br + bi r, ((ar + ai r) / d, (ai - ar r) / d);
    else the same with real and imaginary parts exchanged.
    """
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
    """The one rounding of each part; stochastic rounding draws for each anew."""
    keys = [r.key, *(fold(r.key, jnp.uint32(n)) for n in range(1, len(parts)))]
    return tuple(
        write(x, i, r._replace(key=key)) for x, key in zip(parts, keys, strict=True)
    )
