"""Reductions and scans: `tensor_reduce` and its relatives."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Any

from neuronjax.ir.alu_operators import BITVEC
from neuronjax.nki.isa.constants import reduce_cmd as ReduceCmd
from neuronjax.nki.isa.operands import refuse
from neuronjax.nki.isa.request import Request
from neuronjax.nki.tensor import NkiTensor
from neuronjax.nki.trace import NkiInstruction


def tensor_reduce(
    dst: NkiTensor,
    op: Any,
    data: NkiTensor,
    axis: int | Sequence[int],
    negate: bool = False,
    keepdims: bool = False,
    name: str | None = None,
) -> NkiInstruction:
    """Reduces the last free axes of a tile on VectorE, in FP32 or on bit patterns."""
    where = "tensor_reduce"
    request = Request(where, locals())
    kept = _kept_axes(axis, data)
    function = request.attributes["op"]
    if negate and function in BITVEC:
        refuse(where, f"negate with {function}", "negate goes with arithmetic")
    rows = prod(data.shape[:kept])
    if dst.shape[0] != data.shape[0] or dst.size != rows:
        refuse(
            where,
            f"dst has shape {dst.shape}, data {data.shape} reduced over {axis}",
            f"give dst {rows // data.shape[0]} elements per partition",
        )
    return request.emit(kept=kept)


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
    """Reduces a tile over its partitions on GpSimdE."""
    request = Request("tensor_partition_reduce", locals())
    if dst.shape[0] != 1 or dst.size * data.shape[0] != data.size:
        refuse(
            "tensor_partition_reduce",
            f"dst has shape {dst.shape}, data {data.shape}",
            f"give dst shape (1, {data.size // data.shape[0]})",
        )
    return request.emit()


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
    """dst = data <op0> operand0, folded into VectorE's accumulators."""
    where = "tensor_scalar_reduce"
    request = Request(where, locals())
    if reverse0:
        refuse(where, "reverse0=True", "it is not supported yet, see nki.isa")
    return request.emit(negate=bool(reduce_res_negate))


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
    """register = op1(op0(src, imm0), register); dst takes every register value."""
    where = "tensor_scalar_cumulative"
    request = Request(where, locals())
    for label, tile in (("dst", dst), ("src", src)):
        if tile.dtype in ("int32", "uint32"):
            refuse(where, f"{label} is {tile.dtype}", "no 32-bit integers here")
    return request.emit()


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
    """dst[i] = op1(op0(data0[i], dst[i - 1]), data1[i]) along the free axis."""
    return Request("tensor_tensor_scan", locals()).emit()
