"""Rules of structured sparsity: a weight compressed to N of every M along K.

Under `Policy.sparsity` the weight of a forward contraction is pruned by magnitude and
compressed before the program runs, and TensorE multiplies the compressed values with
the moving rows that their tags select. A weight that already has the pattern loses
nothing. Contractions of the backward pass stay dense, because their K is another axis
of the weight. Formats: FP8, BF16, FP16 and TF32 on NeuronCore-v3; v4 lacks FP8.
"""

from __future__ import annotations

import numpy as np

from neuronjax.errors import InvalidProgramError, UnsupportedError
from neuronjax.ir.instruction import Buffer, Instruction, View
from neuronjax.ir.instruction_set import DotDimensions, NcMatmulSparse, Sparsify
from neuronjax.ir.program import Op
from neuronjax.lowering.context import Context, Instructions
from neuronjax.lowering.moves import MatrixView, both_matrices
from neuronjax.lowering.psum import MatmulOperand, into_psum
from neuronjax.numerics.float_format import FP8
from neuronjax.numerics.microscaling import MX_FORMATS
from neuronjax.numerics.sparsity import get_pattern


def marked(
    op: Op, context: Context, lhs: MatmulOperand, rhs: MatmulOperand, weight: int | None
) -> tuple[MatmulOperand, MatmulOperand]:
    """Return the operands, with the sparsity pattern set on a forward contraction's
    weight."""
    is_backward = any(context.fact(value).cotangent for value in op.operands)
    if weight is None or is_backward:
        return lhs, rhs
    both = [lhs, rhs]
    both[weight] = both[weight]._replace(pattern=context.policy.sparsity)
    return both[0], both[1]


def matmul(
    context: Context,
    lhs: MatmulOperand,
    rhs: MatmulOperand,
    dimensions: DotDimensions,
    psum: Buffer,
) -> Instructions:
    """Compress the operand that has a pattern, and multiply."""
    _check(context, lhs, rhs)
    left, right = both_matrices(context, lhs.view, rhs.view, dimensions)
    is_left = lhs.pattern is not None
    stationary, moving = (left, right) if is_left else (right, left)
    pattern = lhs.pattern or rhs.pattern
    assert pattern is not None
    sparsify = _compressed(context, stationary, pattern)
    yield sparsify
    values, tags = sparsify.results
    yield into_psum(
        context,
        NcMatmulSparse,
        (View(values), View(tags), moving.view),
        psum,
        dimensions=DotDimensions((0,), (0,), (stationary.axis,), (moving.axis,)),
        stationary="lhs" if is_left else "rhs",
        pattern=pattern,
        k_tile=context.core.k_tile,
    )


def _compressed(context: Context, source: MatrixView, pattern: str) -> Instruction:
    view, axis = source
    n_of_m = get_pattern(pattern)
    shape = list(view.type.shape)
    shape[axis] = -(-shape[axis] // n_of_m.group) * n_of_m.kept
    values = context.temporary(tuple(shape), view.type.dtype)
    tags = context.temporary(tuple(shape), np.uint8)
    return context.make(
        Sparsify, (view,), (values, tags), engine="offline", axis=axis, pattern=pattern
    )


def _check(context: Context, lhs: MatmulOperand, rhs: MatmulOperand) -> None:
    core, name = context.core, context.shared.target.name
    context.require("sparse_matmul", "structured sparsity")
    if "float32" in (lhs.format, rhs.format):
        raise InvalidProgramError(
            "a sparse matmul with FP32 operands: the array takes FP32 in four passes, "
            "but compressed weights only in one",
            location=context.location.source,
            remedy='cast them: auto_cast="matmult", auto_cast_type="bf16"',
        )
    if {lhs.format, rhs.format} & MX_FORMATS.keys():
        raise UnsupportedError(
            "a sparse matmul of microscaling blocks, which no NeuronCore has",
            location=context.location.source,
            remedy="use sparsity with BF16, FP16 or TF32, or MX without sparsity; "
            "a Rule can choose for single weights",
        )
    if {lhs.format, rhs.format} & set(FP8) and "mx_matmul" in core.capabilities:
        raise UnsupportedError(
            f"a sparse matmul with FP8 operands on {name}",
            location=context.location.source,
            remedy="use BF16, FP16 or TF32, or target trn2, whose sparse matmul takes "
            "FP8",
        )
