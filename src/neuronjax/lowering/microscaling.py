"""Rules of microscaling: operands in blocks of 32 along K with a shared scale.

On the device `quantize_mx` makes MXFP8 from BF16 or FP16. MXFP4 comes from a checkpoint
that was quantized offline, so it is used for weights. Both operands of `nc_matmul_mx`
are MX. With the "interleaved" layout a cell holds elements that are 128 apart, so a
block is 8 cells of 4: the same as consecutive blocks of a permuted K.

Programs that hold MX operands themselves call `__op$block_scaled_dot` and `QuantizeMX`,
the custom calls of the vendor's compiler (error codes NCC_EVRF036 to 058).
"""

from __future__ import annotations

from typing import NamedTuple

from neuronjax.ir.instruction import Buffer, Instruction, View
from neuronjax.ir.instruction_set import DotDimensions, NcMatmulMx, QuantizeMx
from neuronjax.lowering.context import Context, Instructions
from neuronjax.lowering.moves import (
    MatrixView,
    both_matrices,
    reshaped,
    transposed,
    zero_padded,
)
from neuronjax.lowering.psum import MatmulOperand, into_psum
from neuronjax.numerics.float_format import FLOAT8_E8M0FNU
from neuronjax.numerics.microscaling import BLOCK_SIZE, MX_FORMATS, ON_DEVICE_FORMATS
from neuronjax.numerics.mx_scales import ALTERNATIVE
from neuronjax.policy import Policy

#: The number of elements of a cell, and their distance in K if interleaved.
QUAD, APART = 4, 128


class QuantizedMatrix(NamedTuple):
    """A quantized matrix: its elements, its scales, and the axis that is K."""

    elements: View
    scales: View
    axis: int


def matmul(
    context: Context,
    lhs: MatmulOperand,
    rhs: MatmulOperand,
    dimensions: DotDimensions,
    psum: Buffer,
) -> Instructions:
    """Quantize the operands that are not quantized yet, and multiply."""
    left, right = both_matrices(context, lhs.view, rhs.view, dimensions)
    a = _quantized(context, left, lhs.format)
    b = _quantized(context, right, rhs.format)
    yield multiply(context, a, b, psum)


def multiply(
    context: Context, a: QuantizedMatrix, b: QuantizedMatrix, psum: Buffer
) -> Instruction:
    """Return the contraction of two quantized matrices."""
    return into_psum(
        context,
        NcMatmulMx,
        (a.elements, b.elements, a.scales, b.scales),
        psum,
        dimensions=DotDimensions((0,), (0,), (a.axis,), (b.axis,)),
        k_tile=context.core.k_tile_mx,
    )


def _quantized(context: Context, source: MatrixView, format: str) -> QuantizedMatrix:
    policy = context.policy
    if policy.mx_layout == "interleaved":
        # Permute K so that elements `APART` from each other become neighbours.
        view, axis = source
        tile = QUAD * APART
        tiles = -(-view.type.shape[axis] // tile)
        view = zero_padded(context, view, axis, tiles * tile)
        shape = view.type.shape
        split = (*shape[:axis], tiles, QUAD, APART, *shape[axis + 1 :])
        order = list(range(len(split)))
        order[axis + 1], order[axis + 2] = order[axis + 2], order[axis + 1]
        view = transposed(context, reshaped(context, view, split), tuple(order))
        source = MatrixView(reshaped(context, view, shape), axis)
    is_offline = format not in ON_DEVICE_FORMATS
    return quantized(
        context,
        source,
        format,
        policy.mx_weight_scale_rule if is_offline else device_scale_rule(policy),
        engine="offline" if is_offline else "vector",
    )


def device_scale_rule(policy: Policy) -> str:
    """Return the name of the device's scale rule, with the suffix for `mx_emax`."""
    return policy.mx_scale_rule + ALTERNATIVE * (policy.mx_emax == "alternative")


def quantized(
    context: Context, source: MatrixView, format: str, scale_rule: str, *, engine: str
) -> QuantizedMatrix:
    """Quantize a matrix along K."""
    view, axis = source
    shape = list(view.type.shape)
    elements = context.temporary(tuple(shape), MX_FORMATS[format].element.dtype)
    shape[axis] = -(-shape[axis] // BLOCK_SIZE)
    scales = context.temporary(tuple(shape), FLOAT8_E8M0FNU.dtype)
    instruction = context.make(
        QuantizeMx,
        (view,),
        (elements, scales),
        engine=engine,  # type: ignore[arg-type]
        # Weights that are prepared offline are rounded once, to nearest.
        rounding="rne" if engine == "offline" else context.policy.rounding,
        axis=axis,
        format=format,
        scale_rule=scale_rule,
    )
    context.emit(instruction)
    return QuantizedMatrix(View(elements), View(scales), axis)
