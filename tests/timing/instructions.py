"""Instructions from shapes and dtypes alone, for tests of their costs."""

from __future__ import annotations

from typing import Any

import numpy as np

from neuronjax.ir.collective_set import Collective, Spmd
from neuronjax.ir.instruction import Buffer, Instruction, View
from neuronjax.ir.instruction_set import Branch, Call, DotDimensions, Loop
from neuronjax.ir.program import TensorType

#: Rows by columns: the last axis of one operand with the first of the other.
MATRICES = DotDimensions((), (), (1,), (0,))
#: Classes without a cost of their own, subclasses included.
SCHEDULED: tuple[type[Instruction], ...] = (Loop, Branch, Call, Spmd, Collective)


def make(
    cls: type[Instruction],
    operands: list[tuple[tuple[int, ...], np.dtype]],
    result: tuple[tuple[int, ...], np.dtype],
    **fields: Any,
) -> Instruction:
    """An instruction of operands and a result by shape and dtype."""
    types = [TensorType(*pair) for pair in (*operands, result)]
    *inputs, output = [Buffer(n, t) for n, t in enumerate(types)]
    views = tuple(map(View, inputs))
    engine = fields.pop("engine", "vector")
    return cls(operands=views, results=(output,), engine=engine, **fields)
