"""Microscaling as machine code: a scale and codes for blocks of 32 along an axis.

The kernel computes `numerics.microscaling.quantize_mx`, to nearest with saturation, for
the rules of `numerics.mx_scales` that bound the scale. It works on the bits of FP32: it
finds the largest magnitude of a block, derives the scale, divides every element by it
and rounds once. Elements that are side by side in memory are computed together: blocks
of many columns, or one block if K is the last axis.
"""

from __future__ import annotations

import functools
from math import prod

import jax
import jax.numpy as jnp
import numpy as np
from llvmlite import ir

from neuronjax.execution.host_kernels.panels import BLOCK
from neuronjax.numerics.float_format import FloatFormat, get_format
from neuronjax.numerics.host_kernels import handler
from neuronjax.numerics.host_kernels.compiled import (
    I32,
    Code,
    Value,
    int64,
    stored_bits,
)
from neuronjax.numerics.host_kernels.elements import (
    BIAS,
    IMPLICIT,
    MANTISSA_BITS,
    ElementKind,
    larger,
    largest_lane,
    magnitude,
    rounded,
    store_codes,
)
from neuronjax.numerics.host_kernels.handler import MANY, called, element_words
from neuronjax.numerics.mx_scales import ALTERNATIVE, largest_exponent

NAN_SCALE, MAX_SCALE = 255, 254
#: The fields of the plan: an array [outer, k, inner], the number of blocks of 32 along
#: k (the last may be shorter), and the rows of `outer` per thread.
QUANTIZE_FIELDS = ("outer", "k", "inner", "blocks", "rows")


