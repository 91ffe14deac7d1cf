"""TensorE: contractions tiled along K, folded down the array, added up in PSUM.

A K tile is one pass of the array (`array_fold`); PSUM adds the tile results in K order
in FP32. FP32 operands are four passes of high and low halves, each a fold of its own,
added in the order hi.hi, hi.lo, lo.hi, lo.lo (model "fp32_4pass"; the split is not
documented). In "fp32_4pass_rows32" each of these folds is one for every 32 rows, added
up in order.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from neuronjax.execution.engines import host_fold
from neuronjax.execution.engines.array_fold import FoldOrder, Matrix, folded
from neuronjax.execution.engines.dispatch import (
    Arrays,
    Registers,
    bits_of,
    execute,
    wide,
    wide_or_nan,
)
from neuronjax.execution.engines.psum import Psum, as_psum, settled
from neuronjax.ir.instruction_set import DotDimensions, NcMatmul, NcTranspose
from neuronjax.numerics.float_format import get_format
from neuronjax.numerics.rounding import cast, round_to_int


@execute.register
def nc_matmul(i: NcMatmul, x: Sequence[jax.Array], r: Registers) -> Arrays:
    result = i.results[0].type
    if i.accumulation == "integer":
        # Sums that wrap around are those of operands that did.
        lhs, rhs = (a.astype(result.dtype) for a in x)
        return (_plain(lhs, rhs, i.dimensions, result.dtype),)
    integers = result.dtype.kind in "iu"
    psum = Psum.of(i, r)
    lhs, rhs = x
    if integers:
        lhs, rhs = (a.astype(jnp.float32) for a in x)
    elif i.accumulation == "host":
        lhs, rhs = map(wide, x)
    elif not by_kernel(psum):
        # A sum that leaves PSUM has one NaN, whatever those of the operands were.
        lhs, rhs = map(wide_or_nan, x)
    if i.accumulation == "host":
        return (as_psum(host_dot(lhs, rhs, i.dimensions), i),)
    operands = matrices(lhs, rhs, i.dimensions)
    total = lax.reshape(accumulate(*operands, FoldOrder.of(i), psum), result.shape)
    return (round_to_int(total, result.dtype) if integers else as_psum(total, i),)


@execute.register
def nc_transpose(i: NcTranspose, x: Sequence[jax.Array], r: Registers) -> Arrays:
    [source] = x
    if not i.exact:
        return (_by_identity(i, wide(source), r),)
    if source.dtype.itemsize == 1:
        source = bits_of(source).astype(jnp.uint16)
    return (jnp.swapaxes(source, -1, -2),)


def _by_identity(i: NcTranspose, source: jax.Array, r: Registers) -> jax.Array:
    """Each element times one, plus all others of its row of the result times zero."""
    flat = source.reshape(-1, *source.shape[-2:])
    result = i.results[0].type
    out = through_identity(Matrix(flat, True), r.zero).reshape(result.shape)
    return out if result.dtype == jnp.float32 else cast(out, get_format(result.dtype))


def through_identity(x: Matrix, zero: jax.Array) -> jax.Array:
    """The transposes of K-first matrices, [batch, free, K], as a product."""
    identity = jnp.broadcast_to(jnp.eye(x.k, dtype=jnp.float32), (x.batch, x.k, x.k))
    return settled(one_pass(x, Matrix(identity, True), FoldOrder(x.k), zero), zero)


def _plain(lhs: jax.Array, rhs: jax.Array, d: DotDimensions, dtype: Any) -> jax.Array:
    numbers = ((d.lhs_contract, d.rhs_contract), (d.lhs_batch, d.rhs_batch))
    return lax.dot_general(lhs, rhs, numbers, preferred_element_type=dtype)


def host_dot(lhs: jax.Array, rhs: jax.Array, d: DotDimensions) -> jax.Array:
    """The sums in whatever order XLA likes."""
    return _plain(lhs, rhs, d, jnp.float32)


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


def by_kernel(psum: Psum) -> bool:
    """Whether a kernel of the host's adds up all tiles, from operands as stored."""
    return psum.format is None and host_fold.usable()


def accumulate(lhs: Matrix, rhs: Matrix, order: FoldOrder, psum: Psum) -> jax.Array:
    """Return [batch, M, N]: PSUM adds up the tiles' results, of every pass in turn."""
    if by_kernel(psum):
        return host_fold.contract(lhs, rhs, order, settles=True)
    shape = (lhs.batch, lhs.free, rhs.free)
    if 0 in (*shape, lhs.k):
        return jnp.zeros(shape, jnp.float32)
    per_cell = order.rows_per_cell
    filled = order.k_tile if order.apart else -(-lhs.k // per_cell) * per_cell
    k_tile = min(order.k_tile, filled)
    count = -(-lhs.k // k_tile)
    a, b = (_tiled(x, count, k_tile) for x in (lhs, rhs))

    def add(total: jax.Array | None, tile: tuple) -> tuple[jax.Array, None]:
        left, right = Matrix(tile[0], lhs.k_first), Matrix(tile[1], rhs.k_first)
        results = array_passes(left, right, order, psum.zero)
        return psum.add(results, total, tile[2]), None

    if count == 1:
        return add(None, (a[0], b[0], 0))[0]
    # Added to +0, the first result is what it is, but for the sign of a zero.
    tiles = (a, b, jnp.arange(count))
    return lax.scan(add, jnp.zeros(shape, jnp.float32), tiles)[0]


def _tiled(x: Matrix, count: int, k_tile: int) -> jax.Array:
    """The arrays of the tiles, one after another.

    Zeros fill the last tile: their products are +0, which adds nothing to a sum that
    starts from +0.
    """
    pad = (0, count * k_tile - x.k)
    if x.k_first:
        array = jnp.pad(x.array, [(0, 0), pad, (0, 0)])
        array = lax.reshape(array, (x.batch, count, k_tile, x.free))
        return lax.transpose(array, (1, 0, 2, 3))
    array = jnp.pad(x.array, [(0, 0), (0, 0), pad])
    array = lax.reshape(array, (x.batch, x.free, count, k_tile))
    return lax.transpose(array, (2, 0, 1, 3))


def array_passes(
    a: Matrix, b: Matrix, order: FoldOrder, zero: jax.Array
) -> list[jax.Array]:
    """Return the results of the array's passes over a K tile, [batch, M, N] each."""
    if order.passes == 1:
        return [one_pass(a, b, order, zero)]
    return four_passes(a, b, zero, order.group_rows)


def four_passes(
    a: Matrix, b: Matrix, zero: jax.Array, group_rows: int | None = None
) -> list[jax.Array]:
    """Return hi.hi, hi.lo, lo.hi and lo.lo, by one fold of stacked operands.

    The sums of groups of rows are added in order, as PSUM adds those of tiles.
    """
    m, n = a.free, b.free
    operands = _stacked_halves(a), _stacked_halves(b)
    groups = FoldOrder(group_rows or a.k)
    stacked = accumulate(*operands, groups, Psum(zero, zero, "rne", None))
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


def one_pass(a: Matrix, b: Matrix, order: FoldOrder, zero: jax.Array) -> jax.Array:
    """Return the array's sums over all of K, by a kernel where the host has one."""
    if host_fold.usable(a.k):
        return host_fold.contract(a, b, order.of_one_pass(a.k))
    return folded(a, b, order, zero)
