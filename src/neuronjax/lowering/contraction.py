"""Rules of contractions: what is cast, scaled and tiled before TensorE adds it up.

The policy decides the operands' dtype by role: an operand that carries a gradient is a
cotangent, every other one is forward. FP8 operands are scaled per tensor by a power of
two, as explicit instructions. FP32 operands take four passes of high and low halves.
"""

from __future__ import annotations

from collections.abc import Iterator
from math import prod
from typing import Any, NamedTuple

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
from neuronjax.lowering.context import Context
from neuronjax.lowering.registry import lowers
from neuronjax.lowering.scaling import scale
from neuronjax.numerics.float_format import get_format

Instructions = Iterator[Instruction]

FP8 = ("float8_e4m3", "float8_e4m3fn", "float8_e5m2")


class Operand(NamedTuple):
    """A prepared operand.

    Attributes:
        view: in the dtype TensorE multiplies.
        inverse_scale: a float32 scalar to multiply the result with, or None.
        format: the numbers format, which is the dtype's but for tfloat32.
    """

    view: View
    inverse_scale: View | None
    format: str


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
    lhs_shape = op.operands[0].type.shape
    k = prod(lhs_shape[i] for i in dimensions.lhs_contract)
    result = context.results(op)[0]
    yield from matmul(context, lhs, rhs, dimensions, k, result)


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


def prepare_operands(
    op: Op, context: Context
) -> tuple[Operand, Operand, list[Instruction]]:
    """Casts and scales both operands of a contraction as the policy says."""
    out: list[Instruction] = []
    lhs, rhs = (
        _prepare(context, context.view(v), _role(context, v), out) for v in op.operands
    )
    if {lhs.format, rhs.format} >= {"float8_e4m3", "float8_e4m3fn"}:
        raise UnsupportedError(
            "float8_e4m3 and float8_e4m3fn cannot meet in one matmul",
            op=op.name,
            location=op.location.source,
            remedy="give both operands the same E4M3 variant",
        )
    lhs, rhs = _same_width(context, lhs, rhs, out), _same_width(context, rhs, lhs, out)
    return lhs, rhs, out


def _role(context: Context, value: Any) -> str:
    return "cotangent" if context.fact(value).cotangent else "forward"


def _prepare(
    context: Context, view: View, role: str, out: list[Instruction]
) -> Operand:
    policy = context.policy
    dtype = view.type.dtype.name
    if dtype != "float32" or policy.auto_cast == "none":
        return Operand(view, None, dtype)
    chip_fp8 = context.shared.target.chip.forward_fp8
    wanted = policy.operand_dtype(role, chip_fp8=chip_fp8)  # type: ignore[arg-type]
    cast = (wanted, policy.scaling, policy.rounding, policy.overflow)
    key = (view.buffer.number, *cast)
    if key not in context.memo:
        context.memo[key] = _cast(context, view, wanted, out)
    return context.memo[key]


def _cast(context: Context, view: View, wanted: str, out: list) -> Operand:
    if wanted == "float32":
        return Operand(view, None, wanted)
    if wanted not in context.core.capabilities and wanted in FP8[:2]:
        raise UnsupportedError(
            f"{wanted} does not exist on {context.shared.target.name}",
            location=context.location.source,
            remedy=f"use {context.shared.target.chip.forward_fp8}",
        )
    inverse = None
    policy = context.policy
    if wanted in FP8 and policy.scaling != "none":
        view, inverse, instructions = scale(context, view, wanted)
        out += instructions
    storage = "float32" if wanted == "tfloat32" else wanted
    result = context.temporary(view.type.shape, get_format(storage).dtype)
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
    return Operand(View(result), inverse, wanted)


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


def matmul(
    context: Context,
    lhs: Operand,
    rhs: Operand,
    dimensions: DotDimensions,
    k: int,
    result: Buffer,
) -> Instructions:
    """The contraction itself, its rescaling, and the write to the declared dtype."""
    policy = context.policy
    core = context.core
    double_row = (
        lhs.format in FP8
        and rhs.format in FP8
        and core.k_tile_double_row is not None
        and k >= core.k_tile_double_row
    )
    shape = result.type.shape
    scales = [o.inverse_scale for o in (lhs, rhs) if o.inverse_scale is not None]
    steps: list[tuple[str, View | None]] = [("scale", s) for s in scales]
    if result.type.dtype != np.float32:
        steps.append(("copy", None))
    buffers = [context.temporary(shape, np.float32) for _ in steps] + [result]
    if result.type.dtype == np.float32 and not steps:
        buffers = [result]
    yield context.make(
        NcMatmul,
        (lhs.view, rhs.view),
        (buffers[0],),
        engine="tensor",
        dimensions=dimensions,
        k_tile=core.k_tile_double_row if double_row else core.k_tile,
        rows_per_cell=2 if double_row else 1,
        passes=4 if "float32" in (lhs.format, rhs.format) else 1,
        accumulation=policy.accumulation,
    )
    yield from _finish(context, steps, buffers)


def _finish(context: Context, steps: list, buffers: list[Buffer]) -> Instructions:
    for (kind, factor), source, target in zip(
        steps, buffers[:-1], buffers[1:], strict=True
    ):
        if kind == "scale":
            yield context.make(
                TensorScalar,
                (View(source), factor),
                (target,),
                engine="vector",
                op="multiply",
            )
        else:
            yield context.arithmetic(
                TensorCopy, (View(source),), (target,), engine="scalar"
            )
