"""Rules of contractions: what is tiled before TensorE adds it up.

`operand_casts` casts and scales the operands as the policy says, `dot_algorithm` as the
program says; `products` has the contractions that are no matmul. FP32 operands take
four passes of high and low halves. The MX and the sparse datapath are in files of their
own. Under a policy that casts, `Policy.dot_precision` says what `precision` (HIGH,
HIGHEST) is worth; an FP32 contraction that is not cast already is the HIGHEST.

A contraction with an integer result is exact and wraps around, on GpSimdE; under
`integer_path="fp32"` it is what the vendor's compiler makes of it (EVRF035): operands
in FP32, folded by TensorE, rounded and saturated. Booleans are logic: OR of ANDs.
"""

from __future__ import annotations

import functools
from typing import Any

import numpy as np

from neuronjax.errors import UnsupportedError
from neuronjax.ir.instruction import Buffer, Engine, Instruction, View
from neuronjax.ir.instruction_set import DotDimensions, NcMatmul, Sizes
from neuronjax.ir.program import Op
from neuronjax.lowering import dot_algorithm, microscaling, sparsity
from neuronjax.lowering.context import Context, Instructions
from neuronjax.lowering.operand import MatmulOperand, check_operand
from neuronjax.lowering.operand_casts import as_float, is_byte, prepare_operands
from neuronjax.lowering.products import products
from neuronjax.lowering.psum import from_psum, into_psum
from neuronjax.lowering.registry import lowers
from neuronjax.lowering.sums import group_rows
from neuronjax.numerics.float_format import FP8
from neuronjax.numerics.microscaling import MX_FORMATS


@lowers("stablehlo.dot_general")
def dot_general(op: Op, context: Context) -> Instructions:
    dimensions = DotDimensions.of(op)
    algorithm = op.attributes.get("algorithm")
    result = context.results(op)[0]
    if algorithm is None:
        yield from contract(op, context, dimensions, result)
        return
    a = dot_algorithm.prepare(op, context, dimensions, algorithm)
    lhs, rhs, is_fp32 = a.lhs, a.rhs, a.psum == np.float32
    if is_fp32 and not _is_matmul(context, lhs.view, rhs.view, a.dimensions):
        yield from products(context, lhs.view, rhs.view, a.dimensions, result)
        return
    yield from matmul(
        context, lhs, rhs, a.dimensions, result, psum=a.psum, k_tile=a.k_tile
    )


@lowers("stablehlo.dot")
def dot(op: Op, context: Context) -> Instructions:
    """The last axis of lhs and the first of rhs, which are vectors or matrices."""
    last = len(op.operands[0].type.shape) - 1
    dimensions = DotDimensions((), (), (last,), (0,))
    yield from contract(op, context, dimensions, context.results(op)[0])


def contract(
    op: Op, context: Context, dimensions: DotDimensions, result: Buffer
) -> Instructions:
    """The op's two operands contracted into `result`, as its dtype and the policy say.

    Args:
        op: its operands are lhs and rhs; the policy and roles are its.
        context: of the op.
        dimensions: of the operands.
        result: the buffer to write, [batch, lhs free, rhs free].
    """
    lhs, rhs = context.operands(op)
    is_integer = result.type.dtype.kind in "iub"
    through_fp32 = is_integer and context.integer_path == "fp32"
    if not through_fp32 and not _is_matmul(context, lhs, rhs, dimensions):
        if not is_integer:
            lhs, rhs = (as_float(context, value) for value in op.operands)
        yield from products(context, lhs, rhs, dimensions, result)
        return
    if is_integer:
        yield integer_matmul(op, context, (lhs, rhs), dimensions, result)
        return
    left, right = prepare_operands(op, context)
    yield from matmul(context, left, right, dimensions, result)


def _is_matmul(context: Context, lhs: View, rhs: View, d: DotDimensions) -> bool:
    return d.is_matmul(lhs.type.shape, rhs.type.shape, context.core.partitions)


