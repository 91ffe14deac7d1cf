"""Operands of a contraction as matrices, [batch, K, free] or [batch, free, K].

For the datapaths that work on blocks along K, microscaling and sparsity. The last axis
stays last, so that as little as possible is moved.
"""

from __future__ import annotations

from math import prod
from typing import NamedTuple

from neuronjax.ir.instruction import View
from neuronjax.ir.instruction_set import DotDimensions
from neuronjax.lowering.context import Context
from neuronjax.lowering.moves import reshaped, transposed


class MatrixView(NamedTuple):
    """A matrix and the axis of it that is K, 1 or 2."""

    view: View
    axis: int


def matrix(
    context: Context, source: View, batch: tuple[int, ...], contract: tuple[int, ...]
) -> MatrixView:
    """An operand of any rank as a matrix; the contracted axes count row-major."""
    shape = source.type.shape
    free = tuple(d for d in range(len(shape)) if d not in batch + contract)
    k_last = bool(contract) and contract[-1] == len(shape) - 1
    order = (*batch, *free, *contract) if k_last else (*batch, *contract, *free)
    sizes = [prod(shape[d] for d in dims) for dims in (batch, contract, free)]
    view = transposed(context, source, order)
    b, k, f = sizes
    view = reshaped(context, view, (b, f, k) if k_last else (b, k, f))
    return MatrixView(view, 2 if k_last else 1)


def both_matrices(
    context: Context, lhs: View, rhs: View, d: DotDimensions
) -> tuple[MatrixView, MatrixView]:
    """Both operands of a contraction."""
    left = matrix(context, lhs, d.lhs_batch, d.lhs_contract)
    return left, matrix(context, rhs, d.rhs_batch, d.rhs_contract)


def matrix_dimensions(lhs_axis: int, rhs_axis: int) -> DotDimensions:
    """The dimension numbers of two matrices."""
    return DotDimensions((0,), (0,), (lhs_axis,), (rhs_axis,))
