"""Rules of contractions, which are tiled and then added up by TensorE.

`operand_casts` casts and scales the operands as the policy says, `dot_algorithm` as the
program says; `products` handles contractions that are not matmuls. FP32 operands take
four passes of high and low halves. The MX and the sparse datapath have files of their
own. Under a policy that casts, `Policy.dot_precision` says what `precision` (HIGH,
HIGHEST) means; an FP32 contraction that is not cast has the HIGHEST precision already.

A contraction with an integer result is exact and wraps around, on GpSimdE. Under
`integer_path="fp32"` it is computed as the vendor's compiler does (EVRF035): operands
in FP32, folded by TensorE, rounded and saturated. Booleans are logic: OR of ANDs.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from neuronjax.errors import UnsupportedError
from neuronjax.ir.instruction import Buffer, Engine, Instruction, View
from neuronjax.ir.instruction_set import (
    FP32_ROWS,
    DotDimensions,
    NcMatmul,
    Sizes,
    TensorReduce,
    TensorTensor,
)
from neuronjax.ir.program import Op
from neuronjax.lowering import dot_algorithm, microscaling, sparsity
from neuronjax.lowering.context import Context, Instructions
from neuronjax.lowering.elementwise import engine_of, vector_tile
from neuronjax.lowering.moves import converted, filled, reshaped, spread, transposed
from neuronjax.lowering.operand_casts import as_float, prepare_operands
from neuronjax.lowering.psum import MatmulOperand, check_operand, from_psum, into_psum
from neuronjax.lowering.registry import lowers
from neuronjax.numerics.float_format import FP8
from neuronjax.numerics.microscaling import MX_FORMATS

#: `Policy.fp32_model` -> the fields of `NcMatmul` for FP32 operands.
_PASSES: dict[str, dict[str, Any]] = {
    "fp32_4pass_rows32": dict(passes=4, group_rows=FP32_ROWS),
    "fp32_4pass": dict(passes=4),
}


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
    """Contract the last axis of lhs with the first of rhs (vectors or matrices)."""
    dimensions = DotDimensions((), (), (len(op.operands[0].type.shape) - 1,), (0,))
    yield from contract(op, context, dimensions, context.results(op)[0])


def contract(
    op: Op, context: Context, dimensions: DotDimensions, result: Buffer
) -> Instructions:
    """Contract the op's two operands into `result`, [batch, lhs free, rhs free]. The
    result's dtype and the policy select the engine and the casts."""
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
    """Return a contraction with an integer or boolean result. Refuse integers of 32 or
    64 bits if the policy forbids FP32 for them."""
    dtype = result.type.dtype
    if (
        context.policy.implicit_integer_downcast == "none"
        and dtype.kind in "iu"
        and dtype.itemsize >= 4
    ):
        raise op.error(
            UnsupportedError,
            f"EVRF035: a contraction with a result of {dtype} is computed in float32, "
            "which implicit_integer_downcast='none' refuses",
            "contract float32, or set implicit_integer_downcast='all'",
        )
    through_fp32 = context.integer_path == "fp32" and result.type.dtype != np.bool_
    is_fp32 = through_fp32 and any(v.type.dtype.itemsize > 1 for v in operands)
    exactly: Engine = "host" if context.policy.accumulation == "host" else "gpsimd"
    if through_fp32:
        for view in operands:
            check_operand(context, view.type.dtype.name, is_integer=True)
    return context.make(
        NcMatmul,
        operands,
        (result,),
        engine="tensor" if through_fp32 else exactly,
        dimensions=dimensions,
        **(_PASSES[context.policy.fp32_model] if is_fp32 else {}),
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
    """Multiply on TensorE, rescale, and write in the declared dtype. `psum` and
    `k_tile` come from an explicit algorithm; if None, from the policy and the array.
    `held` is the field of `NcMatmul` of that name."""
    scales = [o.inverse_scale for o in (lhs, rhs) if o.inverse_scale is not None]

    def datapath(psum: Buffer) -> Instructions:
        if lhs.pattern or rhs.pattern:
            return sparsity.matmul(context, lhs, rhs, dimensions, psum)
        if {lhs.format, rhs.format} & MX_FORMATS.keys():
            return microscaling.matmul(context, lhs, rhs, dimensions, psum)
        return _dense(context, lhs, rhs, dimensions, psum, k_tile, held)

    yield from from_psum(context, datapath, scales, result, psum=psum)


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
    is_fp32 = "float32" in (lhs.format, rhs.format)
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
        held=held,
        **(_PASSES[context.policy.fp32_model] if is_fp32 else {}),
    )


Axes = tuple[int, ...]


# -- products and their sums -----------------------------------------------------------

# Some contractions are not matmuls. XLA's algebraic simplifier turns a dot that
# contracts nothing, or an axis of length one, into a multiplication, and a dot of
# vectors with vectors into a multiplication and a sum; jaxlib does so on the CPU for
# every dtype and `precision`. `einsum` writes such dots for elementwise and outer
# products. Such dots are not matmuls here either: no auto-cast changes their operands,
# and VectorE multiplies in FP32. A large batch of tiny matmuls, for each of which
# TensorE would load its array, takes ten times as long there as on VectorE, by the time
# model. ASSUMPTION: the vendor's compiler gives such a batch to VectorE as well.


def products(
    context: Context, lhs: View, rhs: View, dimensions: DotDimensions, result: Buffer
) -> Instructions:
    """Multiply element by element, and add along the contracted axes. Floats are
    multiplied and added in FP32 and the result is rounded once; the sum has the order
    of `TensorReduce`. Integers and booleans have the dtype of the result throughout."""
    d, shape = dimensions, result.type.shape
    contracted = tuple(lhs.type.shape[axis] for axis in d.lhs_contract)
    if set(contracted) <= {1}:
        contracted = ()
    batch, end = len(d.lhs_batch), len(shape)
    middle = end - len(rhs.type.shape) + batch + len(d.rhs_contract)
    sums, whole = tuple(range(end, end + len(contracted))), (*shape, *contracted)

    def aligned(view: View, batched: Axes, contract: Axes, places: range) -> View:
        axes = range(len(view.type.shape))
        free = (axis for axis in axes if axis not in (*batched, *contract))
        view = transposed(context, view, (*batched, *free, *contract))
        kept = view.type.shape[: len(axes) - len(contract)]
        view = reshaped(context, view, (*kept, *contracted))
        return spread(context, view, whole, (*range(batch), *places, *sums))

    operands = (
        aligned(lhs, d.lhs_batch, d.lhs_contract, range(batch, middle)),
        aligned(rhs, d.rhs_batch, d.rhs_contract, range(middle, end)),
    )
    yield from _summed(context, operands, whole, sums, result)


def _summed(
    context: Context,
    operands: tuple[View, View],
    shape: Axes,
    sums: Axes,
    result: Buffer,
) -> Instructions:
    dtype = result.type.dtype
    fields: dict[str, Any] = dict(engine=engine_of(dtype))
    wide = np.dtype(np.float32)
    if dtype.kind in "iub":
        wide, (a, b) = dtype, operands
        operands = converted(context, a, dtype), converted(context, b, dtype)
    if not sums:
        fields["op"] = "multiply"
        yield context.arithmetic(TensorTensor, operands, (result,), **fields)
        return
    terms = context.computed(
        TensorTensor, operands, shape, wide, op="multiply", **fields
    )
    zero = filled(context, (), wide, 0)
    op = "or" if dtype == np.bool_ else "add"
    fields |= dict(op=op, axes=sums, tile=vector_tile(context.policy))
    yield context.arithmetic(TensorReduce, (terms, zero), (result,), **fields)
