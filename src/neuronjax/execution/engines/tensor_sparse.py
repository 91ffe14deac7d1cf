"""TensorE with a compressed stationary operand: N of every M rows are multiplied.

Each compressed value is multiplied by the moving row that its tag selects, and the
products are summed down the column as in a dense matmul, 128 compressed rows to a K
tile. The fold of the expanded operand with K tiles of 128 M/N rows has the same bits,
because rows of zeros add nothing to a sum. If the moving operand has an Inf or NaN,
which times zero would be NaN, the selected rows are gathered one by one instead.
"""

from __future__ import annotations

from collections.abc import Sequence

import jax
import jax.numpy as jnp
from jax import lax

from neuronjax.execution.engines.array_fold import FoldOrder, Matrix, fused
from neuronjax.execution.engines.dispatch import Arrays, Registers, execute, wide
from neuronjax.execution.engines.tensor import Psum, accumulate, as_psum
from neuronjax.ir.instruction_set import NcMatmulSparse, Sparsify
from neuronjax.numerics import sparsity


@execute.register
def compress(i: Sparsify, x: Sequence[jax.Array], r: Registers) -> Arrays:
    out = sparsity.sparsify(x[0], i.pattern, axis=i.axis)
    return out.values, out.tags


@execute.register
def nc_matmul_sparse(i: NcMatmulSparse, x: Sequence[jax.Array], r: Registers) -> Arrays:
    values, tags, moving = wide(x[0]), x[1], wide(x[2])
    axis, moving_axis = i.dimensions.lhs_contract[0], i.dimensions.rhs_contract[0]
    pattern = sparsity.get_pattern(i.pattern)
    length = values.shape[axis] // pattern.kept * pattern.group
    moving = _zero_padded(moving, moving_axis, length)
    compressed = sparsity.SparseArray(
        values=values,
        tags=tags,
        pattern=pattern,
        axis=axis - values.ndim,
        length=length,
    )
    right = Matrix(moving, k_first=moving_axis == 1)
    psum = Psum.of(i, r)
    total = lax.cond(
        jnp.isfinite(moving).all(),
        lambda: _expanded(i, compressed, right, psum),
        lambda: _gathered(i, compressed, right, psum),
    )
    return (as_psum(lax.reshape(total, i.results[0].type.shape), i),)


def _zero_padded(x: jax.Array, axis: int, length: int) -> jax.Array:
    missing = [(0, (length - n) * (d == axis)) for d, n in enumerate(x.shape)]
    return jnp.pad(x, missing)


def _expanded(
    i: NcMatmulSparse, compressed: sparsity.SparseArray, moving: Matrix, psum: Psum
) -> jax.Array:
    """Return the product as a dense matmul of longer tiles. All of `moving` must be
    finite, because Inf times the zeros of `compressed` is NaN."""
    stationary = Matrix(compressed.todense(), k_first=compressed.axis == -2)
    operands = (stationary, moving)
    if i.stationary == "rhs":
        operands = (moving, stationary)
    order = FoldOrder(i.k_tile * compressed.pattern.ratio)
    return accumulate(*operands, order, psum)


def _gathered(
    i: NcMatmulSparse, compressed: sparsity.SparseArray, moving: Matrix, psum: Psum
) -> jax.Array:
    """Return the product, computed one compressed row at a time: [batch, stationary
    free, moving free]."""
    rows = sparsity.expanded_rows(
        compressed.tags, compressed.pattern, axis=compressed.axis
    )
    k_axis = 3 + compressed.axis
    source = jnp.moveaxis(moving.rows(), 0, 1)  # [batch, K, free]
    k = source.shape[1]
    source = _zero_padded(source, 1, k + 1)  # row K, zeros, fills the last tile
    sides = (source.shape[0], compressed.values.shape[3 - k_axis], moving.free)

    def multiply(total: jax.Array, step: tuple) -> tuple[jax.Array, None]:
        value, row = step
        selected = jnp.take_along_axis(source, row[:, :, None], axis=1)
        return fused(value[:, :, None], selected, total, psum.zero), None

    def tile(total: jax.Array, step: tuple) -> tuple[jax.Array, None]:
        value, row, index = step
        start = jnp.zeros(sides, jnp.float32)
        part = lax.scan(multiply, start, (value, row))[0]
        return psum.add([_as_result(part, i)], total, index), None

    values = _in_tiles(jnp.moveaxis(compressed.values, k_axis, 0), i.k_tile, 0)
    rows = _in_tiles(jnp.moveaxis(rows, k_axis, 0), i.k_tile, k)
    total = jnp.zeros(_as_result(jnp.zeros(sides), i).shape, jnp.float32)
    steps = (values, rows, jnp.arange(values.shape[0]))
    return lax.scan(tile, total, steps)[0]


def _as_result(part: jax.Array, i: NcMatmulSparse) -> jax.Array:
    return part if i.stationary == "lhs" else jnp.swapaxes(part, 1, 2)


def _in_tiles(x: jax.Array, k_tile: int, fill: int) -> jax.Array:
    """Return the first axis cut into [tiles, k_tile], with the last tile filled up."""
    missing = [(0, -x.shape[0] % k_tile)] + [(0, 0)] * (x.ndim - 1)
    x = jnp.pad(x, missing, constant_values=fill)
    return x.reshape(-1, k_tile, *x.shape[1:])
