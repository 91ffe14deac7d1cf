"""`tensor_reduce`, `tensor_partition_reduce`, and the instructions that scan.

Everything is FP32 with one rounding per operator; results are rounded on write.
"""

from __future__ import annotations

from math import prod

import jax
import jax.numpy as jnp
from jax import lax

from neuronjax.execution.tiles import alu
from neuronjax.execution.tiles.accumulators import (
    accumulating,
    flat,
    lanes,
    reduced,
    reduced_bits,
    start,
)
from neuronjax.execution.tiles.registry import (
    Bits,
    Operands,
    Results,
    Signature,
    TileContext,
    executes,
)
from neuronjax.execution.tiles.rounding import wide
from neuronjax.ir.alu_operators import BITVEC
from neuronjax.numerics.exact import opaque


@executes("tensor_reduce")
def tensor_reduce(i: Signature, x: Operands, c: TileContext) -> Results:
    """Reduce the trailing axes as one, in tiles of 512 if the order matters."""
    a = i.attributes
    data = x[0]
    rows = data.reshape(prod(data.shape[: a["kept"]]), -1)
    if a["op"] in BITVEC:
        return (Bits(reduced_bits(a["op"], rows)),)
    total = reduced(a["op"], wide(rows, c.zero), c.zero)
    return (-total if a["negate"] else total,)


@executes("tensor_partition_reduce")
def tensor_partition_reduce(i: Signature, x: Operands, c: TileContext) -> Results:
    """Fold over the partitions from the left; an average divides by their number."""
    op = i.attributes["op"]
    rows = flat(x[0])
    if op in BITVEC:
        return (Bits(reduced_bits(op, rows.T)),)
    # There are at most 128 partitions, which are one tile, so this is the left fold.
    values = wide(rows, c.zero).T
    if op != "average":
        return (reduced(op, values, c.zero),)
    total = reduced("add", values, c.zero)
    count = opaque(jnp.full_like(total, rows.shape[0]), c.zero)
    return (alu.arithmetic("divide", total, count, c.zero),)


@executes("tensor_scalar_reduce")
def tensor_scalar_reduce(i: Signature, x: Operands, c: TileContext) -> Results:
    """Return data <op0> operand0, and fold it into VectorE's accumulators."""
    a = i.attributes
    data, operand, registers, init = x
    values = wide(flat(data), c.zero)
    other = None if operand is None else lanes(operand, values.shape[0], c.zero)
    values = alu.arithmetic(a["op0"], values, other, c.zero)
    values, *rest = accumulating(i, a["reduce_op"], values, [registers, init], c)
    if a["negate"] and len(rest) == 2:
        rest[1] = -rest[1]
    return (values, *rest)


@executes("tensor_scalar_cumulative")
def tensor_scalar_cumulative(i: Signature, x: Operands, c: TileContext) -> Results:
    """Return every value of register = op1(op0(data, imm0), register)."""
    a = i.attributes
    data, imm0, registers, init = x
    values = wide(flat(data), c.zero)
    partitions = values.shape[0]
    imm0 = lanes(imm0, partitions, c.zero)
    values = alu.arithmetic(a["op0"], values, imm0, c.zero)
    state = start(a["reduce_cmd"], a["op1"], registers, partitions, c.zero, init)

    def step(state: jax.Array, value: jax.Array) -> tuple[jax.Array, jax.Array]:
        state = alu.arithmetic(a["op1"], value, state, c.zero)
        return state, state

    first = opaque(state[:, 0], c.zero)
    last, running = lax.scan(step, first, opaque(values.T, c.zero))
    after = jnp.concatenate([last[:, None], registers[partitions:]])
    return (running.T, after)


@executes("tensor_tensor_scan")
def tensor_tensor_scan(i: Signature, x: Operands, c: TileContext) -> Results:
    """Return op1(op0(data0, previous result), data1), in FP32 along the free axis."""
    a = i.attributes
    data0, data1 = (wide(flat(v), c.zero) for v in x[:2])
    first = lanes(x[2], data0.shape[0], c.zero)[:, 0]

    def step(
        state: jax.Array, pair: tuple[jax.Array, jax.Array]
    ) -> tuple[jax.Array, jax.Array]:
        inner = alu.arithmetic(a["op0"], pair[0], state, c.zero, a["reverse0"])
        state = alu.arithmetic(a["op1"], inner, pair[1], c.zero, a["reverse1"])
        return state, state

    pairs = opaque(data0.T, c.zero), opaque(data1.T, c.zero)
    _, states = lax.scan(step, opaque(first, c.zero), pairs)
    return (states.T,)
