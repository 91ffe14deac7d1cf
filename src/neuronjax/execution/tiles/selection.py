"""Choosing between two sources: by a predicate, by a range, by an affine expression."""

from __future__ import annotations

import jax.numpy as jnp
import numpy as np

from neuronjax.execution.tiles import alu
from neuronjax.execution.tiles.accumulators import accumulating, flat, lanes
from neuronjax.execution.tiles.moving import affine_values, where_bits
from neuronjax.execution.tiles.registry import (
    Bits,
    Operands,
    Results,
    Signature,
    TileContext,
    executes,
)
from neuronjax.execution.tiles.rounding import wide
from neuronjax.ir.nki_dtypes import FP32_MIN

# The value of range_select where a comparison fails; -Inf in FP16 and narrower.
_LEAST = np.float32(FP32_MIN)


@executes("tensor_copy_predicated")
def tensor_copy_predicated(i: Signature, x: Operands, c: TileContext) -> Results:
    """Copy src where the predicate holds, and keep dst elsewhere. The bits do not
    change if both have the same dtype."""
    src, predicate = x
    chosen = (flat(predicate) != 0) != i.attributes["reverse_pred"]
    old = flat(c.previous[0])
    if i.inputs[0] is not None and i.inputs[0].dtype == i.outputs[0].dtype:
        return (Bits(where_bits(chosen, flat(src), old)),)
    new = wide(src if src.ndim == 0 else flat(src), c.zero)
    return (jnp.where(chosen, new, wide(old, c.zero)),)


@executes("select_reduce")
def select_reduce(i: Signature, x: Operands, c: TileContext) -> Results:
    """Return on_true or on_false, and the maximum of the chosen values."""
    a = i.attributes
    predicate, on_true, on_false, *state = x
    true = wide(flat(on_true), c.zero)
    chosen = (flat(predicate) != 0) != a["reverse_pred"]
    values = jnp.where(chosen, true, lanes(on_false, true.shape[0], c.zero))
    return accumulating(i, "maximum", values, state, c)


@executes("range_select")
def range_select(i: Signature, x: Operands, c: TileContext) -> Results:
    """Select elements whose index lies within two bounds, compared in FP32."""
    a = i.attributes
    data, bound0, bound1, first, *state = x
    values = wide(flat(data), c.zero)
    partitions, count = values.shape
    index = (first + jnp.arange(count, dtype=jnp.int32)).astype(jnp.float32)[None]
    inside = [
        alu.arithmetic(op, index, lanes(bound, partitions, c.zero), c.zero) != 0
        for op, bound in ((a["comp_op0"], bound0), (a["comp_op1"], bound1))
    ]
    values = jnp.where(inside[0] & inside[1], values, _LEAST)
    return accumulating(i, "maximum", values, state, c)


@executes("affine_select")
def affine_select(i: Signature, x: Operands, c: TileContext) -> Results:
    """Return data where <affine value> <cmp_op> 0 holds, in 32-bit integers, and
    otherwise on_false."""
    data, on_false, offset, multiplier, *steps = x
    counts = i.attributes["counts"]
    value = affine_values(offset, multiplier, steps, counts, data.shape[0])
    chosen = alu.INTEGER[i.attributes["cmp_op"]](value, jnp.zeros_like(value))
    return (jnp.where(chosen, wide(flat(data), c.zero), on_false),)
