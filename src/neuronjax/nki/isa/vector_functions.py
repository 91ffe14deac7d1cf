"""VectorE: `scalar_tensor_tensor`, `exponential`, `reciprocal`, `nc_stream_shuffle`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from neuronjax.ir.alu_operators import ALU, BINARY_ARITHMETIC, BITVEC, checked_op
from neuronjax.nki.isa.constants import reduce_cmd as ReduceCmd
from neuronjax.nki.isa.operands import (
    ON_CHIP,
    as_float,
    check_same_shape,
    check_scalar_operand,
    check_tensor,
    in_psum,
    refuse,
)
from neuronjax.nki.isa.reductions import checked_command, registers
from neuronjax.nki.tensor import NkiTensor
from neuronjax.nki.trace import NkiInstruction, emit

_QUADRANT = 32
_UNCHANGED = 255


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
    """dst = (data <op0> operand0) <op1> operand1, the last a whole tile.

    Args:
        dst, data, operand1: on chip, one shape; data and operand1 not both in PSUM.
        op0, op1: arithmetic operators.
        operand0: a number, or a tensor of shape (partitions, 1).
        reverse0, reverse1: whether the operand is on the left.
        name: label of the instruction.
    """
    where = "scalar_tensor_tensor"
    for label, tile in (("dst", dst), ("data", data), ("operand1", operand1)):
        check_tensor(where, label, tile, *ON_CHIP)
    check_same_shape(where, dst, ("data", data), ("operand1", operand1))
    check_scalar_operand(where, "operand0", operand0, data.shape[0])
    if in_psum(data) and in_psum(operand1):
        refuse(where, "data and operand1 are in PSUM", "put one into SBUF")
    attributes = {
        "op0": checked_op(op0, ALU - BITVEC, f"nisa.{where}"),
        "op1": checked_op(op1, BINARY_ARITHMETIC, f"nisa.{where}"),
        "reverse0": bool(reverse0),
        "reverse1": bool(reverse1),
    }
    operands = [data, as_float(operand0), operand1]
    return emit(where, "vector", [dst], operands, attributes=attributes, label=name)


def exponential(
    dst: NkiTensor,
    src: NkiTensor,
    max_value: Any = 0.0,
    reduce_res: NkiTensor | None = None,
    reduce_cmd: Any = ReduceCmd.idle,
    reduce_init: Any = 0.0,
    name: str | None = None,
) -> NkiInstruction:
    """dst = exp(src - max_value) on VectorE, summed in its accumulators.

    Args:
        dst, src: on chip, one shape.
        max_value: a number, or a tensor of shape (partitions, 1).
        reduce_res: (partitions, 1), takes the accumulators.
        reduce_cmd: idle, reset_reduce, reduce or load_reduce.
        reduce_init: what load_reduce loads.
        name: label of the instruction.
    """
    where = "exponential"
    check_tensor(where, "dst", dst, *ON_CHIP)
    check_tensor(where, "src", src, *ON_CHIP)
    check_same_shape(where, dst, ("src", src))
    check_scalar_operand(where, "max_value", max_value, src.shape[0])
    command = checked_command(
        where, reduce_cmd, ("idle", "reset_reduce", "reduce", "load_reduce"), 0.0
    )
    outputs: list[Any] = [dst]
    operands: list[Any] = [src, as_float(max_value)]
    if command != "idle" or reduce_res is not None:
        state = registers()
        outputs.append(state)
        operands += [state, as_float(reduce_init)]
    if reduce_res is not None:
        check_tensor(where, "reduce_res", reduce_res, *ON_CHIP)
        check_scalar_operand(where, "reduce_res", reduce_res, src.shape[0])
        outputs.append(reduce_res)
    attributes = {"reduce_cmd": command}
    return emit(where, "vector", outputs, operands, attributes=attributes, label=name)


def reciprocal(
    dst: NkiTensor, data: NkiTensor, name: str | None = None
) -> NkiInstruction:
    """dst = 1 / data on VectorE, in FP32.

    Args:
        dst, data: on chip, one shape.
        name: label of the instruction.
    """
    check_tensor("reciprocal", "dst", dst, *ON_CHIP)
    check_tensor("reciprocal", "data", data, *ON_CHIP)
    check_same_shape("reciprocal", dst, ("data", data))
    return emit("reciprocal", "vector", [dst], [data], label=name)


def nc_stream_shuffle(
    dst: NkiTensor, src: NkiTensor, shuffle_mask: Sequence[int], name: str | None = None
) -> NkiInstruction:
    """Partition p of each quadrant of dst = partition shuffle_mask[p] of src's.

    Args:
        dst, src: on chip, one dtype, equal elements per partition.
        shuffle_mask: 32 integers below 32, or 255 for "stays".
        name: label of the instruction.
    """
    where = "nc_stream_shuffle"
    check_tensor(where, "dst", dst, *ON_CHIP)
    check_tensor(where, "src", src, *ON_CHIP)
    mask = tuple(int(m) for m in shuffle_mask)
    if len(mask) != _QUADRANT or not all(
        0 <= m < _QUADRANT or m == _UNCHANGED for m in mask
    ):
        refuse(where, f"shuffle_mask {mask}", "32 integers from 0 to 31, or 255")
    if dst.dtype != src.dtype:
        refuse(where, f"{src.dtype} into {dst.dtype}", "give both one dtype")
    if dst.size * src.shape[0] != src.size * dst.shape[0]:
        refuse(
            where,
            f"dst has shape {dst.shape}, src {src.shape}",
            "give equal elements per partition",
        )
    for p in range(dst.shape[0]):
        source = p // _QUADRANT * _QUADRANT + mask[p % _QUADRANT]
        if mask[p % _QUADRANT] != _UNCHANGED and source >= src.shape[0]:
            refuse(
                where,
                f"partition {p} copies partition {source} of src, which has "
                f"{src.shape[0]}",
                "give src the partitions that the mask names",
            )
    stays = _UNCHANGED in mask[: dst.shape[0]]
    attributes = {"mask": mask}
    return emit(
        where,
        "vector",
        [dst],
        [src],
        attributes=attributes,
        reads_outputs=stays,
        label=name,
    )
