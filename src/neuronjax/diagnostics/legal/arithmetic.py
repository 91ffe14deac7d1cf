"""Rules that propagate values and errors through element-wise instructions."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from neuronjax.diagnostics.legal.held import (
    Array,
    Executors,
    Held,
    exactly,
    in_float64,
    is_power_of_two,
    of_exact,
    places_in_doubt,
    rounded,
    without_needless_errors,
    written,
)
from neuronjax.diagnostics.reference64 import is_float
from neuronjax.diagnostics.reference64_tables import BINARY, UNARY
from neuronjax.diagnostics.tolerance.elementwise import (
    RULES,
    ElementRule,
    elementwise,
    powered,
    select,
)
from neuronjax.diagnostics.tolerance.model import ErrorModel, Roundoff
from neuronjax.diagnostics.tolerance.stepwise import stepwise
from neuronjax.diagnostics.tolerance.tracked import Tracked, doubtful, exact
from neuronjax.errors import UnimplementedError
from neuronjax.execution.arithmetic import comparison
from neuronjax.ir.algebra_set import HostCall
from neuronjax.ir.instruction import Instruction
from neuronjax.ir.instruction_set import (
    Activation,
    BitcastCopy,
    Compare,
    ReadAmax,
    RecordAmax,
    ReducePrecision,
    ScaleFromAmax,
    Select,
    TensorCopy,
    TensorScalar,
    TensorTensor,
)

REMEDY = "leave this op out of the function, or compare with `nj.compare`"


@functools.singledispatch
def legal(i: Instruction, x: Sequence[Held], at: Executors) -> Sequence[Held]:
    """Return the results of instruction `i` on operands `x`, with their errors.

    Raises:
        UnimplementedError: the instruction has no rule.
    """
    raise no_rule(i, i.name)


@legal.register
def _(i: HostCall, x: Sequence[Held], at: Executors) -> Sequence[Held]:
    if i.results:
        raise no_rule(i, i.function.name)
    return ()


def no_rule(i: Instruction, what: str) -> UnimplementedError:
    """Return the error to raise if `what`, in instruction `i`, has no rule."""
    return UnimplementedError(
        f"{what} has no rule for bounds of errors",
        op=i.name,
        location=i.location.source or None,
        remedy=REMEDY,
    )


def discrete(i: Instruction, x: Sequence[Held], at: Executors) -> list[Held]:
    """Return the integer or boolean results of `i`. They have no bound where an operand
    in `x` may be wrong."""
    results = in_float64(i, [h.values for h in x], at)
    compared = []
    for values, buffer in zip(results, i.results, strict=True):
        shape = buffer.type.shape
        places: Any = np.zeros(shape, bool)
        for h in x:
            own = places_in_doubt(h)
            places = places | (own if h.shape in (shape, ()) else own.any())
        compared.append(Held(doubtful(values, places, at.model), shape))
    return compared


# -- functions of two operands ---------------------------------------------------------

_EXACT_PRODUCT = ElementRule(lambda f, x, r: (np.abs(x[1]), np.abs(x[0])), "exact")


def _multiplied(a: Held, b: Held) -> Array:
    if is_power_of_two(a) or is_power_of_two(b):
        return elementwise(np.multiply, _EXACT_PRODUCT, a.x, b.x)
    return np.multiply(a.x, b.x)


def _angles(f: np.ndarray, x: Any, r: Any) -> tuple[Any, ...]:
    a, b = (np.maximum(np.abs(v) - s, 0) for v, s in zip(x, r, strict=True))
    square = np.maximum(np.square(a) + np.square(b), 1e-38)
    return (np.abs(x[1]) + r[1]) / square, (np.abs(x[0]) + r[0]) / square


_ATAN2 = ElementRule(_angles, error="atan", is_absolute=True, is_curved=True)


def _left_over(f: np.ndarray, x: Any, r: Any) -> tuple[Any, ...]:
    """Return the slopes of the remainder of `x[0]` by `x[1]`, one per operand; Inf
    where errors up to `r` may make the remainder jump."""
    low, high = (np.trunc((np.abs(x[0]) + s * r[0]) / np.abs(x[1])) for s in (-1, 1))
    jumps = np.where(low != high, np.inf, 1.0)
    return jumps, np.where(r[1] > 0, np.inf, np.abs(low))


_REMAINDER = ElementRule(_left_over, error="exact", is_curved=True)


def _raised(a: Held, b: Held) -> Array:
    if b.is_exact and np.all(b.values == 2):
        return np.square(a.x)  # type: ignore[return-value]
    return powered(a.x, b.x)


#: Functions of two operands that need other rules than NumPy's function in `BINARY`.
_FLOATS: Mapping[str, Callable[..., Array]] = {
    "atan2": lambda a, b: elementwise(np.arctan2, _ATAN2, a.x, b.x),
    "multiply": _multiplied,
    "power": _raised,
    "remainder": lambda a, b: elementwise(np.fmod, _REMAINDER, a.x, b.x),
}
_STEPS = ("ceil", "floor", "round_nearest_afz", "round_nearest_even", "sign")


@legal.register(TensorTensor)
@legal.register(TensorScalar)
def _(i: TensorTensor | TensorScalar, x: Sequence[Held], at: Executors) -> list[Held]:
    if i.op == "is_finite":
        return [Held(np.isfinite(x[0].values), x[0].shape)]
    if not is_float(i.results[0].type.dtype):
        return discrete(i, x, at)
    if i.op in _STEPS:
        result: Any = stepwise(BINARY[i.op], x[0].x)  # type: ignore[arg-type]
    elif i.op in _FLOATS:
        result = _FLOATS[i.op](*x)
    elif i.op in BINARY:
        result = BINARY[i.op](*(h.x for h in x))
    else:
        raise no_rule(i, i.op)
    if all(h.is_exact for h in x) and i.op != "power":
        result = without_needless_errors(result)
    return [written(result, i)]


@legal.register
def _(i: Activation, x: Sequence[Held], at: Executors) -> list[Held]:
    if i.function not in UNARY:
        raise no_rule(i, i.function)
    assert isinstance(x[0].x, Tracked)
    return [written(applied(i.function, x[0].x), i)]


# -- choices ---------------------------------------------------------------------------


@legal.register
def _(i: Compare, x: Sequence[Held], at: Executors) -> list[Held]:
    if not is_float(i.operands[0].type.dtype):
        return discrete(i, x, at)
    function, shape = comparison(i.direction), x[0].shape
    if x[0] is x[1]:  # a test for NaN, which needs no bound
        return [Held(function(x[0].values, x[1].values), shape)]
    result = function(x[0].x, x[1].x)
    return [Held(result if isinstance(result, Tracked) else np.asarray(result), shape)]


@legal.register
def _(i: Select, x: Sequence[Held], at: Executors) -> list[Held]:
    if not is_float(i.results[0].type.dtype):
        return discrete(i, x, at)
    shape = i.results[0].type.shape
    chosen = select(*(h.x for h in x))
    if x[0].is_exact and chosen.shape == shape:
        condition, yes, no = x
        hard = np.where(condition.values, yes.bound(at.model), no.bound(at.model))
        return [Held(chosen, shape, hard)]
    return [Held(chosen, shape)]


# -- conversions -----------------------------------------------------------------------


@legal.register
def _(i: TensorCopy, x: Sequence[Held], at: Executors) -> list[Held]:
    """Cast an exact operand as the chip does; add the cast's error to inexact ones."""
    [held] = x
    if held.is_exact and i.rounding != "stochastic":
        results = of_exact(i, x, at)
        if held.x.shape == held.shape:
            return results
        # An axis that is broadcast later keeps size 1.
        index = tuple(slice(0, 1) if n == 1 else slice(None) for n in held.x.shape)
        return [Held(results[0].x[index], held.shape)]
    dtype = i.results[0].type.dtype
    if not is_float(dtype):
        step = np.trunc if i.float_to_int == "truncate" else np.rint
        assert isinstance(held.x, Tracked)
        if held.x.dtype.kind in "iub":
            return discrete(i, x, at)
        return [Held(_whole(step, held.x, dtype), held.shape)]
    x_ = held.x
    if not isinstance(x_, Tracked) or x_.dtype.kind in "iub":
        x_ = _of_integers(held, at.model)
    result = written(x_, i)
    if result.hard is None:
        result.hard = held.hard
    return [result]


