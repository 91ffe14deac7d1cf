"""Elementary functions that NumPy's rules do not have: slopes from derivatives.

What a chip's table is off by is `ErrorModel.functions`; here stands how the error of an
argument goes on.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from scipy import special

from neuronjax.diagnostics.reference64_tables import UNARY
from neuronjax.diagnostics.tolerance.elementwise import RULES, ElementRule, elementwise
from neuronjax.diagnostics.tolerance.tracked import Tracked

_ROOT_PI = np.sqrt(np.pi)


def _of_erf(x: Any) -> Any:
    return 2 / _ROOT_PI * np.exp(-x * x)


def _of_logistic(x: Any) -> Any:
    f = special.expit(x)
    return f * (1 - f)


_SLOPES: Mapping[str, Callable[[Any], Any]] = {
    "acos": lambda x: 1 / np.sqrt(1 - x * x),
    "acosh": lambda x: 1 / np.sqrt(x * x - 1),
    "asin": lambda x: 1 / np.sqrt(1 - x * x),
    "asinh": lambda x: 1 / np.sqrt(1 + x * x),
    "atan": lambda x: 1 / (1 + x * x),
    "atanh": lambda x: 1 / (1 - x * x),
    "bessel_i1e": lambda x: 0.5 + 0.0 * x,
    "cbrt": lambda x: 1 / (3 * np.cbrt(x) ** 2),
    "cosh": np.sinh,
    "digamma": lambda x: special.polygamma(1, x),
    "erf": _of_erf,
    "erf_inv": lambda x: _ROOT_PI / 2 * np.exp(special.erfinv(x) ** 2),
    "erfc": _of_erf,
    "lgamma": special.digamma,
    "logistic": _of_logistic,
    "sinh": np.cosh,
    "tan": lambda x: 1 / np.cos(x) ** 2,
}


#: Functions whose table's error shrinks with the result.
_RELATIVE = ("cbrt", "cosh")


def _largest(slope: Callable[[Any], Any], x: np.ndarray, reach: Any) -> np.ndarray:
    """Of the slopes at both ends of what an argument can be, and between them."""
    ends = [np.abs(slope(x + shift)) for shift in (-reach, 0.0, reach)]
    return np.nan_to_num(np.maximum.reduce(ends), nan=np.inf, posinf=np.inf)


def _rule(name: str) -> ElementRule:
    return ElementRule(
        lambda f, x, r: (_largest(_SLOPES[name], x[0], r[0]),),
        error=name,
        is_absolute=name not in _RELATIVE,
        is_curved=True,
    )


_RULES = {
    name: _rule(name) if name in _SLOPES else RULES[function]
    for name, function in UNARY.items()
    if name in _SLOPES or function in RULES
}


def knows(name: str) -> bool:
    """Whether a function of StableHLO or CHLO has a rule."""
    return name in _RULES or name == "rsqrt"


def applied(name: str, x: Tracked) -> Tracked:
    """A function, by StableHLO's and CHLO's names."""
    if name == "rsqrt":  # so that an error shared by a row stays shared
        return np.reciprocal(np.sqrt(x))  # type: ignore[return-value]
    return elementwise(UNARY[name], _RULES[name], x)
