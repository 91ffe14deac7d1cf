"""Kernels that scale to a narrow format: the largest magnitude, and the scaled codes.

Magnitudes are compared as integers; a subnormal counts as 0, as in every engine. An
element times its scale is one FP32 product, rounded once to nearest even, with the bits
of `numerics.rounding.cast`. The scale is never NaN, so a NaN keeps the element's sign.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass

import jax
import jax.numpy as jnp
from llvmlite import ir

from neuronjax.numerics.float_format import get_format
from neuronjax.numerics.host_kernels import handler
from neuronjax.numerics.host_kernels.compiled import (
    I32,
    Code,
    Value,
    as_floats,
    int64,
    shaped,
    stored_bits,
)
from neuronjax.numerics.host_kernels.elements import (
    IMPLICIT,
    INFINITY,
    ElementKind,
    larger,
    largest_lane,
    magnitude,
    rounded,
    store_codes,
)
from neuronjax.numerics.host_kernels.handler import (
    MANY,
    ROW_FIELDS,
    called,
    row_part,
    row_parts,
    row_words,
)
from neuronjax.numerics.rounding import ceiling

QUIET_NAN = 0x7FC00000
#: Most parts of a row; a second call finds the largest of the parts' maxima.
MOST_PARTS = 64


def largest_magnitudes(x: jax.Array) -> jax.Array:
    """Return the largest magnitude of each row of [outer, size], float32 [outer]. `x`
    is float32 or bfloat16. A row that holds a NaN gives the canonical NaN."""
    size = x.shape[1]
    each = max(MANY, -(-size // MOST_PARTS))
    kind = ElementKind("largest", x.dtype.name)
    parts = row_parts(size, each)
    kernel = functools.partial(write, kind=kind)

    def of_parts(x: jax.Array) -> jax.Array:
        plan = row_words(x, each)
        result = jax.ShapeDtypeStruct((len(x), parts), jnp.float32)
        return called(kind.name, kernel, result, plan, of_parts, x)

    maxima = of_parts(x)
    return maxima[:, 0] if parts == 1 else largest_magnitudes(maxima)


def scaled_codes(
    x: jax.Array, scale: jax.Array, element: str, saturates: bool
) -> jax.Array:
    """Return uint8 codes of `x`, float32 or bfloat16 [outer, size], times the scale of
    each row, float32 [outer] without NaN. `element` is the name of a format of 8 bits,
    whose largest value replaces an overflow if it `saturates`."""
    kind = ElementKind("scaled", x.dtype.name, element, saturates)
    kernel = functools.partial(write, kind=kind)
    result = jax.ShapeDtypeStruct(x.shape, jnp.uint8)
    again = functools.partial(scaled_codes, element=element, saturates=saturates)
    return called(kind.name, kernel, result, row_words(x), again, x, scale)


def write(module: ir.Module, lanes: int, kind: ElementKind) -> str:
    """Return the module of a kind, as text; a block of work is one part of one row. Its
    operands are [outer, size], the scales [outer] if there are any, and the result."""
    args = 2 if kind.element else 1

    def work(c: Code, index: Value, plan: list[Value], where: list[Value]) -> None:
        row, size, start, count = row_part(c, index, plan)
        first = c.add(c.mul(row, size), start)
        scaler = _Scaler(c, kind, lanes, first, count)
        if kind.element:
            scaler.codes(where[0], where[1], where[2], row)
        else:
            scaler.largest(where[0], where[1], index)

    return handler.kernel(module, kind.name, (args, 1, len(ROW_FIELDS)), work)


@dataclass(frozen=True)
class _Scaler:
    """Writes the code for a part of a row, `count` elements from `first` on."""

    c: Code
    kind: ElementKind
    lanes: int
    first: Value
    count: Value

    def largest(self, x: Value, result: Value, index: Value) -> None:
        """Write the largest magnitude, by four running maxima that are independent."""
        c, lanes = self.c, self.lanes
        width = 4 * lanes
        whole = c.sdiv(self.count, int64(width))
        nothing = ir.Constant(shaped(I32, lanes), [0] * lanes)

        def widest(n: Value, carried: list[Value]) -> list[Value]:
            at = c.add(self.first, c.mul(n, int64(width)))
            return [
                larger(c, most, self._size(x, c.add(at, int64(v * lanes)), lanes))
                for v, most in enumerate(carried)
            ]

        most, *others = c.fold(whole, [nothing] * 4, widest)
        for other in others:
            most = larger(c, most, other)
        total = largest_lane(c, most)
        done = c.mul(whole, int64(width))
        rest = c.add(self.first, done)
        [total] = c.fold(
            c.sub(self.count, done),
            [total],
            lambda n, carried: [
                larger(c, carried[0], self._size(x, c.add(rest, n), 0))
            ],
        )
        small = c.icmp_signed("<", total, I32(IMPLICIT))
        total = c.select(small, I32(0), total)
        is_nan = c.icmp_signed(">", total, I32(INFINITY))
        c.write(c.select(is_nan, I32(QUIET_NAN), total), c.at(result, index, 4))

    def _size(self, x: Value, index: Value, lanes: int) -> Value:
        return magnitude(self.c, stored_bits(self.c, self.kind.stored, x, index, lanes))

    def codes(self, x: Value, scales: Value, result: Value, row: Value) -> None:
        c, lanes = self.c, self.lanes
        scale = c.read(I32, c.at(scales, row, 4))
        scale = {0: scale, lanes: c.splat(scale, lanes)}
        for n, width in c.strips(self.count, lanes):
            index = c.add(self.first, n)
            bits = stored_bits(c, self.kind.stored, x, index, width)
            store_codes(c, self._code(bits, scale[width]), result, index, width)

    def _code(self, bits: Value, scale: Value) -> Value:
        """Return the code as `rounding.cast` computes it."""
        c, fmt = self.c, get_format(self.kind.element)
        product = c.bitcast(c.fmul(as_floats(c, bits), as_floats(c, scale)), bits.type)
        like = lambda x: c.like(bits, x)  # noqa: E731
        size = magnitude(c, product)
        most = like(int(ceiling(fmt, self.kind.saturates)))
        code = rounded(c, fmt, c.smaller(size, most))
        is_nan = c.icmp_signed(">", size, like(INFINITY))
        code = c.select(is_nan, like(fmt.nan_code), code)
        sign = c.lshr(product, like(31))
        return c.xor(code, c.shl(sign, like(fmt.width - 1)))
