"""Rules of functions that work element by element.

An operand's error is multiplied by the function's steepest slope over all values that
the operand may have. Errors of the operands of one element may be correlated, so they
add linearly. The result is rounded once, or has the error of an elementary function.
Half of such a function's error is common to all elements and cancels in a softmax.
"""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from neuronjax.diagnostics.tolerance import pending
from neuronjax.diagnostics.tolerance.model import ErrorModel, Roundoff
from neuronjax.diagnostics.tolerance.pending import Pending
from neuronjax.diagnostics.tolerance.runs import of_run, unpacked
from neuronjax.diagnostics.tolerance.tracked import (
    FUNCTIONS,
    UFUNCS,
    ErrorParts,
    Shared,
    Tracked,
    as_tracked,
    carrier_of,
    declared,
    model_of,
)
from neuronjax.ir.instruction import unrepeated

_TINY = 1e-38  # replaces a divisor of zero; below FP32's smallest normal number
_BIAS = 0.5

Arrays = tuple[np.ndarray, ...]


@dataclasses.dataclass(frozen=True)
class ElementRule:
    """The rule by which a function propagates errors.

    Attributes:
        slopes: maps result, operands and their largest errors to a slope per operand.
        error: "exact", "stored" (one rounding), or the name of an elementary function.
        is_absolute: whether results below 1 have the absolute error of a result of 1.
        is_curved: whether the slopes depend on the operands' largest errors.
    """

    slopes: Callable[[np.ndarray, Arrays, Arrays], tuple[Any, ...]]
    error: str = "stored"
    is_absolute: bool = False
    is_curved: bool = False


def _divided(f: np.ndarray, x: Arrays, r: Arrays) -> tuple[Any, ...]:
    low = 1 / np.maximum(np.abs(x[1]) - r[1], _TINY)
    return low, np.abs(f) * low


def _rooted(f: np.ndarray, x: Arrays, r: Arrays) -> tuple[Any, ...]:
    low = f + np.sqrt(np.maximum(x[0] - r[0], 0))
    return (1 / np.maximum(np.maximum(low, np.sqrt(r[0])), _TINY),)


def _powered(f: np.ndarray, x: Arrays, r: Arrays) -> tuple[Any, ...]:
    base, n = np.abs(x[0]), x[1]
    edge = np.where(n >= 1, base + r[0], np.maximum(base - r[0], _TINY))
    return np.abs(n) * edge ** (n - 1.0), np.abs(f * np.log(np.maximum(base, _TINY)))


def _larger(f: np.ndarray, x: Arrays, r: Arrays) -> tuple[Any, ...]:
    return (x[0] + r[0] >= x[1] - r[1]) * 1.0, (x[1] + r[1] >= x[0] - r[0]) * 1.0


def _smaller(f: np.ndarray, x: Arrays, r: Arrays) -> tuple[Any, ...]:
    return (x[0] - r[0] <= x[1] + r[1]) * 1.0, (x[1] - r[1] <= x[0] + r[0]) * 1.0


def _chosen(f: np.ndarray, x: Arrays, r: Arrays) -> tuple[Any, ...]:
    first = np.asarray(x[0], bool)
    return np.abs(np.subtract(x[1], x[2], dtype=np.float64)), first, ~first


def _function(name: str, slope: Callable[..., Any], absolute: bool = False) -> Any:
    """Return a rule for a function of one operand; `slope` maps result, operand and its
    largest error to the slope."""
    return ElementRule(
        lambda f, x, r: (slope(f, x[0], r[0]),), name, absolute, is_curved=True
    )


def _low(x: np.ndarray, r: np.ndarray) -> np.ndarray:
    return np.maximum(np.abs(x) - r, _TINY)


def _grown(r: np.ndarray) -> np.ndarray:
    return np.exp(np.minimum(r, 700.0))


_ONE = ElementRule(lambda f, x, r: (1.0,), error="exact")

