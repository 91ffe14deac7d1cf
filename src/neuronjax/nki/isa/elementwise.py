"""Elementwise arithmetic: `tensor_tensor`, `tensor_scalar`."""

from __future__ import annotations

from typing import Any

from neuronjax.ir.alu_operators import ALU, BITVEC, UNARY_ARITHMETIC, checked_op
from neuronjax.nki.isa.constants import engine as Engine
from neuronjax.nki.isa.operands import (
    ON_CHIP,
    check_same_shape,
    check_scalar_operand,
    check_tensor,
    engine_name,
    in_psum,
    refuse,
)
from neuronjax.nki.tensor import NkiTensor
from neuronjax.nki.trace import NkiInstruction, emit

WORDS = ("int32", "uint32")


def tensor_tensor(
    dst: NkiTensor,
    data1: NkiTensor,
    data2: NkiTensor,
    op: Any,
    engine: Any = Engine.unknown,
    name: str | None = None,
) -> NkiInstruction:
    """dst = data1 <op> data2, in FP32; 32-bit integers exactly on GpSimd.

    Args:
        dst: on chip; equal partitions and elements per partition.
        data1: likewise.
        data2: likewise.
        op: a binary operator.
        engine: vector or gpsimd; by default GpSimd for `nl.power` and where all are
            32-bit integers outside PSUM.
        name: label of the instruction.
    """
    for label, t in (("dst", dst), ("data1", data1), ("data2", data2)):
        check_tensor("tensor_tensor", label, t, *ON_CHIP)
    check_same_shape("tensor_tensor", dst, ("data1", data1), ("data2", data2))
    function = checked_op(op, ALU - UNARY_ARITHMETIC - {"invert"}, "nisa.tensor_tensor")
    words = all(t.dtype in WORDS for t in (dst, data1, data2))
    arithmetic = function not in BITVEC
    native = words and arithmetic and not in_psum(dst, data1, data2)
    default = "gpsimd" if native or function == "power" else "vector"
    by = engine_name("tensor_tensor", engine, ("vector", "gpsimd"), default)
    attributes = {"op": function, "integer": words and by == "gpsimd"}
    return emit(
        "tensor_tensor", by, [dst], [data1, data2], attributes=attributes, label=name
    )


def tensor_scalar(
    dst: NkiTensor,
    data: NkiTensor,
    op0: Any,
    operand0: Any,
    reverse0: bool = False,
    op1: Any = None,
    operand1: Any = None,
    reverse1: bool = False,
    engine: Any = Engine.unknown,
    name: str | None = None,
) -> NkiInstruction:
    """dst = (data <op0> operand0) <op1> operand1, operands one per partition.

    Args:
        dst: on chip; equal partitions and elements per partition.
        data: likewise.
        op0: operators, both bitvec or both arithmetic; op1 may be None.
        op1: likewise.
        operand0: numbers, or tensors of shape (partitions, 1).
        operand1: likewise.
        reverse0: whether the operand is on the left.
        reverse1: likewise.
        engine: vector (default), scalar or gpsimd.
        name: label of the instruction.
    """
    where = "tensor_scalar"
    check_tensor(where, "dst", dst, *ON_CHIP)
    check_tensor(where, "data", data, *ON_CHIP)
    check_same_shape(where, dst, ("data", data))
    ops = [
        None if o is None else checked_op(o, ALU, "nisa.tensor_scalar")
        for o in (op0, op1)
    ]
    if ops[1] is not None and (ops[0] in BITVEC) != (ops[1] in BITVEC):
        refuse(where, f"{ops[0]} and {ops[1]}", "both bitvec or both arithmetic")
    check_scalar_operand(where, "operand0", operand0, data.shape[0])
    check_scalar_operand(where, "operand1", operand1, data.shape[0])
    by = engine_name(where, engine, ("vector", "scalar", "gpsimd"), "vector")
    attributes = {
        "op0": ops[0],
        "op1": ops[1],
        "reverse0": bool(reverse0),
        "reverse1": bool(reverse1),
    }
    operands = [data, _number(operand0, ops[0]), _number(operand1, ops[1])]
    return emit(where, by, [dst], operands, attributes=attributes, label=name)


def _number(operand: Any, op: str | None) -> Any:
    """An immediate as the operator takes it: bits of an int, or FP32."""
    if op is None or operand is None or isinstance(operand, NkiTensor):
        return None if op is None else operand
    if isinstance(operand, int | float):
        return int(operand) if op in BITVEC else float(operand)
    return operand
