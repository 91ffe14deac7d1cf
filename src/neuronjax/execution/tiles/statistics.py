"""`bn_stats`, `bn_aggr`: mean and variance in two steps, in FP32.

Sums are left folds from the first element, divisions correctly rounded; the reference
gives the quantities, not the order in which they are computed (modelled).
"""

from __future__ import annotations

import jax
import jax.numpy as jnp

from neuronjax.execution.tiles.accumulators import flat, reduced
from neuronjax.execution.tiles.registry import (
    Operands,
    Results,
    Signature,
    TileContext,
    executes,
)
from neuronjax.execution.tiles.rounding import wide
from neuronjax.numerics import elementary
from neuronjax.numerics.exact import opaque, seal


@executes("bn_stats")
def bn_stats(i: Signature, x: Operands, c: TileContext) -> Results:
    """(count, mean, variance * count) of the even elements, then of the odd ones."""
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
    square = reduced("add", seal(spread * spread, zero), zero)
    return jnp.stack([number, mean, square], axis=1)


@executes("bn_aggr")
def bn_aggr(i: Signature, x: Operands, c: TileContext) -> Results:
    """mean and variance of the groups together."""
    values = wide(flat(x[0]), c.zero)
    groups = values.reshape(values.shape[0], -1, 3)
    count, mean, square = (groups[..., n] for n in range(3))
    total = reduced("add", count, c.zero)
    weighted = reduced("add", seal(count * mean, c.zero), c.zero)
    grand = _quotient(weighted, total, c.zero)
    off = seal(mean - grand[:, None], c.zero)
    between = seal(count * seal(off * off, c.zero), c.zero)
    spread = reduced("add", seal(square + between, c.zero), c.zero)
    return (jnp.stack([grand, _quotient(spread, total, c.zero)], axis=1),)


def _quotient(a: jax.Array, b: jax.Array, zero: jax.Array) -> jax.Array:
    return seal(elementary.BINARY["divide"](a, opaque(b, zero), zero), zero)
