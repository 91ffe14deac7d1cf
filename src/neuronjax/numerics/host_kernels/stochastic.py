"""Stochastic rounding to 8 bits and fewer, with random bits hashed in registers.

A kernel computes `rounding.cast` with the bits of `random_bits`, bit for bit. Random
bits are added to the low d bits of a magnitude, which are then dropped: a carry rounds
up. A subnormal of the format drops more bits, so an FP32 addition first shifts its
magnitude down. The bits lost in this shift matter only if the sum ends next to a carry,
for one in 2^(d-1) elements. This is checked once for `CHUNK` elements. If it happens,
or one of them overflows or is NaN, all `CHUNK` elements are rounded again without
losing bits.
"""

from __future__ import annotations

import functools

import jax
import jax.numpy as jnp
from llvmlite import ir

from neuronjax.numerics.float_format import FloatFormat, get_format
from neuronjax.numerics.host_kernels import handler
from neuronjax.numerics.host_kernels.compiled import (
    I1,
    I32,
    Code,
    Value,
    as_floats,
    int64,
    shaped,
    stored_bits,
)
from neuronjax.numerics.host_kernels.elements import (
    BIAS,
    INFINITY,
    MANTISSA_BITS,
    ElementKind,
    larger,
    magnitude,
    store_codes,
)
from neuronjax.numerics.host_kernels.handler import (
    MANY,
    ROW_FIELDS,
    called,
    row_part,
    row_words,
)
from neuronjax.numerics.random_bits import GOLDEN, LAST_SHIFT, STEPS
from neuronjax.numerics.rounding import ceiling

#: Number of elements that are checked together.
CHUNK = 1024
#: Indices of an aligned window of this size differ only in bits that the mixer's first
#: shift drops, so the shifted word is the same for all of them.
WINDOW = 1 << STEPS[0][0]
assert WINDOW % MANY == 0
assert MANY % CHUNK == 0


def rounded(x: jax.Array, keys: jax.Array, element: str, saturates: bool) -> jax.Array:
    """Return x with each row rounded by the bits of `random_bits((size,), its key)`.

    The rows of x, float32 or bfloat16 [outer, size], have fewer than 2^32 elements; the
    keys are uint32 [outer]. `element` is the name of a signed format of at most 8 bits,
    whose largest value replaces an overflow if it `saturates`. The result has elements
    of the format; for a format of 4 bits it has uint8 codes, which `from_codes` makes
    elements.
    """
    kind = ElementKind("stochastic", x.dtype.name, element, saturates)
    fmt = get_format(element)
    dtype = fmt.dtype if fmt.width == 8 else fmt.code_dtype

    def like(x: jax.Array, keys: jax.Array) -> jax.Array:
        return (x.astype(jnp.uint32) + keys[:, None]).astype(dtype)

    # `eval_shape` of the operands keeps the axes over which `shard_map` varies them.
    result = jax.eval_shape(like, x, keys)
    again = functools.partial(rounded, element=element, saturates=saturates)
    kernel = functools.partial(write, kind=kind)
    return called(kind.name, kernel, result, row_words(x), again, x, keys)


def write(module: ir.Module, lanes: int, kind: ElementKind) -> str:
    """Return, as text, the module of one kind of kernel."""

    def work(c: Code, index: Value, plan: list[Value], where: list[Value]) -> None:
        row, size, start, count = row_part(c, index, plan)
        x, keys, result = where
        key = c.read(I32, c.at(keys, row, 4))
        at = c.mul(row, size)
        _StochasticPart(c, kind, lanes, (x, result), at, start, key).round(count)

    return handler.kernel(module, kind.name, (2, 1, len(ROW_FIELDS)), work)


