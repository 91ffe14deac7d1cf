"""Data movement between temporaries, for rules that lay out an operand.

Each function emits the instructions and returns the view of the result; a movement that
would change nothing is left out. A matrix is an operand of a contraction as [batch, K,
free] or [batch, free, K], for the datapaths that work on blocks along K (microscaling
and sparsity). The last axis stays last, so as little as possible is moved.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from math import prod
from typing import Any, NamedTuple

import numpy as np

from neuronjax.ir.instruction import Buffer, Instruction, View
from neuronjax.ir.instruction_set import DmaCopy, DotDimensions, Memset, TensorCopy
from neuronjax.ir.program import Op, TensorType, Value
from neuronjax.lowering.context import Context, Instructions
from neuronjax.lowering.registry import RULES, lowers


def moved(
    context: Context,
    kind: str,
    source: View,
    shape: tuple[int, ...],
    *parameters: tuple[int, ...],
    others: Sequence[View] = (),
) -> View:
    """Return the result of a `DmaCopy` of this kind, a temporary of this shape."""
    operands, dtype = (source, *others), source.type.dtype
    options: dict[str, Any] = dict(engine="dma", kind=kind, parameters=parameters)
    return context.computed(DmaCopy, operands, shape, dtype, **options)


def reshaped(context: Context, source: View, shape: tuple[int, ...]) -> View:
    """Return the elements of `source`, in row-major order, as an array of `shape`."""
    if shape == source.type.shape:
        return source
    return moved(context, "reshape", source, shape)


def transposed(context: Context, source: View, permutation: tuple[int, ...]) -> View:
    """Return the tensor with its axes permuted."""
    if permutation == tuple(range(len(permutation))):
        return source
    shape = tuple(source.type.shape[i] for i in permutation)
    return moved(context, "transpose", source, shape, permutation)


def reversed_along(context: Context, source: View, axes: tuple[int, ...]) -> View:
    """Return the tensor reversed along some axes."""
    if not axes:
        return source
    return moved(context, "reverse", source, source.type.shape, axes)


def zero_padded(context: Context, source: View, axis: int, length: int) -> View:
    """Return the array with zeros after the last element of an axis, up to a length."""
    shape = source.type.shape
    if shape[axis] == length:
        return source
    zero = filled(context, (), source.type.dtype, 0)
    high = tuple((length - n) * (d == axis) for d, n in enumerate(shape))
    none = (0,) * len(shape)
    padded = (*shape[:axis], length, *shape[axis + 1 :])
    return moved(context, "pad", source, padded, none, high, none, others=[zero])


def into(context: Context, source: View, target: Buffer) -> Instruction:
    """Return the instruction that reshapes a view into an existing buffer."""
    return context.make(DmaCopy, (source,), (target,), engine="dma", kind="reshape")


def converted(context: Context, source: View, dtype: Any) -> View:
    """Return the same numbers in another dtype."""
    if source.type.dtype == dtype:
        return source
    shape = source.type.shape
    return context.computed(TensorCopy, (source,), shape, dtype, engine="vector")


# -- matrices --------------------------------------------------------------------------


class MatrixView(NamedTuple):
    """A matrix, and which of its axes is K, 1 or 2."""

    view: View
    axis: int


def matrix(
    context: Context, source: View, batch: tuple[int, ...], contract: tuple[int, ...]
) -> MatrixView:
    """Return an operand of any rank as a matrix, with all contracted axes merged in
    row-major order."""
    shape = source.type.shape
    free = tuple(d for d in range(len(shape)) if d not in batch + contract)
    k_last = bool(contract) and contract[-1] == len(shape) - 1
    order = (*batch, *free, *contract) if k_last else (*batch, *contract, *free)
    view = transposed(context, source, order)
    b, k, f = (prod(shape[d] for d in dims) for dims in (batch, contract, free))
    view = reshaped(context, view, (b, f, k) if k_last else (b, k, f))
    return MatrixView(view, 2 if k_last else 1)


def both_matrices(
    context: Context, lhs: View, rhs: View, d: DotDimensions
) -> tuple[MatrixView, MatrixView]:
    """Return both operands of a contraction as matrices."""
    left = matrix(context, lhs, d.lhs_batch, d.lhs_contract)
    return left, matrix(context, rhs, d.rhs_batch, d.rhs_contract)


# -- chlo.broadcast_* ------------------------------------------------------------------

# The operands are first brought to one shape. The axes of the lower rank are the last
# ones, as in NumPy, or those that `broadcast_dimensions` names; an axis of length one
# is repeated. Then the op itself is lowered.


STABLEHLO = (
    "add and atan2 compare divide maximum minimum multiply or power remainder "
    "select shift_left shift_right_arithmetic shift_right_logical subtract xor"
).split()
CHLO = ("next_after", "polygamma", "zeta")
#: The op with broadcasting -> the op without.
WITHOUT = {
    **{f"chlo.broadcast_{name}": f"stablehlo.{name}" for name in STABLEHLO},
    **{f"chlo.broadcast_{name}": f"chlo.{name}" for name in CHLO},
}


@lowers(*WITHOUT)
def broadcasting(op: Op, context: Context) -> Instructions:
    shape = op.results[0].type.shape
    operands = []
    for value in op.operands:
        view = spread(context, context.view(value), shape, _axes(op, value))
        new = Value(value.number, TensorType(shape, value.type.dtype))
        context.alias(new, view)
        context.facts[new] = context.fact(value)
        operands.append(new)
    base = WITHOUT[op.name]
    plain = dataclasses.replace(op, name=base, operands=tuple(operands))
    yield from RULES[base](plain, context)


def _axes(op: Op, value: Value) -> tuple[int, ...]:
    rank, result = len(value.type.shape), len(op.results[0].type.shape)
    named = op.attributes.get("broadcast_dimensions")
    if named is not None and len(named) == rank < result:
        return tuple(int(d) for d in named)
    return tuple(range(result - rank, result))


def spread(
    context: Context, view: View, shape: tuple[int, ...], axes: tuple[int, ...]
) -> View:
    """Repeat a tensor along the axes it lacks, and those where it has one element.
    `axes` are the axes of the result in rising order, one per axis of the tensor."""
    sizes = view.type.shape
    if sizes == shape:
        return view
    kept = [i for i, axis in enumerate(axes) if sizes[i] == shape[axis]]
    view = reshaped(context, view, tuple(sizes[i] for i in kept))
    return moved(context, "broadcast", view, shape, tuple(axes[i] for i in kept))


def filled(context: Context, shape: tuple[int, ...], dtype: Any, value: Any) -> View:
    """Return a tensor that repeats one value, which is written to memory once."""
    with np.errstate(invalid="ignore"):
        number = np.array(value).astype(dtype)
    scalar = context.computed(Memset, (), (), dtype, engine="gpsimd", value=number)
    return spread(context, scalar, shape, ())