RULES: dict[Any, ElementRule] = {
    **dict.fromkeys((np.add, np.subtract), ElementRule(lambda f, x, r: (1.0, 1.0))),
    np.multiply: ElementRule(
        lambda f, x, r: (np.abs(x[1]) + r[1], np.abs(x[0])), is_curved=True
    ),
    np.divide: ElementRule(_divided, is_curved=True),
    np.power: ElementRule(_powered, is_curved=True),
    np.maximum: ElementRule(_larger, error="exact", is_curved=True),
    np.minimum: ElementRule(_smaller, error="exact", is_curved=True),
    np.fmax: ElementRule(_larger, error="exact", is_curved=True),
    np.fmin: ElementRule(_smaller, error="exact", is_curved=True),
    **dict.fromkeys((np.negative, np.positive, np.absolute, np.fabs), _ONE),
    np.square: _function("stored", lambda f, x, r: 2 * np.abs(x) + r),
    np.sqrt: ElementRule(_rooted, error="sqrt", is_curved=True),
    np.reciprocal: _function("reciprocal", lambda f, x, r: np.abs(f) / _low(x, r)),
    np.exp: _function("exp", lambda f, x, r: f * _grown(r)),
    np.exp2: _function("exp", lambda f, x, r: f * _grown(r)),
    np.expm1: _function("exp", lambda f, x, r: (f + 1) * _grown(r), absolute=True),
    np.log: _function("log", lambda f, x, r: 1 / _low(x, r), absolute=True),
    np.log2: _function("log", lambda f, x, r: 1.4427 / _low(x, r), absolute=True),
    np.log10: _function("log", lambda f, x, r: 0.4343 / _low(x, r), absolute=True),
    np.log1p: _function("log", lambda f, x, r: 1 / _low(1 + x, r), absolute=True),
    np.tanh: _function(
        "tanh", lambda f, x, r: np.minimum(1, 1 - f * f + r), absolute=True
    ),
    np.sin: _function("sin", lambda f, x, r: np.abs(np.cos(x)) + r, absolute=True),
    np.cos: _function("cos", lambda f, x, r: np.abs(np.sin(x)) + r, absolute=True),
    np.arctan: _function(
        "arctan",
        lambda f, x, r: 1 / (1 + np.maximum(np.abs(x) - r, 0) ** 2),
        absolute=True,
    ),
}

_QUOTIENTS = (np.divide, np.reciprocal)
_SELECT = ElementRule(_chosen, error="exact")

# (function, index of an operand, whether its shared error is relative) -> (whether the
# result's error is relative, factor on the error). Other shared errors become `joint`.
_HANDED_ON: dict[tuple[Any, int, bool], tuple[bool, float]] = {
    (np.add, 0, False): (False, 1.0),
    (np.add, 1, False): (False, 1.0),
    (np.subtract, 0, False): (False, 1.0),
    (np.subtract, 1, False): (False, -1.0),
    (np.multiply, 0, True): (True, 1.0),
    (np.multiply, 1, True): (True, 1.0),
    (np.divide, 0, True): (True, 1.0),
    (np.divide, 1, True): (True, -1.0),
    (np.negative, 0, True): (True, 1.0),
    (np.negative, 0, False): (False, -1.0),
    (np.reciprocal, 0, True): (True, -1.0),
    (np.sqrt, 0, True): (True, 0.5),
    (np.square, 0, True): (True, 2.0),
    (np.exp, 0, False): (True, 1.0),
}


def _add_term(
    terms: dict[int, Shared], source: int, new: Shared, joint: list[np.ndarray]
) -> None:
    old = terms.get(source)
    if old is None:
        terms[source] = new
    elif old.is_relative != new.is_relative:
        joint.append(new.scale)
    else:
        scale = unrepeated(old.scale) + unrepeated(new.scale)
        terms[source] = Shared(new.is_relative, np.broadcast_to(scale, new.scale.shape))


def _broadcast_error(function: Any, place: int, x: Tracked) -> Shared | None:
    """Return the error of operand `x`, which is broadcast, as a shared error of the
    result's elements; None if `function` cannot pass it on."""
    if (function, place, False) in _HANDED_ON:
        is_relative, scale = False, np.asarray(x.part(...).scale())
    elif (function, place, True) in _HANDED_ON and (x.value != 0).all():
        is_relative = True
        scale = np.asarray(x.part(...).scale()) / np.abs(x.value)
    else:
        return None
    return Shared(is_relative, scale) if np.isfinite(scale).all() else None


