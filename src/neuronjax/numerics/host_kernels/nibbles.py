"""Codes of 4 bits, two to a byte, the first one in its low bits, as XLA stores them.

XLA itself writes one code at a time: it reads the byte, changes half of it, writes it.
"""

from __future__ import annotations

import functools

import jax
from jax.typing import DTypeLike
from llvmlite import ir

from neuronjax.numerics.host_kernels import handler
from neuronjax.numerics.host_kernels.compiled import I8, I16, Code, Value, int64
from neuronjax.numerics.host_kernels.elements import shaped
from neuronjax.numerics.host_kernels.handler import (
    ROW_FIELDS,
    RowPart,
    called,
    row_words,
)

NAME = "neuronjax_nibbles"


def packed(codes: jax.Array, dtype: DTypeLike) -> jax.Array:
    """Return codes, uint8 below 16 of any shape, as elements of a dtype of 4 bits."""
    flat = codes.reshape(-1)
    # As a type of its own: inside `shard_map` it varies as the codes do.
    result = jax.eval_shape(lambda codes: codes.astype(dtype), flat)
    again = functools.partial(packed, dtype=dtype)
    plan = row_words(flat.reshape(1, -1))
    return called(NAME, write, result, plan, again, flat).reshape(codes.shape)


def write(module: ir.Module, lanes: int) -> str:
    """Return the module, as text."""
    function = handler.block(module, NAME)
    index, operands, plan, _ = function.args
    c = Code.of(function)
    _, _, first, count = RowPart.of(c, index, plan)  # the first is even
    codes, result = c.pointers(operands, 2)
    pairs = c.sdiv(count, int64(2))
    whole = c.sdiv(pairs, int64(lanes))
    codes, result = c.at(codes, first), c.at(result, c.sdiv(first, int64(2)))
    with c.loop(whole) as n:
        _pack(c, codes, result, c.mul(n, int64(lanes)), lanes)
    with c.loop(pairs, c.mul(whole, int64(lanes))) as n:
        _pack(c, codes, result, n, 0)
    last = c.sub(count, int64(1))
    with c.if_then(c.icmp_signed("==", c.and_(count, int64(1)), int64(1))):
        c.write(c.read(I8, c.at(codes, last), 1), c.at(result, pairs), 1)
    c.ret_void()
    return handler.build(module, NAME, function, 1, 1, len(ROW_FIELDS))


def _pack(c: Code, codes: Value, result: Value, n: Value, lanes: int) -> None:
    """Write so many bytes of the result from the nth on; 0: one."""
    kind = shaped(I16, lanes)
    two = c.read(kind, c.at(codes, n, 2), 1)
    shift = ir.Constant(kind, [4] * lanes if lanes else 4)
    byte = c.trunc(c.or_(two, c.lshr(two, shift)), shaped(I8, lanes))
    c.write(byte, c.at(result, n), 1)
