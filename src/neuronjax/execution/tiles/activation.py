"""ScalarE: a function of data * scale + bias, and its sums per partition.

Everything is FP32: the product is rounded, the sum is rounded, and the function is the
project's own (`numerics.elementary`), or the engine's piecewise cubic if the policy
says so. Accumulation adds the FP32 values before their rounding on write, by a left
fold from the accumulator of the partition.
"""

from __future__ import annotations

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
from neuronjax.numerics.exact import seal, sealed_product


@executes("activation", "activation_reduce")
def activation(i: Signature, x: Operands, c: TileContext) -> Results:
    """Return op(data * scale + bias); outputs are dst, accumulators, reduce_res."""
    data, scale, bias, *state = x
    values = wide(flat(data), c.zero)
    if scale is not None:
        values = sealed_product(values, lanes(scale, values.shape[0], c.zero), c.zero)
    if bias is not None:
        values = seal(values + lanes(bias, values.shape[0], c.zero), c.zero)
    values = function(i.attributes["op"], c.transcendentals)(values, c.zero)
    return accumulating(i, i.attributes.get("reduce_op", "add"), values, state, c)


@executes("activate2")
def activate2(i: Signature, x: Operands, c: TileContext) -> Results:
    """Return op((data <op0> imm0) <op1> imm1) and its reduction."""
    a = i.attributes
    data, imm0, imm1, slope, *state = x
    values = wide(flat(data), c.zero)
    for op, operand, reverse in (
        (a["op0"], imm0, a["reverse0"]),
        (a["op1"], imm1, a["reverse1"]),
    ):
        if op != "bypass":
            operand = lanes(operand, values.shape[0], c.zero)
            values = alu.arithmetic(op, values, operand, c.zero, reverse)
    if a["op"] == "prelu":
        slope = lanes(slope, values.shape[0], c.zero)
        values = relu_with_slope(values, slope, c.zero)
    else:
        values = function(a["op"], c.transcendentals)(values, c.zero)
    return accumulating(i, a["reduce_op"], values, state, c)
