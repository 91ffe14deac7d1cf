"""ScalarE: `activation_reduce`, and `activate2` of NeuronCore-v4.

FP32 throughout; what is accumulated is the FP32 value before its rounding on write.
"""

from __future__ import annotations

from typing import Any

import jax

from neuronjax.execution.tiles import alu
from neuronjax.execution.tiles.accumulators import accumulated, flat, lanes
from neuronjax.execution.tiles.activation import scaled
from neuronjax.execution.tiles.activation_compositions import relu_with_slope
from neuronjax.execution.tiles.activation_functions import function
from neuronjax.execution.tiles.registry import (
    Context,
    Operands,
    Results,
    Signature,
    executes,
)
from neuronjax.execution.tiles.rounding import wide


@executes("activation_reduce")
def activation_reduce(i: Signature, x: Operands, c: Context) -> Results:
    """op(data * scale + bias) and its sum."""
    data, scale, bias, registers = x
    argument = scaled(wide(data, c.zero), scale, bias, c.zero)
    values = function(i.attributes["op"])(argument, c.zero)
    return _reduced(i, values, registers, c)


@executes("activate2")
def activate2(i: Signature, x: Operands, c: Context) -> Results:
    """op((data <op0> imm0) <op1> imm1) and its reduction."""
    a = i.attributes
    data, imm0, imm1, slope, *state = x
    values = wide(flat(data), c.zero)
    for op, operand, reverse in (
        (a["op0"], imm0, a["reverse0"]),
        (a["op1"], imm1, a["reverse1"]),
    ):
        values = _stage(op, values, operand, reverse, c.zero)
    if a["op"] == "prelu":
        slope = lanes(slope, values.shape[0], c.zero)
        values = relu_with_slope(values, slope, c.zero)
    else:
        values = function(a["op"])(values, c.zero)
    return _reduced(i, values, state[0], c) if state else (values,)


def _stage(
    op: str, values: jax.Array, operand: Any, reverse: bool, zero: jax.Array
) -> jax.Array:
    if op == "bypass":
        return values
    operand = lanes(operand, values.shape[0], zero)
    pair = (operand, values) if reverse else (values, operand)
    return alu.arithmetic(op, *pair, zero)


def _reduced(
    i: Signature, values: jax.Array, registers: jax.Array, c: Context
) -> Results:
    a = i.attributes
    after = accumulated(a["reduce_cmd"], a["reduce_op"], registers, values, c.zero)
    return (values, after, after[: values.shape[0]])[: len(i.outputs)]
