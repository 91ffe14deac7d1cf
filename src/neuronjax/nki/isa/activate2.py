"""ScalarE: `activation_reduce`, and `activate2` of NeuronCore-v4."""

from __future__ import annotations

from typing import Any

from neuronjax.ir.alu_operators import checked_op, op_name
from neuronjax.nki import trace as tracing
from neuronjax.nki.isa.activation import ACCUMULATORS, FUNCTIONS
from neuronjax.nki.isa.constants import reduce_cmd as ReduceCmd
from neuronjax.nki.isa.operands import (
    ON_CHIP,
    as_float,
    check_same_shape,
    check_scalar_operand,
    check_tensor,
    refuse,
)
from neuronjax.nki.isa.reductions import checked_command
from neuronjax.nki.tensor import NkiTensor
from neuronjax.nki.trace import NkiInstruction, emit

#: The operator pairs of the tensor-scalar stage (nki.isa.activate2).
PAIRS = frozenset(
    {
        ("multiply", "add"),
        ("multiply", "subtract"),
        ("multiply", "bypass"),
        ("add", "bypass"),
        ("subtract", "bypass"),
        ("bypass", "bypass"),
    }
)
_REDUCTIONS = frozenset({"add", "maximum", "minimum", "abs_max", "abs_min"})


def activation_reduce(
    dst: NkiTensor,
    op: Any,
    data: NkiTensor,
    reduce_op: Any,
    reduce_res: NkiTensor,
    bias: Any = None,
    scale: Any = 1.0,
    name: str | None = None,
) -> NkiInstruction:
    """dst = op(data * scale + bias), reduce_res its sum per partition.

    Args:
        dst: on chip, of data's shape.
        op: an activation function.
        data: on chip.
        reduce_op: nl.add.
        reduce_res: on chip, (partitions, 1).
        bias: a number, or a tensor of shape (partitions, 1).
        scale: the same.
        name: label of the instruction.
    """
    where = "activation_reduce"
    _check_tiles(where, dst, data, reduce_res)
    for label, value in (("bias", bias), ("scale", scale)):
        check_scalar_operand(where, label, value, data.shape[0])
    checked_op(reduce_op, frozenset({"add"}), "nisa.activation_reduce reduce_op")
    attributes = {
        "op": checked_op(op, FUNCTIONS, "nisa.activation_reduce"),
        "reduce_op": "add",
        "reduce_cmd": "reset_reduce",
    }
    state = tracing.current().state(ACCUMULATORS, (128, 1), "float32")
    outputs = [dst, state, reduce_res]
    operands = [data, as_float(scale), as_float(bias), state]
    return emit(where, "scalar", outputs, operands, attributes=attributes, label=name)


def activate2(
    dst: NkiTensor,
    op: Any,
    data: NkiTensor,
    imm0: Any,
    imm1: Any,
    op0: Any,
    op1: Any,
    relu_param: Any = 0.0,
    reverse0: bool = False,
    reverse1: bool = False,
    reduce_op: Any = None,
    reduce_res: NkiTensor | None = None,
    reduce_cmd: Any = ReduceCmd.idle,
    name: str | None = None,
) -> NkiInstruction:
    """dst = op((data <op0> imm0) <op1> imm1), and a reduction of it.

    Args:
        dst: on chip, of data's shape.
        op: an activation function.
        data: on chip.
        imm0: a number, or a tensor of shape (partitions, 1).
        imm1: the same.
        op0: multiply, add, subtract or bypass.
        op1: add, subtract or bypass; the pair must be a legal one.
        relu_param: slope of prelu.
        reverse0: whether imm0 is on the left.
        reverse1: whether imm1 is on the left.
        reduce_op: add, maximum, minimum, abs_max or abs_min.
        reduce_res: on chip, (partitions, 1), takes the accumulators.
        reduce_cmd: idle, reset, reset_reduce or reduce.
        name: label of the instruction.
    """
    where = "activate2"
    _check_tiles(where, dst, data, reduce_res)
    for label, value in (("imm0", imm0), ("imm1", imm1), ("relu_param", relu_param)):
        check_scalar_operand(where, label, value, data.shape[0])
    pair = tuple("bypass" if o is None else op_name(o) for o in (op0, op1))
    if pair not in PAIRS:
        legal = "; ".join(" ".join(p) for p in sorted(PAIRS))
        refuse(where, f"operators {pair[0]}, {pair[1]}", f"one of the pairs {legal}")
    command = checked_command(
        where, reduce_cmd, ("idle", "reset", "reset_reduce", "reduce"), None
    )
    if command != "idle" and reduce_op is None:
        refuse(where, f"reduce_cmd {command} without reduce_op", "give reduce_op")
    attributes = {
        "op": checked_op(op, FUNCTIONS, "nisa.activate2"),
        "op0": pair[0],
        "op1": pair[1],
        "reverse0": bool(reverse0),
        "reverse1": bool(reverse1),
        "reduce_cmd": command,
        "reduce_op": _reduction(reduce_op),
    }
    outputs: list[Any] = [dst]
    operands = [data, as_float(imm0), as_float(imm1), as_float(relu_param)]
    if command != "idle" or reduce_res is not None:
        state = tracing.current().state(ACCUMULATORS, (128, 1), "float32")
        operands.append(state)
        outputs.append(state)
    if reduce_res is not None:
        outputs.append(reduce_res)
    return emit(where, "scalar", outputs, operands, attributes=attributes, label=name)


def _reduction(op: Any) -> str:
    return "add" if op is None else checked_op(op, _REDUCTIONS, "nisa.activate2")


def _check_tiles(
    where: str, dst: NkiTensor, data: NkiTensor, reduce_res: NkiTensor | None
) -> None:
    check_tensor(where, "dst", dst, *ON_CHIP)
    check_tensor(where, "data", data, *ON_CHIP)
    check_same_shape(where, dst, ("data", data))
    if reduce_res is not None:
        check_tensor(where, "reduce_res", reduce_res, *ON_CHIP)
        check_scalar_operand(where, "reduce_res", reduce_res, data.shape[0])
