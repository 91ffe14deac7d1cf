"""Data movement between temporaries, for rules that lay out an operand.

Each returns where the data then is and the instructions that bring it there; a movement
that would change nothing is left out.
"""

from __future__ import annotations

import numpy as np

from neuronjax.ir.instruction import Buffer, Instruction, View
from neuronjax.ir.instruction_set import DmaCopy, Memset
from neuronjax.lowering.context import Context

Moved = tuple[View, list[Instruction]]


def moved(
    context: Context,
    kind: str,
    source: View,
    shape: tuple[int, ...],
    *parameters: tuple[int, ...],
) -> Moved:
    """A `DmaCopy` of some kind to a temporary of that shape."""
    result = context.temporary(shape, source.type.dtype)
    instruction = context.make(
        DmaCopy, (source,), (result,), engine="dma", kind=kind, parameters=parameters
    )
    return View(result), [instruction]


def reshaped(context: Context, source: View, shape: tuple[int, ...]) -> Moved:
    """The same elements in row-major order."""
    if shape == source.type.shape:
        return source, []
    return moved(context, "reshape", source, shape)


def transposed(context: Context, source: View, permutation: tuple[int, ...]) -> Moved:
    """The axes in another order."""
    if permutation == tuple(range(len(permutation))):
        return source, []
    shape = tuple(source.type.shape[i] for i in permutation)
    return moved(context, "transpose", source, shape, permutation)


def reversed_along(context: Context, source: View, axes: tuple[int, ...]) -> Moved:
    """The elements of some axes in reverse."""
    if not axes:
        return source, []
    return moved(context, "reverse", source, source.type.shape, axes)


def zero_padded(context: Context, source: View, axis: int, length: int) -> Moved:
    """Zeros behind the last element of an axis, up to a length."""
    shape = source.type.shape
    if shape[axis] == length:
        return source, []
    dtype = source.type.dtype
    zero = context.temporary((), dtype)
    fill = context.make(Memset, (), (zero,), engine="gpsimd", value=np.zeros((), dtype))
    high = tuple((length - n) * (d == axis) for d, n in enumerate(shape))
    none = (0,) * len(shape)
    result = context.temporary((*shape[:axis], length, *shape[axis + 1 :]), dtype)
    copy = context.make(
        DmaCopy,
        (source, View(zero)),
        (result,),
        engine="dma",
        kind="pad",
        parameters=(none, high, none),
    )
    return View(result), [fill, copy]


def into(context: Context, source: View, target: Buffer) -> Instruction:
    """The last movement, a reshape into an existing buffer."""
    return context.make(DmaCopy, (source,), (target,), engine="dma", kind="reshape")
