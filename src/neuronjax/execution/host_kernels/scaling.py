"""What scaling to a narrow format reads and writes: the largest magnitude, the codes.

The magnitudes are compared as integers; a subnormal one is 0, as to any engine. An
element times its scale is one product of FP32, rounded once, to nearest even:
`numerics.rounding.cast` bit for bit. The scale has no NaN, so that a NaN keeps the
element's sign.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
from llvmlite import ir

from neuronjax.numerics.float_format import get_format
from neuronjax.numerics.host_kernels import handler
from neuronjax.numerics.host_kernels.compiled import I32, Code, int64
from neuronjax.numerics.host_kernels.elements import (
    BIAS,
    IMPLICIT,
    INFINITY,
    MANTISSA_BITS,
    as_floats,
    ceiling,
    larger,
    magnitude,
    rounded,
    shaped,
    store_codes,
    stored_bits,
)
from neuronjax.numerics.host_kernels.handler import (
    MANY,
    ROW_FIELDS,
    RowPart,
    called,
    element_words,
    row_parts,
    row_words,
)

Value = Any
QUIET_NAN = 0x7FC00000
FACTORS = "neuronjax_scale_factors"
#: Parts of a row, of which another call finds the largest.
MOST_PARTS = 64


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


def largest_magnitudes(x: jax.Array) -> jax.Array:
    """Return the largest magnitude of each row, float32 [outer]; of NaNs the one NaN.

    Args:
        x: float32 or bfloat16, [outer, size].
    """
    size = x.shape[1]
    each = max(MANY, -(-size // MOST_PARTS))
    kind, parts = ScaleKind(x.dtype.name), row_parts(size, each)
    kernel = functools.partial(write, kind=kind)

    def of_parts(x: jax.Array) -> jax.Array:
        plan = row_words(x, each)
        result = jax.ShapeDtypeStruct((len(x), parts), jnp.float32)
        return called(kind.name, kernel, result, plan, of_parts, x)

    found = of_parts(x)
    return found[:, 0] if parts == 1 else largest_magnitudes(found)


def factors(amaxes: jax.Array, carry: int, top: int) -> tuple[jax.Array, jax.Array]:
    """Return scales and their inverses, float32 [count], of largest magnitudes.

    Args:
        amaxes: float32 [count].
        carry: raises the exponent of what exceeds the format's largest significand.
        top: the sum of a magnitude's biased exponent and its scale's; for both see
            `engines.vector.scale_from_amax`.
    """
    [count] = amaxes.shape
    results = (jax.ShapeDtypeStruct((count,), jnp.float32),) * 2
    plan = element_words(1, count, count, carry, top)
    again = functools.partial(factors, carry=carry, top=top)
    return called(FACTORS, write_factors, results, plan, again, amaxes)


def scaled_codes(
    x: jax.Array, scale: jax.Array, element: str, saturates: bool
) -> jax.Array:
    """Return codes, uint8 [outer, size]: the elements times the scale of their row.

    Args:
        x: float32 or bfloat16, [outer, size].
        scale: float32 [outer], without NaN.
        element: the name of a format of 8 bits.
        saturates: whether an overflow stops at the largest value.
    """
    kind = ScaleKind(x.dtype.name, element, saturates)
    kernel = functools.partial(write, kind=kind)
    result = jax.ShapeDtypeStruct(x.shape, jnp.uint8)
    again = functools.partial(scaled_codes, element=element, saturates=saturates)
    return called(kind.name, kernel, result, row_words(x), again, x, scale)


# -- the kernels -----------------------------------------------------------------------


def write(module: ir.Module, lanes: int, kind: ScaleKind) -> str:
    """Return the module of a kind, as text; operands are [outer, size], scales [outer],
    the result. A block works on one part of one row."""
    function = handler.block(module, kind.name)
    args = 2 if kind.element else 1
    index, operands, plan, _ = function.args
    c = Code.of(function)
    row, size, start, count = RowPart.of(c, index, plan)
    x, *where = c.pointers(operands, args + 1)
    first = c.add(c.mul(row, size), start)
    scaler = _Scaler(c, kind, lanes, first, count)
    if kind.element:
        scaler.codes(x, where[0], where[1], row)
    else:
        scaler.largest(x, where[0], index)
    c.ret_void()
    return handler.build(module, kind.name, function, args, 1, len(ROW_FIELDS))


@dataclass(frozen=True)
class _Scaler:
    """A part of a row: its first element, and how many there are."""

    c: Code
    kind: ScaleKind
    lanes: int
    first: Value
    count: Value

    def largest(self, x: Value, result: Value, index: Value) -> None:
        """Four running maxima, as a processor compares two vectors a cycle."""
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
        name = f"llvm.vector.reduce.smax.v{lanes}i32"
        total = c.call(c.external(name, I32, most.type), [most])
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
        """The elements times the scale of their row."""
        c, lanes = self.c, self.lanes
        scale = c.read(I32, c.at(scales, row, 4))
        whole = c.sdiv(self.count, int64(lanes))
        many = c.splat(scale, lanes)
        with c.loop(whole) as n:
            index = c.add(self.first, c.mul(n, int64(lanes)))
            bits = stored_bits(c, self.kind.stored, x, index, lanes)
            store_codes(c, self._code(bits, many), result, index, lanes)
        with c.loop(self.count, c.mul(whole, int64(lanes))) as n:
            index = c.add(self.first, n)
            bits = stored_bits(c, self.kind.stored, x, index, 0)
            store_codes(c, self._code(bits, scale), result, index, 0)

    def _code(self, bits: Value, scale: Value) -> Value:
        """As `rounding.cast` does, down to the name of its limit."""
        c, fmt = self.c, get_format(self.kind.element)
        product = c.bitcast(c.fmul(as_floats(c, bits), as_floats(c, scale)), bits.type)
        like = lambda x: c.like(bits, x)  # noqa: E731
        size = magnitude(c, product)
        most = like(ceiling(fmt, self.kind.saturates))
        top = c.select(c.icmp_signed(">", size, most), most, size)
        code = rounded(c, fmt, top)
        is_nan = c.icmp_signed(">", size, like(INFINITY))
        code = c.select(is_nan, like(fmt.nan_code), code)
        sign = c.lshr(product, like(31))
        return c.xor(code, c.shl(sign, like(fmt.width - 1)))


def write_factors(module: ir.Module, lanes: int) -> str:
    """Return the module that makes a scale and its inverse of a largest magnitude.

    It does what `engines.vector.scale_from_amax` says in XLA's operations: two kernels
    of XLA's for every tensor that is scaled, where this is one operation.
    """
    del lanes
    function = handler.block(module, FACTORS)
    _, operands, plan, _ = function.args
    c = Code.of(function)
    count, carry, top = c.numbers(plan, 3)
    amaxes, scales, inverses = c.pointers(operands, 3)
    with c.loop(count) as n:
        bits = c.read(I32, c.at(amaxes, n, 4))
        raised = c.lshr(c.add(bits, c.trunc(carry, I32)), I32(MANTISSA_BITS))
        biased = larger(c, c.sub(c.trunc(top, I32), raised), I32(1))
        high = c.icmp_signed(">", biased, I32(2 * BIAS - 1))
        biased = c.select(high, I32(2 * BIAS - 1), biased)
        # Not of zeros, subnormals, Inf and NaN.
        normal = c.sub(bits, I32(IMPLICIT))
        usable = c.icmp_unsigned("<", normal, I32(INFINITY - IMPLICIT))
        biased = c.select(usable, biased, I32(BIAS))
        for exponent, result in (
            (biased, scales),
            (c.sub(I32(2 * BIAS), biased), inverses),
        ):
            c.write(c.shl(exponent, I32(MANTISSA_BITS)), c.at(result, n, 4))
    c.ret_void()
    return handler.build(module, FACTORS, function, 1, 2, 3)
