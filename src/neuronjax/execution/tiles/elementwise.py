"""Elementwise arithmetic: FP32, bit patterns, or 32-bit integers."""

from __future__ import annotations

from typing import Any

import jax

from neuronjax.execution.tiles import alu
from neuronjax.execution.tiles.accumulators import accumulating, flat, lanes
from neuronjax.execution.tiles.registry import (
    Bits,
    Operands,
    Results,
    Signature,
    TileContext,
    executes,
)
from neuronjax.execution.tiles.rounding import wide
from neuronjax.ir import nki_dtypes as dtypes
from neuronjax.ir.alu_operators import BITVEC
from neuronjax.numerics import elementary
from neuronjax.numerics.exact import seal


@executes("tensor_tensor")
def tensor_tensor(i: Signature, x: Operands, c: TileContext) -> Results:
    """Return data1 <op> data2."""
    op = i.attributes["op"]
    a, b = _flat(x[0]), _flat(x[1])
    if op in BITVEC:
        return (_pattern_result(alu.bitwise(op, a, b), i),)
    if i.attributes["integer"] and op in alu.INTEGER:
        # All operands have 32 bits; results are modulo 2^32, signed and unsigned.
        word = dtypes.info(i.outputs[0].dtype).numeric
        return (alu.INTEGER[op](a, b.astype(a.dtype)).astype(word),)
    return (alu.arithmetic(op, wide(a, c.zero), wide(b, c.zero), c.zero),)


@executes("tensor_scalar")
def tensor_scalar(i: Signature, x: Operands, c: TileContext) -> Results:
    """Return (data <op0> operand0) <op1> operand1, the first result rounded to FP32."""
    a = i.attributes
    data, *operands = map(_flat, x)
    ops = [(a["op0"], operands[0], a["reverse0"])]
    if a["op1"] is not None:
        ops.append((a["op1"], operands[1], a["reverse1"]))
    if a["op0"] in BITVEC:
        for op, operand, reverse in ops:
            data = alu.bitwise(op, data, operand, reverse)
        return (_pattern_result(data, i),)
    value = wide(data, c.zero)
    for op, operand, reverse in ops:
        other = None if operand is None else wide(operand, c.zero)
        value = alu.arithmetic(op, value, other, c.zero, reverse)
    return (value,)


def _flat(x: Any) -> Any:
    """Return a tile as [partitions, elements], and a number or None unchanged."""
    return x if x is None or x.ndim == 0 else flat(x)


def _pattern_result(x: jax.Array, i: Signature) -> jax.Array | Bits:
    source = i.inputs[0]
    assert source is not None
    return Bits(x) if source.dtype == i.outputs[0].dtype else x


@executes("scalar_tensor_tensor")
def scalar_tensor_tensor(i: Signature, x: Operands, c: TileContext) -> Results:
    """Return (data <op0> operand0) <op1> operand1, rounded after each operator."""
    a = i.attributes
    data, operand0, operand1 = x
    value = wide(flat(data), c.zero)
    first = lanes(operand0, value.shape[0], c.zero)
    value = alu.arithmetic(a["op0"], value, first, c.zero, a["reverse0"])
    second = wide(flat(operand1), c.zero)
    return (alu.arithmetic(a["op1"], value, second, c.zero, a["reverse1"]),)


@executes("exponential")
def exponential(i: Signature, x: Operands, c: TileContext) -> Results:
    """Return exp(src - max_value), and its sum in VectorE's accumulators."""
    src, most, *state = x
    values = wide(flat(src), c.zero)
    shifted = seal(values - lanes(most, values.shape[0], c.zero), c.zero)
    values = seal(elementary.UNARY["exponential"](shifted, c.zero), c.zero)
    return accumulating(i, "add", values, state, c)


@executes("reciprocal")
def reciprocal(i: Signature, x: Operands, c: TileContext) -> Results:
    """Return 1 / x in FP32."""
    function = elementary.UNARY["reciprocal"]
    return (seal(function(wide(x[0], c.zero), c.zero), c.zero),)
