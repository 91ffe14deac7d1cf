"""The rounding errors that a correct kernel may make, and their scale.

A rounding changes a number f by at most u |f|, where u is the format's unit roundoff.
Arrays carry the *scale* of an error: u |f| for one rounding. Scales of independent
errors add in squares. Roundings to nearest are symmetric, so an error exceeds `spread`
times its scale with a probability of at most 2 exp(-spread^2 / 2) (Hoeffding's
inequality; Higham and Mary, SIAM J. Sci. Comput. 41, 2019, use it for sums). `failure`
is this probability for one element.
"""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

import numpy as np

from neuronjax.errors import InvalidProgramError
from neuronjax.numerics.float_format import FLOAT32, FORMATS, get_format

#: Largest value of an error that many elements share, as a multiple of the error's
#: scale. A shared error does not average out in a norm.
SHARED_SPREAD = 3.0

#: Nonzero terms of a sum count as one value if the relative difference of their
#: magnitudes is at most this.
ONE_VALUE = 2.0**-10

_FEW = 16  # `are_one_value` first compares this many numbers, which mostly differ
_UNMEASURED = 1.5e-5

#: Relative error, root mean square, of ScalarE's elementary functions.
SILICON: Mapping[str, float] = MappingProxyType(
    {
        # Relative L2 error on trn2 of add_rmsnorm_matmul_v1: 1.4635e-5; of its matmul
        # alone: 4e-7 (zhang677/AccelOpt, Jerry2423/kda-for-trainium).
        "rsqrt": 1.5e-5,
        "sqrt": 1.5e-5,
        # Relative L2 error on trn2 of softmax attention (gqa_full_v1, same sources):
        # 2.874e-6.
        "exp": 4e-6,
        # VectorE and GpSimd divide in FP32; a division counts as two roundings.
        "reciprocal": 1.2e-7,
        # ASSUMPTION: not measured publicly; the error of the worst measured function.
        "other": _UNMEASURED,
    }
)

#: Relative errors for the emulator: two ULPs of FP32, one ULP for `reciprocal`. Errors
#: of the emulator (`numerics/elementary.MAX_ULP`), of NumPy and of XLA are smaller.
EMULATED = MappingProxyType({"reciprocal": 1.2e-7, "other": 2.4e-7})

FUNCTIONS = {"silicon": SILICON, "emulated": EMULATED}

_SHORT = {f.flag_name: f.name for f in FORMATS.values()}


@dataclasses.dataclass(frozen=True)
class Roundoff:
    """One rounding to nearest.

    Attributes:
        unit: relative error bound, half of the distance between neighbours at 1.
        smallest: absolute error of a number that underflows.
        largest: the largest finite number; the error of a larger number has no bound.
    """

    name: str
    unit: float
    smallest: float
    largest: float


# A number as the sum of two BF16 numbers. Kernels multiply such sums by three BF16
# matmuls in place of an FP32 matmul, and leave out the smallest of the four products.
BF16X3 = Roundoff("bf16x3", 2.0**-16, 2.0**-126, FLOAT32.max_finite)


@functools.cache
def roundoff(precision: Any) -> Roundoff:
    """Return the rounding to `precision`: "bf16x3", a name of a format, or a dtype.

    Formats with FP32's exponents flush subnormals to zero; with other formats a number
    loses at most half of the smallest subnormal.

    Raises:
        InvalidProgramError: `precision` names no format.
    """
    if precision == BF16X3.name:
        return BF16X3
    named = precision if isinstance(precision, str) else None
    fmt = get_format(_SHORT.get(named, named) if named else precision)
    flushes = fmt.exponent_bits == FLOAT32.exponent_bits
    smallest = fmt.min_normal if flushes else fmt.min_subnormal / 2
    return Roundoff(fmt.name, fmt.eps / 2, smallest, fmt.max_finite)


def are_one_value(x: np.ndarray, axis: int) -> np.ndarray:
    """Return, for each line of `x` along `axis`, whether its numbers are v, -v or zero
    for one v: the roundings in their sum are then correlated."""
    few = np.moveaxis(np.moveaxis(x, axis, 0)[:_FEW], 0, axis)
    is_one_value, largest = _alike(few, axis)
    if few.shape != x.shape and is_one_value.any():
        is_one_value, largest = _alike(x, axis)
    return is_one_value & (largest > 0)


def _alike(x: np.ndarray, axis: int) -> tuple[np.ndarray, np.ndarray]:
    size = np.abs(x)
    largest = np.max(size, axis=axis, initial=0.0)
    least = np.min(size, axis=axis, initial=np.inf, where=size > 0)
    return largest - least <= ONE_VALUE * largest, largest


@dataclasses.dataclass(frozen=True)
class ErrorModel:
    """The rounding of a correct kernel.

    Attributes:
        stored: rounding of every result of an operation.
        products: rounding of the operands of a contraction.
        sums: rounding of the additions of contractions and reductions.
        functions: relative errors of elementary functions by name, "other" among them.
        failure: probability that one correct element is refused.
        draw: random errors of runs (`drawn.Draw`); None if arrays carry scales.
    """

    stored: Roundoff
    products: Roundoff
    sums: Roundoff
    functions: Mapping[str, float]
    failure: float
    draw: Any = None

    @functools.cached_property
    def alone(self) -> ErrorModel:
        """Return the model with a `draw` of None."""
        return dataclasses.replace(self, draw=None)

    @functools.cached_property
    def spread(self) -> float:
        """Return the largest error divided by its scale: 7.5 if `failure` is 1e-12."""
        return math.sqrt(2 * math.log(2 / self.failure))

    def of_sums(self, n: int) -> float:
        """Return the squared scale of the error of `n` additions, relative to partial
        sums. The error of a rounding counts as uniform, with variance unit^2 / 3."""
        return n * self.sums.unit**2 / 3

    def of_alike(self, n: int) -> float:
        """Return the relative scale of the error of `n` additions with equal errors."""
        return n * self.sums.unit / SHARED_SPREAD

    def of_result(self, dtype: Any) -> Roundoff:
        """Return the rounding to `stored` or `dtype`, whichever is coarser."""
        declared = getattr(dtype, "name", "")
        if declared not in FORMATS:
            return self.stored
        return max(self.stored, roundoff(declared), key=lambda r: r.unit)

    def of_function(self, name: str) -> float:
        return self.functions.get(name, self.functions["other"])


def error_model(
    precision: Any,
    products: Any,
    sums: Any,
    functions: str | Mapping[str, float],
    failure: float,
) -> ErrorModel:
    """Return an `ErrorModel` from names of formats and tables.

    Raises:
        InvalidProgramError: an unknown format or table, or `failure` outside (0, 1).
    """
    if isinstance(functions, str):
        if functions not in FUNCTIONS:
            raise InvalidProgramError(
                f"functions={functions!r} is no table of errors",
                remedy=f"give one of {', '.join(FUNCTIONS)}, or a mapping",
            )
        functions = FUNCTIONS[functions]
    if not 0 < failure < 1:
        raise InvalidProgramError(
            f"failure is {failure!r}", remedy="give a probability between 0 and 1"
        )
    stored = roundoff(precision)
    return ErrorModel(
        stored=stored,
        products=stored if products is None else roundoff(products),
        sums=roundoff(sums),
        functions=MappingProxyType({"other": _UNMEASURED, **functions}),
        failure=failure,
    )
