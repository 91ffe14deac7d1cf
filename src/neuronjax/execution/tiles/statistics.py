"""Mean and variance in two steps; the eight largest values, and finding values again.

Sums are left folds from the first element and divisions are correctly rounded. This is
modelled: the reference gives the quantities, not the order of the computation.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from neuronjax.execution.tiles import alu
from neuronjax.execution.tiles.accumulators import flat, reduced
from neuronjax.execution.tiles.registry import (
    Operands,
    Results,
    Signature,
    TileContext,
    executes,
)
from neuronjax.execution.tiles.rounding import wide
from neuronjax.numerics.elementary_core import flush
from neuronjax.numerics.exact import opaque, seal, sealed_product


@executes("bn_stats")
def bn_stats(i: Signature, x: Operands, c: TileContext) -> Results:
    """Return (count, mean, variance * count) of the even, then the odd elements."""
    values = wide(flat(x[0]), c.zero)
    halves = values[:, ::2], values[:, 1::2]
    return (jnp.concatenate([_moments(h, c.zero) for h in halves], axis=1),)


def _moments(values: jax.Array, zero: jax.Array) -> jax.Array:
    partitions, count = values.shape
    if count == 0:
        return jnp.zeros((partitions, 3), jnp.float32)
    number = jnp.full((partitions,), count, jnp.float32)
    mean = _quotient(reduced("add", values, zero), number, zero)
    spread = seal(values - mean[:, None], zero)
    square = reduced("add", sealed_product(spread, spread, zero), zero)
    return jnp.stack([number, mean, square], axis=1)


@executes("bn_aggr")
def bn_aggr(i: Signature, x: Operands, c: TileContext) -> Results:
    """Return mean and variance of the groups together."""
    values = wide(flat(x[0]), c.zero)
    groups = values.reshape(values.shape[0], -1, 3)
    count, mean, square = (groups[..., n] for n in range(3))
    total = reduced("add", count, c.zero)
    weighted = reduced("add", sealed_product(count, mean, c.zero), c.zero)
    grand = _quotient(weighted, total, c.zero)
    off = seal(mean - grand[:, None], c.zero)
    between = sealed_product(count, sealed_product(off, off, c.zero), c.zero)
    spread = reduced("add", seal(square + between, c.zero), c.zero)
    return (jnp.stack([grand, _quotient(spread, total, c.zero)], axis=1),)


def _quotient(a: jax.Array, b: jax.Array, zero: jax.Array) -> jax.Array:
    return alu.arithmetic("divide", a, opaque(b, zero), zero)


# A NumPy number: a JAX array made while this module is imported may be a tracer.
NOT_FOUND = np.uint32(0xFFFF_FFFF)


@executes("max8")
def max8(i: Signature, x: Operands, c: TileContext) -> Results:
    """Return the eight largest values in descending order."""
    return (lax.top_k(flush(wide(flat(x[0]), c.zero)), 8)[0],)


@executes("nc_find_index8")
def nc_find_index8(i: Signature, x: Operands, c: TileContext) -> Results:
    """Return where each value is found, the n-th of equal values at the n-th match."""
    data, values = (flush(wide(flat(v), c.zero)) for v in x)
    return (_indices(_matches(data, values, later=False)),)


@executes("nc_match_replace8")
def nc_match_replace8(i: Signature, x: Operands, c: TileContext) -> Results:
    """Replace the elements that equal a value. Of several equal values, the last takes
    the first equal element, the value before it the second, and so on."""
    data, values = (flush(wide(flat(v), c.zero)) for v in x[:2])
    matches = _matches(data, values, later=True)
    replaced = jnp.where(matches.any(axis=1), x[2], data)
    return (replaced, _indices(matches))[: len(i.outputs)]


def _matches(data: jax.Array, values: jax.Array, *, later: bool) -> jax.Array:
    """Return [P, 8, N] with at most one True per value, where it is found. The n-th of
    several equal values matches the n-th equal element. Equal values are counted from
    the first, or from the last if `later`."""
    equal = data[:, None, :] == values[:, :, None]
    same = values[:, :, None] == values[:, None, :]
    other = jnp.arange(8)
    before = other[None, :] > other[:, None] if later else other[None] < other[:, None]
    rank = (same & before[None]).sum(axis=2, dtype=jnp.int32)
    occurrence = jnp.cumsum(equal.astype(jnp.int32), axis=2)
    return equal & (occurrence == rank[:, :, None] + 1)


def _indices(matches: jax.Array) -> jax.Array:
    index = jnp.argmax(matches, axis=2).astype(jnp.uint32)
    return jnp.where(matches.any(axis=2), index, NOT_FOUND)
