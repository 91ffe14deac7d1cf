"""Distances of numbers from a reference, in one pass: sums, maxima and counts.

An Inf or NaN makes sums Inf or NaN; the caller then compares the arrays in another way.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Sequence

from llvmlite import ir

from neuronjax.numerics.host_kernels.compiled import (
    F32,
    F64,
    I64,
    Code,
    Value,
    array_function,
    shaped,
)
from neuronjax.numerics.host_kernels.figures import COUNTS, MAXIMA, Distance, Told

ARRAYS, IS_WIDE = 4, True
#: The number of elements of a block, whose figures are summed before they are added to
#: the total.
_BLOCK = 8192
_EXPONENT = 0x7FF0 << 48
#: The bits of a power of two plus those of its reciprocal, if both are normal.
_RECIPROCAL = 2046 << 52
_FLOATS = {"f": F32, "d": F64}


def write(module: ir.Module, lanes: int, asked: int, types: str) -> str:
    """Return the module, as text. The arrays of its function are the actual numbers,
    the references, the settings (`Told`) and the results. Bit n of `asked` says whether
    `Distance` n is a result. `types` has NumPy's characters of the first two arrays:
    "f" for FP32, "d" for FP64."""
    wanted = [figure for figure in Distance if asked >> figure & 1]
    c, (actual, reference, settings, figures, count) = array_function(module, ARRAYS)
    pair = [(x, _FLOATS[t]) for x, t in zip((actual, reference), types, strict=True)]
    given = [c.read(F64, c.at(settings, s, 8), 8) for s in Told]

    def pair_at(index: Value, width: int) -> tuple[Value, Value]:
        a, r = (c.element(x, index, kind, width) for x, kind in pair)
        return a, r

    for start, size in blocks(c, count):
        add_figures(c, wanted, pair_at, (start, size), lanes, given, figures)
    c.ret_void()
    return str(module)


def blocks(c: Code, count: Value) -> Iterator[tuple[Value, Value]]:
    """Write a loop over blocks of `count` numbers; yield a block's start and size."""
    with c.loop(c.rounded_up(count, c.value(_BLOCK))) as block:
        start = c.mul(block, c.value(_BLOCK))
        yield start, c.smaller(c.sub(count, start), c.value(_BLOCK))


def add_figures(
    c: Code,
    wanted: Sequence[Distance],
    pair_at: Callable[[Value, int], tuple[Value, Value]],
    block: tuple[Value, Value],
    lanes: int,
    told: Sequence[Value],
    figures: Value,
) -> None:
    """Add the figures of a block to those in the array `figures`, which are FP64
    numbers. `pair_at` returns the numbers and the references at an index, as vectors of
    some lanes or, for 0 lanes, as single numbers. `told` has the settings."""
    start, size = block

    def step(index: Value, width: int, sums: list[Value]) -> list[Value]:
        pair = pair_at(c.add(start, index), width)
        numbers = Numbers(c, *pair, [c.splat(x, width) for x in told])
        return [*map(numbers.added, wanted, sums)]

    def nothing(width: int) -> list[Value]:
        kinds = (I64 if figure in COUNTS else F64 for figure in wanted)
        return [ir.Constant(shaped(kind, width), None) for kind in kinds]

    totals = c.fold_elements(size, lanes, nothing, step)
    for n, (figure, (total, last)) in enumerate(zip(wanted, totals, strict=True)):
        whole = functools.reduce(
            functools.partial(_joined, c, figure), [*c.split(total), last]
        )
        whole = c.uitofp(whole, F64) if figure in COUNTS else whole
        at = c.at(figures, n, 8)
        join = _larger if figure in MAXIMA else Code.fadd
        c.write(join(c, c.read(F64, at, 8), whole), at, 8)


def _joined(c: Code, figure: Distance, a: Value, b: Value) -> Value:
    join = _larger if figure in MAXIMA else Code.add if figure in COUNTS else Code.fadd
    return join(c, a, b)


def _larger(c: Code, a: Value, b: Value) -> Value:
    return c.select(c.fcmp_ordered(">", b, a), b, a)


