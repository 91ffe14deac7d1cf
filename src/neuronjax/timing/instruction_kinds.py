"""Kinds of instructions that several passes of the time model treat alike."""

from __future__ import annotations

from neuronjax.ir.instruction_set import (
    Activation,
    Compare,
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
    Select,
    ReducePrecision,
)
