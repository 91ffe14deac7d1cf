"""FP32 elementary functions with the same bits in every context.

`UNARY` and `BINARY` map operation names of StableHLO and CHLO, without the dialect, to
functions `fn(x, [y,] zero)` of float32 arrays of one shape and of the float32 scalar of
`exact.opaque_zero`. Inputs and results are not sealed here: the caller seals what it
writes. Subnormal inputs count as zeros of their sign and subnormal results are zeros
(FTZ); NaN results are 0x7FC00000. The caller widens narrower arguments; `nearest` then
makes the results correctly rounded. `MAX_ULP` bounds the error. `SPECIAL` holds CHLO's
functions that take an order.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from importlib import resources
from types import MappingProxyType
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

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
from neuronjax.numerics.elementary_core import bits_of
from neuronjax.numerics.float_format import get_format

Function = Callable[..., jax.Array]

# Name -> (function, bound of its error in ULPs of the exact result). The bounds are a
# little above the largest measured errors, which `MEASURED` has for functions of one
# argument. Functions of two arguments were compared with float64 for 64 million pairs.
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
# Functions f(order, argument). They sum many terms, so their errors are larger.
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

# Left of zero, the terms of the reflection formulas cancel at the function's zeros. So
# the error there is counted in ULPs of the largest of three numbers: this floor, the
# absolute result, and the absolute value of the function at -x.
ULP_FLOOR: Mapping[str, float] = MappingProxyType({"digamma": 1.0, "lgamma": 1.0})


# A narrow format gets the FP32 result, rounded. For functions of one argument this is
# the correctly rounded result, except for up to 20 float16 inputs per function (checked
# with mpmath for all inputs). `EXCEPTIONS` lists these inputs, and `nearest` corrects
# their results. Subnormals of float16 are normal numbers of FP32, so they are kept.

# Pairs (float32 of the input, float32 of the correctly rounded result).
Exceptions = tuple[tuple[np.float32, np.float32], ...]


@dataclass(frozen=True, kw_only=True)
class Measurement:
    """The largest measured error of an FP32 function.

    Attributes:
        max_ulp: the error, in ULPs of the exact result (see `elementary.ULP_FLOOR`).
        at: the input with this error.
        inputs: how many float32 numbers were tried, without NaNs.
        stride: every `stride`-th float32 number was tried.
        reference_ulp: the largest error of the float64 reference itself, against
            mpmath, over a sample that includes `at`, in the same unit.
    """

    max_ulp: float
    at: float
    inputs: int
    stride: int
    reference_ulp: float


def read_table(name: str) -> dict[str, Any]:
    """Return the content of a file of `numerics/tables`."""
    path = resources.files("neuronjax.numerics") / "tables" / name
    return json.loads(path.read_text())


def _values(codes: list[int], format_name: str) -> np.ndarray:
    fmt = get_format(format_name)
    return np.array(codes, fmt.code_dtype).view(fmt.dtype).astype(np.float32)


def _exceptions(rows: list[tuple[int, int]], format_name: str) -> Exceptions:
    inputs, outputs = (_values([*column], format_name) for column in zip(*rows))
    return tuple(zip(inputs, outputs, strict=True))


# Name of the format -> name of the function -> its exceptions, if there are any.
EXCEPTIONS: Mapping[str, Mapping[str, Exceptions]] = MappingProxyType(
    {
        format_name: {
            name: _exceptions(rows, format_name) for name, rows in functions.items()
        }
        for format_name, functions in read_table("exceptions.json").items()
    }
)

MEASURED: Mapping[str, Measurement] = MappingProxyType(
    {
        name: Measurement(**{**row, "at": float.fromhex(row["at"])})
        for name, row in read_table("accuracy.json").items()
    }
)


def nearest(name: str, x: jax.Array, result: jax.Array, format_name: str) -> jax.Array:
    """Return `result`, corrected where rounding it to the format would be wrong.

    Use this only for rounding to nearest even. The mean of stochastic rounding must
    stay the FP32 result, so `result` must not be corrected for it. Results that
    overflow are never corrected. `name` is a function in `UNARY`; its argument `x`, in
    float32, is a number that the format represents.
    """
    bits = bits_of(x)
    for argument, correct in EXCEPTIONS.get(format_name, {}).get(name, ()):
        result = jnp.where(bits == argument.view(np.uint32), correct, result)
    return result
