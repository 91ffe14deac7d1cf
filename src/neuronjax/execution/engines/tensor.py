"""TensorE: contractions tiled along K, folded down the array, added up in PSUM.

A K tile is one pass of the array (`array_fold`); PSUM adds the tile results in K order
in FP32. FP32 operands are four passes of high and low halves, each a fold of its own,
added in the order hi.hi, hi.lo, lo.hi, lo.lo (model "fp32_4pass"; the split is not
documented). In "fp32_4pass_rows32" each of these folds is one for every 32 rows, added
up in order.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from math import prod
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from neuronjax.execution.engines import dot_verdicts, host_fold
from neuronjax.execution.engines.array_fold import Matrix, pinned, scanned
from neuronjax.execution.engines.cell_fold import fold_cells, fold_rows
from neuronjax.execution.engines.cells import paired, quads
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

# Choices of speed alone: the bits do not depend on them. Results of all tiles at once,
# in elements: those that stay in a cache until PSUM has added them up, so that larger
# ones are computed by blocks of rows; and those that memory holds, beyond which the
# tiles are a loop.
CACHED_RESULTS = 1 << 21
STACKED_RESULTS = 1 << 23
FEWEST_ROWS = 32
# Products from which on the faster of two loops is worth its longer compilation.
LARGE_FOLD = 1 << 25


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
    if i.rows_per_cell == 2:
        total = accumulate_cells(*operands, i.k_tile, 2, psum, in_range=True)
    else:
        total = accumulate(*operands, i.k_tile, psum, i.passes, i.group_rows)
    total = lax.reshape(total, result.shape)
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
    [out] = one_pass(x, Matrix(identity, True), zero)
    return settled(out, zero)


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


# A K tile of both operands -> the results of its passes, [batch, M, N] each.
Fold = Callable[[Matrix, Matrix], list[jax.Array]]


def accumulate(
    lhs: Matrix,
    rhs: Matrix,
    k_tile: int,
    psum: Psum,
    passes: int = 1,
    group_rows: int | None = None,
) -> jax.Array:
    """[batch, M, N]: PSUM adds up the tiles' results, of every pass in turn."""
    if by_kernel(psum):
        return host_fold.contract(
            lhs, rhs, k_tile, passes=passes, group_rows=group_rows, settles=True
        )
    fold = functools.partial(one_pass, zero=psum.zero)
    if passes == 4:
        fold = functools.partial(four_passes, zero=psum.zero, group_rows=group_rows)
    return _tile_by_tile(lhs, rhs, k_tile, fold, psum, passes)


