"""GpSimdE: Cholesky factors and triangular solves, column by column.

Both are right-looking: the contribution of a finished column is subtracted from all
later columns at once, which is a vector operation. So an element is the left fold

    ((a_ij - l_i0 l_j0) - l_i1 l_j1) - ...        (b_i - a_i0 x_0) - a_i1 x_1 - ...

in the order in which the columns are finished. Each product is rounded to FP32 before
it is subtracted; the result is divided by the diagonal (not multiplied by a
reciprocal). A transposed, upper or right-hand problem is solved as the lower left-hand
problem of the rearranged matrices; an upper problem starts at its last column. Complex
numbers are in `complex_parts`. This is a model: the vendor has no such routine.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from neuronjax.execution.engines.complex_parts import (
    Parts,
    conjugate,
    difference,
    each,
    product,
    ratio,
    write_parts,
)
from neuronjax.execution.engines.dispatch import Arrays, Registers, execute, wide
from neuronjax.ir.algebra_set import Cholesky, TriangularSolve
from neuronjax.numerics.elementary_core import NAN, flush, quotient
from neuronjax.numerics.elementary_root import sqrt
from neuronjax.numerics.exact import seal


def _matrices(x: Sequence[jax.Array]) -> Parts:
    """Return the parts as [batch, rows, columns] in FP32."""
    return tuple(lax.reshape(wide(a), (prod(a.shape[:-2]), *a.shape[-2:])) for a in x)


def _transposed(x: Parts) -> Parts:
    return each(lambda a: jnp.swapaxes(a, 1, 2), x)


@execute.register
def cholesky(i: Cholesky, x: Sequence[jax.Array], r: Registers) -> Arrays:
    matrix = _mirrored(_matrices(x), i.lower)
    factor = _lower_factor(matrix, r.zero) if matrix[0].size else matrix
    if not i.lower:
        factor = conjugate(_transposed(factor))
    return write_parts(each(lambda a: a.reshape(x[0].shape), factor), i, r)


def _triangle(n: int, lower: bool, diagonal: int = 0) -> np.ndarray:
    rows, columns = np.indices((n, n))
    return columns - rows <= -diagonal if lower else rows - columns <= -diagonal


def _mirrored(x: Parts, lower: bool) -> Parts:
    """Return the Hermitian matrices that one triangle defines."""
    read = jnp.asarray(_triangle(x[0].shape[1], lower))
    other = conjugate(_transposed(x))
    return tuple(jnp.where(read, a, b) for a, b in zip(x, other, strict=True))


def _lower_factor(matrix: Parts, zero: jax.Array) -> Parts:
    """Return L of [batch, n, n]; a pivot that is not positive makes all of L NaN."""
    n = matrix[0].shape[1]

    def column(rest: Parts, k: jax.Array) -> tuple[Parts, tuple[Parts, jax.Array]]:
        above = each(lambda a: lax.dynamic_index_in_dim(a, k, 1, False), rest)
        pivot = flush(lax.dynamic_index_in_dim(above[0], k, 1))
        root = jnp.broadcast_to(seal(sqrt(pivot, zero), zero), above[0].shape)
        below = each(lambda a: seal(quotient(a, root, zero), zero), conjugate(above))
        update = product(
            each(lambda a: a[:, :, None], below),
            each(lambda a: a[:, None, :], conjugate(below)),
            zero,
        )
        entries = (jnp.where(jnp.arange(n) == k, root, below[0]), *below[1:])
        return difference(rest, update), (entries, pivot[:, 0] > 0)

    _, (columns, positive) = lax.scan(column, matrix, jnp.arange(n))
    definite = jnp.all(positive, axis=0)[:, None, None]
    columns = each(lambda a: lax.transpose(a, (1, 2, 0)), columns)
    factor = each(lambda a: jnp.where(definite, a, NAN), columns)
    real = jnp.where(_triangle(n, True), factor[0], np.float32(0))
    imaginary = each(
        lambda a: jnp.where(_triangle(n, True, 1), a, np.float32(0)), factor[1:]
    )
    return (real, *imaginary)


@execute.register
def triangular_solve(
    i: TriangularSolve, x: Sequence[jax.Array], r: Registers
) -> Arrays:
    half = len(x) // 2
    a, b = _matrices(x[:half]), _matrices(x[half:])
    if not a[0].size or not b[0].size:
        return write_parts(tuple(x[half:]), i, r)
    transposes = i.transpose_a != "NO_TRANSPOSE"
    if i.transpose_a == "ADJOINT":
        a = conjugate(a)
    if not i.left_side:  # x op(a) = b is op(a)^T x^T = b^T
        b, transposes = _transposed(b), not transposes
    if transposes:
        a = _transposed(a)
    if i.lower == transposes:  # upper: the last row is solved first
        a, b = (each(lambda m: jnp.flip(m, 1), m) for m in (a, b))
        a = each(lambda m: jnp.flip(m, 2), a)
    solved = _forward(a, b, i.unit_diagonal, r.zero)
    if i.lower == transposes:
        solved = each(lambda m: jnp.flip(m, 1), solved)
    if not i.left_side:
        solved = _transposed(solved)
    return write_parts(each(lambda m: m.reshape(x[half].shape), solved), i, r)


def _forward(a: Parts, b: Parts, unit_diagonal: bool, zero: jax.Array) -> Parts:
    """Solve by forward substitution, a [batch, n, n] lower, b [batch, n, m]."""
    n = a[0].shape[1]

    def row(rest: Parts, step: tuple[jax.Array, Parts]) -> tuple[Parts, Parts]:
        k, column = step
        x = each(lambda m: lax.dynamic_index_in_dim(m, k, 1, False), rest)
        if not unit_diagonal:
            pivot = each(lambda m: lax.dynamic_index_in_dim(m, k, 1), column)
            pivot = each(lambda m: jnp.broadcast_to(m, x[0].shape), pivot)
            x = each(lambda m: seal(m, zero), ratio(x, pivot, zero))
        # Rows above k are finished and not read again.
        column = each(lambda m: m[:, :, None], column)
        update = product(column, each(lambda m: m[:, None, :], x), zero)
        return difference(rest, update), x

    columns = each(lambda m: lax.transpose(m, (2, 0, 1)), a)
    _, rows = lax.scan(row, b, (jnp.arange(n), columns))
    return each(lambda m: lax.transpose(m, (1, 0, 2)), rows)
