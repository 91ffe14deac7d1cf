"""StableHLO's and CHLO's functions in float64, by NumPy and SciPy.

A function that is missing here, such as `next_after` of a narrower format, has no
meaning in double precision. The emulator executes it in FP32: see `reference64`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from scipy import special

from neuronjax.execution.arithmetic import FUNCTIONS

BINARY: Mapping[str, Callable[..., Any]] = {
    **FUNCTIONS,
    "atan2": np.arctan2,
    "clamp": lambda low, x, high: np.minimum(np.maximum(low, x), high),
    "power": np.power,
    "remainder": np.fmod,
    "round_nearest_afz": lambda x: np.copysign(np.floor(np.abs(x) + 0.5), x),
}
#: Functions with NumPy's names.
_NUMPY = "cbrt cosh log reciprocal sinh sqrt tan tanh".split()
UNARY: dict[str, Callable[[Any], Any]] = {
    **{name: getattr(np, name) for name in _NUMPY},
    "acos": np.arccos,
    "acosh": np.arccosh,
    "asin": np.arcsin,
    "asinh": np.arcsinh,
    "atan": np.arctan,
    "atanh": np.arctanh,
    "bessel_i1e": special.i1e,
    "cosine": np.cos,
    "digamma": special.digamma,
    "erf": special.erf,
    "erf_inv": special.erfinv,
    "erfc": special.erfc,
    "exponential": np.exp,
    "exponential_base2": np.exp2,
    "exponential_minus_one": np.expm1,
    "lgamma": special.gammaln,
    "log_plus_one": np.log1p,
    "logistic": special.expit,
    "rsqrt": lambda x: 1 / np.sqrt(x),
    "sine": np.sin,
}
REDUCTIONS: Mapping[str, np.ufunc] = {
    name: getattr(np, name) for name in ("add", "maximum", "minimum", "multiply")
}
