"""Sums in a fixed order: the left folds of reductions and windows.

VectorE reduces tiles of 512 elements, each by a left fold from its own first element;
the result is the left fold of (init, tile 0, tile 1, ...). With `tile=None` there is
one tile, so that a sum of any length is one left fold. XLA's own reduce is hardly ever
a left fold, so the fold is a `lax.scan` over the reduced axis, which is moved to the
front: each step adds one row to a row of running sums.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from math import prod

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from neuronjax.execution.engines.array_fold import FoldOrder, Matrix
from neuronjax.execution.engines.tensor import contract, has_host_kernels
from neuronjax.ir.vector_sums import VECTOR_TILE
from neuronjax.numerics.exact import opaque, seal, sealed_product

Combine = Callable[[jax.Array, jax.Array], jax.Array]

# -0 is the identity of addition, also for the sign: x + -0 is x for every x.
IDENTITIES = {"add": np.float32(-0.0), "multiply": np.float32(1.0)}


def combiner(op: str, zero: jax.Array) -> Combine:
    """Return a function of two float32 partial results: their combination, sealed."""
    if op == "multiply":
        return functools.partial(sealed_product, zero=zero)
    return lambda a, b: seal(lax.add(a, b), zero)


def reduced_axis_first(x: jax.Array, axes: Sequence[int]) -> jax.Array:
    """Return [K, rest]: the reduced axes, in row-major order, as one axis in front."""
    axes = sorted(axes)
    kept = [d for d in range(x.ndim) if d not in axes]
    k = prod(x.shape[d] for d in axes)
    rest = prod(x.shape[d] for d in kept)
    return lax.reshape(lax.transpose(x, (*axes, *kept)), (k, rest))


def left_fold(
    x: jax.Array, combine: Combine, start: jax.Array | None = None
) -> jax.Array:
    """Return ((start + x[0]) + x[1]) + ... over the first axis. Without a start the
    fold begins with x[0]."""
    row = functools.partial(lax.index_in_dim, x, keepdims=False)
    if x.shape[0] <= 4:
        rows = map(row, range(x.shape[0]))
        return functools.reduce(combine, rows, next(rows) if start is None else start)
    if start is None:
        start, x = row(0), lax.slice_in_dim(x, 1, x.shape[0])
    return lax.scan(lambda total, row: (combine(total, row), None), start, x)[0]


def sum_rows(x: Matrix, zero: jax.Array) -> jax.Array:
    """Return the sums over K, [batch, free], each a left fold from +0. A product with
    one is exact, so a host kernel for the array's fold (`array_fold`) also computes
    these sums."""
    if has_host_kernels(x.k):
        ones = Matrix(jnp.ones((x.batch, 1, x.k), jnp.float32), k_first=False)
        return contract(ones, x, FoldOrder(x.k))[:, 0]
    start = lax.broadcast(lax.neg(zero), (x.batch, x.free))
    return left_fold(opaque(x.rows(), zero), combiner("add", zero), start)


def fold_axes(
    x: jax.Array,
    axes: Sequence[int],
    init: jax.Array,
    op: str,
    zero: jax.Array,
    tile: int | None = VECTOR_TILE,
) -> jax.Array:
    """Reduce float32 `x` over `axes` from `init` (a scalar); the result is [rest].
    `x` and `init` may be constants: they are made opaque, so XLA cannot fold an
    addition."""
    k = prod(x.shape[d] for d in axes)
    rest = x.size // k if k else prod(n for d, n in enumerate(x.shape) if d not in axes)
    start = lax.broadcast(opaque(init, zero), (rest,))
    if not k:
        return start
    width = min(tile or k, k)
    tiles = -(-k // width)
    # Moving the last axes to the front would cost more than summing them.
    k_first = sorted(axes) != list(range(x.ndim - len(axes), x.ndim))
    filling, nothing = (0, tiles * width - k, 0), (0, 0, 0)
    if k_first:
        x, pads = reduced_axis_first(x, axes), [filling, nothing]
    else:
        x, pads = lax.reshape(x, (rest, k)), [nothing, filling]
    if tiles * width > k:
        x = lax.pad(x, IDENTITIES[op], pads)
    shape = (tiles, width, rest) if k_first else (1, rest * tiles, width)
    matrix = Matrix(lax.reshape(x, shape), k_first)
    combine = combiner(op, zero)
    if op == "add":
        sums = sum_rows(matrix, zero)
    else:
        sums = left_fold(opaque(matrix.rows(), zero), combine)
    if not k_first:
        sums = lax.reshape(sums, (rest, tiles)).T
    return left_fold(sums, combine, start)
