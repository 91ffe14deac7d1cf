"""Kinds of instructions that several passes of the time model treat in one way."""

from __future__ import annotations

import numpy as np

from neuronjax.ir.instruction_set import (
    Activation,
    Compare,
    Memset,
    NcMatmul,
    NcMatmulMx,
    NcMatmulSparse,
    ReducePrecision,
    Select,
    TensorCopy,
    TensorScalar,
    TensorTensor,
)

MATMULS = (NcMatmul, NcMatmulMx, NcMatmulSparse)
#: Of one shape, element by element.
ELEMENTWISE = (
    TensorTensor,
    TensorScalar,
    Activation,
    TensorCopy,
    Compare,
    Memset,
    Select,
    ReducePrecision,
)


def is_stored(instruction: Memset) -> bool:
    """Whether a constant lies in HBM with the program: more than one value of it."""
    value = instruction.value
    if value.size < 2:
        return False
    bits = np.ascontiguousarray(value).reshape(-1).view(np.uint8)
    item = value.dtype.itemsize
    return bits[item:].tobytes() != bits[:-item].tobytes()
