"""Errors of arrays against their references.

An `Errors` has sums and maxima, so two `Errors` (of two results of an op, or of two
iterations of a loop) can be added. Relative L2, cosine and SQNR follow from the sums.
Elements with an Inf or NaN are counted, and left out of the sums.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Mapping
from typing import Any, NamedTuple

import ml_dtypes
import numpy as np

from neuronjax.diagnostics.differences import ratio
from neuronjax.diagnostics.distances import Broken, Figures, figures
from neuronjax.numerics.host_kernels.figures import Distance, Told


class Errors(NamedTuple):  # several for each op; a dataclass takes longer to make
    """The errors of some elements against their reference.

    A ULP is the spacing of the declared format (1 for integers) at the larger of the
    two magnitudes. So a small number in place of a zero does not count as 2^100 ULPs.

    Attributes:
        differing: number of elements whose bits differ from the reference, except two
            NaNs. A float64 reference is rounded to the format, and values are compared.
        nonfinite: number of NaN and Inf among the actual numbers.
        nonfinite_reference: number of NaN and Inf in the reference.
        nonfinite_changed: number of elements in which a NaN or Inf differs.
        max_ulp: largest error in ULPs; Inf if `nonfinite_changed` is not 0.
        sum_ulp, sum_error2, sum_reference2, sum_actual2, sum_product: sums over the
            elements that are finite in both arrays.
    """

    elements: int = 0
    differing: int = 0
    nonfinite: int = 0
    nonfinite_reference: int = 0
    nonfinite_changed: int = 0
    max_ulp: float = 0.0
    sum_ulp: float = 0.0
    sum_error2: float = 0.0
    sum_reference2: float = 0.0
    sum_actual2: float = 0.0
    sum_product: float = 0.0

    def __add__(self, other: Errors) -> Errors:  # type: ignore[override]
        sums = {n: getattr(self, n) + getattr(other, n) for n in _SUMMED}
        return Errors(max_ulp=max(self.max_ulp, other.max_ulp), **sums)

    def repeated(self, times: int) -> Errors:
        """Return the errors of an array that has every element `times` times."""
        sums = {n: times * getattr(self, n) for n in _SUMMED}
        return Errors(max_ulp=self.max_ulp, **sums)

    def without_error(self) -> Errors:
        """Return the errors of the reference, which must be finite, against itself."""
        norm2 = self.sum_reference2
        sums = dict.fromkeys(("sum_reference2", "sum_actual2", "sum_product"), norm2)
        return Errors(elements=self.elements, **sums)

    @property
    def is_finite(self) -> bool:
        """Return whether all numbers are finite in both arrays."""
        return not (self.nonfinite or self.nonfinite_reference)

    @property
    def mean_ulp(self) -> float:
        """Return the mean error of all elements in ULPs."""
        return self.sum_ulp / self.elements if self.elements else 0.0

    @property
    def relative_l2(self) -> float:
        """Return the error's norm over the reference's; Inf if Inf or NaN differs."""
        if self.nonfinite_changed:
            return math.inf
        return ratio(math.sqrt(self.sum_error2), math.sqrt(self.sum_reference2))

    @property
    def cosine(self) -> float:
        """Return the cosine between actual and reference; 1 if both are zero."""
        norms = math.sqrt(self.sum_actual2) * math.sqrt(self.sum_reference2)
        if norms == 0:
            return float(self.sum_actual2 == self.sum_reference2)
        return max(-1.0, min(1.0, self.sum_product / norms))

    @property
    def sqnr_db(self) -> float:
        """Return the signal-to-quantization-noise ratio in dB; Inf without an error."""
        error = self.relative_l2
        return math.inf if error == 0 else -20 * math.log10(error)

    def as_dict(self) -> dict[str, float | int]:
        """Return a flat dict of the numbers that reports show."""
        return {name: getattr(self, name) for name in _REPORTED}


_SUMMED = tuple(name for name in Errors.__annotations__ if name != "max_ulp")
_REPORTED = (
    *("elements", "differing", "max_ulp", "mean_ulp", "relative_l2", "cosine"),
    *("sqnr_db", "nonfinite", "nonfinite_reference", "nonfinite_changed"),
)


def errors_of(actual: np.ndarray, reference: np.ndarray) -> Errors:
    """Return the errors of `actual`, of the declared dtype, against `reference`."""
    found = figures(actual, reference, steps_of(actual.dtype))
    return errors_in(found, actual, reference)


def errors_in(found: Figures, actual: np.ndarray, reference: np.ndarray) -> Errors:
    """Return the errors from `found`, the result of `figures(..., steps_of(dtype))`."""
    changed = int(found[Broken.CHANGED])
    return Errors(
        elements=actual.size,
        differing=int(found[Distance.DIFFERENT]),
        nonfinite=int(found[Broken.ACTUAL]),
        nonfinite_reference=int(found[Broken.REFERENCE]),
        nonfinite_changed=changed,
        max_ulp=math.inf if changed else found[Distance.ULP_MOST],
        sum_ulp=found[Distance.ULP],
        sum_error2=found[Distance.ERROR2],
        sum_reference2=found[Distance.REFERENCE2],
        sum_actual2=found[Distance.ACTUAL2],
        sum_product=found[Distance.PRODUCT],
    )


@functools.cache
def steps_of(dtype: Any) -> Mapping[Told, float]:
    """Return the parameters with which `figures` counts ULPs of `dtype`."""
    if np.dtype(dtype).kind in "iub":
        return {Told.STEP: 1.0}
    info: Any = ml_dtypes.finfo(dtype)
    return {Told.STEP: 2.0 ** int(info.minexp), Told.PRECISION: 2.0 ** int(info.nmant)}
