"""`chlo.broadcast_*`: an op whose operands are first brought to one shape.

The lower rank's axes are the last ones, as in NumPy, or those that
`broadcast_dimensions` names; an axis of one is repeated. What follows is the op itself.
"""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np

from neuronjax.ir.instruction import View
from neuronjax.ir.instruction_set import Memset
from neuronjax.ir.program import Op, TensorType, Value
from neuronjax.lowering.context import Context, Instructions
from neuronjax.lowering.moves import moved, reshaped
from neuronjax.lowering.registry import RULES, lowers

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
    """Which axes of the result those of an operand are."""
    rank, result = len(value.type.shape), len(op.results[0].type.shape)
    named = op.attributes.get("broadcast_dimensions")
    if named is not None and len(named) == rank < result:
        return tuple(int(d) for d in named)
    return tuple(range(result - rank, result))


def spread(
    context: Context, view: View, shape: tuple[int, ...], axes: tuple[int, ...]
) -> View:
    """A tensor repeated along the axes it lacks, and those where it has one element.

    Args:
        context: of the op.
        view: the tensor.
        shape: of the result.
        axes: of the result, in rising order, one per axis of the tensor.
    """
    sizes = view.type.shape
    if sizes == shape:
        return view
    kept = [i for i, axis in enumerate(axes) if sizes[i] == shape[axis]]
    view = reshaped(context, view, tuple(sizes[i] for i in kept))
    return moved(context, "broadcast", view, shape, tuple(axes[i] for i in kept))


def filled(context: Context, shape: tuple[int, ...], dtype: Any, value: Any) -> View:
    """A tensor of one value: a scalar that is written once, and repeated."""
    with np.errstate(invalid="ignore"):
        number = np.array(value).astype(dtype)
    scalar = context.computed(Memset, (), (), dtype, engine="gpsimd", value=number)
    return spread(context, scalar, shape, ())