@dataclasses.dataclass
class _Operand:
    """An operand broadcast to the result's shape; errors in `shared` become `joint`."""

    array: Tracked
    shared: Sequence[Shared] = ()

    def of(self, block: Any, dtype: Any) -> ErrorParts:
        """Return `block`, with values in `dtype` and shared errors in `joint`."""
        value, own, joint = self.array.part(block)
        if value.dtype.kind == "f":
            value = value.astype(dtype, copy=False)
        for term in self.shared:
            scale = term.of(value, block)
            joint = scale if joint is None else joint + scale
        return ErrorParts(value, own, joint)


def _split(
    function: Any, inputs: Any, operands: list[Tracked], shape: tuple[int, ...]
) -> tuple[list[_Operand], dict[int, Shared], list[np.ndarray]]:
    """Return (operands broadcast to `shape`, shared errors of the result by source, its
    other correlated errors). The errors of a broadcast constant count as independent
    between its copies, since the roundings of a sum are larger."""
    terms: dict[int, Shared] = {}
    loose: list[np.ndarray] = []
    tracked = []
    for place, x in enumerate(operands):
        kept: list[Shared] = []
        for source, term in x.shared.items():
            into = _HANDED_ON.get((function, place, term.is_relative))
            if into is None:
                wide = np.broadcast_to(term.scale, shape)
                kept.append(Shared(term.is_relative, wide))
                continue
            scale = np.broadcast_to(unrepeated(term.scale) * into[1], shape)
            _add_term(terms, source, Shared(into[0], scale), loose)
        if x.shape == shape:
            tracked.append(_Operand(x.passed(), kept))
            continue
        own, joint = x.own, x.joint
        is_spread = isinstance(inputs[place], Tracked) and x.size < math.prod(shape)
        if is_spread and not (own is joint is None):
            sharing = _broadcast_error(function, place, x)
            if sharing is not None:
                kind, factor = _HANDED_ON[function, place, sharing.is_relative]
                scale = np.broadcast_to(sharing.scale * factor, shape)
                _add_term(terms, x.source, Shared(kind, scale), loose)
                own = joint = None
            else:
                errors = [e for e in (own, joint) if e is not None]
                own, joint = None, sum(errors[1:], errors[0])
        own, joint = (
            None if e is None else np.broadcast_to(e, shape) for e in (own, joint)
        )
        value = np.broadcast_to(x.value, shape)
        tracked.append(_Operand(Tracked(value, x.model, x.dtype, own, joint), kept))
    return tracked, terms, loose


def elementwise(function: Any, rule: ElementRule, *inputs: Any) -> Tracked:
    """Apply `function` to values and `rule` to errors of `inputs`, block by block."""
    model = model_of(inputs)
    given = [as_tracked(x, model) for x in inputs]
    dtype = declared(*inputs)
    shape = np.broadcast_shapes(*(x.shape for x in given))
    carrier = carrier_of(shape)
    error, bias = _rounding(function, rule, given, model, dtype)
    if carrier == np.float32 and error:
        error += 2.0**-22 if bias else 2.0**-24
    step = _Step(function, rule, error, model.spread, model.of_result(dtype))
    shared = Shared(True, np.broadcast_to(np.float32(bias), shape), rule.error)
    if model.draw is not None:  # operands carry no errors
        model.draw.need_room(math.prod(shape))
        value, own, _ = step.taken([_exact(of_run(x.value, 0), carrier) for x in given])
        own = _of_shape(own, shape) if error else None
        terms = {0: shared} if bias else {}
        outcome = Tracked(np.asarray(value, carrier), model, dtype, own, None, terms)
        if not model.draw.count:
            return outcome
        value = function(*(_exact(unpacked(x.value), carrier).value for x in given))
        return outcome.in_runs(np.asarray(value, carrier), model)
    operands, terms, loose = _split(function, inputs, given, shape)
    has_own = error != 0.0 or any(o.array.has_own for o in operands)
    has_joint = bool(loose) or any(o.array.has_joint or o.shared for o in operands)

    def compute(block: Any) -> ErrorParts:
        value, own, joint = step.taken([o.of(block, carrier) for o in operands])
        for scale in loose:
            joint = joint + np.abs(scale[block])
        return ErrorParts(
            np.asarray(value, carrier),
            _of_shape(own, value.shape) if has_own else None,
            _of_shape(joint, value.shape) if has_joint else None,
        )

    result = Pending(shape, model, dtype, compute, (has_own, has_joint), terms)
    result.functions += sum(o.array.functions for o in operands)
    if bias:
        result.shared[result.source] = shared
    if result.size < pending.PENDING_ELEMENTS:
        result.settle()
    return result


