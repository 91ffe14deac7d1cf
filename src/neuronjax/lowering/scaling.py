"""Per-tensor scaling of FP8 operands by powers of two, as explicit instructions.

"current" scales by the amax of the tensor at hand. "delayed" records that amax for
later steps and scales by the largest of the previous ones, so the cast need not wait.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from neuronjax.ir.instruction import View
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


def scale(context: Context, view: View, format: str) -> tuple[View, View]:
    """A tensor scaled into the range of a format (float32), and the inverse scale."""
    amax = _amax(context, view)
    if context.policy.scaling == "delayed":
        amax = _previous_amax(context, amax)
    factor, inverse = (context.temporary((), np.float32) for _ in range(2))
    results = (factor, inverse)
    context.emit(
        context.make(ScaleFromAmax, (amax,), results, engine="vector", format=format)
    )
    shape, operands = view.type.shape, (view, View(factor))
    fields: dict[str, Any] = dict(engine="vector", op="multiply")
    scaled = context.computed(TensorScalar, operands, shape, np.float32, **fields)
    return scaled, View(inverse)


def _amax(context: Context, view: View) -> View:
    shape = view.type.shape
    fields: dict[str, Any] = dict(engine="vector", op="abs")
    magnitude = context.computed(TensorTensor, (view,), shape, np.float32, **fields)
    amax, zero = (context.temporary((), np.float32) for _ in range(2))
    make, axes = context.make, tuple(range(len(shape)))
    value = np.zeros((), np.float32)
    context.emit(make(Memset, (), (zero,), engine="gpsimd", value=value))
    fields = dict(engine="vector", op="maximum", axes=axes)
    context.emit(make(TensorReduce, (magnitude, View(zero)), (amax,), **fields))
    return View(amax)


def _previous_amax(context: Context, amax: View) -> View:
    """Records this step's amax; the largest of the previous steps."""
    slot = context.shared.amax_slot()
    previous = context.temporary((), np.float32)
    context.emit(context.make(RecordAmax, (amax,), (), engine="vector", slot=slot))
    context.emit(context.make(ReadAmax, (), (previous,), engine="vector", slot=slot))
    return View(previous)
