"""FP32 elementary functions with the same bits in every context.

`UNARY` and `BINARY` map operation names of StableHLO and CHLO, without the dialect, to
functions `fn(x, [y,] zero)` of float32 arrays of one shape and of the float32 scalar
of `exact.opaque_zero`. Inputs and results are not sealed here: the caller
seals what it writes. Subnormal inputs count as zeros of
their sign and subnormal results are zeros (FTZ); NaN results are 0x7FC00000. 16-bit
types are not handled here.
`MAX_ULP` is a measured bound on the error. Design sections 5 and 6.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType

import jax

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

UNARY: Mapping[str, Callable[[jax.Array, jax.Array], jax.Array]] = MappingProxyType(
    {
        "acos": acos,
        "acosh": acosh,
        "asin": asin,
        "asinh": asinh,
        "atan": atan,
        "atanh": atanh,
        "cbrt": cbrt,
        "cosh": cosh,
        "cosine": cos,
        "erf": erf,
        "erf_inv": erf_inv,
        "erfc": erfc,
        "exponential": exp,
        "exponential_base2": exp2,
        "exponential_minus_one": expm1,
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

# In units in the last place of the exact result, against float64, with a margin above
# the worst seen: one argument, over every 211th of all float32 numbers (every 499th for
# acos, acosh, asin, asinh, atan, cbrt, cosh, exponential_base2, reciprocal and sqrt);
# two arguments, over 4 million pairs.
MAX_ULP: Mapping[str, float] = MappingProxyType(
    {
        "acos": 0.85,
        "acosh": 1.75,
        "asin": 1.3,
        "asinh": 1.75,
        "atan": 1.6,
        "atan2": 1.75,
        "atanh": 2.2,
        "cbrt": 0.9,
        "cosh": 1.6,
        "cosine": 0.9,
        "divide": 0.5,
        "erf": 1.45,
        "erf_inv": 4.0,
        "erfc": 6.5,
        "exponential": 1.1,
        "exponential_base2": 1.5,
        "exponential_minus_one": 1.15,
        "log": 0.9,
        "log_plus_one": 1.5,
        "logistic": 1.5,
        "power": 0.75,
        "reciprocal": 0.5,
        "remainder": 0.0,
        "rsqrt": 1.5,
        "sine": 0.9,
        "sinh": 2.3,
        "sqrt": 0.5,
        "tan": 2.5,
        "tanh": 1.35,
    }
)