def _exact(value: np.ndarray, dtype: Any) -> ErrorParts:
    if value.dtype.kind == "f":
        value = value.astype(dtype, copy=False)
    return ErrorParts(value, None, None)


def _of_shape(error: Any, shape: tuple[int, ...]) -> np.ndarray:
    return np.broadcast_to(np.asarray(error, np.float32), shape)


@dataclasses.dataclass(frozen=True)
class _Step:
    """A function that is applied to one block of elements.

    Attributes:
        error: the relative error that the function adds.
        spread: largest error of an operand as a multiple of its scale.
        stored: the rounding of the result.
    """

    function: Any
    rule: ElementRule
    error: float
    spread: float
    stored: Roundoff

    def taken(self, x: list[ErrorParts]) -> tuple[np.ndarray, Any, Any]:
        """Return values, independent errors and correlated errors for operands `x`."""
        values = tuple(p.value for p in x)
        f = self.function(*values)
        size = np.abs(f)
        scale = np.maximum(size, 1) if self.rule.is_absolute else size
        fresh: Any = self.error * scale
        if self.error:
            fresh += self.stored.smallest
        is_large = not np.max(size, initial=0.0) <= self.stored.largest
        if is_large:
            fresh = np.where(np.isfinite(f), fresh, 0)
        if self.function in _QUOTIENTS:
            divisor, *errors = x[-1]
            beyond = np.abs(divisor) > self.stored.largest
            if beyond.any():
                # A divisor that overflows makes the quotient 0, whatever its error.
                none = np.float32(0.0)
                errors = (e if e is None else np.where(beyond, none, e) for e in errors)
                x = [*x[:-1], ErrorParts(divisor, *errors)]
                fresh += np.where(beyond, size, 0)
        if is_large:
            over = (size > self.stored.largest) & np.isfinite(f)
            fresh = np.where(over, np.inf, fresh)
        if all(p.own is None and p.joint is None for p in x):
            return f, fresh, 0.0
        reach: Arrays = ()
        if self.rule.is_curved:
            reach = tuple(np.float32(self.spread) * p.scale() for p in x)
        slopes = self.rule.slopes(f, values, reach)
        fresh = _through(slopes, [p.own for p in x], fresh)
        return f, fresh, _through(slopes, [p.joint for p in x], 0.0)


def _through(slopes: Any, errors: list[Any], fresh: Any) -> Any:
    for slope, error in zip(slopes, errors, strict=True):
        if error is not None:
            fresh = fresh + slope * error
    return fresh


def _rounding(
    function: Any,
    rule: ElementRule,
    operands: list[Tracked],
    model: ErrorModel,
    dtype: Any,
) -> tuple[float, float]:
    """Return the relative error that a function adds, as (part that is independent
    between elements, part that all elements have)."""
    unit = model.of_result(dtype).unit
    name = rule.error
    if function is np.power:
        n = of_run(operands[1].value, 0)
        if np.all(n == np.rint(n)) and np.all(np.abs(n) <= 16):
            return unit * float(np.max(np.abs(n), initial=1)), 0.0
        name = "sqrt" if np.all(np.abs(n) == 0.5) else "other"
    if name == "exact":
        return 0.0, 0.0
    if name == "stored":
        return unit, 0.0
    error = model.of_function(name)
    return error + unit, 0.0 if rule.is_absolute else _BIAS * error


for _of, _rule in RULES.items():
    UFUNCS[_of, "__call__"] = functools.partial(elementwise, _of, _rule)


def select(condition: Any, a: Any, b: Any) -> Tracked:
    """Return `numpy.where`; bounds allow `a` and `b` where `condition` may be wrong."""
    return elementwise(np.where, _SELECT, condition, a, b)


def clip(x: Any, a_min: Any = None, a_max: Any = None) -> Any:
    x = x if a_min is None else np.maximum(x, a_min)
    return x if a_max is None else np.minimum(x, a_max)


def powered(x: Any, n: Any) -> Tracked:
    """Return `numpy.power`, computing a square as a product."""
    if isinstance(n, int | float) and n == 2:
        return np.square(x)
    return elementwise(np.power, RULES[np.power], x, n)


UFUNCS[np.power, "__call__"] = powered
FUNCTIONS[np.where] = select
FUNCTIONS[np.clip] = clip
