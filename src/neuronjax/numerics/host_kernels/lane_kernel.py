"""An elementwise op in several runs at once, with the distances of its results.

The runs are those of a comparison: the run of the program in FP32, the reference in
FP64, the reference on perturbed data, and the program on the reference's operands,
rounded to FP32. Numbers in FP32 are those of an engine, which flushes subnormals.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence

from llvmlite import ir

from neuronjax.numerics.host_kernels.compiled import (
    F32,
    F64,
    Code,
    Value,
    array_function,
    shaped,
)
from neuronjax.numerics.host_kernels.distance_kernel import (
    absolute,
    add_figures,
    blocks,
)
from neuronjax.numerics.host_kernels.figures import LANE_FIGURES, NORMAL, Lanes

#: The arrays are three results, three arrays for each of two operands, and figures.
ARRAYS, IS_WIDE = 10, True
#: The types of the run, the reference and the perturbed run.
_KINDS = F32, F64, F64
_SMALLEST, _SIGN, _SIZE = 0x00800000, 0x80000000, 0x7FFFFFFF


def _square_root(c: Code, x: Value, _: Value) -> Value:
    lanes, kind = getattr(x.type, "count", 0), getattr(x.type, "element", x.type)
    name = f"llvm.sqrt.{f'v{lanes}' * bool(lanes)}{'f32' if kind == F32 else 'f64'}"
    return c.intrinsic(name, x.type, x)


_FUNCTIONS: dict[str, Callable[[Code, Value, Value], Value]] = {
    "add": Code.fadd,
    "subtract": Code.fsub,
    "multiply": Code.fmul,
    "divide": Code.fdiv,
    "sqrt": _square_root,
}


def _wide(c: Code, x: Sequence[Value]) -> list[Value]:
    return [c.fpext(y, shaped(F64, getattr(y.type, "count", 0))) for y in x]


def _on_engine(c: Code, apply: Callable[..., Value], x: Sequence[Value]) -> Value:
    """Return the result of an engine, which flushes subnormals, in FP32."""
    bits = [c.bitcast(y, c.like(y, 0).type) for y in x]
    given = [
        c.bitcast(c.select(_is_small(c, b), _signs(c, b), b), y.type)
        for y, b in zip(x, bits, strict=True)
    ]
    result, exact = apply(*given), apply(*_wide(c, given))
    is_flushed = c.fcmp_ordered("<", absolute(c, exact), c.number(exact, NORMAL))
    zero = c.bitcast(_signs(c, c.bitcast(result, c.like(result, 0).type)), result.type)
    return c.select(is_flushed, zero, result)


def _is_small(c: Code, bits: Value) -> Value:
    size = c.and_(bits, c.like(bits, _SIZE))
    return c.icmp_unsigned("<", size, c.like(bits, _SMALLEST))


def _signs(c: Code, bits: Value) -> Value:
    return c.and_(bits, c.like(bits, _SIGN))


def write(
    module: ir.Module,
    lanes: int,
    function: str,
    are_scalars: str,
    setting: Sequence[float],
) -> str:
    """Return the module, as text. The arrays of its function are the results of the
    run, of the reference and of the perturbed run; the first operand in these runs,
    then the second; and the figures (`LANE_FIGURES`), to which the kernel adds its own.
    `are_scalars` has "1" for an operand that is one number, else "0"; a function of one
    operand ignores the second. `setting` has the numbers of `Told`."""
    c, arguments = array_function(module, ARRAYS)
    results, operands = arguments[:3], (arguments[3:6], arguments[6:9])
    figures, count = arguments[9:]
    told = [ir.Constant(F64, x) for x in setting]
    apply = functools.partial(_FUNCTIONS[function], c)

    def read(run: int, index: Value, width: int) -> list[Value]:
        """Return the operands of a run, by the number of the run."""
        return [
            c.splat(c.element(x[run], c.value(0), _KINDS[run], 0), width)
            if is_one == "1"
            else c.element(x[run], index, _KINDS[run], width)
            for x, is_one in zip(operands, are_scalars, strict=True)
        ]

    def compute(index: Value, width: int) -> tuple[Value, Value]:
        run = _on_engine(c, apply, read(0, index, width))
        exact, moved = (apply(*read(n, index, width)) for n in (1, 2))
        for x, kind, base in zip((run, exact, moved), _KINDS, results, strict=True):
            size = 4 if kind == F32 else 8
            c.write(x, c.at(base, index, size), size)
        return moved, exact

    def computed(index: Value, width: int) -> tuple[Value, Value]:
        run, exact, _ = results
        return c.element(run, index, F32, width), c.element(exact, index, F64, width)

    def alone(index: Value, width: int) -> tuple[Value, Value]:
        given = [c.fptrunc(r, shaped(F32, width)) for r in read(1, index, width)]
        return _on_engine(c, apply, given), apply(*_wide(c, given))

    # One loop for all figures would need more registers than a processor has.
    passes = {Lanes.MOVED: compute, Lanes.RUN: computed, Lanes.ALONE: alone}
    for block in blocks(c, count):
        at = figures
        for lane, wanted in LANE_FIGURES.items():
            add_figures(c, wanted, passes[lane], block, lanes, told, at)
            at = c.at(at, len(wanted), 8)
    c.ret_void()
    return str(module)
