"""ScalarE: `activation`."""

from __future__ import annotations

from typing import Any

from neuronjax.hardware.activation_functions import ACTIVATION_FUNCTIONS
from neuronjax.ir.alu_operators import checked_op
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

FUNCTIONS = frozenset(ACTIVATION_FUNCTIONS)
ACCUMULATORS = "scalar.reduce"


def activation(
    dst: NkiTensor,
    op: Any,
    data: NkiTensor,
    bias: Any = None,
    scale: Any = 1.0,
    reduce_op: Any = None,
    reduce_res: NkiTensor | None = None,
    reduce_cmd: Any = ReduceCmd.idle,
    name: str | None = None,
) -> NkiInstruction:
    """dst = op(data * scale + bias), in FP32, and sums of it per partition.

    Args:
        dst: on chip; equal partitions and elements per partition.
        data: likewise.
        op: an activation function.
        bias: numbers, or tensors of shape (partitions, 1).
        scale: likewise.
        reduce_op: nl.add, if anything is summed.
        reduce_res: (partitions, 1), takes the accumulators after the instruction.
        reduce_cmd: what happens to the accumulators.
        name: label of the instruction.
    """
    where = "activation"
    check_tensor(where, "dst", dst, *ON_CHIP)
    check_tensor(where, "data", data, *ON_CHIP)
    check_same_shape(where, dst, ("data", data))
    for label, value in (("bias", bias), ("scale", scale)):
        check_scalar_operand(where, label, value, data.shape[0])
    function = checked_op(op, FUNCTIONS, "nisa.activation")
    if reduce_op is not None:
        checked_op(reduce_op, frozenset({"add"}), "nisa.activation reduce_op")
    if reduce_res is not None and reduce_res.size != data.shape[0]:
        refuse(
            where,
            f"reduce_res has shape {reduce_res.shape}",
            f"give shape ({data.shape[0]}, 1)",
        )
    attributes = {"op": function, "reduce_cmd": ReduceCmd(reduce_cmd).name}
    outputs: list[Any] = [dst]
    operands = [data, as_float(scale), as_float(bias)]
    if reduce_cmd != ReduceCmd.idle or reduce_res is not None:
        state = tracing.current().state(ACCUMULATORS, (128, 1), "float32")
        operands.append(state)
        outputs.append(state)
        if reduce_res is not None:
            outputs.append(reduce_res)
    return emit(where, "scalar", outputs, operands, attributes=attributes, label=name)
