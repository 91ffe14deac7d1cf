"""Checks of arithmetic and reductions that `ir.nki_instructions` cannot express."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Any

from neuronjax.ir.alu_operators import BITVEC, op_name
from neuronjax.nki.isa.request import Request, instruction

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
WORDS = ("int32", "uint32")


@instruction
def activation_reduce(call: Request) -> Any:
    return call.emit(reduce_cmd="reset_reduce")


@instruction
def activate2(call: Request) -> Any:
    pair = tuple("bypass" if o is None else op_name(o) for o in call.of("op0", "op1"))
    if pair not in PAIRS:
        legal = "; ".join(" ".join(p) for p in sorted(PAIRS))
        call.refuse(f"operators {pair[0]}, {pair[1]}", f"use one of the pairs {legal}")
    command, reduction = call.attributes["reduce_cmd"], call.attributes["reduce_op"]
    if command != "idle" and reduction is None:
        call.refuse(f"reduce_cmd {command} without reduce_op", "give reduce_op")
    return call.emit(op0=pair[0], op1=pair[1], reduce_op=reduction or "add")


@instruction
def tensor_tensor(call: Request) -> Any:
    """Choose the default engine: only GpSimd has `power` and exact 32-bit integers."""
    tensors = call.of("dst", "data1", "data2")
    function = call.attributes["op"]
    words = all(t.dtype in WORDS for t in tensors)
    in_psum = any(t.storage.memory == "psum" for t in tensors)
    native = words and function not in BITVEC and not in_psum
    by = call.engine("gpsimd" if native or function == "power" else "vector")
    return call.emit(by, integer=words and by == "gpsimd")


@instruction
def tensor_scalar(call: Request) -> Any:
    first, second = call.attributes["op0"], call.attributes["op1"]
    if second is None:
        call.values["operand1"] = None
    elif (first in BITVEC) != (second in BITVEC):
        call.refuse(
            f"{first} and {second}", "use two bitwise or two arithmetic operators"
        )
    return call.emit()


@instruction
def tensor_reduce(call: Request) -> Any:
    dst, data, axis = call.of("dst", "data", "axis")
    kept = _kept_axes(call, axis, data.ndim)
    function = call.attributes["op"]
    if call.attributes["negate"] and function in BITVEC:
        call.refuse(f"negate with {function}", "negate only results of arithmetic")
    rows = prod(data.shape[:kept])
    if dst.shape[0] != data.shape[0] or dst.size != rows:
        call.refuse(
            f"dst has shape {dst.shape}, data {data.shape} reduced over {axis}",
            f"give dst {rows // data.shape[0]} elements per partition",
        )
    return call.emit(kept=kept)


def _kept_axes(call: Request, axis: int | Sequence[int], rank: int) -> int:
    given = [axis] if isinstance(axis, int) else list(axis)
    axes = sorted(a + rank if a < 0 else a for a in given)
    if not axes or axes != list(range(rank - len(axes), rank)) or axes[0] == 0:
        call.refuse(
            f"axis {axis} of a tile of {rank} dimensions",
            "reduce the last free axes, for example axis=(1, 2) of three; to reduce "
            "partitions, transpose first or use tensor_partition_reduce",
        )
    return rank - len(axes)


@instruction
def tensor_partition_reduce(call: Request) -> Any:
    dst, data = call.of("dst", "data")
    if dst.shape[0] != 1 or dst.size * data.shape[0] != data.size:
        call.refuse(
            f"dst has shape {dst.shape}, data {data.shape}",
            f"give dst shape (1, {data.size // data.shape[0]})",
        )
    return call.emit()


@instruction
def tensor_scalar_reduce(call: Request) -> Any:
    reverse, negate = call.of("reverse0", "reduce_res_negate")
    if reverse:
        call.refuse("reverse0=True", "use False: nki.isa does not support True yet")
    return call.emit(negate=bool(negate))
