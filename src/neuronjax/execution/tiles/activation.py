"""ScalarE: a function of data * scale + bias, and its sums per partition.

FP32 throughout: the product is rounded, the sum is rounded, the function is the
project's own (`numerics.elementary`), or the engine's piecewise cubic where the policy
says so. What is accumulated is the FP32 value before its rounding on write, a left fold
from the accumulator of the partition on.
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp

from neuronjax.execution.tiles import alu
from neuronjax.execution.tiles.accumulators import accumulating, flat, lanes
from neuronjax.execution.tiles.activation_functions import function, relu_with_slope
from neuronjax.execution.tiles.registry import (
    Operands,
    Results,
    Signature,
    TileContext,
    executes,
)
from neuronjax.execution.tiles.rounding import wide
from neuronjax.numerics.exact import seal


@executes("activation")
def activation(i: Signature, x: Operands, c: TileContext) -> Results:
    """op(data * scale + bias); outputs are dst, then accumulators, then reduce_res."""
    data, scale, bias, *state = x
    argument = scaled(wide(data, c.zero), scale, bias, c.zero)
    result = function(i.attributes["op"], c.transcendentals)(argument, c.zero)
    return accumulating(i, "add", result, state, c)


def scaled(data: jax.Array, scale: Any, bias: Any, zero: jax.Array) -> jax.Array:
    """data * scale + bias, two roundings; [partitions, elements]."""
    data = data.reshape(data.shape[0], -1)
    result = data
    if scale is not None:
        result = seal(data * _lane(scale, data, zero), zero)
    if bias is not None:
        result = seal(result + _lane(bias, data, zero), zero)
    return result


def _lane(value: Any, data: jax.Array, zero: jax.Array) -> jax.Array:
    value = wide(value, zero)
    shape = () if value.ndim == 0 else (data.shape[0], 1)
    return jnp.broadcast_to(value.reshape(shape), data.shape)


@executes("activation_reduce")
def activation_reduce(i: Signature, x: Operands, c: TileContext) -> Results:
    """op(data * scale + bias) and its sum."""
    data, scale, bias, registers = x
    argument = scaled(wide(data, c.zero), scale, bias, c.zero)
    values = function(i.attributes["op"], c.transcendentals)(argument, c.zero)
    return accumulating(i, i.attributes["reduce_op"], values, [registers], c)


@executes("activate2")
def activate2(i: Signature, x: Operands, c: TileContext) -> Results:
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
        values = function(a["op"], c.transcendentals)(values, c.zero)
    return accumulating(i, a["reduce_op"], values, state, c)


def _stage(
    op: str, values: jax.Array, operand: Any, reverse: bool, zero: jax.Array
) -> jax.Array:
    if op == "bypass":
        return values
    operand = lanes(operand, values.shape[0], zero)
    return alu.arithmetic(op, values, operand, zero, reverse)
