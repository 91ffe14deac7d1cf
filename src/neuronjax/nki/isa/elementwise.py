"""Elementwise arithmetic of VectorE; some of it GpSimd and ScalarE do, too."""

from __future__ import annotations

from typing import Any

from neuronjax.ir.alu_operators import BITVEC
from neuronjax.nki.isa.constants import engine as Engine, reduce_cmd as ReduceCmd
from neuronjax.nki.isa.operands import in_psum, refuse
from neuronjax.nki.isa.request import Request
from neuronjax.nki.tensor import NkiTensor
from neuronjax.nki.trace import NkiInstruction

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

    By default GpSimd executes `nl.power`, and what has 32-bit integers alone, outside
    PSUM.
    """
    request = Request("tensor_tensor", locals())
    function = request.attributes["op"]
    words = all(t.dtype in WORDS for t in (dst, data1, data2))
    native = words and function not in BITVEC and not in_psum(dst, data1, data2)
    by = request.engine("gpsimd" if native or function == "power" else "vector")
    return request.emit(by, integer=words and by == "gpsimd")


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
    """dst = (data <op0> operand0) <op1> operand1, operands one per partition."""
    operand1 = None if op1 is None else operand1
    request = Request("tensor_scalar", locals())
    first, second = request.attributes["op0"], request.attributes["op1"]
    if second is not None and (first in BITVEC) != (second in BITVEC):
        refuse(
            "tensor_scalar", f"{first} and {second}", "both bitvec or both arithmetic"
        )
    return request.emit()


def scalar_tensor_tensor(
    dst: NkiTensor,
    data: NkiTensor,
    op0: Any,
    operand0: Any,
    op1: Any,
    operand1: NkiTensor,
    reverse0: bool = False,
    reverse1: bool = False,
    name: str | None = None,
) -> NkiInstruction:
    """dst = (data <op0> operand0) <op1> operand1, the last a whole tile."""
    return Request("scalar_tensor_tensor", locals()).emit()


def exponential(
    dst: NkiTensor,
    src: NkiTensor,
    max_value: Any = 0.0,
    reduce_res: NkiTensor | None = None,
    reduce_cmd: Any = ReduceCmd.idle,
    reduce_init: Any = 0.0,
    name: str | None = None,
) -> NkiInstruction:
    """dst = exp(src - max_value) on VectorE, summed in its accumulators."""
    return Request("exponential", locals()).emit()


def reciprocal(
    dst: NkiTensor, data: NkiTensor, name: str | None = None
) -> NkiInstruction:
    """dst = 1 / data on VectorE, in FP32."""
    return Request("reciprocal", locals()).emit()
