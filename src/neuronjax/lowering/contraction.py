"""Rules of contractions: what is cast, scaled and tiled before TensorE adds it up.

The policy decides the operands' format by role: an operand that carries a gradient is a
cotangent, one that a checkpoint holds a weight, every other one is forward. FP8
operands are scaled per tensor by a power of two, as explicit instructions. FP32
operands take four passes of high and low halves. The MX and the sparse datapath are in
files of their own.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Iterable, Iterator
from math import prod
from typing import Any

import numpy as np

from neuronjax.errors import UnsupportedError
from neuronjax.ir.instruction import Buffer, Instruction, View
from neuronjax.ir.instruction_set import (
    DotDimensions,
    NcMatmul,
    TensorCopy,
    TensorScalar,
)
from neuronjax.ir.program import Op
from neuronjax.lowering import microscaling, sparsity
from neuronjax.lowering.context import Context
from neuronjax.lowering.operand import FP8, Operand, no_such_format
from neuronjax.lowering.psum import into_psum, psum_dtype
from neuronjax.lowering.registry import lowers
from neuronjax.lowering.scaling import scale
from neuronjax.lowering.weights import weight_index
from neuronjax.numerics.float_format import get_format
from neuronjax.numerics.microscaling import (
    MX_FORMATS,
    ON_DEVICE_FORMATS,
    ON_DEVICE_INPUTS,
)

Instructions = Iterator[Instruction]


@lowers("stablehlo.dot_general")
def dot_general(op: Op, context: Context) -> Instructions:
    numbers = op.attributes["dot_dimension_numbers"]
    dimensions = DotDimensions(
        numbers["lhs_batching_dimensions"],
        numbers["rhs_batching_dimensions"],
        numbers["lhs_contracting_dimensions"],
        numbers["rhs_contracting_dimensions"],
    )
    if op.results[0].type.dtype.kind in "iub":
        yield _integer_matmul(op, context, dimensions)
        return
    lhs, rhs, instructions = prepare_operands(op, context)
    yield from instructions
    yield from matmul(context, lhs, rhs, dimensions, context.results(op)[0])


def _integer_matmul(op: Op, context: Context, dimensions: DotDimensions) -> Any:
    path = context.policy.integer_path
    return context.make(
        NcMatmul,
        context.operands(op),
        context.results(op),
        engine="gpsimd" if path == "exact" else "tensor",
        dimensions=dimensions,
        passes=1 if path == "exact" else 4,
        accumulation="integer" if path == "exact" else "systolic",
    )


# -- operands --------------------------------------------------------------------------


def prepare_operands(
    op: Op, context: Context
) -> tuple[Operand, Operand, list[Instruction]]:
    """Casts and scales both operands of a contraction as the policy says."""
    out: list[Instruction] = []
    weight = weight_index(op, context)
    lhs, rhs = (
        _prepare(context, context.view(v), _role(context, v, i == weight), out)
        for i, v in enumerate(op.operands)
    )
    if {lhs.format, rhs.format} >= {"float8_e4m3", "float8_e4m3fn"}:
        raise UnsupportedError(
            "float8_e4m3 and float8_e4m3fn cannot meet in one matmul",
            op=op.name,
            location=op.location.source,
            remedy="give both operands the same E4M3 variant",
        )
    lhs, rhs = _same_width(context, lhs, rhs, out), _same_width(context, rhs, lhs, out)
    lhs, rhs = sparsity.marked(op, context, lhs, rhs, weight)
    return lhs, rhs, out


def _role(context: Context, value: Any, is_weight: bool) -> str:
    if context.fact(value).cotangent:
        return "cotangent"
    return "weight" if is_weight else "forward"


def _prepare(
    context: Context, view: View, role: str, out: list[Instruction]
) -> Operand:
    policy = context.policy
    dtype = view.type.dtype.name
    chip_fp8 = context.shared.target.chip.forward_fp8
    wanted = policy.operand_dtype(role, chip_fp8=chip_fp8)  # type: ignore[arg-type]
    is_mx = wanted in MX_FORMATS
    if policy.auto_cast == "none" or (dtype != "float32" and not is_mx):
        return Operand(view, dtype)
    if is_mx:
        microscaling.check_chip(context, wanted)
        if wanted not in ON_DEVICE_FORMATS or dtype in ON_DEVICE_INPUTS:
            return Operand(view, wanted)
    cast = (wanted, policy.scaling, policy.rounding, policy.overflow)
    key = (view.buffer.number, *cast)
    if key not in context.memo:
        context.memo[key] = _cast(context, view, wanted, out)
    return context.memo[key]


def _cast(context: Context, view: View, wanted: str, out: list) -> Operand:
    if wanted == "float32":
        return Operand(view, wanted)
    if wanted in FP8 and wanted not in context.core.capabilities:
        raise no_such_format(context, wanted)
    inverse = None
    policy = context.policy
    if wanted in FP8 and policy.scaling != "none":
        view, inverse, instructions = scale(context, view, wanted)
        out += instructions
    result = context.temporary(view.type.shape, get_format(_storage(wanted)).dtype)
    out.append(
        context.make(
            TensorCopy,
            (view,),
            (result,),
            engine="vector",
            write_format=wanted if wanted == "tfloat32" else None,
            rounding=policy.rounding,
            overflow=policy.overflow,
        )
    )
    return Operand(View(result), wanted, inverse)


def _storage(wanted: str) -> str:
    """The dtype that an operand is cast to on its way to a format."""
    if wanted in MX_FORMATS:
        return ON_DEVICE_INPUTS[0]
    return "float32" if wanted == "tfloat32" else wanted


def _same_width(
    context: Context, operand: Operand, other: Operand, out: list
) -> Operand:
    """TF32 and FP32 only pair with TF32 and FP32: widens the narrower operand."""
    wide = ("float32", "tfloat32")
    if operand.format in wide or other.format not in wide:
        return operand
    result = context.temporary(operand.view.type.shape, np.float32)
    out.append(context.make(TensorCopy, (operand.view,), (result,), engine="vector"))
    return operand._replace(view=View(result), format=other.format)


# -- the contraction -------------------------------------------------------------------


def matmul(
    context: Context,
    lhs: Operand,
    rhs: Operand,
    dimensions: DotDimensions,
    result: Buffer,
) -> Instructions:
    """The contraction itself, its rescaling, and the write to the declared dtype."""
    scales = [o.inverse_scale for o in (lhs, rhs) if o.inverse_scale is not None]
    datapath = functools.partial(_datapath, context, lhs, rhs, dimensions)
    yield from from_psum(context, datapath, scales, result)


def from_psum(
    context: Context,
    datapath: Callable[[Buffer], Iterable[Instruction]],
    scales: list[View],
    result: Buffer,
) -> Instructions:
    """A matmul into PSUM, the rescaling of its sums, and their last write.

    Args:
        context: of the op.
        datapath: gives the instructions that leave the sums in a buffer.
        scales: float32 scalars to multiply the sums with.
        result: of the op's declared dtype.
    """
    dtypes = [psum_dtype(context), *[np.dtype(np.float32) for _ in scales]]
    if dtypes[-1] == result.type.dtype:
        dtypes.pop()
    buffers = [context.temporary(result.type.shape, d) for d in dtypes] + [result]
    yield from datapath(buffers[0])
    for i, (source, target) in enumerate(itertools.pairwise(buffers)):
        if i < len(scales):
            yield context.make(
                TensorScalar,
                (View(source), scales[i]),
                (target,),
                engine="vector",
                op="multiply",
            )
        else:
            yield context.arithmetic(
                TensorCopy, (View(source),), (target,), engine="scalar"
            )


def _datapath(
    context: Context,
    lhs: Operand,
    rhs: Operand,
    dimensions: DotDimensions,
    psum: Buffer,
) -> Instructions:
    if {lhs.format, rhs.format} & MX_FORMATS.keys():
        return microscaling.matmul(context, lhs, rhs, dimensions, psum)
    if lhs.pattern or rhs.pattern:
        return sparsity.matmul(context, lhs, rhs, dimensions, psum)
    return _dense(context, lhs, rhs, dimensions, psum)


def _dense(
    context: Context,
    lhs: Operand,
    rhs: Operand,
    dimensions: DotDimensions,
    psum: Buffer,
) -> Instructions:
    core = context.core
    k = prod(lhs.view.type.shape[d] for d in dimensions.lhs_contract)
    double_row = (
        lhs.format in FP8
        and rhs.format in FP8
        and core.k_tile_double_row is not None
        and k >= core.k_tile_double_row
    )
    yield into_psum(
        context,
        NcMatmul,
        (lhs.view, rhs.view),
        psum,
        dimensions=dimensions,
        k_tile=core.k_tile_double_row if double_row else core.k_tile,
        rows_per_cell=2 if double_row else 1,
        passes=4 if "float32" in (lhs.format, rhs.format) else 1,
    )