def integer_matmul(
    op: Op, context: Context, operands: Any, dimensions: DotDimensions, result: Buffer
) -> Instruction:
    """A contraction with an integer or boolean result.

    Raises:
        UnsupportedError: of integers of 32 bits, where the policy forbids to compute
            with them in FP32.
    """
    dtype = result.type.dtype
    if (
        context.policy.implicit_integer_downcast == "none"
        and dtype.kind in "iu"
        and dtype.itemsize >= 4
    ):
        raise op.error(
            UnsupportedError,
            f"EVRF035: a contraction with a result of {dtype}, which is computed in "
            "float32, under implicit_integer_downcast='none'",
            "contract float32, or implicit_integer_downcast='all'",
        )
    through_fp32 = context.integer_path == "fp32" and result.type.dtype != np.bool_
    exactly: Engine = "host" if context.policy.accumulation == "host" else "gpsimd"
    one_pass = all(is_byte(v.type.dtype) for v in operands)
    if through_fp32:
        for view in operands:
            check_operand(context, view.type.dtype.name, is_integer=True)
    return context.make(
        NcMatmul,
        operands,
        (result,),
        engine="tensor" if through_fp32 else exactly,
        dimensions=dimensions,
        passes=4 if through_fp32 and not one_pass else 1,
        accumulation="systolic" if through_fp32 else "integer",
    )


def matmul(
    context: Context,
    lhs: MatmulOperand,
    rhs: MatmulOperand,
    dimensions: DotDimensions,
    result: Buffer,
    *,
    psum: np.dtype | None = None,
    k_tile: int | None = None,
    held: Sizes | None = None,
) -> Instructions:
    """Multiply on TensorE, rescale, and write in the declared dtype.

    `psum` and `k_tile` are those of an explicit algorithm, else the policy's and the
    array's; `held` is that of `NcMatmul`.
    """
    scales = [o.inverse_scale for o in (lhs, rhs) if o.inverse_scale is not None]
    datapath = functools.partial(
        _datapath, context, lhs, rhs, dimensions, k_tile=k_tile, held=held
    )
    yield from from_psum(context, datapath, scales, result, psum=psum)


def _datapath(
    context: Context,
    lhs: MatmulOperand,
    rhs: MatmulOperand,
    dimensions: DotDimensions,
    psum: Buffer,
    *,
    k_tile: int | None,
    held: Sizes | None,
) -> Instructions:
    if lhs.pattern or rhs.pattern:
        return sparsity.matmul(context, lhs, rhs, dimensions, psum)
    if {lhs.format, rhs.format} & MX_FORMATS.keys():
        return microscaling.matmul(context, lhs, rhs, dimensions, psum)
    return _dense(context, lhs, rhs, dimensions, psum, k_tile, held)


def _dense(
    context: Context,
    lhs: MatmulOperand,
    rhs: MatmulOperand,
    dimensions: DotDimensions,
    psum: Buffer,
    k_tile: int | None,
    held: Sizes | None,
) -> Instructions:
    core = context.core
    *_, k = dimensions.sizes(lhs.view.type.shape, rhs.view.type.shape)
    double_row = (
        lhs.format in FP8
        and rhs.format in FP8
        and core.k_tile_double_row is not None
        and k >= core.k_tile_double_row
    )
    in_passes = "float32" in (lhs.format, rhs.format)
    for operand in (lhs, rhs):
        check_operand(context, operand.format)
    yield into_psum(
        context,
        NcMatmul,
        (lhs.view, rhs.view),
        psum,
        dimensions=dimensions,
        k_tile=k_tile or (core.k_tile_double_row if double_row else core.k_tile),
        rows_per_cell=2 if double_row else 1,
        passes=4 if in_passes else 1,
        group_rows=group_rows(context.policy) if in_passes else None,
        held=held,
    )