def quantize(
    x: jax.Array, axis: int, element: str, rule: str
) -> tuple[jax.Array, jax.Array]:
    """Return uint8 codes of the shape of `x`, which is float32 or bfloat16, and scales
    of blocks of 32 along `axis`. `element` is the name of the format of the codes;
    `rule` is one of `mx_scales.BOUNDED`."""
    axis %= x.ndim
    before, k, after = x.shape[:axis], x.shape[axis], x.shape[axis + 1 :]
    codes, scales = _of_rows(x.reshape(prod(before), k, prod(after)), element, rule)
    return codes.reshape(x.shape), scales.reshape(*before, -(-k // BLOCK), *after)


def _of_rows(x: jax.Array, element: str, rule: str) -> tuple[jax.Array, jax.Array]:
    """Return codes and scales of [outer, k, inner], with blocks along k."""
    outer, k, inner = x.shape
    kind = ElementKind(
        "quantize", x.dtype.name, element, rule=rule, contiguous=inner == 1
    )
    blocks = -(-k // BLOCK)
    rows = max(1, MANY // max(1, k * inner))
    plan = element_words(-(-outer // rows), x.size, outer, k, inner, blocks, rows)
    shapes = (x.shape, (outer, blocks, inner))
    results = tuple(jax.ShapeDtypeStruct(shape, jnp.uint8) for shape in shapes)
    again = functools.partial(_of_rows, element=element, rule=rule)
    kernel = functools.partial(write, kind=kind)
    return called(kind.name, kernel, results, plan, again, x)


# -- the kernel ------------------------------------------------------------------------


def write(module: ir.Module, lanes: int, kind: ElementKind) -> str:
    """Return the module of a kind, as text. Its operands are the addresses of the input
    [outer, K, inner], the codes and the scales."""

    def work(c: Code, index: Value, plan: list[Value], where: list[Value]) -> None:
        p: dict[str, Value] = dict(zip(QUANTIZE_FIELDS, plan, strict=True))
        _Quantizer(c, kind, lanes, where).block(p, index)

    return handler.kernel(module, kind.name, (1, 2, len(QUANTIZE_FIELDS)), work)


class _Quantizer:
    def __init__(
        self, c: Code, kind: ElementKind, lanes: int, where: list[Value]
    ) -> None:
        self._c, self._kind, self._lanes = c, kind, lanes
        self._x, self._codes, self._scales = where
        self._format: FloatFormat = get_format(kind.element)

    def block(self, p: dict[str, Value], index: Value) -> None:
        c = self._c
        first = c.mul(index, p["rows"])
        last = c.smaller(c.add(first, p["rows"]), p["outer"])
        with c.loop(last, first) as outer:
            with c.loop(p["blocks"]) as b:
                k0 = c.mul(b, int64(BLOCK))
                count = c.smaller(int64(BLOCK), c.sub(p["k"], k0))
                row = c.add(c.mul(outer, p["k"]), k0)
                at = c.mul(row, p["inner"])
                to = c.mul(c.add(c.mul(outer, p["blocks"]), b), p["inner"])
                if self._kind.contiguous:
                    self._last_axis(at, to, count)
                else:
                    for n, width in c.strips(p["inner"], self._lanes):
                        place = (c.add(at, n), c.add(to, n))
                        self._strided(*place, count, p["inner"], width)

    def _last_axis(self, at: Value, to: Value, count: Value) -> None:
        """Write one block along the last axis; the last block may be shorter."""
        c, lanes = self._c, self._lanes
        with c.if_else(c.icmp_signed("==", count, int64(BLOCK))) as (whole, part):
            with whole:
                vectors = [
                    self._bits(c.add(at, int64(n)), lanes)
                    for n in range(0, BLOCK, lanes)
                ]
                largest = magnitude(c, vectors[0])
                for x in vectors[1:]:
                    largest = larger(c, largest, magnitude(c, x))
                scale = self._scale(largest_lane(c, largest))
                store_codes(c, scale, self._scales, to, 0)
                for n, x in enumerate(vectors):
                    codes = self._encoded(x, c.splat(scale, lanes))
                    store_codes(
                        c, codes, self._codes, c.add(at, int64(n * lanes)), lanes
                    )
            with part:
                self._strided(at, to, count, int64(1), 0)

    def _strided(
        self, at: Value, to: Value, count: Value, stride: Value, lanes: int
    ) -> None:
        """Write `lanes` blocks side by side, with `stride` between their elements; a
        `lanes` of 0 is one block without vectors."""
        c = self._c
        kind = ir.VectorType(I32, lanes) if lanes else I32
        nothing = ir.Constant(kind, [0] * lanes if lanes else 0)

        def widest(k: Value, carried: list[Value]) -> list[Value]:
            x = self._bits(c.add(at, c.mul(k, stride)), lanes)
            return [larger(c, carried[0], magnitude(c, x))]

        [amax] = c.fold(count, [nothing], widest)
        scale = self._scale(amax)
        store_codes(c, scale, self._scales, to, lanes)
        with c.loop(count) as k:
            index = c.add(at, c.mul(k, stride))
            codes = self._encoded(self._bits(index, lanes), scale)
            store_codes(c, codes, self._codes, index, lanes)

    # -- numbers, one or a vector of them ----------------------------------------------

    def _bits(self, index: Value, lanes: int) -> Value:
        return stored_bits(self._c, self._kind.stored, self._x, index, lanes)

    def _scale(self, amax: Value) -> Value:
        """Return a block's scale byte from its largest magnitude; see `mx_scales`."""
        c = self._c
        like = lambda x: c.like(amax, x)  # noqa: E731
        field = c.lshr(amax, like(MANTISSA_BITS))
        mantissa = c.and_(amax, like(IMPLICIT - 1))
        emax = like(largest_exponent(self._format, self._kind.rule))
        raised = c.add(field, self._increment(mantissa))
        byte = c.sub(larger(c, raised, emax), emax)
        byte = c.smaller(byte, like(MAX_SCALE))
        return c.select(c.icmp_signed("==", field, like(255)), like(NAN_SCALE), byte)

    def _increment(self, mantissa: Value) -> Value:
        c, rule = self._c, self._kind.rule.removesuffix(ALTERNATIVE)
        like = lambda x: c.like(mantissa, x)  # noqa: E731
        if rule in ("ocp_floor", "neuron"):
            return like(int(rule == "neuron"))
        if rule == "even":
            half = 1 << (MANTISSA_BITS - self._format.mantissa_bits - 1)
            return c.lshr(c.add(mantissa, like(half)), like(MANTISSA_BITS))
        largest = int(np.float32(self._format.max_finite).view(np.uint32))
        above = 0 if rule == "ceil" else largest & (IMPLICIT - 1)
        return c.zext(c.icmp_signed(">", mantissa, like(above)), mantissa.type)

    def _encoded(self, bits: Value, scale: Value) -> Value:
        """Return codes of elements divided by their scales, rounded to nearest even."""
        c, fmt = self._c, self._format
        like = lambda x: c.like(bits, x)  # noqa: E731
        quotient = self._quotient(magnitude(c, bits), scale)
        code = c.smaller(rounded(c, fmt, quotient), like(fmt.max_code))
        sign = c.lshr(bits, like(31))
        code = c.or_(code, c.shl(sign, like(fmt.width - 1)))
        return c.select(c.icmp_signed("==", scale, like(NAN_SCALE)), like(0), code)

    def _quotient(self, magnitude: Value, scale: Value) -> Value:
        """Return magnitude / scale, in the steps of `mx_scales.unscale_magnitudes`."""
        c = self._c
        like = lambda x: c.like(magnitude, x)  # noqa: E731
        divisor = c.shl(scale, like(MANTISSA_BITS))
        low = c.add(divisor, like(IMPLICIT))
        high = c.add(magnitude, like(BIAS << MANTISSA_BITS))
        # The highest bit of either may be set, so the maximum is unsigned.
        dividend = c.select(c.icmp_unsigned(">", high, low), high, low)
        quotient = c.sub(dividend, divisor)
        subnormal = c.icmp_signed("<", magnitude, like(IMPLICIT))
        return c.select(subnormal, like(0), quotient)
