"""Comparison of an array of a run with its float64 reference."""

from __future__ import annotations

import functools
import math
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from neuronjax.diagnostics import differences
from neuronjax.diagnostics.distances import Broken, Figures, figures
from neuronjax.numerics.float_format import FORMATS, get_format
from neuronjax.numerics.host_kernels.figures import Distance, Told

#: A float is lost if its error is above this share of its magnitude; a whole number, if
#: the error is above `LOST_WHOLE` times the larger of magnitude and `LEAST_WHOLE`.
LOST = 0.5
LOST_WHOLE = 0.1
LEAST_WHOLE = 15.0
#: If a larger share of elements is lost, the share lost in perturbed data is computed.
MOST_LOST = 0.1
#: To decide whether a number is lost, its magnitude counts as at least this share of
#: (norm * roundoff).
NOTHING = 2.0**-10
#: A sum below this share of its terms is float64's rounding noise.
NOISE = 2.0**-44


class Seen(NamedTuple):
    """An array of the run, the float64 reference and references on perturbed data.

    Attributes:
        dtype: the declared dtype.
        reference: the reference's array; float64 for floats.
        actual: the run's array, of the declared dtype.
        perturbed: the reference's arrays, one for each perturbation of the data.
        found: the result of `figures` with `settings_of(dtype)`, if already computed.
    """

    dtype: Any
    reference: np.ndarray
    actual: np.ndarray
    perturbed: tuple[np.ndarray, ...] = ()
    found: Figures | None = None


class Share(NamedTuple):
    """The errors of an array, compared with the float64 reference.

    Attributes:
        elements: number of elements.
        error: relative L2 error; Inf if an element is finite in only one of the arrays.
        data_error: error of the reference on perturbed data, as a root mean square over
            perturbations; 0 if not computed, because `error` and `lost` are small.
        lost: share of elements off by more than half of their magnitude; for integers,
            by more than a tenth and by more than one.
        data_lost: the same share on perturbed data; 0 where `lost` is small.
        nonfinite: number of elements that are Inf or NaN.
        nonfinite_reference: number of elements of the reference that are Inf or NaN.
        nan: number of elements that are NaN.
        zeros: share of elements that are zero, but not in the reference.
        nothing: share of elements that are zero.
        beneath: share of elements whose reference is below the smallest normal number.
        beyond: share of elements whose reference the format cannot hold.
        clipped: share of elements that are cut off at the largest finite number.
        norm: root mean square of the reference.
        largest: largest magnitude in the reference.
    """

    elements: int
    error: float
    data_error: float
    lost: float
    data_lost: float
    nonfinite: int
    nonfinite_reference: int
    nan: int
    zeros: float
    nothing: float
    beneath: float
    beyond: float
    clipped: float
    norm: float
    largest: float


def share_of(x: Seen, unit: float, excused: float = 0.0) -> Share:
    """Compare an array with its reference. `unit` is the roundoff of the coarsest
    format on which the array depends. The effect of perturbed data is computed only if
    the error exceeds `excused` or many elements are far off."""
    is_whole = np.dtype(x.dtype).kind in "iu"
    setting = settings_of(np.dtype(x.dtype))
    limit, counts = setting[Told.LOST], x.found
    if counts is None:
        counts = figures(x.actual, x.reference, setting)
    size = max(1, np.size(x.reference))
    norm = math.sqrt(counts[Broken.KNOWN2] / size)
    error = math.inf if counts[Broken.CEASED] else _relative(counts)
    floor = LEAST_WHOLE if is_whole else norm * unit * NOTHING
    lost = 0.0
    if counts[Distance.LOST]:  # count again, without negligible numbers
        found = figures(x.actual, x.reference, {Told.LOST: limit, Told.FLOOR: floor})
        lost = found[Distance.LOST] / size
    data_error = data_lost = 0.0
    if error > excused or lost > MOST_LOST:
        data_error = root_mean_square([ratio(p, x.reference) for p in x.perturbed])
    if lost > MOST_LOST:
        # The floor is 0 for elements that the run loses: perturbed data may lose them.
        least = np.where(_is_lost(x.actual, x.reference, floor, limit), 0.0, floor)
        moved = (_is_lost(p, x.reference, least, limit) for p in x.perturbed)
        data_lost = root_mean_square([float(np.mean(m)) for m in moved])
    return Share(
        elements=np.size(x.reference),
        error=error,
        data_error=data_error,
        lost=lost,
        data_lost=data_lost,
        nonfinite=int(counts[Broken.ACTUAL]),
        nonfinite_reference=int(counts[Broken.REFERENCE]),
        nan=int(counts[Broken.NAN]),
        zeros=counts[Distance.ZEROS] / size,
        nothing=counts[Distance.NOTHING] / size,
        beneath=counts[Distance.BENEATH] / size,
        beyond=counts[Distance.BEYOND] / size,
        clipped=counts[Distance.CLIPPED] / size,
        norm=norm,
        largest=counts[Distance.SIZE_MOST],
    )


def repeated(share: Share, elements: int) -> Share:
    """Return the `Share` of `elements` numbers that repeat the array of `share`."""
    times = elements // max(1, share.elements)
    return share._replace(
        elements=elements,
        nonfinite=times * share.nonfinite,
        nonfinite_reference=times * share.nonfinite_reference,
        nan=times * share.nan,
    )


def wide(x: np.ndarray) -> np.ndarray:
    """Return numbers of any dtype as float64."""
    return np.asarray(x).astype(np.float64, copy=False)


def norm(x: np.ndarray) -> float:
    """Return the L2 norm of the finite elements."""
    return math.sqrt(figures(x, x, {})[Distance.REFERENCE2])


def ratio(a: np.ndarray, r: np.ndarray) -> float:
    """Return the relative L2 error of `a` against `r` where both are finite."""
    return 0.0 if a is r else _relative(figures(a, r, {}))


def root_mean_square(draws: Sequence[float]) -> float:
    """Return the root mean square of `draws`; 0 if there are none."""
    return math.sqrt(sum(x * x for x in draws) / max(1, len(draws)))


def _relative(found: Figures) -> float:
    error2, norm2 = found[Distance.ERROR2], found[Distance.REFERENCE2]
    return differences.ratio(math.sqrt(error2), math.sqrt(norm2))


def _is_lost(
    x: np.ndarray, reference: np.ndarray, floor: np.ndarray | float, lost: float
) -> np.ndarray:
    x, reference = wide(x), wide(reference)
    apart = np.abs(x - reference)
    return (apart > lost * np.maximum(np.abs(reference), floor)) & np.isfinite(apart)


@functools.cache
def settings_of(dtype: np.dtype) -> Mapping[Told, float]:
    """Return the settings for `figures`: a dtype's range and the limit for `lost`."""
    lost = LOST_WHOLE if dtype.kind in "iu" else LOST
    smallest, largest = 0.0, math.inf
    if dtype.name in FORMATS:
        fmt = get_format(dtype.name)
        smallest, largest = fmt.min_normal, fmt.max_finite
    return {Told.SMALLEST: smallest, Told.LARGEST: largest, Told.LOST: lost}
