"""ScalarE: `activation`, `activation_reduce`, and `activate2` of NeuronCore-v4."""

from __future__ import annotations

from typing import Any

from neuronjax.ir.alu_operators import op_name
from neuronjax.nki.isa.constants import reduce_cmd as ReduceCmd
from neuronjax.nki.isa.operands import refuse
from neuronjax.nki.isa.request import Request
from neuronjax.nki.tensor import NkiTensor
from neuronjax.nki.trace import NkiInstruction

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
    """dst = op(data * scale + bias), in FP32, and sums of it per partition."""
    return Request("activation", locals()).emit()


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
    """dst = op(data * scale + bias), reduce_res its sum per partition."""
    return Request("activation_reduce", locals()).emit(reduce_cmd="reset_reduce")


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
    """dst = op((data <op0> imm0) <op1> imm1), and a reduction of it."""
    request = Request("activate2", locals())
    pair = tuple("bypass" if o is None else op_name(o) for o in (op0, op1))
    if pair not in PAIRS:
        legal = "; ".join(" ".join(p) for p in sorted(PAIRS))
        what = f"operators {pair[0]}, {pair[1]}"
        refuse("activate2", what, f"one of the pairs {legal}")
    command = request.attributes["reduce_cmd"]
    if command != "idle" and reduce_op is None:
        what = f"reduce_cmd {command} without reduce_op"
        refuse("activate2", what, "give reduce_op")
    reduction = request.attributes["reduce_op"] or "add"
    return request.emit(op0=pair[0], op1=pair[1], reduce_op=reduction)
