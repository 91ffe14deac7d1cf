"""Per-tensor scaling of FP8 operands by powers of two, as explicit instructions.

"current" scales by the amax of the tensor at hand. "delayed" records that amax for
later steps and scales by the largest of the previous ones, so the cast need not wait.
"""

from __future__ import annotations

import numpy as np

from neuronjax.ir.instruction import Instruction, View
from neuronjax.ir.instruction_set import (
    Memset,
    ReadAmax,
    RecordAmax,
    ScaleFromAmax,
    TensorReduce,
    TensorScalar,
    TensorTensor,
)
from neuronjax.lowering.context import Context


def scale(
    context: Context, view: View, format: str
) -> tuple[View, View, list[Instruction]]:
    """A tensor scaled into the range of a format.

    Returns:
        The scaled tensor (float32), the inverse of the scale, and the instructions.
    """
    amax, instructions = _amax(context, view)
    if context.policy.scaling == "delayed":
        amax, delay = _previous_amax(context, amax)
        instructions += delay
    factor, inverse = (context.temporary((), np.float32) for _ in range(2))
    scaled = context.temporary(view.type.shape, np.float32)
    instructions += [
        context.make(
            ScaleFromAmax, (amax,), (factor, inverse), engine="vector", format=format
        ),
        context.make(
            TensorScalar,
            (view, View(factor)),
            (scaled,),
            engine="vector",
            op="multiply",
        ),
    ]
    return View(scaled), View(inverse), instructions


def _amax(context: Context, view: View) -> tuple[View, list[Instruction]]:
    magnitude = context.temporary(view.type.shape, np.float32)
    amax, zero = (context.temporary((), np.float32) for _ in range(2))
    make = context.make
    return View(amax), [
        make(TensorTensor, (view,), (magnitude,), engine="vector", op="abs"),
        make(Memset, (), (zero,), engine="gpsimd", value=np.zeros((), np.float32)),
        make(
            TensorReduce,
            (View(magnitude), View(zero)),
            (amax,),
            engine="vector",
            op="maximum",
            axes=tuple(range(len(view.type.shape))),
        ),
    ]


def _previous_amax(context: Context, amax: View) -> tuple[View, list[Instruction]]:
    """Records this step's amax; the largest of the previous steps."""
    slot = context.shared.amax_slot()
    previous = context.temporary((), np.float32)
    return View(previous), [
        context.make(RecordAmax, (amax,), (), engine="vector", slot=slot),
        context.make(ReadAmax, (), (previous,), engine="vector", slot=slot),
    ]