def _whole(step: Any, x: Tracked, dtype: np.dtype) -> Array:
    result = stepwise(step, x)
    if dtype.kind == "b":
        low, high = (x.value - x.model.spread * x.scale() * s for s in (1, -1))
        return doubtful(x.value != 0, (low <= 0) & (high >= 0), x.model)
    info = np.iinfo(dtype)
    value = np.clip(np.nan_to_num(result.value), info.min, info.max).astype(dtype)
    if result.is_exact:
        return value
    return Tracked(value, x.model, dtype, result.own)


def _of_integers(held: Held, model: ErrorModel) -> Tracked:
    x = held.x
    if not isinstance(x, Tracked):
        return exact(x, model)
    scale = np.asarray(x.scale(), np.float32)
    return Tracked(exact(x.value, model).value, model, np.float32, None, scale)


@legal.register
def _(i: ReducePrecision, x: Sequence[Held], at: Executors) -> list[Held]:
    if x[0].is_exact:
        return of_exact(i, x, at)
    exponent = 2.0 ** (2 ** (i.exponent_bits - 1) - 1)
    format = Roundoff(
        name="reduced",
        unit=2.0 ** -(i.mantissa_bits + 1),
        smallest=4.0 / exponent,
        largest=exponent * 2 * (1 - 2.0 ** -(i.mantissa_bits + 1)),
    )
    assert isinstance(x[0].x, Tracked)
    result, hard = rounded(x[0].x, format)
    return [Held(result, x[0].shape, hard)]


