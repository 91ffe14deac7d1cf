"""Sums in a stated order: the left folds that reductions and windows are made of.

VectorE reduces tiles of 512 elements, each a left fold from its own first element; the
result is the left fold of (init, tile 0, tile 1, ...) (design, section 5). A tile of
None is all there are, so that a sum of any length is one left fold. XLA's own
reduce is a left fold almost nowhere, so the fold is a `lax.scan` over the reduced axis,
moved to the front: each step adds one row to a row of running sums.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from math import prod

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from neuronjax.execution.engines import dot_verdicts, host_fold
from neuronjax.execution.engines.array_fold import Matrix, pinned
from neuronjax.ir.vector_sums import VECTOR_TILE
from neuronjax.numerics.exact import opaque, seal

Combine = Callable[[jax.Array, jax.Array], jax.Array]

# The identity also in sign: x + -0 is x for every x.
IDENTITIES = {"add": np.float32(-0.0), "multiply": np.float32(1.0)}


def combiner(op: str, zero: jax.Array) -> Combine:
    """The sealed float32 combination of two partial results."""
    function = {"add": lax.add, "multiply": lax.mul}[op]
    return lambda a, b: seal(function(a, b), zero)


def reduced_axis_first(x: jax.Array, axes: Sequence[int]) -> jax.Array:
    """[K, rest]: the reduced axes, row-major, as one axis in front."""
    axes = sorted(axes)
    kept = [d for d in range(x.ndim) if d not in axes]
    k = prod(x.shape[d] for d in axes)
    rest = prod(x.shape[d] for d in kept)
    return lax.reshape(lax.transpose(x, (*axes, *kept)), (k, rest))


def left_fold(
    x: jax.Array, combine: Combine, start: jax.Array | None = None
) -> jax.Array:
    """((start + x[0]) + x[1]) + ..., over the first axis; from x[0] without a start."""
    row = functools.partial(lax.index_in_dim, x, keepdims=False)
    if x.shape[0] <= 4:
        rows = map(row, range(x.shape[0]))
        return functools.reduce(combine, rows, next(rows) if start is None else start)
    if start is None:
        start, x = row(0), lax.slice_in_dim(x, 1, x.shape[0])
    return lax.scan(lambda c, row: (combine(c, row), None), start, x)[0]


# Shorter folds than this are not worth a matmul kernel.
SHORTEST_DOT = 16


def sum_rows(x: Matrix, zero: jax.Array) -> jax.Array | None:
    """The left fold of each sum over K, [batch, free], by a dot with ones.

    A product with one is exact, so this is the array's fold (`array_fold`). None where
    the dot was not verified to be that fold.
    """
    # Nothing to gain from a loop of XLA's, nor to fear from its knowing the ones.
    if host_fold.usable(x.k):
        ones = Matrix(jnp.ones((x.batch, 1, x.k), jnp.float32), k_first=False)
        return host_fold.contract(ones, x, x.k)[:, 0]
    if x.k < SHORTEST_DOT:
        return None
    # Opaque, for `x` may be a constant: XLA would evaluate the dot in its own order.
    array = jnp.broadcast_to(opaque(jnp.ones((), jnp.float32), zero), (x.batch, 1, x.k))
    ones = Matrix(array, k_first=False)
    if not dot_verdicts.is_left_fold(ones, x):
        return None
    return pinned(ones, x)[:, 0]


def fold_axes(
    x: jax.Array,
    axes: Sequence[int],
    init: jax.Array,
    op: str,
    zero: jax.Array,
    tile: int | None = VECTOR_TILE,
) -> jax.Array:
    """Reduces float32 `x` over `axes` from `init` (a scalar); the result is [rest].

    `x` and `init` may be constants: neither meets an addition that XLA could fold.
    """
    init = opaque(init, zero)
    k = prod(x.shape[d] for d in axes)
    tile = tile or max(k, 1)
    last = sorted(axes) == list(range(x.ndim - len(axes), x.ndim))
    if op == "add" and last and k:
        total = _sum_of_last_axis(lax.reshape(x, (x.size // k, k)), init, zero, tile)
        if total is not None:
            return total
    return tiled_fold(reduced_axis_first(x, axes), init, op, zero, tile)


def _sum_of_last_axis(
    x: jax.Array, init: jax.Array, zero: jax.Array, tile: int
) -> jax.Array | None:
    """[rest, K] without moving K to the front, which costs more than the sum."""
    rest, k = x.shape
    tiles = -(-k // tile)
    if tiles > 1 and k % tile:
        x = lax.pad(x, IDENTITIES["add"], [(0, 0, 0), (0, tiles * tile - k, 0)])
    rows = lax.reshape(x, (1, rest * tiles, k if tiles == 1 else tile))
    sums = sum_rows(Matrix(rows, k_first=False), zero)
    if sums is None:
        return None
    sums = lax.transpose(lax.reshape(sums, (rest, tiles)), (1, 0))
    return left_fold(sums, combiner("add", zero), lax.broadcast(init, (rest,)))


def tiled_fold(
    x: jax.Array, init: jax.Array, op: str, zero: jax.Array, tile: int
) -> jax.Array:
    """Reduces float32 [K, rest] over K, starting from `init` (a scalar)."""
    combine = combiner(op, zero)
    k, rest = x.shape
    start = lax.broadcast(init, (rest,))
    if k == 0:
        return start
    tiles = -(-k // tile)
    if tiles > 1:
        x = _padded(x, tiles * tile, IDENTITIES[op])
    x = lax.reshape(x, (tiles, x.shape[0] // tiles, rest))
    sums = sum_rows(Matrix(x, k_first=True), zero) if op == "add" else None
    if sums is None:
        sums = left_fold(opaque(lax.transpose(x, (1, 0, 2)), zero), combine)
    return left_fold(sums, combine, start)


def _padded(x: jax.Array, length: int, identity: np.float32) -> jax.Array:
    if x.shape[0] == length:
        return x
    return lax.pad(x, identity, [(0, length - x.shape[0], 0), (0, 0, 0)])
