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

from neuronjax.numerics.elementary_bessel import bessel_i1e
from neuronjax.numerics.elementary_error import erf, erf_inv, erfc
from neuronjax.numerics.elementary_exponential import (
    cosh,
    exp,
    exp2,
    expm1,
    logistic,
    sinh,
    tanh,
)
from neuronjax.numerics.elementary_gamma import digamma, lgamma
from neuronjax.numerics.elementary_logarithm import (
    acosh,
    asinh,
    atanh,
    log,
    log1p,
    power,
)
from neuronjax.numerics.elementary_root import (
    cbrt,
    divide,
    reciprocal,
    remainder,
    rsqrt,
    sqrt,
)
from neuronjax.numerics.elementary_trigonometric import (
    acos,
    asin,
    atan,
    atan2,
    cos,
    sin,
    tan,
)
from neuronjax.numerics.elementary_zeta import polygamma, zeta

UNARY: Mapping[str, Callable[[jax.Array, jax.Array], jax.Array]] = MappingProxyType(
    {
        "acos": acos,
        "acosh": acosh,
        "asin": asin,
        "asinh": asinh,
        "atan": atan,
        "atanh": atanh,
        "bessel_i1e": bessel_i1e,
        "cbrt": cbrt,
        "cosh": cosh,
        "cosine": cos,
        "digamma": digamma,
        "erf": erf,
        "erf_inv": erf_inv,
        "erfc": erfc,
        "exponential": exp,
        "exponential_base2": exp2,
        "exponential_minus_one": expm1,
        "lgamma": lgamma,
        "log": log,
        "log_plus_one": log1p,
        "logistic": logistic,
        "reciprocal": reciprocal,
        "rsqrt": rsqrt,
        "sine": sin,
        "sinh": sinh,
        "sqrt": sqrt,
        "tan": tan,
        "tanh": tanh,
    }
)

BINARY: Mapping[str, Callable[[jax.Array, jax.Array, jax.Array], jax.Array]] = (
    MappingProxyType(
        {"atan2": atan2, "divide": divide, "power": power, "remainder": remainder}
    )
)

# Of an order and an argument; their errors are those of a sum of many terms.
SPECIAL: Mapping[str, Callable[[jax.Array, jax.Array, jax.Array], jax.Array]] = (
    MappingProxyType({"polygamma": polygamma, "zeta": zeta})
)

# In units in the last place of the exact result, with a margin above the worst seen. Of
# one argument: `elementary_tables.MEASURED` says what was seen, and over how many of
# all float32 numbers. Of two arguments: over 64 million pairs, against float64.
MAX_ULP: Mapping[str, float] = MappingProxyType(
    {
        "acos": 0.85,
        "acosh": 2.0,
        "asin": 1.3,
        "asinh": 1.9,
        "atan": 1.75,
        "atan2": 1.75,
        "atanh": 2.2,
        "bessel_i1e": 4.6,
        "cbrt": 0.9,
        "cosh": 1.6,
        "cosine": 0.9,
        "digamma": 10.0,
        "divide": 0.5,
        "erf": 1.45,
        "erf_inv": 4.2,
        "erfc": 6.8,
        "exponential": 1.1,
        "exponential_base2": 1.5,
        "exponential_minus_one": 1.25,
        "lgamma": 4.5,
        "log": 0.9,
        "log_plus_one": 1.5,
        "logistic": 1.6,
        "polygamma": 12.0,
        "power": 0.75,
        "reciprocal": 0.5,
        "remainder": 0.0,
        "rsqrt": 1.5,
        "sine": 0.9,
        "sinh": 2.3,
        "sqrt": 0.5,
        "tan": 2.5,
        "tanh": 1.35,
        "zeta": 12.0,
    }
)

# Left of zero, where the sums of reflection formulas cancel at the function's zeros,
# the ULP is that of the largest of this number, |result| and |function(-x)|.
ULP_FLOOR: Mapping[str, float] = MappingProxyType({"digamma": 1.0, "lgamma": 1.0})