@legal.register
def _(i: BitcastCopy, x: Sequence[Held], at: Executors) -> list[Held]:
    results = of_exact(i, x, at)
    if x[0].is_exact:
        return results
    return [Held(doubtful(results[0].values, True, at.model), results[0].shape)]


@legal.register(ScaleFromAmax)
@legal.register(ReadAmax)
@legal.register(RecordAmax)
def _(i: Instruction, x: Sequence[Held], at: Executors) -> list[Held]:
    """Return results without errors: the program multiplies by a scale and later by its
    inverse, so an error of the scale cancels."""
    return [Held(exact(r, at.model), ()) for r in exactly(i, [h.values for h in x], at)]


# -- elementary functions: slopes from chords ------------------------------------------
#
# `ErrorModel.functions` has the errors of the chip's tables; the code below propagates
# the error of the argument.

#: Functions for which the error of the chip's table is relative to the result.
_RELATIVE = ("cbrt", "cosh")


#: How far the ends of chords are from the argument, in units of its largest error.
_ENDS = (-1.0, -0.125, 0.125, 1.0)


def _steepest(function: Callable[[Any], Any], x: np.ndarray, reach: Any) -> np.ndarray:
    """Return the largest slope of `function` between `x` and points within `reach`."""
    x, reach = (np.asarray(v, np.float64) for v in (x, reach))
    slopes = [
        np.abs(function(x + end * reach) - function(x)) / np.abs(end * reach)
        for end in _ENDS
    ]
    slope = np.nan_to_num(np.maximum.reduce(slopes), nan=np.inf, posinf=np.inf)
    return np.where(reach > 0, slope, 0.0)


def _rule(name: str, function: Callable[[Any], Any]) -> ElementRule:
    return ElementRule(
        lambda f, x, r: (_steepest(function, x[0], r[0]),),
        error=name,
        is_absolute=name not in _RELATIVE,
        is_curved=True,
    )


_RULES = {name: RULES.get(f) or _rule(name, f) for name, f in UNARY.items()}


def applied(name: str, x: Tracked) -> Tracked:
    """Apply the StableHLO or CHLO function `name` to `x`, which has errors."""
    if name == "rsqrt":  # so that an error that elements share stays shared
        return np.reciprocal(np.sqrt(x))  # type: ignore[return-value]
    return elementwise(UNARY[name], _RULES[name], x)
