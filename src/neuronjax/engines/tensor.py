"""TensorE: contractions tiled along K, folded down the array, added up in PSUM.

A K tile is one pass of the array (`array_fold`); PSUM adds the tile results in K order in
FP32. FP32 operands are four passes of high and low halves, each a fold of its own, added
in the order hi.hi, hi.lo, lo.hi, lo.lo (model "fp32_4pass"; the split is not documented).
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

import jax
import jax.numpy as jnp
from jax import lax

from neuronjax.engines import dot_verdicts
from neuronjax.engines.array_fold import pinned, scanned, scanned_pairs
from neuronjax.engines.dispatch import Arrays, Registers, bits_of, execute, wide
from neuronjax.ir.instruction import DotDimensions, NcMatmul
from neuronjax.numerics.exact import seal

# Results of all tiles at once, in elements; beyond it the tiles are a loop. A choice of
# speed alone: the bits do not depend on it.
STACKED_RESULTS = 1 << 23


@execute.register
def nc_matmul(i: NcMatmul, x: Sequence[jax.Array], r: Registers) -> Arrays:
    result = i.results[0].type
    if i.accumulation == "integer":
        return (_plain(x[0], x[1], i.dimensions, result.dtype),)
    lhs, rhs = wide(x[0]), wide(x[1])
    if i.accumulation == "host":
        return (_plain(lhs, rhs, i.dimensions, jnp.float32),)
    lhs, rhs = canonical(lhs, rhs, i.dimensions)
    total = accumulate(lhs, rhs, i, r)
    return (lax.reshape(total, result.shape),)


def _plain(
    lhs: jax.Array, rhs: jax.Array, d: DotDimensions, dtype: object
) -> jax.Array:
    numbers = ((d.lhs_contract, d.rhs_contract), (d.lhs_batch, d.rhs_batch))
    return lax.dot_general(lhs, rhs, numbers, preferred_element_type=dtype)


def canonical(
    lhs: jax.Array, rhs: jax.Array, d: DotDimensions
) -> tuple[jax.Array, jax.Array]:
    """Any contraction as [batch, M, K] and [batch, K, N]."""
    lhs_free = _others(lhs.ndim, d.lhs_batch + d.lhs_contract)
    rhs_free = _others(rhs.ndim, d.rhs_batch + d.rhs_contract)
    batch = prod(lhs.shape[i] for i in d.lhs_batch)
    k = prod(lhs.shape[i] for i in d.lhs_contract)
    m = prod(lhs.shape[i] for i in lhs_free)
    n = prod(rhs.shape[i] for i in rhs_free)
    lhs = lax.transpose(lhs, (*d.lhs_batch, *lhs_free, *d.lhs_contract))
    rhs = lax.transpose(rhs, (*d.rhs_batch, *d.rhs_contract, *rhs_free))
    return lax.reshape(lhs, (batch, m, k)), lax.reshape(rhs, (batch, k, n))


def _others(rank: int, taken: tuple[int, ...]) -> tuple[int, ...]:
    return tuple(d for d in range(rank) if d not in taken)


def accumulate(
    lhs: jax.Array, rhs: jax.Array, i: NcMatmul, r: Registers
) -> jax.Array:
    """PSUM: the left fold of the tiles' results, of every pass in turn."""
    batch, m, k = lhs.shape
    n = rhs.shape[2]
    if 0 in (batch, m, k, n):
        return jnp.zeros((batch, m, n), jnp.float32)
    count = -(-k // i.k_tile) if k > i.k_tile else 1
    if count == 1:
        parts = [p[None] for p in _passes(lhs, rhs, i, r)]
        return _psum(parts, r)
    lhs, rhs = _tiled(lhs, rhs, count, i.k_tile)
    if count * batch * m * n <= STACKED_RESULTS:
        merged = (count * batch, m, i.k_tile), (count * batch, i.k_tile, n)
        passes = _passes(lhs.reshape(merged[0]), rhs.reshape(merged[1]), i, r)
        return _psum([p.reshape(count, batch, m, n) for p in passes], r)
    return _looped_tiles(lhs, rhs, i, r)


def _tiled(
    lhs: jax.Array, rhs: jax.Array, count: int, k_tile: int
) -> tuple[jax.Array, jax.Array]:
    """[tile, batch, M, k_tile] and [tile, batch, k_tile, N].

    Zeros fill the last tile: their products are +0, which adds nothing to a sum that
    starts from +0.
    """
    batch, m, k = lhs.shape
    n = rhs.shape[2]
    missing = count * k_tile - k
    if missing:
        lhs = jnp.pad(lhs, ((0, 0), (0, 0), (0, missing)))
        rhs = jnp.pad(rhs, ((0, 0), (0, missing), (0, 0)))
    lhs = lax.transpose(lax.reshape(lhs, (batch, m, count, k_tile)), (2, 0, 1, 3))
    rhs = lax.transpose(lax.reshape(rhs, (batch, count, k_tile, n)), (1, 0, 2, 3))
    return lhs, rhs


def _looped_tiles(
    lhs: jax.Array, rhs: jax.Array, i: NcMatmul, r: Registers
) -> jax.Array:
    """The same fold with the tiles as a scan, where all results at once are too big."""

    def add(total: jax.Array | None, a: jax.Array, b: jax.Array) -> jax.Array:
        return _psum([p[None] for p in _passes(a, b, i, r)], r, total)

    first = add(None, lhs[0], rhs[0])
    step = lambda total, tile: (add(total, *tile), None)  # noqa: E731
    return lax.scan(step, first, (lhs[1:], rhs[1:]))[0]


def _psum(
    passes: list[jax.Array], r: Registers, total: jax.Array | None = None
) -> jax.Array:
    """Adds [tile, batch, M, N] results tile by tile, in each tile pass by pass.

    Plain additions of stored results: nothing to contract, nothing to reassociate.
    """
    for tile in range(passes[0].shape[0]):
        for part in passes:
            total = part[tile] if total is None else total + part[tile]
    assert total is not None
    # Hosts differ in whether a sum of -0 starts from +0; the compiler must not drop this.
    positive_zero = lax.bitcast_convert_type(r.zeros.inner, jnp.float32)
    return seal(total + positive_zero, r.zeros.write)


def _passes(
    a: jax.Array, b: jax.Array, i: NcMatmul, r: Registers
) -> list[jax.Array]:
    zero = r.zeros.inner
    if i.rows_per_cell == 2:
        return [scanned_pairs(a, b, zero)]
    if i.passes == 1:
        return [_fold(a, b, zero)]
    return _four_passes(a, b, zero)


def _four_passes(a: jax.Array, b: jax.Array, zero: jax.Array) -> list[jax.Array]:
    """All four products of high and low halves by one fold of stacked operands."""
    m, n = a.shape[1], b.shape[2]
    stacked = _fold(
        jnp.concatenate(halves(a), axis=1),
        jnp.concatenate(halves(b), axis=2),
        zero,
    )
    high, low = stacked[:, :m], stacked[:, m:]
    return [high[:, :, :n], high[:, :, n:], low[:, :, :n], low[:, :, n:]]


def halves(x: jax.Array) -> tuple[jax.Array, jax.Array]:
    """hi = the upper 12 significant bits, lo = x - hi (exact); lo of Inf, NaN is 0."""
    bits = bits_of(x)
    high = lax.bitcast_convert_type(bits & jnp.uint32(0xFFFFF000), jnp.float32)
    finite = (bits & jnp.uint32(0x7F800000)) != jnp.uint32(0x7F800000)
    # A NaN's payload may sit in the low bits alone: keep it whole in hi.
    high = jnp.where(finite, high, x)
    return high, jnp.where(finite, x - high, jnp.float32(0))


def _fold(a: jax.Array, b: jax.Array, zero: jax.Array) -> jax.Array:
    """One pass of the array: fast where that was verified, else the scan."""
    if dot_verdicts.is_left_fold(a.shape, b.shape):
        return pinned(a, b)
    return scanned(a, b, zero)