def _tile_by_tile(
    lhs: Matrix, rhs: Matrix, k_tile: int, fold: Fold, psum: Psum, passes: int = 1
) -> jax.Array:
    batch, m, k, n = lhs.batch, lhs.free, lhs.k, rhs.free
    if 0 in (batch, m, k, n):
        return jnp.zeros((batch, m, n), jnp.float32)
    count = -(-k // k_tile)
    if count == 1:
        return psum.add([p[None] for p in fold(lhs, rhs)])
    tiled = functools.partial(_tiled, count=count, k_tile=k_tile)
    width = count * batch * n * passes
    rows = max(CACHED_RESULTS // width, 1)
    if FEWEST_ROWS <= rows < m and not psum.is_stochastic:
        block = lambda x: _all_tiles(tiled(x), right, count, fold, psum)  # noqa: E731
        right = tiled(rhs)
        return _by_rows(lhs, rows, block, (batch, m, n))
    lhs, rhs = tiled(lhs), tiled(rhs)
    if width * m > STACKED_RESULTS:
        return _looped_tiles(lhs, rhs, count, fold, psum)
    return _all_tiles(lhs, rhs, count, fold, psum)


def _all_tiles(
    lhs: Matrix, rhs: Matrix, count: int, fold: Fold, psum: Psum
) -> jax.Array:
    split = lambda p: p.reshape(count, -1, *p.shape[1:])  # noqa: E731
    return psum.add([split(p) for p in fold(lhs, rhs)])


def _by_rows(
    lhs: Matrix,
    most_rows: int,
    block: Callable[[Matrix], jax.Array],
    shape: tuple[int, int, int],
) -> jax.Array:
    """Equal blocks of rows of the left operand, one after another.

    The last one may overlap the one before, whose rows it computes again.
    """
    m, axis = lhs.free, 2 if lhs.k_first else 1
    blocks = -(-m // most_rows)
    rows = min(-(-m // (8 * blocks)) * 8, m)

    def store(i: jax.Array, result: jax.Array) -> jax.Array:
        start = jnp.minimum(i * rows, m - rows)
        part = lax.dynamic_slice_in_dim(lhs.array, start, rows, axis)
        out = block(Matrix(part, lhs.k_first))
        return lax.dynamic_update_slice_in_dim(result, out, start, 1)

    return lax.fori_loop(0, blocks, store, jnp.zeros(shape, jnp.float32))


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
    lhs: Matrix, rhs: Matrix, count: int, fold: Fold, psum: Psum
) -> jax.Array:
    """The same fold with the tiles as a scan, where all results at once are too big."""
    split = lambda x: x.array.reshape(count, -1, *x.array.shape[1:])  # noqa: E731

    def add(total: jax.Array | None, tile: tuple, index: Any) -> jax.Array:
        a, b = Matrix(tile[0], lhs.k_first), Matrix(tile[1], rhs.k_first)
        return psum.add([p[None] for p in fold(a, b)], total, index)

    a, b = split(lhs), split(rhs)
    first = add(None, (a[0], b[0]), 0)
    step = lambda total, tile: (add(total, tile[:2], tile[2]), None)  # noqa: E731
    return lax.scan(step, first, (a[1:], b[1:], jnp.arange(1, count)))[0]


def four_passes(
    a: Matrix, b: Matrix, zero: jax.Array, group_rows: int | None = None
) -> list[jax.Array]:
    """hi.hi, hi.lo, lo.hi and lo.lo, by one fold of stacked operands."""
    m, n = a.free, b.free
    operands = _stacked_halves(a), _stacked_halves(b)
    [stacked] = _in_groups(*operands, zero, group_rows)
    high, low = stacked[:, :m], stacked[:, m:]
    return [high[:, :, :n], high[:, :, n:], low[:, :, :n], low[:, :, n:]]


def _in_groups(
    a: Matrix, b: Matrix, zero: jax.Array, rows: int | None
) -> list[jax.Array]:
    """One pass whose sums are of so many rows each, added up in order."""
    count = -(-a.k // rows) if rows else 1
    if rows is None or count == 1:
        return one_pass(a, b, zero)
    [sums] = one_pass(_tiled(a, count, rows), _tiled(b, count, rows), zero)
    split = sums.reshape(count, a.batch, *sums.shape[1:])
    return [Psum(zero, zero, "rne", None).add([split])]


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


def one_pass(a: Matrix, b: Matrix, zero: jax.Array) -> list[jax.Array]:
    """One pass of the array: a kernel of the host's, or XLA's dot where that was
    verified, else our own loop."""
    if host_fold.usable(a.k):
        return [host_fold.contract(a, b, a.k)]
    if dot_verdicts.is_left_fold(a, b):
        return [pinned(a, b)]
    is_large = a.batch * a.free * a.k * b.free >= LARGE_FOLD
    return [(fold_rows if is_large else scanned)(a, b, zero)]


def accumulate_cells(
    lhs: Matrix,
    rhs: Matrix,
    k_tile: int,
    rows_per_cell: int,
    psum: Psum,
    *,
    in_range: bool,
) -> jax.Array:
    """As `accumulate`, for cells of 2 or 4 rows; `in_range` as in `fold_cells`."""
    if by_kernel(psum):
        return host_fold.contract(
            lhs,
            rhs,
            k_tile,
            rows_per_cell=rows_per_cell,
            in_range=in_range,
            settles=True,
        )
    arrange = {2: paired, 4: quads}[rows_per_cell]
    fold = functools.partial(fold_cells, zero=psum.zero, in_range=in_range)
    if psum.format is not None or 0 in (lhs.batch, lhs.free, lhs.k, rhs.free):
        one_tile = lambda a, b: [fold(arrange(a), arrange(b))]  # noqa: E731
        return _tile_by_tile(lhs, rhs, k_tile, one_tile, psum)
    count = -(-lhs.k // k_tile)
    # Tiles in FP32 are added up by the loop that folds them.
    lhs, rhs = (_tiled(x, count, k_tile) for x in (lhs, rhs))
    return settled(fold(arrange(lhs), arrange(rhs), tiles=count), psum.zero)
