"""Selections, by a predicate, a range of indices, or an affine expression."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Any

import numpy as np

from neuronjax.ir.alu_operators import checked_op
from neuronjax.nki.isa.constants import FP32_MIN, reduce_cmd as ReduceCmd
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

_ORDERS = frozenset({"equal", "less", "less_equal", "greater", "greater_equal"})
_MAXIMUM = frozenset({"maximum", "max"})
_LEAST = np.float32(FP32_MIN)


def tensor_copy_predicated(
    dst: NkiTensor,
    src: Any,
    predicate: NkiTensor,
    reverse_pred: bool = False,
    name: str | None = None,
) -> NkiInstruction:
    """dst = src where the predicate is not 0; elsewhere dst stays.

    Args:
        dst: on chip.
        src: a tile of dst's shape, or a number.
        predicate: integers, as many as dst has elements.
        reverse_pred: copies where the predicate is 0 instead.
        name: label of the instruction.
    """
    where = "tensor_copy_predicated"
    check_tensor(where, "dst", dst, *ON_CHIP)
    check_tensor(where, "predicate", predicate, *ON_CHIP)
    sources = [("predicate", predicate)]
    if isinstance(src, NkiTensor):
        check_tensor(where, "src", src, *ON_CHIP)
        sources.append(("src", src))
    check_same_shape(where, dst, *sources)
    attributes = {"reverse_pred": bool(reverse_pred)}
    return emit(
        where,
        "vector",
        [dst],
        [as_float(src), predicate],
        attributes=attributes,
        reads_outputs=True,
        label=name,
    )


def select_reduce(
    dst: NkiTensor,
    predicate: NkiTensor,
    on_true: NkiTensor,
    on_false: Any,
    reduce_res: NkiTensor | None = None,
    reduce_cmd: Any = ReduceCmd.idle,
    reduce_op: Any = "maximum",
    reverse_pred: bool = False,
    name: str | None = None,
) -> NkiInstruction:
    """dst = on_true where the predicate is not 0, else on_false; their maximum.

    Args:
        dst, predicate, on_true: on chip, one shape; not both of the last in PSUM.
        on_false: a number, or a tensor of shape (partitions, 1).
        reduce_res: (partitions, 1), takes VectorE's accumulators.
        reduce_cmd: idle, reset_reduce or reduce.
        reduce_op: nl.maximum.
        reverse_pred: whether the predicate means its opposite.
        name: label of the instruction.
    """
    where = "select_reduce"
    for label, tile in (("dst", dst), ("predicate", predicate), ("on_true", on_true)):
        check_tensor(where, label, tile, *ON_CHIP)
    check_same_shape(where, dst, ("predicate", predicate), ("on_true", on_true))
    if in_psum(predicate) and in_psum(on_true):
        refuse(where, "predicate and on_true are in PSUM", "put one into SBUF")
    if predicate.dtype not in ("int8", "uint8", "int16", "uint16", "bool"):
        refuse(where, f"predicate is {predicate.dtype}", "use (u)int8 or (u)int16")
    check_scalar_operand(where, "on_false", on_false, dst.shape[0])
    checked_op(reduce_op, _MAXIMUM, "nisa.select_reduce")
    command = checked_command(
        where, reduce_cmd, ("idle", "reset_reduce", "reduce"), None
    )
    attributes = {"reverse_pred": bool(reverse_pred), "reduce_cmd": command}
    operands = [predicate, on_true, as_float(on_false)]
    return _emit_with_maximum(where, dst, operands, reduce_res, attributes, name)


def range_select(
    dst: NkiTensor,
    on_true_tile: NkiTensor,
    comp_op0: Any,
    comp_op1: Any,
    bound0: NkiTensor,
    bound1: NkiTensor,
    reduce_cmd: Any = ReduceCmd.reset_reduce,
    reduce_res: NkiTensor | None = None,
    reduce_op: Any = "maximum",
    range_start: int = 0,
    on_false_value: float = FP32_MIN,
    name: str | None = None,
) -> NkiInstruction:
    """dst = on_true_tile where index <op0> bound0 and index <op1> bound1.

    Elsewhere dst is FP32_MIN.

    Args:
        dst, on_true_tile: on chip, one shape.
        comp_op0, comp_op1: equal, less, less_equal, greater or greater_equal.
        bound0, bound1: FP32, (partitions, 1).
        reduce_cmd: what happens to VectorE's accumulators.
        reduce_res: (partitions, 1), takes them.
        reduce_op: nl.maximum.
        range_start: index of the first element of the free axis.
        on_false_value: FP32_MIN, nothing else.
        name: label of the instruction.
    """
    where = "range_select"
    check_tensor(where, "dst", dst, *ON_CHIP)
    check_tensor(where, "on_true_tile", on_true_tile, *ON_CHIP)
    check_same_shape(where, dst, ("on_true_tile", on_true_tile))
    for label, bound in (("bound0", bound0), ("bound1", bound1)):
        check_tensor(where, label, bound, *ON_CHIP)
        check_scalar_operand(where, label, bound, dst.shape[0])
        if bound.dtype != "float32":
            refuse(where, f"{label} is {bound.dtype}", "bounds are float32")
    if on_false_value is not ... and np.float32(on_false_value) != _LEAST:
        refuse(where, f"on_false_value {on_false_value}", f"only {FP32_MIN}")
    checked_op(reduce_op, _MAXIMUM, "nisa.range_select")
    attributes = {
        "comp_op0": checked_op(comp_op0, _ORDERS, "nisa.range_select"),
        "comp_op1": checked_op(comp_op1, _ORDERS, "nisa.range_select"),
        "reduce_cmd": checked_command(
            where, reduce_cmd, ("idle", "reset", "reset_reduce", "reduce"), None
        ),
    }
    operands = [on_true_tile, bound0, bound1, int(range_start)]
    return _emit_with_maximum(where, dst, operands, reduce_res, attributes, name)


def _emit_with_maximum(
    where: str,
    dst: NkiTensor,
    operands: list[Any],
    reduce_res: NkiTensor | None,
    attributes: dict[str, Any],
    name: str | None,
) -> NkiInstruction:
    outputs: list[Any] = [dst]
    if attributes["reduce_cmd"] != "idle" or reduce_res is not None:
        state = registers()
        operands.append(state)
        outputs.append(state)
    if reduce_res is not None:
        check_tensor(where, "reduce_res", reduce_res, *ON_CHIP)
        check_scalar_operand(where, "reduce_res", reduce_res, dst.shape[0])
        outputs.append(reduce_res)
    return emit(where, "vector", outputs, operands, attributes=attributes, label=name)


def affine_select(
    dst: NkiTensor,
    pattern: Sequence[Sequence[int]],
    channel_multiplier: int,
    on_true_tile: NkiTensor,
    on_false_value: float,
    cmp_op: Any = "equal",
    offset: int = 0,
    name: str | None = None,
) -> NkiInstruction:
    """dst = on_true_tile where the affine value <cmp_op> 0, else on_false_value.

    Args:
        dst, on_true_tile: SBUF, one shape.
        pattern: up to four [step, count], as many values as elements per partition.
        channel_multiplier: added per partition.
        on_false_value: FP32.
        cmp_op: a comparison.
        offset: added to every value.
        name: label of the instruction.
    """
    where = "affine_select"
    check_tensor(where, "dst", dst, "sbuf")
    check_tensor(where, "on_true_tile", on_true_tile, "sbuf")
    check_same_shape(where, dst, ("on_true_tile", on_true_tile))
    counts = tuple(int(count) for _, count in pattern)
    if len(counts) > 4 or prod(counts) * dst.shape[0] != dst.size:
        refuse(
            where,
            f"pattern {list(pattern)} for {dst.size // dst.shape[0]} elements",
            "give at most four [step, count], their counts multiplied as many",
        )
    compare = checked_op(cmp_op, _ORDERS | {"not_equal"}, "nisa.affine_select")
    steps = [int(step) for step, _ in pattern]
    operands = [
        on_true_tile,
        float(on_false_value),
        int(offset),
        int(channel_multiplier),
        *steps,
    ]
    attributes = {"counts": counts, "cmp_op": compare}
    return emit(where, "gpsimd", [dst], operands, attributes=attributes, label=name)
