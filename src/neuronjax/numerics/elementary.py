"""FP32 elementary functions with the same bits in every context.

`UNARY` and `BINARY` map operation names of StableHLO and CHLO, without the dialect, to
functions `fn(x, [y,] zero)` of float32 arrays of one shape and of the float32 scalar
of `exact.opaque_zero`. Inputs and results are not sealed here: the caller seals what it
writes. Subnormal inputs count as zeros of their sign and subnormal results are zeros
(FTZ); NaN results are 0x7FC00000. Narrower arguments are widened, and
`elementary_tables.nearest` makes their results correctly rounded. `MAX_ULP` bounds the
error. `SPECIAL` are CHLO's functions of an order. Design sections 5 and 6.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType

import jax

from neuronjax.numerics import (
    elementary_bessel as bessel,
    elementary_error as error,
    elementary_exponential as exponential,
    elementary_gamma as gamma,
    elementary_logarithm as logarithm,
    elementary_root as root,
    elementary_trigonometric as trigonometric,
    elementary_zeta as zeta,
)

Function = Callable[..., jax.Array]

# The function of a name, and the most that it may err by: in units in the last place
# of the exact result, with a margin above the worst seen. Of one argument:
# `elementary_tables.MEASURED` says what was seen, and over how many of all float32
# numbers. Of two arguments: over 64 million pairs, against float64.
_UNARY = {
    "acos": (trigonometric.acos, 0.85),
    "acosh": (logarithm.acosh, 2.0),
    "asin": (trigonometric.asin, 1.3),
    "asinh": (logarithm.asinh, 1.9),
    "atan": (trigonometric.atan, 1.75),
    "atanh": (logarithm.atanh, 2.2),
    "bessel_i1e": (bessel.bessel_i1e, 4.6),
    "cbrt": (root.cbrt, 0.9),
    "cosh": (exponential.cosh, 1.6),
    "cosine": (trigonometric.cos, 0.9),
    "digamma": (gamma.digamma, 10.0),
    "erf": (error.erf, 1.45),
    "erf_inv": (error.erf_inv, 4.2),
    "erfc": (error.erfc, 6.8),
    "exponential": (exponential.exp, 1.1),
    "exponential_base2": (exponential.exp2, 1.5),
    "exponential_minus_one": (exponential.expm1, 1.25),
    "lgamma": (gamma.lgamma, 4.5),
    "log": (logarithm.log, 0.9),
    "log_plus_one": (logarithm.log1p, 1.5),
    "logistic": (exponential.logistic, 1.6),
    "reciprocal": (root.reciprocal, 0.5),
    "rsqrt": (root.rsqrt, 1.5),
    "sine": (trigonometric.sin, 0.9),
    "sinh": (exponential.sinh, 2.3),
    "sqrt": (root.sqrt, 0.5),
    "tan": (trigonometric.tan, 2.5),
    "tanh": (exponential.tanh, 1.35),
}
_BINARY = {
    "atan2": (trigonometric.atan2, 1.75),
    "divide": (root.divide, 0.5),
    "power": (logarithm.power, 0.75),
    "remainder": (root.remainder, 0.0),
}
# Of an order and an argument; their errors are those of a sum of many terms.
_SPECIAL = {
    "polygamma": (zeta.polygamma, 12.0),
    "zeta": (zeta.zeta, 12.0),
}


def _functions(table: Mapping[str, tuple[Function, float]]) -> Mapping[str, Function]:
    return MappingProxyType({name: function for name, (function, _) in table.items()})


UNARY, BINARY, SPECIAL = map(_functions, (_UNARY, _BINARY, _SPECIAL))

MAX_ULP: Mapping[str, float] = MappingProxyType(
    {name: ulp for name, (_, ulp) in {**_UNARY, **_BINARY, **_SPECIAL}.items()}
)

# Left of zero, where the sums of reflection formulas cancel at the function's zeros,
# the ULP is that of the largest of this number, |result| and |function(-x)|.
ULP_FLOOR: Mapping[str, float] = MappingProxyType({"digamma": 1.0, "lgamma": 1.0})