class _StochasticPart:
    """A part of a row. `row` is the index of the row's first element, and `start` the
    part's offset in the row, a multiple of `MANY`."""

    def __init__(
        self,
        c: Code,
        kind: ElementKind,
        lanes: int,
        where: tuple[Value, Value],
        row: Value,
        start: Value,
        key: Value,
    ) -> None:
        self._c, self._kind, self._lanes = c, kind, lanes
        self._x, self._codes = where
        self._row, self._start, self._key = row, start, key
        self._format: FloatFormat = get_format(kind.element)
        self._dropped = MANTISSA_BITS - self._format.mantissa_bits
        self._lowest = BIAS + self._format.min_exponent
        self._ceiling = int(ceiling(self._format, kind.saturates))
        self._second = _mixed(c, c.xor(key, I32(int(GOLDEN))))

    def round(self, count: Value) -> None:
        c = self._c
        chunks = c.sdiv(count, int64(CHUNK))
        with c.loop(chunks) as n:
            self._chunk(c.add(self._start, c.mul(n, int64(CHUNK))))
        done = c.mul(chunks, int64(CHUNK))
        self._exactly(c.add(self._start, done), c.sub(count, done))

    # -- `CHUNK` elements at a time ----------------------------------------------------

    def _chunk(self, first: Value) -> None:
        c, lanes = self._c, self._lanes
        # The mixer multiplies (i ^ key) ^ ((i ^ key) >> 16). This is i ^ low, with one
        # `low` per window. Lanes differ only in the low bits of i, so the product is
        # the vector `own` plus the scalar `many`.
        shift, factor = STEPS[0]
        index = c.trunc(first, I32)
        low = c.xor(self._key, c.lshr(c.xor(index, self._key), I32(shift)))
        lane_bits = lanes - 1
        numbers = ir.Constant(shaped(I32, lanes), list(range(lanes)))
        own = c.xor(numbers, c.splat(c.and_(low, I32(lane_bits)), lanes))
        own = c.mul(own, c.like(own, factor))
        common = c.and_(low, I32(~lane_bits & 0xFFFFFFFF))
        second = c.splat(self._second, lanes)

        def step(n: Value, carried: list[Value]) -> list[Value]:
            at = c.add(first, c.mul(n, int64(lanes)))
            many = c.mul(c.xor(c.trunc(at, I32), common), I32(factor))
            mixed = _last(c, _multiplied(c, c.add(c.splat(many, lanes), own), 1))
            random = _multiplied(c, _multiplied(c, c.add(mixed, second), 0), 1)
            code, sure = self._likely(self._bits(at, lanes), random)
            store_codes(c, code, self._codes, c.add(self._row, at), lanes)
            return [c.and_(carried[0], sure)]

        yes = ir.Constant(ir.VectorType(I1, lanes), [1] * lanes)
        [sure] = c.fold(CHUNK // lanes, [yes], step)
        flags: Value = c.bitcast(sure, ir.IntType(lanes))
        with c.if_then(
            c.icmp_unsigned("!=", flags, ir.Constant(flags.type, -1)), likely=False
        ):
            self._exactly(first, int64(CHUNK))

    def _likely(self, bits: Value, random: Value) -> tuple[Value, Value]:
        """Return rounded codes, and whether each code is certainly right.

        The code is the top of an integer sum: the FP32 bits of the magnitude, plus the
        top of `random`, after the mixer's last shift, which is applied here. For a
        magnitude below the smallest normal number of the format, a fixed-point number
        takes the place of the bits. This number may be too large by one unit, so the
        sum is never too small, and at most two units too large.
        """
        c, drop, fmt = self._c, self._dropped, self._format
        like = lambda x: c.like(bits, x & 0xFFFFFFFF)  # noqa: E731
        size = magnitude(c, bits)
        half = as_floats(c, like((BIAS - 1) << MANTISSA_BITS))
        binade = (self._lowest - 1) << MANTISSA_BITS
        below = as_floats(c, like(binade + 1))
        fixed = c.bitcast(c.fused(as_floats(c, size), half, below), bits.type)
        steps = larger(c, fixed, size)
        # top ^ bottom are the top `drop` bits after the mixer's last shift. The xor
        # with -binade, whose low bits are zeros, subtracts the binade.
        top = c.lshr(random, like(32 - drop))
        bottom = c.lshr(random, like(32 - drop + LAST_SHIFT))
        total = c.add(steps, c.xor(c.xor(top, bottom), like(-binade)))
        code = c.lshr(total, like(drop))
        beside = c.and_(total, like((1 << drop) - 2))
        sure = c.icmp_signed("!=", beside, like(0))
        sure = c.and_(sure, c.icmp_unsigned("<=", size, like(self._ceiling)))
        sign = c.lshr(bits, like(32 - fmt.width))
        return c.xor(code, c.and_(sign, like(1 << (fmt.width - 1)))), sure

    # -- without losing bits -----------------------------------------------------------

    def _exactly(self, first: Value, count: Value) -> None:
        c, lanes = self._c, self._lanes
        numbers = ir.Constant(shaped(I32, lanes), list(range(lanes)))
        for n, width in c.strips(count, lanes):
            at = c.add(first, n)
            index, key, second = c.trunc(at, I32), self._key, self._second
            if width:
                index, key, second = (c.splat(x, lanes) for x in (index, key, second))
                index = c.add(index, numbers)
            random = _mixed(c, c.add(_mixed(c, c.xor(index, key)), second))
            code = self._rounded(self._bits(at, width), random)
            store_codes(c, code, self._codes, c.add(self._row, at), width)

    def _rounded(self, bits: Value, random: Value) -> Value:
        """Return codes: the number of whole steps below the magnitude, plus the carry
        when random bits are added to the 32-bit fraction of a step. The scale is a
        power of two, so all numbers here are exact."""
        c, fmt = self._c, self._format
        like = lambda x: c.like(bits, x)  # noqa: E731
        size = magnitude(c, bits)
        top = like(self._ceiling)
        inside = c.select(c.icmp_unsigned(">", size, top), top, size)
        lowest = like(self._lowest << MANTISSA_BITS)
        binade = larger(c, c.and_(inside, like(INFINITY)), lowest)
        scale = c.sub(like((2 * BIAS + fmt.mantissa_bits) << MANTISSA_BITS), binade)
        steps: Value = c.fmul(as_floats(c, inside), as_floats(c, scale))
        whole = c.fptosi(steps, bits.type)
        fraction = c.fsub(steps, c.sitofp(whole, steps.type))
        units = as_floats(c, like((BIAS + 32) << MANTISSA_BITS))
        fraction = c.fptoui(c.fmul(fraction, units), bits.type)
        carry = c.icmp_unsigned("<", c.add(fraction, random), random)
        code = c.lshr(c.sub(binade, lowest), like(self._dropped))
        code = c.add(c.add(code, whole), c.zext(carry, bits.type))
        is_nan = c.icmp_unsigned(">", size, like(INFINITY))
        code = c.select(is_nan, like(fmt.nan_code), code)
        return c.xor(code, c.shl(c.lshr(bits, like(31)), like(fmt.width - 1)))

    def _bits(self, at: Value, lanes: int) -> Value:
        index = self._c.add(self._row, at)
        return stored_bits(self._c, self._kind.stored, self._x, index, lanes)


# ---- The hash of `random_bits`.


def _mixed(c: Code, x: Value) -> Value:
    return _last(c, _multiplied(c, _multiplied(c, x, 0), 1))


def _multiplied(c: Code, x: Value, step: int) -> Value:
    shift, factor = STEPS[step]
    return c.mul(c.xor(x, c.lshr(x, c.like(x, shift))), c.like(x, factor))


def _last(c: Code, x: Value) -> Value:
    return c.xor(x, c.lshr(x, c.like(x, LAST_SHIFT)))
