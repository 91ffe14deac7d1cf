"""VectorE: `scalar_tensor_tensor`, `exponential`, `reciprocal`, shuffles."""

from __future__ import annotations

import jax.numpy as jnp
import numpy as np

from neuronjax.execution.tiles import alu
from neuronjax.execution.tiles.accumulators import accumulated, flat, lanes
from neuronjax.execution.tiles.moving import where_bits
from neuronjax.execution.tiles.registry import (
    Bits,
    Operands,
    Results,
    Signature,
    TileContext,
    executes,
)
from neuronjax.execution.tiles.rounding import wide
from neuronjax.numerics import elementary
from neuronjax.numerics.exact import seal

QUADRANT = 32
UNCHANGED = 255


@executes("scalar_tensor_tensor")
def scalar_tensor_tensor(i: Signature, x: Operands, c: TileContext) -> Results:
    """(data <op0> operand0) <op1> operand1, a rounding after each."""
    a = i.attributes
    data, operand0, operand1 = x
    value = wide(flat(data), c.zero)
    first = lanes(operand0, value.shape[0], c.zero)
    pair = (first, value) if a["reverse0"] else (value, first)
    value = alu.arithmetic(a["op0"], *pair, c.zero)
    second = wide(flat(operand1), c.zero)
    pair = (second, value) if a["reverse1"] else (value, second)
    return (alu.arithmetic(a["op1"], *pair, c.zero),)


@executes("exponential")
def exponential(i: Signature, x: Operands, c: TileContext) -> Results:
    """exp(src - max_value), and its sum in VectorE's accumulators."""
    src, most, *state = x
    values = wide(flat(src), c.zero)
    shifted = seal(values - lanes(most, values.shape[0], c.zero), c.zero)
    values = seal(elementary.UNARY["exponential"](shifted, c.zero), c.zero)
    if not state:
        return (values,)
    registers, init = state
    after = accumulated(
        i.attributes["reduce_cmd"], "add", registers, values, c.zero, init
    )
    return (values, after, after[: values.shape[0]])[: len(i.outputs)]


@executes("reciprocal")
def reciprocal(i: Signature, x: Operands, c: TileContext) -> Results:
    """1 / x in FP32."""
    function = elementary.UNARY["reciprocal"]
    return (seal(function(wide(x[0], c.zero), c.zero), c.zero),)


@executes("nc_stream_shuffle")
def nc_stream_shuffle(i: Signature, x: Operands, c: TileContext) -> Results:
    """Partition p of a quadrant copies partition mask[p]; 255 means it stays."""
    src = flat(x[0])
    partitions = i.outputs[0].shape[0]
    mask = np.resize(np.array(i.attributes["mask"]), partitions)
    base = np.arange(partitions) // QUADRANT * QUADRANT
    moved = src[np.where(mask == UNCHANGED, 0, base + mask)]
    if not i.reads_outputs:
        return (Bits(moved),)
    stays = jnp.asarray(mask == UNCHANGED)[:, None]
    return (Bits(where_bits(stays, flat(c.previous[0]), moved)),)
