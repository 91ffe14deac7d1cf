"""Reductions and scans: `tensor_reduce` and its relatives."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from neuronjax.ir.alu_operators import (
    ALU,
    BINARY_ARITHMETIC,
    BITVEC,
    REDUCTIONS,
    checked_op,
)
from neuronjax.nki import trace as tracing
from neuronjax.nki.isa.constants import reduce_cmd as ReduceCmd
from neuronjax.nki.isa.operands import (
    ON_CHIP,
    as_float,
    check_same_shape,
    check_scalar_operand,
    check_tensor,
    refuse,
)
from neuronjax.nki.tensor import NkiTensor
from neuronjax.nki.trace import NkiInstruction, emit

#: One FP32 per partition, shared by VectorE's accumulating instructions.
ACCUMULATORS = "vector.reduce"
_ARITHMETIC = ALU - BITVEC
_PARTITION_REDUCTIONS = frozenset(
    {"add", "average", "maximum", "max", "bitwise_or", "bitwise_and"}
)
_ACCUMULATED = frozenset({"add", "multiply", "maximum", "minimum"})
_CUMULATED = _ACCUMULATED | {"subtract"}
_LONG = {"max": "maximum", "min": "minimum"}


def registers() -> Any:
    """VectorE's accumulators as an operand, [128, 1]."""
    return tracing.current().state(ACCUMULATORS, (128, 1), "float32")


def tensor_reduce(
    dst: NkiTensor,
    op: Any,
    data: NkiTensor,
    axis: int | Sequence[int],
    negate: bool = False,
    keepdims: bool = False,
    name: str | None = None,
) -> NkiInstruction:
    """Reduces the last free axes of a tile on VectorE, in FP32 or on bit patterns.

    Args:
        dst: on chip, one element per row that is kept.
        op: a reduction operator.
        data: on chip, [P, ...].
        axis: the reduced axes: the last ones, never axis 0.
        negate: whether the result changes its sign (arithmetic operators only).
        keepdims: whether dst keeps reduced axes as 1; the elements are the same.
        name: label of the instruction.
    """
    where = "tensor_reduce"
    check_tensor(where, "dst", dst, *ON_CHIP)
    check_tensor(where, "data", data, *ON_CHIP)
    function = checked_op(op, REDUCTIONS, "nisa.tensor_reduce")
    kept = _kept_axes(axis, data)
    if negate and function in BITVEC:
        refuse(where, f"negate with {function}", "negate goes with arithmetic")
    rows = 1
    for size in data.shape[:kept]:
        rows *= size
    if dst.shape[0] != data.shape[0] or dst.size != rows:
        refuse(
            where,
            f"dst has shape {dst.shape}, data {data.shape} reduced over {axis}",
            f"give dst {rows // data.shape[0]} elements per partition",
        )
    attributes = {"op": function, "kept": kept, "negate": bool(negate)}
    return emit(where, "vector", [dst], [data], attributes=attributes, label=name)


def _kept_axes(axis: int | Sequence[int], data: NkiTensor) -> int:
    given = [axis] if isinstance(axis, int) else list(axis)
    axes = sorted(a + data.ndim if a < 0 else a for a in given)
    wanted = list(range(data.ndim - len(axes), data.ndim))
    if not axes or axes != wanted or axes[0] == 0:
        refuse(
            "tensor_reduce",
            f"axis {axis} of a tile of {data.ndim} dimensions",
            "reduce the last free axes, for example axis=(1, 2) of three; for "
            "partitions transpose first, or use tensor_partition_reduce",
        )
    return data.ndim - len(axes)


def tensor_partition_reduce(
    dst: NkiTensor, op: Any, data: NkiTensor, name: str | None = None
) -> NkiInstruction:
    """Reduces a tile over its partitions on GpSimdE.

    Args:
        dst: SBUF, one partition, as many elements as one of data.
        op: add, average, max, bitwise_or or bitwise_and.
        data: SBUF.
        name: label of the instruction.
    """
    where = "tensor_partition_reduce"
    check_tensor(where, "dst", dst, "sbuf")
    check_tensor(where, "data", data, "sbuf")
    function = checked_op(op, _PARTITION_REDUCTIONS, "nisa.tensor_partition_reduce")
    if dst.shape[0] != 1 or dst.size * data.shape[0] != data.size:
        refuse(
            where,
            f"dst has shape {dst.shape}, data {data.shape}",
            f"give dst shape (1, {data.size // data.shape[0]})",
        )
    attributes = {"op": _LONG.get(function, function)}
    return emit(where, "gpsimd", [dst], [data], attributes=attributes, label=name)


