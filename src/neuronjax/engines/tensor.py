"""TensorE: contractions tiled along K, folded down the array, added up in PSUM.

A K tile is one pass of the array (`array_fold`); PSUM adds the tile results in K order
in FP32. FP32 operands are four passes of high and low halves, each a fold of its own,
added in the order hi.hi, hi.lo, lo.hi, lo.lo (model "fp32_4pass"; the split is not
documented).
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from neuronjax.engines import dot_verdicts
from neuronjax.engines.array_fold import Matrix, pinned, scanned, scanned_pairs
from neuronjax.engines.dispatch import Arrays, Registers, bits_of, execute, wide
from neuronjax.ir.instruction_set import DotDimensions, NcMatmul
from neuronjax.numerics.exact import own_kernel
from neuronjax.numerics.rounding import round_to_int

# Results of all tiles at once, in elements; beyond it the tiles are a loop. A choice of
# speed alone: the bits do not depend on it.
STACKED_RESULTS = 1 << 23


@execute.register
def nc_matmul(i: NcMatmul, x: Sequence[jax.Array], r: Registers) -> Arrays:
    result = i.results[0].type
    if i.accumulation == "integer":
        return (_plain(x[0], x[1], i.dimensions, result.dtype),)
    integers = result.dtype.kind in "iu"
    lhs, rhs = (a.astype(jnp.float32) if integers else wide(a) for a in x)
    if i.accumulation == "host":
        out = _plain(lhs, rhs, i.dimensions, jnp.float32)
        return (_swapped(out, i) if i.transposed else out,)
    operands = matrices(lhs, rhs, i.dimensions)
    total = lax.reshape(accumulate(*operands, i, r), result.shape)
    return (round_to_int(total, result.dtype) if integers else total,)


def _plain(lhs: jax.Array, rhs: jax.Array, d: DotDimensions, dtype: Any) -> jax.Array:
    numbers = ((d.lhs_contract, d.rhs_contract), (d.lhs_batch, d.rhs_batch))
    return lax.dot_general(lhs, rhs, numbers, preferred_element_type=dtype)


def _swapped(x: jax.Array, i: NcMatmul) -> jax.Array:
    """[batch, lhs free, rhs free] as [batch, rhs free, lhs free]."""
    d = i.dimensions
    batch = len(d.lhs_batch)
    lhs_rank = len(i.operands[0].type.shape)
    middle = batch + lhs_rank - batch - len(d.lhs_contract)
    order = (*range(batch), *range(middle, x.ndim), *range(batch, middle))
    return lax.transpose(x, order)


def matrices(lhs: jax.Array, rhs: jax.Array, d: DotDimensions) -> tuple[Matrix, Matrix]:
    """The operands of any contraction, moved as little as possible."""
    return (
        _matrix(lhs, d.lhs_batch, d.lhs_contract),
        _matrix(rhs, d.rhs_batch, d.rhs_contract),
    )


def _matrix(x: jax.Array, batch: tuple[int, ...], contract: tuple[int, ...]) -> Matrix:
    free = tuple(d for d in range(x.ndim) if d not in batch + contract)
    sizes = [prod(x.shape[d] for d in dims) for dims in (batch, contract, free)]
    # The last axis stays last.
    k_first = not (contract and contract[-1] == x.ndim - 1)
    order = (*batch, *contract, *free) if k_first else (*batch, *free, *contract)
    shape = tuple(sizes) if k_first else (sizes[0], sizes[2], sizes[1])
    return Matrix(lax.reshape(lax.transpose(x, order), shape), k_first)


def accumulate(lhs: Matrix, rhs: Matrix, i: NcMatmul, r: Registers) -> jax.Array:
    """PSUM: the left fold of the tiles' results, of every pass in turn."""
    if i.transposed:
        lhs, rhs = rhs, lhs
    batch, m, k, n = lhs.batch, lhs.free, lhs.k, rhs.free
    if 0 in (batch, m, k, n):
        return jnp.zeros((batch, m, n), jnp.float32)
    count = -(-k // i.k_tile)
    if count == 1:
        return _psum([p[None] for p in _passes(lhs, rhs, i, r)], None, r)
    lhs, rhs = (_tiled(x, count, i.k_tile) for x in (lhs, rhs))
    if count * batch * m * n > STACKED_RESULTS:
        return _looped_tiles(lhs, rhs, count, i, r)
    passes = _passes(lhs, rhs, i, r)
    return _psum([p.reshape(count, batch, m, n) for p in passes], None, r)


def _tiled(x: Matrix, count: int, k_tile: int) -> Matrix:
    """The tiles as the outer part of the batch, [tile * batch, ...].

    Zeros fill the last tile: their products are +0, which adds nothing to a sum that
    starts from +0.
    """
    missing = count * k_tile - x.k
    array = x.array
    if missing:
        pads = [(0, 0), (0, missing), (0, 0)]
        array = jnp.pad(array, pads if x.k_first else [pads[0], pads[2], pads[1]])
    if x.k_first:
        array = lax.reshape(array, (x.batch, count, k_tile, x.free))
        array = lax.transpose(array, (1, 0, 2, 3))
    else:
        array = lax.reshape(array, (x.batch, x.free, count, k_tile))
        array = lax.transpose(array, (2, 0, 1, 3))
    return Matrix(lax.reshape(array, (count * x.batch, *array.shape[2:])), x.k_first)


def _looped_tiles(
    lhs: Matrix, rhs: Matrix, count: int, i: NcMatmul, r: Registers
) -> jax.Array:
    """The same fold with the tiles as a scan, where all results at once are too big."""
    split = lambda x: x.array.reshape(count, -1, *x.array.shape[1:])  # noqa: E731

    def add(total: jax.Array | None, tile: tuple) -> jax.Array:
        a, b = Matrix(tile[0], lhs.k_first), Matrix(tile[1], rhs.k_first)
        return _psum([p[None] for p in _passes(a, b, i, r)], total, r)

    a, b = split(lhs), split(rhs)
    first = add(None, (a[0], b[0]))
    step = lambda total, tile: (add(total, tile), None)  # noqa: E731
    return lax.scan(step, first, (a[1:], b[1:]))[0]


def _psum(passes: list[jax.Array], total: jax.Array | None, r: Registers) -> jax.Array:
    """Adds [tile, batch, M, N] results tile by tile, in each tile pass by pass.

    Plain additions of stored results: nothing to contract, nothing to reassociate.
    """
    few = len(passes) * passes[0].shape[0] + (total is not None) == 1
    add = _add_tiles if few else own_kernel(_add_tiles)
    return add(passes, total, r.zero)


def _add_tiles(
    passes: list[jax.Array], total: jax.Array | None, zero: jax.Array
) -> jax.Array:
    for tile in range(passes[0].shape[0]):
        for part in passes:
            total = part[tile] if total is None else total + part[tile]
    assert total is not None
    # Hosts differ in whether a sum of -0 starts from +0; the compiler must not drop
    # this.
    return total + lax.neg(zero)


def _passes(a: Matrix, b: Matrix, i: NcMatmul, r: Registers) -> list[jax.Array]:
    zero = r.zero
    if i.rows_per_cell == 2:
        # A kernel of its own: XLA would compute the operands again inside the loop.
        return [own_kernel(scanned_pairs)(a, b, zero)]
    if i.passes == 1:
        return [_fold(a, b, zero)]
    hh, hl, lh, ll = _four_passes(a, b, zero)
    # The order is that of the operands as written.
    return [hh, lh, hl, ll] if i.transposed else [hh, hl, lh, ll]


def _four_passes(a: Matrix, b: Matrix, zero: jax.Array) -> list[jax.Array]:
    """All four products of high and low halves by one fold of stacked operands."""
    m, n = a.free, b.free
    stacked = _fold(_stacked_halves(a), _stacked_halves(b), zero)
    high, low = stacked[:, :m], stacked[:, m:]
    return [high[:, :, :n], high[:, :, n:], low[:, :, :n], low[:, :, n:]]


def _stacked_halves(x: Matrix) -> Matrix:
    axis = 2 if x.k_first else 1
    return Matrix(jnp.concatenate(halves(x.array), axis=axis), x.k_first)


def halves(x: jax.Array) -> tuple[jax.Array, jax.Array]:
    """hi = the upper 12 significant bits, lo = x - hi (exact); lo of Inf, NaN is 0."""
    bits = bits_of(x)
    high = lax.bitcast_convert_type(bits & jnp.uint32(0xFFFFF000), jnp.float32)
    finite = (bits & jnp.uint32(0x7F800000)) != jnp.uint32(0x7F800000)
    # A NaN's payload may sit in the low bits alone: keep it whole in hi.
    high = jnp.where(finite, high, x)
    return high, jnp.where(finite, x - high, jnp.float32(0))


def _fold(a: Matrix, b: Matrix, zero: jax.Array) -> jax.Array:
    """One pass of the array: fast where that was verified, else the scan."""
    if dot_verdicts.is_left_fold(a, b):
        return pinned(a, b)
    return scanned(a, b, zero)