def absolute(c: Code, x: Value) -> Value:
    """Return the magnitudes of FP64 numbers."""
    lanes = getattr(x.type, "count", 0)
    return c.intrinsic(f"llvm.fabs.{f'v{lanes}' * bool(lanes)}f64", x.type, x)


class Numbers:
    """One number and its reference, or a vector of numbers and one of references.

    Attributes:
        c: the code of the kernel.
        stored: the two as they are stored.
        known: the settings, by `Told`.
        a, r: the two in FP64.
        ours, size: their magnitudes.
        error, far: the difference of the two, and its magnitude.
    """

    def __init__(self, c: Code, a: Value, r: Value, known: list[Value]) -> None:
        self.c, self.known, self.stored = c, known, (a, r)
        wide = shaped(F64, getattr(a.type, "count", 0))
        self.a, self.r = (x if x.type == wide else c.fpext(x, wide) for x in (a, r))
        self.error, self.zero = c.fsub(self.a, self.r), ir.Constant(wide, None)
        pair = self.a, self.r, self.error
        self.ours, self.size, self.far = (absolute(c, x) for x in pair)

    def added(self, figure: Distance, total: Value) -> Value:
        """Return `total` with the figure of these numbers added."""
        x = _FIGURES[figure](self)
        if figure in COUNTS:  # a comparison that holds has the bits of -1
            return self.c.sub(total, self.c.sext(x, total.type))
        return _joined(self.c, figure, total, x)

    def both(self, *comparisons: tuple[Value, str, Value]) -> Value:
        """Return whether all comparisons hold and none reads a NaN."""
        results = (self.c.fcmp_ordered(how, x, y) for x, how, y in comparisons)
        return functools.reduce(self.c.and_, results)

    @functools.cached_property
    def ulp(self) -> Value:
        """The distance in steps that the format has at the larger magnitude."""
        c, size = self.c, _larger(self.c, self.ours, self.size)
        least = _larger(c, size, self.known[Told.STEP])
        power = c.and_(c.bitcast(least, c.like(size, 0).type), c.like(size, _EXPONENT))
        inverse = c.bitcast(c.sub(c.like(size, _RECIPROCAL), power), size.type)
        return c.fmul(self.far, c.fmul(inverse, self.known[Told.PRECISION]))

    def differs(self) -> Value:
        c, (a, r) = self.c, self.stored
        if a.type != r.type:
            return c.fcmp_unordered("!=", a, c.fptrunc(r, a.type))
        bits = c.like(a, 0).type
        return c.icmp_signed("!=", c.bitcast(a, bits), c.bitcast(r, bits))

    def is_lost(self) -> Value:
        size = _larger(self.c, self.size, self.known[Told.FLOOR])
        return self.both((self.far, ">", self.c.fmul(size, self.known[Told.LOST])))


_FIGURES: dict[Distance, Callable[[Numbers], Value]] = {
    Distance.ERROR2: lambda n: n.c.fmul(n.error, n.error),
    Distance.REFERENCE2: lambda n: n.c.fmul(n.r, n.r),
    Distance.ACTUAL2: lambda n: n.c.fmul(n.a, n.a),
    Distance.PRODUCT: lambda n: n.c.fmul(n.a, n.r),
    Distance.ULP: lambda n: n.ulp,
    Distance.ULP_MOST: lambda n: n.ulp,
    Distance.SIZE_MOST: lambda n: n.size,
    Distance.DIFFERENT: Numbers.differs,
    Distance.NOTHING: lambda n: n.both((n.a, "==", n.zero)),
    Distance.ZEROS: lambda n: n.both((n.a, "==", n.zero), (n.r, "!=", n.zero)),
    Distance.BENEATH: lambda n: n.both(
        (n.size, "<", n.known[Told.SMALLEST]), (n.r, "!=", n.zero)
    ),
    Distance.BEYOND: lambda n: n.both((n.size, ">", n.known[Told.LARGEST])),
    Distance.CLIPPED: lambda n: n.both(
        (n.size, ">", n.known[Told.LARGEST]), (n.ours, "==", n.known[Told.LARGEST])
    ),
    Distance.LOST: Numbers.is_lost,
}
