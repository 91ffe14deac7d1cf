"""The eight largest values of a partition, and finding values again."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from neuronjax.execution.tiles.accumulators import flat
from neuronjax.execution.tiles.registry import (
    Operands,
    Results,
    Signature,
    TileContext,
    executes,
)
from neuronjax.execution.tiles.rounding import wide
from neuronjax.numerics.elementary_core import flush

# NumPy's: a JAX array made while this module is imported may be a tracer.
NOT_FOUND = np.uint32(0xFFFF_FFFF)


@executes("max8")
def max8(i: Signature, x: Operands, c: TileContext) -> Results:
    """In descending order."""
    return (lax.top_k(flush(wide(flat(x[0]), c.zero)), 8)[0],)


@executes("nc_find_index8")
def nc_find_index8(i: Signature, x: Operands, c: TileContext) -> Results:
    """The first index of each value; equal values take later ones, in order."""
    data, values = (flush(wide(flat(v), c.zero)) for v in x)
    return (_indices(_matches(data, values, later=False)),)


@executes("nc_match_replace8")
def nc_match_replace8(i: Signature, x: Operands, c: TileContext) -> Results:
    """Matches replaced; of equal values the last takes the first match."""
    data, values = (flush(wide(flat(v), c.zero)) for v in x[:2])
    matches = _matches(data, values, later=True)
    replaced = jnp.where(matches.any(axis=1), x[2], data)
    return (replaced, _indices(matches))[: len(i.outputs)]


def _matches(data: jax.Array, values: jax.Array, *, later: bool) -> jax.Array:
    """[P, 8, N]: at most one True per value, where it is found.

    The n-th of several equal values meets the n-th element that is equal; they are
    counted from the first value, or from the last if `later`.
    """
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
