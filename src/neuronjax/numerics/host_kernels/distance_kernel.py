"""Distances of FP32 numbers from an FP64 reference, in one pass: sums and counts.

A vector accumulates each sum, and the caller adds up the lanes of the vector. An Inf or
NaN makes sums Inf or NaN; the caller then compares the arrays in another way.
"""

from __future__ import annotations

from typing import Any

from llvmlite import ir

from neuronjax.numerics.host_kernels.compiled import (
    F32,
    F64,
    I32,
    I64,
    POINTER,
    VOID,
    Code,
    Value,
    int64,
    shaped,
)
from neuronjax.numerics.host_kernels.figures import MAXIMA, Distance, Told

NAME = "neuronjax_distances"

_EXPONENT = 0x7FF0 << 48
#: The bits of a power of two plus those of its reciprocal, if both are normal.
_RECIPROCAL = 2046 << 52


def write(module: ir.Module, lanes: int) -> str:
    """Return the module, as text. Its function takes four addresses, of the actual
    numbers, the references, the settings (`Told`) and the results (`Distance`, with an
    axis of lanes), and the number of elements."""
    kind = ir.FunctionType(VOID, (POINTER, POINTER, POINTER, POINTER, I64))
    function = ir.Function(module, kind, NAME)
    actual, reference, settings, figures, count = function.args
    c = Code.of(function)
    given = [c.read(F64, c.at(settings, s, 8), 8) for s in Told]
    whole = c.sdiv(count, int64(lanes))

    def step(width: int, base: Value) -> Any:
        known = [c.splat(x, width) if width else x for x in given]

        def added(n: Value, sums: list[Value]) -> list[Value]:
            index = c.add(base, c.mul(n, int64(width or 1)))
            a = c.read(shaped(F32, width), c.at(actual, index, 4))
            r = c.read(shaped(F64, width), c.at(reference, index, 8), 8)
            return _added(c, a, r, known, sums)

        return added

    nothing = ir.Constant(shaped(F64, lanes), [0.0] * lanes)
    sums = c.fold(whole, [nothing] * len(Distance), step(lanes, int64(0)))
    done = c.mul(whole, int64(lanes))
    none = [ir.Constant(F64, 0.0)] * len(Distance)
    rest = c.fold(c.sub(count, done), none, step(0, done))
    for figure, total, last in zip(Distance, sums, rest, strict=True):
        first = c.extract_element(total, I32(0))
        join = _larger if figure in MAXIMA else Code.fadd
        total = c.insert_element(total, join(c, first, last), I32(0))
        c.write(total, c.at(figures, figure * lanes, 8), 8)
    c.ret_void()
    return str(module)


def _added(
    c: Code, a: Value, r: Value, known: list[Value], sums: list[Value]
) -> list[Value]:
    rounded = c.fptrunc(r, a.type)
    bits = c.like(a, 0).type
    actual = c.fpext(a, r.type)
    error = c.fsub(actual, r)
    size, far, ours = (_size(c, x) for x in (r, error, actual))
    ulp = c.fmul(far, _steps(c, _larger(c, ours, size), known))
    zero = ir.Constant(r.type, None)
    is_zero = c.fcmp_ordered("==", actual, zero)
    has_size = c.fcmp_ordered("!=", r, zero)
    allowed = c.fmul(_larger(c, size, known[Told.FLOOR]), known[Told.LOST])
    beyond = c.fcmp_ordered(">", size, known[Told.LARGEST])
    more = {
        Distance.ERROR2: c.fmul(error, error),
        Distance.REFERENCE2: c.fmul(r, r),
        Distance.ACTUAL2: c.fmul(actual, actual),
        Distance.PRODUCT: c.fmul(actual, r),
        Distance.ULP: ulp,
        Distance.ULP_MOST: ulp,
        Distance.SIZE_MOST: size,
        Distance.DIFFERENT_BITS: c.icmp_signed(
            "!=", c.bitcast(a, bits), c.bitcast(rounded, bits)
        ),
        Distance.DIFFERENT: c.fcmp_unordered("!=", a, rounded),
        Distance.NOTHING: is_zero,
        Distance.ZEROS: c.and_(is_zero, has_size),
        Distance.BENEATH: c.and_(
            c.fcmp_ordered("<", size, known[Told.SMALLEST]), has_size
        ),
        Distance.BEYOND: beyond,
        Distance.CLIPPED: c.and_(
            beyond, c.fcmp_ordered("==", ours, known[Told.LARGEST])
        ),
        Distance.LOST: c.fcmp_ordered(">", far, allowed),
    }
    found = []
    for figure, total in zip(Distance, sums, strict=True):
        x = more[figure]
        if figure in MAXIMA:
            found.append(_larger(c, total, x))
        else:
            is_count = x.type != r.type
            found.append(c.fadd(total, c.uitofp(x, r.type) if is_count else x))
    return found


def _larger(c: Code, a: Value, b: Value) -> Value:
    return c.select(c.fcmp_ordered(">", b, a), b, a)


def _size(c: Code, x: Value) -> Value:
    count = getattr(x.type, "count", 0)
    name = f"llvm.fabs.v{count}f64" if count else "llvm.fabs.f64"
    return c.call(c.external(name, x.type, x.type), [x])


def _steps(c: Code, size: Value, known: list[Value]) -> Value:
    """Return the reciprocal of the step that a format has at the magnitude `size`."""
    least = _larger(c, size, known[Told.STEP])
    power = c.and_(c.bitcast(least, c.like(size, 0).type), c.like(size, _EXPONENT))
    inverse = c.bitcast(c.sub(c.like(size, _RECIPROCAL), power), size.type)
    return c.fmul(inverse, known[Told.PRECISION])
