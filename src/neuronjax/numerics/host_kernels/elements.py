"""Code that reads, rounds and stores elements in kernels, one or a vector at once.

Numbers are the bits of FP32 in 32-bit integers. `lanes` is the number of elements of a
vector, 0 for a single element.
"""

from __future__ import annotations

from dataclasses import dataclass

from neuronjax.numerics.float_format import FloatFormat
from neuronjax.numerics.host_kernels.compiled import (
    I8,
    I32,
    Code,
    Value,
    as_floats,
    shaped,
)

MANTISSA_BITS = 23
BIAS = 127
IMPLICIT = 1 << MANTISSA_BITS
INFINITY = 0x7F800000
MAGNITUDE = 0x7FFFFFFF


@dataclass(frozen=True)
class ElementKind:
    """The properties that select one kernel on elements.

    Attributes:
        work: what the kernel does.
        stored: "float32" or "bfloat16".
        element: the name of the codes' format, if there are codes.
        saturates: whether an overflow becomes the largest value.
        rule: one of `mx_scales.BOUNDED`, for blocks with a scale.
        contiguous: whether blocks extend along the last axis.
    """

    work: str
    stored: str
    element: str = ""
    saturates: bool = False
    rule: str = ""
    contiguous: bool = False

    @property
    def name(self) -> str:
        """Return the name under which XLA calls the kernel."""
        flags = ["saturated"] * self.saturates + ["last"] * self.contiguous
        parts = ["neuronjax", self.work, self.stored, self.element, self.rule, *flags]
        return "_".join(filter(None, parts))


def store_codes(c: Code, x: Value, base: Value, index: Value, lanes: int) -> None:
    c.write(c.trunc(x, shaped(I8, lanes)), c.at(base, index), 1)


def magnitude(c: Code, bits: Value) -> Value:
    return c.and_(bits, c.like(bits, MAGNITUDE))


def larger(c: Code, a: Value, b: Value) -> Value:
    return c.select(c.icmp_signed(">", a, b), a, b)


def largest_lane(c: Code, x: Value) -> Value:
    """Return the largest element of `x`, a vector of 32-bit integers."""
    name = f"llvm.vector.reduce.smax.v{x.type.count}i32"
    return c.intrinsic(name, I32, x)


def rounded(c: Code, fmt: FloatFormat, size: Value) -> Value:
    """Return the codes of the FP32 magnitudes `size`, rounded to nearest even."""
    like = lambda x: c.like(size, x)  # noqa: E731
    shift = MANTISSA_BITS - fmt.mantissa_bits
    odd = c.and_(c.lshr(size, like(shift)), like(1))
    raised = c.add(c.add(size, odd), like((1 << (shift - 1)) - 1))
    lowest = BIAS + fmt.min_exponent
    offset = (lowest - 1) << fmt.mantissa_bits
    normal = c.sub(c.lshr(raised, like(shift)), like(offset))
    # `step` is 2^23 subnormal steps, so the sum is rounded to a whole number of steps.
    step = like((lowest - fmt.mantissa_bits + MANTISSA_BITS) << MANTISSA_BITS)
    total = c.fadd(as_floats(c, size), as_floats(c, step))
    small = c.sub(c.bitcast(total, size.type), step)
    is_small = c.icmp_signed("<", size, like(lowest << MANTISSA_BITS))
    return c.select(is_small, small, normal)
