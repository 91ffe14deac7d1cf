"""Data movement between temporaries, for rules that lay out an operand.

Each emits the instructions and returns where the data then is; a movement that would
change nothing is left out.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from neuronjax.ir.instruction import Buffer, Instruction, View
from neuronjax.ir.instruction_set import DmaCopy, Memset
from neuronjax.lowering.context import Context


def moved(
    context: Context,
    kind: str,
    source: View,
    shape: tuple[int, ...],
    *parameters: tuple[int, ...],
) -> View:
    """A `DmaCopy` of some kind to a temporary of that shape."""
    options: dict[str, Any] = dict(engine="dma", kind=kind, parameters=parameters)
    return context.computed(DmaCopy, (source,), shape, source.type.dtype, **options)


def reshaped(context: Context, source: View, shape: tuple[int, ...]) -> View:
    """The same elements in row-major order."""
    if shape == source.type.shape:
        return source
    return moved(context, "reshape", source, shape)


def transposed(context: Context, source: View, permutation: tuple[int, ...]) -> View:
    """The axes in another order."""
    if permutation == tuple(range(len(permutation))):
        return source
    shape = tuple(source.type.shape[i] for i in permutation)
    return moved(context, "transpose", source, shape, permutation)


def reversed_along(context: Context, source: View, axes: tuple[int, ...]) -> View:
    """The elements of some axes in reverse."""
    return (
        moved(context, "reverse", source, source.type.shape, axes) if axes else source
    )


def zero_padded(context: Context, source: View, axis: int, length: int) -> View:
    """Zeros behind the last element of an axis, up to a length."""
    shape, dtype = source.type.shape, source.type.dtype
    if shape[axis] == length:
        return source
    zeros: dict[str, Any] = dict(engine="gpsimd", value=np.zeros((), dtype))
    zero = context.computed(Memset, (), (), dtype, **zeros)
    high = tuple((length - n) * (d == axis) for d, n in enumerate(shape))
    none = (0,) * len(shape)
    return context.computed(
        DmaCopy,
        (source, zero),
        (*shape[:axis], length, *shape[axis + 1 :]),
        dtype,
        engine="dma",
        kind="pad",
        parameters=(none, high, none),
    )


def into(context: Context, source: View, target: Buffer) -> Instruction:
    """The last movement, a reshape into an existing buffer."""
    return context.make(DmaCopy, (source,), (target,), engine="dma", kind="reshape")
