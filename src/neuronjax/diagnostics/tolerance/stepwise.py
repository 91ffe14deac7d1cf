"""Rules of functions with steps: comparisons, roundings to integers, conversions.

A result may be wrong where a step is within the error bound of an operand.
"""

from __future__ import annotations

import functools
from typing import Any

import numpy as np

from neuronjax.diagnostics.tolerance.elementwise import ElementRule, elementwise
from neuronjax.diagnostics.tolerance.model import ErrorModel
from neuronjax.diagnostics.tolerance.tracked import (
    FUNCTIONS,
    UFUNCS,
    Tracked,
    as_tracked,
    model_of,
    run_by_run,
)


@run_by_run
def converted(x: Tracked, dtype: np.dtype) -> Any:
    """Convert `x` to `dtype`: round to a narrower float, truncate to an integer."""
    if dtype.kind in "iu":
        return stepwise(np.trunc, x, dtype)
    start = Tracked(x.value, x.model, dtype, x.own, x.joint, x.shared)
    if x.model.of_result(dtype).unit <= x.model.of_result(x.dtype).unit:
        return start
    return elementwise(np.positive, ElementRule(lambda f, v, r: (1.0,)), start)


@run_by_run
def stepwise(function: Any, x: Tracked, dtype: Any = None) -> Tracked:
    """Apply a step function; the error is its jump within the error bounds of `x`."""
    reach = x.model.spread * np.asarray(x.scale())
    low, high = function(x.value - reach), function(x.value + reach)
    jump = (high - low).astype(np.float32)
    value = function(x.value)
    if dtype is not None:
        value = value.astype(dtype)
    return Tracked(value, x.model, dtype or x.dtype, jump if jump.any() else None)


for _step in (np.floor, np.ceil, np.rint, np.trunc, np.sign):
    UFUNCS[_step, "__call__"] = lambda x, _step=_step: stepwise(_step, x)


UFUNCS["astype"] = converted
FUNCTIONS[np.round] = FUNCTIONS[np.around] = lambda x, decimals=0: (
    stepwise(np.rint, x)
    if not decimals
    else stepwise(np.rint, x * 10.0**decimals) / 10.0**decimals
)


def _compared(function: Any, a: Any, b: Any) -> Any:
    model = model_of((a, b))
    return _between(function, as_tracked(a, model), as_tracked(b, model))


@run_by_run
def _between(function: Any, x: Tracked, y: Tracked) -> Any:
    model = x.model
    value = function(x.value, y.value)
    reach = model.spread * (np.asarray(x.scale()) + np.asarray(y.scale()))
    doubt = (np.abs(x.value - y.value) <= reach) & (reach > 0)
    return _certain(value, doubt, model)


def _certain(value: np.ndarray, doubt: np.ndarray, model: ErrorModel) -> Any:
    if not doubt.any():
        return value
    doubt = np.broadcast_to(doubt, value.shape).astype(np.float32)
    return Tracked(value, model, bool, doubt)


@run_by_run
def _logical(function: Any, *x: Any) -> Any:
    model = model_of(x)
    operands = [as_tracked(v, model) for v in x]
    value = function(*(v.value for v in operands))
    doubt = sum(np.asarray(v.scale()) for v in operands)
    return _certain(value, np.asarray(doubt) > 0, model)


_OF_UFUNCS = {
    _compared: "less less_equal greater greater_equal equal not_equal",
    _logical: "logical_and logical_or logical_not logical_xor bitwise_and bitwise_or "
    "invert",
}
for _rule, _names in _OF_UFUNCS.items():
    for _ufunc in (getattr(np, name) for name in _names.split()):
        UFUNCS[_ufunc, "__call__"] = functools.partial(_rule, _ufunc)
for _ufunc in (np.isnan, np.isinf, np.isfinite):
    UFUNCS[_ufunc, "__call__"] = run_by_run(lambda x, _ufunc=_ufunc: _ufunc(x.value))
