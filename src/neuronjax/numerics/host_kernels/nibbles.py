"""Codes of 4 bits, two to a byte, the first code in the low bits, as XLA stores them.

XLA itself writes one code at a time: it reads the byte, changes half of it, and writes
it.
"""

from __future__ import annotations

import functools

import jax
from jax.typing import DTypeLike
from llvmlite import ir

from neuronjax.numerics.host_kernels import handler
from neuronjax.numerics.host_kernels.compiled import I8, I16, Code, Value, int64, shaped
from neuronjax.numerics.host_kernels.handler import (
    ROW_FIELDS,
    called,
    row_part,
    row_words,
)

NAME = "neuronjax_nibbles"


def packed(codes: jax.Array, dtype: DTypeLike) -> jax.Array:
    """Pack codes, uint8 numbers below 16, into an array of a dtype of 4 bits."""
    flat = codes.reshape(-1)
    # `eval_shape` of the codes keeps the axes over which `shard_map` varies them.
    result = jax.eval_shape(lambda codes: codes.astype(dtype), flat)
    again = functools.partial(packed, dtype=dtype)
    plan = row_words(flat.reshape(1, -1))
    return called(NAME, write, result, plan, again, flat).reshape(codes.shape)


def write(module: ir.Module, lanes: int) -> str:
    """Return, as text, the module with the kernel that packs codes."""

    def work(c: Code, index: Value, plan: list[Value], where: list[Value]) -> None:
        _, _, first, count = row_part(c, index, plan)  # `first` is even
        codes, result = where
        pairs = c.sdiv(count, int64(2))
        codes, result = c.at(codes, first), c.at(result, c.sdiv(first, int64(2)))
        for n, width in c.strips(pairs, lanes):
            kind = shaped(I16, width)
            two = c.read(kind, c.at(codes, n, 2), 1)
            shift = ir.Constant(kind, [4] * width if width else 4)
            byte = c.trunc(c.or_(two, c.lshr(two, shift)), shaped(I8, width))
            c.write(byte, c.at(result, n), 1)
        last = c.sub(count, int64(1))
        with c.if_then(c.icmp_signed("==", c.and_(count, int64(1)), int64(1))):
            c.write(c.read(I8, c.at(codes, last), 1), c.at(result, pairs), 1)

    return handler.kernel(module, NAME, (1, 1, len(ROW_FIELDS)), work)
