"""Sums in a stated order: the left folds that reductions and windows are made of.

VectorE reduces tiles of 512 elements, each a left fold from its own first element; the
result is the left fold of (init, tile 0, tile 1, ...) (design, section 5). XLA's own
reduce is a left fold almost nowhere, so the fold is a `lax.scan` over the reduced axis,
moved to the front: each step adds one row to a row of running sums.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import prod

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from neuronjax.engines import dot_verdicts
from neuronjax.engines.array_fold import Matrix, pinned
from neuronjax.numerics.exact import seal

TILE = 512

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


def left_fold(x: jax.Array, combine: Combine) -> jax.Array:
    """((x[0] + x[1]) + x[2]) + ..., over the first axis."""
    if x.shape[0] == 1:
        return x[0]
    if x.shape[0] <= 4:
        total = x[0]
        for row in range(1, x.shape[0]):
            total = combine(total, x[row])
        return total
    first = lax.index_in_dim(x, 0, keepdims=False)
    rest = lax.slice_in_dim(x, 1, x.shape[0])
    return lax.scan(lambda c, row: (combine(c, row), None), first, rest)[0]


# Shorter folds than this are not worth a matmul kernel.
SHORTEST_DOT = 16


def sum_fold(x: jax.Array, combine: Combine) -> jax.Array:
    """`left_fold` of a sum as ones @ x where that dot was verified to be the fold.

    A product with one is exact, so this is the array's fold; see `array_fold`.
    """
    k = x.shape[0]
    ones = Matrix(jnp.ones((1, 1, k), jnp.float32), k_first=False)
    rows = Matrix(x[None], k_first=True)
    if k < SHORTEST_DOT or not dot_verdicts.is_left_fold(ones, rows):
        return left_fold(x, combine)
    return pinned(ones, rows)[0, 0]


def tiled_fold(x: jax.Array, init: jax.Array, op: str, zero: jax.Array) -> jax.Array:
    """Reduces float32 [K, rest] over K, starting from `init` (a scalar)."""
    combine = combiner(op, zero)
    fold = sum_fold if op == "add" else left_fold
    k, rest = x.shape
    start = jnp.broadcast_to(init, (rest,))
    if k == 0:
        return start
    tiles = -(-k // TILE)
    if tiles == 1:
        return combine(start, fold(x, combine))
    x = _padded(x, tiles * TILE, IDENTITIES[op])
    x = lax.reshape(x, (tiles, TILE, rest))
    x = lax.reshape(lax.transpose(x, (1, 0, 2)), (TILE, tiles * rest))
    sums = lax.reshape(fold(x, combine), (tiles, rest))
    return left_fold(jnp.concatenate([start[None], sums]), combine)


def _padded(x: jax.Array, length: int, identity: np.float32) -> jax.Array:
    if x.shape[0] == length:
        return x
    return lax.pad(x, identity, [(0, length - x.shape[0], 0), (0, 0, 0)])
