"""Contractions that are no matmul: products, and sums of products, on VectorE.

XLA's algebraic simplifier makes a multiplication of a dot that contracts nothing or an
axis of length one, and a multiplication and a sum of a dot of vectors with vectors;
jaxlib does so on the CPU, for every dtype and `precision`. `einsum` writes such dots
for elementwise and outer products. They are no matmuls here either: no auto-cast
changes their operands, and VectorE multiplies in FP32.

A large batch of tiny matmuls, for each of which TensorE would load its array, takes ten
times as long there as on VectorE, by the time model. That the vendor's compiler gives
such a batch to VectorE as well is an ASSUMPTION.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from neuronjax.ir.instruction import Buffer, View
from neuronjax.ir.instruction_set import (
    DotDimensions,
    Memset,
    TensorReduce,
    TensorTensor,
)
from neuronjax.lowering.broadcast import spread
from neuronjax.lowering.context import Context, Instructions
from neuronjax.lowering.elementwise import engine_of
from neuronjax.lowering.moves import converted, reshaped, transposed
from neuronjax.lowering.sums import vector_tile

Axes = tuple[int, ...]


def products(
    context: Context, lhs: View, rhs: View, dimensions: DotDimensions, result: Buffer
) -> Instructions:
    """Multiply element by element, and add along the contracted axes.

    Floats are multiplied and added in FP32 and the result is rounded once; the sum has
    the order of `TensorReduce`. Integers and booleans have the dtype of the result
    throughout.

    Args:
        context: of the op.
        lhs: an operand with axes for the batch, its free axes, and contracted axes.
        rhs: the other operand.
        dimensions: which axes these are.
        result: the buffer to write, [batch, lhs free, rhs free].
    """
    d, shape = dimensions, result.type.shape
    contracted = tuple(lhs.type.shape[axis] for axis in d.lhs_contract)
    if set(contracted) <= {1}:
        contracted = ()
    batch, end = len(d.lhs_batch), len(shape)
    middle = end - len(rhs.type.shape) + batch + len(d.rhs_contract)
    sums, whole = tuple(range(end, end + len(contracted))), (*shape, *contracted)

    def aligned(view: View, axes: Axes, contract: Axes, free: range) -> View:
        places = (*range(batch), *free, *sums)
        view = _ordered(context, view, axes, contract, contracted)
        return spread(context, view, whole, places)

    operands = (
        aligned(lhs, d.lhs_batch, d.lhs_contract, range(batch, middle)),
        aligned(rhs, d.rhs_batch, d.rhs_contract, range(middle, end)),
    )
    yield from _summed(context, operands, whole, sums, result)


def _ordered(
    context: Context, view: View, batch: Axes, contract: Axes, contracted: Axes
) -> View:
    """Return an operand as [batch, free, contracted], the last axes of these sizes."""
    rank = len(view.type.shape)
    free = (axis for axis in range(rank) if axis not in (*batch, *contract))
    view = transposed(context, view, (*batch, *free, *contract))
    kept = view.type.shape[: rank - len(contract)]
    return reshaped(context, view, (*kept, *contracted))


def _summed(
    context: Context,
    operands: tuple[View, View],
    shape: Axes,
    sums: Axes,
    result: Buffer,
) -> Instructions:
    """Multiply two operands of one shape, and add along some axes."""
    dtype = result.type.dtype
    fields: dict[str, Any] = dict(engine=engine_of(dtype))
    wide = np.dtype(np.float32)
    if dtype.kind in "iub":
        wide, (a, b) = dtype, operands
        operands = converted(context, a, dtype), converted(context, b, dtype)
    if not sums:
        fields["op"] = "multiply"
        yield context.arithmetic(TensorTensor, operands, (result,), **fields)
        return
    terms = context.computed(
        TensorTensor, operands, shape, wide, op="multiply", **fields
    )
    zero = context.computed(Memset, (), (), wide, engine="gpsimd", value=wide.type(0))
    op = "or" if dtype == np.bool_ else "add"
    fields |= dict(op=op, axes=sums, tile=vector_tile(context.policy))
    yield context.arithmetic(TensorReduce, (terms, zero), (result,), **fields)
