"""Elementary functions that NumPy's rules do not have: slopes from chords.

What a chip's table is off by is `ErrorModel.functions`; here stands how the error of an
argument goes on.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from neuronjax.diagnostics.reference64_tables import UNARY
from neuronjax.diagnostics.tolerance.elementwise import RULES, ElementRule, elementwise
from neuronjax.diagnostics.tolerance.tracked import Tracked

#: Functions whose table's error shrinks with the result.
_RELATIVE = ("cbrt", "cosh")


#: Where chords end: as far as an argument can be, and as far as it mostly is.
_ENDS = (-1.0, -0.125, 0.125, 1.0)


def _steepest(function: Callable[[Any], Any], x: np.ndarray, reach: Any) -> np.ndarray:
    """Return the slope of the steepest chord from an argument to what it can be."""
    x, reach = (np.asarray(v, np.float64) for v in (x, reach))
    slopes = [
        np.abs(function(x + end * reach) - function(x)) / np.abs(end * reach)
        for end in _ENDS
    ]
    found = np.nan_to_num(np.maximum.reduce(slopes), nan=np.inf, posinf=np.inf)
    return np.where(reach > 0, found, 0.0)


def _rule(name: str, function: Callable[[Any], Any]) -> ElementRule:
    return ElementRule(
        lambda f, x, r: (_steepest(function, x[0], r[0]),),
        error=name,
        is_absolute=name not in _RELATIVE,
        is_curved=True,
    )


_RULES = {name: RULES.get(f) or _rule(name, f) for name, f in UNARY.items()}


def applied(name: str, x: Tracked) -> Tracked:
    """Return a function of numbers, by StableHLO's and CHLO's names."""
    if name == "rsqrt":  # so that an error shared by a row stays shared
        return np.reciprocal(np.sqrt(x))  # type: ignore[return-value]
    return elementwise(UNARY[name], _RULES[name], x)
