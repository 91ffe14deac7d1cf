"""What scaling to a narrow format reads and writes: the largest magnitude, the codes.

The magnitudes are compared as integers; a subnormal one is 0, as to any engine. An
element times its scale is one product of FP32, rounded once, to nearest even:
`numerics.rounding.cast` bit for bit. The scale has no NaN, so that a NaN keeps the
element's sign.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from llvmlite import ir

from neuronjax.numerics.float_format import get_format
from neuronjax.numerics.host_kernels import handler
from neuronjax.numerics.host_kernels.code import I32, I64, POINTER, Code, int64
from neuronjax.numerics.host_kernels.elements import (
    IMPLICIT,
    INFINITY,
    as_floats,
    ceiling,
    larger,
    magnitude,
    rounded,
    shaped,
    store_codes,
    stored_bits,
)
from neuronjax.numerics.host_kernels.work import ROW_FIELDS

Value = Any
QUIET_NAN = 0x7FC00000


@dataclass(frozen=True)
class ScaleKind:
    """Which kernel.

    Attributes:
        stored: "float32" or "bfloat16".
        element: the format of the codes, 8 bits wide; "" for largest magnitudes.
        saturates: whether an overflow stops at the largest value.
    """

    stored: str
    element: str = ""
    saturates: bool = False

    @property
    def name(self) -> str:
        """Of the call's target."""
        if not self.element:
            return f"neuronjax_largest_{self.stored}"
        name = f"neuronjax_scaled_{self.stored}_{self.element}"
        return f"{name}_saturated" if self.saturates else name


def write(module: ir.Module, kind: ScaleKind, lanes: int) -> str:
    """The module of a kind, as text."""
    function = handler.block(module, kind.name)
    _block(function, kind, lanes)
    args = 2 if kind.element else 1
    return handler.build(module, kind.name, function, args, 1, len(ROW_FIELDS))


def _block(function: ir.Function, kind: ScaleKind, lanes: int) -> None:
    """One part of one row; operands are [outer, size], scales [outer], the result."""
    index, operands, plan, _ = function.args
    c = Code.of(function)
    size, parts, each = (c.read(I64, c.at(plan, n, 8), 8) for n in range(3))
    where = [
        c.read(POINTER, c.at(operands, n, 8), 8)
        for n in range(3 if kind.element else 2)
    ]
    row, part = c.sdiv(index, parts), c.srem(index, parts)
    start = c.mul(part, each)
    count = c.smaller(each, c.sub(size, start))
    first = c.add(c.mul(row, size), start)
    if kind.element:
        _codes(c, kind, lanes, where, row, first, count)
    else:
        _largest(c, kind, lanes, where, index, first, count)
    c.ret_void()


def _largest(
    c: Code,
    kind: ScaleKind,
    lanes: int,
    where: list[Value],
    index: Value,
    first: Value,
    count: Value,
) -> None:
    """Four running maxima, as a processor compares two vectors a cycle."""
    x, result = where
    width = 4 * lanes
    whole = c.sdiv(count, int64(width))
    nothing = ir.Constant(shaped(I32, lanes), [0] * lanes)

    def widest(n: Value, carried: list[Value]) -> list[Value]:
        at = c.add(first, c.mul(n, int64(width)))
        return [
            larger(c, most, _size(c, kind, x, c.add(at, int64(v * lanes)), lanes))
            for v, most in enumerate(carried)
        ]

    most, *others = c.fold(whole, [nothing] * 4, widest)
    for other in others:
        most = larger(c, most, other)
    name = f"llvm.vector.reduce.smax.v{lanes}i32"
    total = c.call(c.external(name, I32, most.type), [most])
    done = c.mul(whole, int64(width))
    rest = c.add(first, done)
    [total] = c.fold(
        c.sub(count, done),
        [total],
        lambda n, carried: [
            larger(c, carried[0], _size(c, kind, x, c.add(rest, n), 0))
        ],
    )
    small = c.icmp_signed("<", total, I32(IMPLICIT))
    total = c.select(small, I32(0), total)
    is_nan = c.icmp_signed(">", total, I32(INFINITY))
    c.write(c.select(is_nan, I32(QUIET_NAN), total), c.at(result, index, 4))


def _size(c: Code, kind: ScaleKind, x: Value, index: Value, lanes: int) -> Value:
    return magnitude(c, stored_bits(c, kind.stored, x, index, lanes))


def _codes(
    c: Code,
    kind: ScaleKind,
    lanes: int,
    where: list[Value],
    row: Value,
    first: Value,
    count: Value,
) -> None:
    x, scales, result = where
    scale = c.read(I32, c.at(scales, row, 4))
    whole = c.sdiv(count, int64(lanes))
    many = c.splat(scale, lanes)
    with c.loop(whole) as n:
        index = c.add(first, c.mul(n, int64(lanes)))
        bits = stored_bits(c, kind.stored, x, index, lanes)
        store_codes(c, _code(c, kind, bits, many), result, index, lanes)
    with c.loop(count, c.mul(whole, int64(lanes))) as n:
        index = c.add(first, n)
        bits = stored_bits(c, kind.stored, x, index, 0)
        store_codes(c, _code(c, kind, bits, scale), result, index, 0)


def _code(c: Code, kind: ScaleKind, bits: Value, scale: Value) -> Value:
    """As `rounding.cast` does, down to the name of its limit."""
    fmt = get_format(kind.element)
    product = c.bitcast(c.fmul(as_floats(c, bits), as_floats(c, scale)), bits.type)
    like = lambda x: c.like(bits, x)  # noqa: E731
    size = magnitude(c, product)
    most = like(ceiling(fmt, kind.saturates))
    top = c.select(c.icmp_signed(">", size, most), most, size)
    code = rounded(c, fmt, top)
    is_nan = c.icmp_signed(">", size, like(INFINITY))
    code = c.select(is_nan, like(fmt.nan_code), code)
    sign = c.lshr(product, like(31))
    return c.xor(code, c.shl(sign, like(fmt.width - 1)))
