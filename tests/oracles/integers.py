"""StableHLO's integer ops on Python integers, one element at a time.

Two's complement of a width, wrapping around. Where the specification leaves the result
to the implementation, XLA's documented one: x / 0 is all ones, x rem 0 is x, the
smallest number divided by -1 is itself, a shift by the width or more shifts all bits
out, 0 to a negative power is 0.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np


class Width(NamedTuple):
    """An integer type."""

    bits: int
    signed: bool

    @classmethod
    def of(cls, dtype: np.dtype) -> Width:
        if dtype == np.bool_:
            return cls(1, False)
        return cls(8 * dtype.itemsize, dtype.kind == "i")

    def wrap(self, x: int) -> int:
        x &= (1 << self.bits) - 1
        return x - (1 << self.bits) if self.signed and x >> (self.bits - 1) else x

    def code(self, x: int) -> int:
        return x & ((1 << self.bits) - 1)


def divide(x: int, y: int, w: Width) -> int:
    return -1 if y == 0 else abs(x) // abs(y) * (1 if (x < 0) == (y < 0) else -1)


def remainder(x: int, y: int, w: Width) -> int:
    return x if y == 0 else abs(x) % abs(y) * (-1 if x < 0 else 1)


def power(x: int, y: int, w: Width) -> int:
    if y >= 0:
        return pow(x, y, 1 << w.bits)
    return {1: 1, -1: -1 if y % 2 else 1}.get(x, 0)


def shift_left(x: int, y: int, w: Width) -> int:
    return x << w.code(y) if w.code(y) < w.bits else 0


def shift_right_logical(x: int, y: int, w: Width) -> int:
    return w.code(x) >> w.code(y) if w.code(y) < w.bits else 0


def shift_right_arithmetic(x: int, y: int, w: Width) -> int:
    """Of an unsigned number too, its top bit is the sign."""
    return Width(w.bits, True).wrap(x) >> min(w.code(y), w.bits - 1)


def mulhi(x: int, y: int, w: Width) -> int:
    """The upper half of the product of twice the width."""
    return (x * y) >> w.bits


BINARY: dict[str, Callable[[int, int, Width], int]] = {
    "add": lambda x, y, w: x + y,
    "subtract": lambda x, y, w: x - y,
    "multiply": lambda x, y, w: x * y,
    "maximum": lambda x, y, w: max(x, y),
    "minimum": lambda x, y, w: min(x, y),
    "and": lambda x, y, w: x & y,
    "or": lambda x, y, w: x | y,
    "xor": lambda x, y, w: x ^ y,
    "divide": divide,
    "remainder": remainder,
    "power": power,
    "shift_left": shift_left,
    "shift_right_logical": shift_right_logical,
    "shift_right_arithmetic": shift_right_arithmetic,
    "mulhi": mulhi,
}
UNARY: dict[str, Callable[[int, Width], int]] = {
    "abs": lambda x, w: abs(x),
    "negate": lambda x, w: -x,
    "sign": lambda x, w: (x > 0) - (x < 0),
    "not": lambda x, w: ~x,
    "popcnt": lambda x, w: w.code(x).bit_count(),
    "count_leading_zeros": lambda x, w: w.bits - w.code(x).bit_length(),
}
#: What booleans have: their add is OR and their product AND.
BOOLEAN = {
    "add": BINARY["or"],
    "multiply": BINARY["and"],
    **{name: BINARY[name] for name in ("maximum", "minimum", "and", "or", "xor")},
}


def apply(name: str, *operands: np.ndarray) -> np.ndarray:
    """An op by name on integer or boolean arrays of one type."""
    dtype = operands[0].dtype
    width = Width.of(dtype)
    binary = BOOLEAN if dtype == np.bool_ else BINARY
    function: Callable[..., int] = (UNARY if len(operands) == 1 else binary)[name]
    values = zip(*(x.ravel().tolist() for x in operands), strict=True)
    out = [width.wrap(int(function(*map(int, v), width))) for v in values]
    return np.array(out, dtype).reshape(operands[0].shape)


def dot(lhs: np.ndarray, rhs: np.ndarray, dtype: np.dtype) -> np.ndarray:
    """[batch, M, K] and [batch, K, N] to [batch, M, N], wrapped to a type."""
    if dtype == np.bool_:
        return np.any(lhs[..., None].astype(bool) & rhs[:, None].astype(bool), axis=2)
    width = Width.of(dtype)
    exact = lhs.astype(object) @ rhs.astype(object)
    if not lhs.shape[2]:
        return np.zeros(exact.shape, dtype)
    out = [width.wrap(int(x)) for x in exact.ravel()]
    return np.array(out, dtype).reshape(exact.shape)
