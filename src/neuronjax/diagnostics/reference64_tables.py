"""StableHLO's and CHLO's functions in float64, by NumPy and SciPy.

What is missing here (`next_after` of a narrower format, say) has no double-precision
meaning, and is executed in FP32 instead: see `reference64`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from scipy import special


def _sign(x: Any) -> Any:
    return np.where(x == 0, x, np.sign(x))


def _round_away(x: Any) -> Any:
    return np.copysign(np.floor(np.abs(x) + 0.5), x)


BINARY: Mapping[str, Callable[..., Any]] = {
    "abs": np.abs,
    "add": np.add,
    "and": np.bitwise_and,
    "atan2": np.arctan2,
    "ceil": np.ceil,
    "clamp": lambda low, x, high: np.minimum(np.maximum(low, x), high),
    "divide": np.divide,
    "floor": np.floor,
    "is_finite": np.isfinite,
    "maximum": np.maximum,
    "minimum": np.minimum,
    "multiply": np.multiply,
    "negate": np.negative,
    "or": np.bitwise_or,
    "power": np.power,
    "remainder": np.fmod,
    "round_nearest_afz": _round_away,
    "round_nearest_even": np.rint,
    "sign": _sign,
    "subtract": np.subtract,
    "xor": np.bitwise_xor,
}
UNARY: dict[str, Callable[[Any], Any]] = {
    "acos": np.arccos,
    "acosh": np.arccosh,
    "asin": np.arcsin,
    "asinh": np.arcsinh,
    "atan": np.arctan,
    "atanh": np.arctanh,
    "bessel_i1e": special.i1e,
    "cbrt": np.cbrt,
    "cosh": np.cosh,
    "cosine": np.cos,
    "digamma": special.digamma,
    "erf": special.erf,
    "erf_inv": special.erfinv,
    "erfc": special.erfc,
    "exponential": np.exp,
    "exponential_base2": np.exp2,
    "exponential_minus_one": np.expm1,
    "lgamma": special.gammaln,
    "log": np.log,
    "log_plus_one": np.log1p,
    "logistic": special.expit,
    "reciprocal": np.reciprocal,
    "rsqrt": lambda x: 1 / np.sqrt(x),
    "sine": np.sin,
    "sinh": np.sinh,
    "sqrt": np.sqrt,
    "tan": np.tan,
    "tanh": np.tanh,
}
REDUCTIONS: Mapping[str, np.ufunc] = {
    "add": np.add,
    "maximum": np.maximum,
    "minimum": np.minimum,
    "multiply": np.multiply,
}
