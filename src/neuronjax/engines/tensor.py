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

# More tiles than this are a loop: compile time against a few per cent of run time.
UNROLLED_TILES = 16


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
    """PSUM: the left fold of the tiles' results."""
    k = lhs.shape[2]
    if k == 0 or 0 in lhs.shape or 0 in rhs.shape:
        return jnp.zeros((lhs.shape[0], lhs.shape[1], rhs.shape[2]), jnp.float32)
    full = k // i.k_tile
    total: jax.Array | None = None
    if full > UNROLLED_TILES:
        total = _looped_tiles(lhs, rhs, i, r, full)
        starts = range(full * i.k_tile, k, i.k_tile)
    else:
        starts = range(0, k, i.k_tile)
    for start in starts:
        stop = min(start + i.k_tile, k)
        a = lax.slice_in_dim(lhs, start, stop, axis=2)
        b = lax.slice_in_dim(rhs, start, stop, axis=1)
        total = _add_tile(total, a, b, i, r)
    assert total is not None
    return total


def _looped_tiles(
    lhs: jax.Array, rhs: jax.Array, i: NcMatmul, r: Registers, count: int
) -> jax.Array:
    """The same fold with the tiles as a scan; the first starts it."""
    rows = count * i.k_tile
    a = lax.slice_in_dim(lhs, 0, rows, axis=2)
    b = lax.slice_in_dim(rhs, 0, rows, axis=1)
    a = jnp.moveaxis(a.reshape(*a.shape[:2], count, i.k_tile), 2, 0)
    b = jnp.moveaxis(b.reshape(b.shape[0], count, i.k_tile, b.shape[2]), 1, 0)
    first = _add_tile(None, a[0], b[0], i, r)
    step = lambda total, tile: (_add_tile(total, *tile, i, r), None)  # noqa: E731
    return lax.scan(step, first, (a[1:], b[1:]))[0]


def _add_tile(
    total: jax.Array | None, a: jax.Array, b: jax.Array, i: NcMatmul, r: Registers
) -> jax.Array:
    """PSUM's read-add-write of each pass over one tile."""
    for part in _passes(a, b, i, r):
        part = seal(part, r.zeros.write)
        total = part if total is None else seal(total + part, r.zeros.inner)
    assert total is not None
    return total


def _passes(
    a: jax.Array, b: jax.Array, i: NcMatmul, r: Registers
) -> list[jax.Array]:
    if i.rows_per_cell == 2 and a.shape[2] > 128:
        return [scanned_pairs(*_paired(a, b), r.zeros.inner)]
    if i.passes == 1:
        return [_fold(a, b)]
    return _four_passes(a, b)


def _paired(a: jax.Array, b: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Pads a ragged double-row tile to 256 rows: a missing partner adds +0."""
    missing = 256 - a.shape[2]
    if missing == 0:
        return a, b
    return (
        jnp.pad(a, ((0, 0), (0, 0), (0, missing))),
        jnp.pad(b, ((0, 0), (0, missing), (0, 0))),
    )


def _four_passes(a: jax.Array, b: jax.Array) -> list[jax.Array]:
    """All four products of high and low halves by one fold of stacked operands."""
    m, n = a.shape[1], b.shape[2]
    stacked = _fold(
        jnp.concatenate(halves(a), axis=1), jnp.concatenate(halves(b), axis=2)
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


def _fold(a: jax.Array, b: jax.Array) -> jax.Array:
    """One pass of the array: fast where that was verified, else the scan."""
    if dot_verdicts.is_left_fold(a.shape, b.shape):
        return pinned(a, b)
    return scanned(a, b)