def tensor_scalar_reduce(
    dst: NkiTensor,
    data: NkiTensor,
    op0: Any,
    operand0: Any,
    reduce_op: Any,
    reduce_res: NkiTensor | None = None,
    reverse0: bool = False,
    reduce_cmd: Any = ReduceCmd.reset_reduce,
    reduce_init: Any = None,
    reduce_res_negate: bool = False,
    name: str | None = None,
) -> NkiInstruction:
    """dst = data <op0> operand0, folded into VectorE's accumulators.

    Args:
        dst, data: on chip; equal partitions and elements per partition.
        op0: an arithmetic operator.
        operand0: a number, or a tensor of shape (partitions, 1).
        reduce_op: add, multiply, max or min.
        reduce_res: (partitions, 1), takes the accumulators.
        reverse0: not supported by the instruction.
        reduce_cmd: reset_reduce, reduce or load_reduce.
        reduce_init: what load_reduce loads.
        reduce_res_negate: whether what reduce_res takes changes its sign.
        name: label of the instruction.
    """
    where = "tensor_scalar_reduce"
    _check_pair(where, dst, data)
    if reverse0:
        refuse(where, "reverse0=True", "it is not supported yet, see nki.isa")
    check_scalar_operand(where, "operand0", operand0, data.shape[0])
    attributes = {
        "op0": checked_op(op0, _ARITHMETIC, f"nisa.{where}"),
        "reduce_op": _reduction(reduce_op, _ACCUMULATED, where),
        "reduce_cmd": checked_command(
            where, reduce_cmd, ("reset_reduce", "reduce", "load_reduce"), reduce_init
        ),
        "negate": bool(reduce_res_negate),
    }
    state = registers()
    outputs = [dst, state, *_result(where, reduce_res, data)]
    operands = [data, as_float(operand0), state, as_float(reduce_init)]
    return emit(where, "vector", outputs, operands, attributes=attributes, label=name)


def tensor_scalar_cumulative(
    dst: NkiTensor,
    src: NkiTensor,
    op0: Any,
    op1: Any,
    imm0: Any,
    imm1: Any = None,
    reduce_cmd: Any = ReduceCmd.reset_reduce,
    name: str | None = None,
) -> NkiInstruction:
    """register = op1(op0(src, imm0), register); dst takes every register value.

    Args:
        dst, src: on chip, no 32-bit integers; equal partitions and elements.
        op0: an arithmetic operator.
        op1: add, subtract, multiply, max or min.
        imm0: a number, or a tensor of shape (partitions, 1).
        imm1: what load_reduce loads.
        reduce_cmd: reset_reduce, reduce or load_reduce.
        name: label of the instruction.
    """
    where = "tensor_scalar_cumulative"
    _check_pair(where, dst, src)
    for label, tile in (("dst", dst), ("src", src)):
        if tile.dtype in ("int32", "uint32"):
            refuse(where, f"{label} is {tile.dtype}", "no 32-bit integers here")
    check_scalar_operand(where, "imm0", imm0, src.shape[0])
    attributes = {
        "op0": checked_op(op0, _ARITHMETIC, f"nisa.{where}"),
        "op1": _reduction(op1, _CUMULATED, where),
        "reduce_cmd": checked_command(
            where, reduce_cmd, ("reset_reduce", "reduce", "load_reduce"), imm1
        ),
    }
    state = registers()
    operands = [src, as_float(imm0), state, as_float(imm1)]
    return emit(
        where, "vector", [dst, state], operands, attributes=attributes, label=name
    )


def tensor_tensor_scan(
    dst: NkiTensor,
    data0: NkiTensor,
    data1: NkiTensor,
    initial: Any,
    op0: Any,
    op1: Any,
    reverse0: bool = False,
    reverse1: bool = False,
    name: str | None = None,
) -> NkiInstruction:
    """dst[i] = op1(op0(data0[i], dst[i - 1]), data1[i]) along the free axis.

    Args:
        dst, data0, data1: on chip; equal partitions and elements per partition.
        initial: dst[-1]: a number, or a tensor of shape (partitions, 1).
        op0, op1: binary arithmetic operators.
        reverse0, reverse1: whether an operator's operands change places.
        name: label of the instruction.
    """
    where = "tensor_tensor_scan"
    _check_pair(where, dst, data0)
    check_tensor(where, "data1", data1, *ON_CHIP)
    check_same_shape(where, dst, ("data1", data1))
    check_scalar_operand(where, "initial", initial, dst.shape[0])
    attributes = {
        "op0": checked_op(op0, BINARY_ARITHMETIC, f"nisa.{where}"),
        "op1": checked_op(op1, BINARY_ARITHMETIC, f"nisa.{where}"),
        "reverse0": bool(reverse0),
        "reverse1": bool(reverse1),
    }
    operands = [data0, data1, as_float(initial)]
    return emit(where, "vector", [dst], operands, attributes=attributes, label=name)


# ---- What accumulating instructions share.


def checked_command(
    where: str, command: Any, allowed: tuple[str, ...], init: Any
) -> str:
    """The name of a reduce_cmd that an instruction accepts, with or without a value."""
    name = command.name if isinstance(command, ReduceCmd) else str(command)
    if name not in allowed:
        refuse(where, f"reduce_cmd {name}", f"one of {', '.join(allowed)}")
    if name == "load_reduce" and init is None:
        refuse(where, "load_reduce without a value", "give the value to load")
    return name


def _reduction(op: Any, allowed: frozenset[str], where: str) -> str:
    name = checked_op(op, allowed | _LONG.keys() | {"mult"}, f"nisa.{where}")
    return {**_LONG, "mult": "multiply"}.get(name, name)


def _check_pair(where: str, dst: NkiTensor, data: NkiTensor) -> None:
    check_tensor(where, "dst", dst, *ON_CHIP)
    check_tensor(where, "data", data, *ON_CHIP)
    check_same_shape(where, dst, ("data", data))


def _result(
    where: str, reduce_res: NkiTensor | None, data: NkiTensor
) -> list[NkiTensor]:
    if reduce_res is None:
        return []
    check_tensor(where, "reduce_res", reduce_res, *ON_CHIP)
    if reduce_res.shape[0] != data.shape[0] or reduce_res.size != data.shape[0]:
        refuse(
            where,
            f"reduce_res has shape {reduce_res.shape}",
            f"give shape ({data.shape[0]}, 1)",
        )
    return [reduce_res]
