"""A kernel that finds the smallest nonzero magnitude among FP32 numbers."""

from __future__ import annotations

import functools

from llvmlite import ir

from neuronjax.numerics.host_kernels.compiled import I32, Value, array_function, shaped

ARRAYS, IS_WIDE = 2, False


def write(module: ir.Module, lanes: int) -> str:
    """Return the module, as text. The arrays of its function are the numbers and the
    result: 2 m - 1 of the smallest m, the bits of a magnitude that is not zero, or
    2^32 - 1 if there is none."""
    c, (numbers, least, count) = array_function(module, ARRAYS)

    def smaller(a: Value, b: Value) -> Value:
        return c.select(c.icmp_unsigned("<", a, b), a, b)

    def step(index: Value, width: int, found: list[Value]) -> list[Value]:
        bits = c.element(numbers, index, I32, width)
        one = c.like(bits, 1)
        return [smaller(c.sub(c.shl(bits, one), one), found[0])]

    def nothing(width: int) -> list[Value]:
        return [c.like(ir.Constant(shaped(I32, width), None), 2**32 - 1)]

    [(vector, last)] = c.fold_elements(count, lanes, nothing, step)
    c.write(functools.reduce(smaller, [*c.split(vector), last]), least)
    c.ret_void()
    return str(module)
