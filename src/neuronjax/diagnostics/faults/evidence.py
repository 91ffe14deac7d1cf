"""What one execution of an op did to numbers, in a few figures."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from neuronjax.ir.program import Op, Value
from neuronjax.numerics.float_format import FORMATS, get_format

#: A number that is off by more than this share of itself is lost.
LOST = 0.5
#: Numbers smaller than the typical one by this much of a roundoff are nothing.
NOTHING = 2.0**-10


class Seen(NamedTuple):
    """An array in three runs.

    Attributes:
        dtype: as declared.
        reference: float64 for floats.
        actual: of the declared dtype.
        perturbed: of the reference on perturbed data; None where it did not run.
    """

    dtype: Any
    reference: np.ndarray
    actual: np.ndarray
    perturbed: np.ndarray | None


@dataclass(frozen=True, slots=True)
class Share:
    """An array against its reference.

    Attributes:
        elements: how many.
        error: relative L2; Inf where a number ceased or began to be finite.
        data_error: the same of the perturbed reference.
        lost: share of elements off by more than half of themselves.
        data_lost: the same of the perturbed reference.
        nonfinite, nonfinite_reference: elements that are Inf or NaN.
        nan: elements that are NaN.
        zeros: share of elements that are zero, and not in the reference.
        nothing: share of elements that are zero.
        beneath: share of elements whose reference is below the smallest normal number.
        beyond: share of elements whose reference the format cannot hold.
        clipped: of these, those at the largest finite number.
        norm: root mean square of the reference.
        largest: magnitude of the reference.
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


@dataclass(frozen=True, slots=True)
class OpEvidence:
    """One execution of an op.

    Attributes:
        result: its worst result.
        operands: its float and integer operands.
        own: relative L2 error on the reference's values.
        absorbed: share of sums equal to one addend where the other is not zero; the
            operand that stayed.
        wrapped: integers beyond their type's range.
        moved: of a bound: how far off the reference's operands the result is, relative
            to each in L2.
    """

    result: Share
    operands: Mapping[Value, Share]
    own: float
    absorbed: tuple[float, int]
    wrapped: int
    moved: Mapping[Value, float]


def share_of(x: Seen, unit: float) -> Share:
    """The figures of an array of any dtype."""
    r, a = _wide(x.reference), _wide(x.actual)
    finite_r, finite_a = np.isfinite(r), np.isfinite(a)
    usable = finite_r & finite_a
    known = r if finite_r.all() else np.where(finite_r, r, 0.0)
    norm = math.sqrt(float(np.mean(known * known))) if r.size else 0.0
    floor = norm * unit * NOTHING
    largest = float(np.abs(known).max(initial=0.0))
    smallest, limit = _range(x.dtype)
    beyond = (np.abs(known) > limit) if largest > limit else np.False_
    p = None if x.perturbed is None else _wide(x.perturbed)
    return Share(
        elements=r.size,
        error=_relative(a, r, usable, finite_a, finite_r),
        data_error=0.0 if p is None else _perturbed_error(p, r, finite_r),
        lost=_lost(a, r, usable, floor),
        data_lost=0.0 if p is None else _lost(p, r, finite_r & np.isfinite(p), floor),
        nonfinite=r.size - int(finite_a.sum()),
        nonfinite_reference=r.size - int(finite_r.sum()),
        nan=int(np.isnan(a).sum()),
        zeros=_mean((a == 0) & (r != 0)),
        nothing=_mean(a == 0),
        beneath=_mean((np.abs(known) < smallest) & (known != 0)),
        beyond=_mean(beyond, r.size),
        clipped=_mean(beyond & (np.abs(a) == limit), r.size),
        norm=norm,
        largest=largest,
    )


def _wide(x: np.ndarray) -> np.ndarray:
    return np.asarray(x).astype(np.float64, copy=False)


def _range(dtype: Any) -> tuple[float, float]:
    """The smallest normal number of a dtype, and the largest."""
    name = np.dtype(dtype).name
    if name not in FORMATS:
        return 0.0, math.inf
    fmt = get_format(name)
    return fmt.min_normal, fmt.max_finite


def _mean(hits: Any, size: int = 0) -> float:
    count = int(np.count_nonzero(hits))
    return count / (np.size(hits) if np.ndim(hits) else max(size, 1)) if count else 0.0


def _relative(
    a: np.ndarray,
    r: np.ndarray,
    usable: np.ndarray,
    finite_a: np.ndarray,
    finite_r: np.ndarray,
) -> float:
    if not np.array_equal(finite_a, finite_r):
        return math.inf
    return _ratio(a, r, usable)


def _perturbed_error(p: np.ndarray, r: np.ndarray, finite: np.ndarray) -> float:
    return _ratio(p, r, finite & np.isfinite(p))


def _ratio(a: np.ndarray, r: np.ndarray, usable: np.ndarray) -> float:
    error = np.where(usable, a - r, 0.0).reshape(-1)
    norm = np.where(usable, r, 0.0).reshape(-1)
    error2, norm2 = float(error @ error), float(norm @ norm)
    if error2 == 0:
        return 0.0
    return math.inf if norm2 == 0 else math.sqrt(error2 / norm2)


def _lost(a: np.ndarray, r: np.ndarray, usable: np.ndarray, floor: float) -> float:
    size = np.maximum(np.abs(r), floor)
    return _mean((np.abs(a - r) > LOST * size) & usable)


_SUMS = ("stablehlo.add", "stablehlo.subtract")
_WRAPPING = {"stablehlo.add": np.add, "stablehlo.subtract": np.subtract}
_WRAPPING["stablehlo.multiply"] = np.multiply


def absorbed(op: str, operands: Sequence[Seen], result: Seen) -> tuple[float, int]:
    """The share of sums of two nonzero addends that are one of them, and which."""
    if op not in _SUMS or result.dtype.kind in "iub" or len(operands) != 2:
        return 0.0, 0
    left, right = (_wide(x.actual) for x in operands)
    total = _wide(result.actual)
    finite = np.isfinite(total)
    stays = (
        _of((total == left) & finite, right != 0),
        _of((np.abs(total) == np.abs(right)) & finite, left != 0),
    )
    return (stays[0], 0) if stays[0] >= stays[1] else (stays[1], 1)


def _of(hits: np.ndarray, among: np.ndarray) -> float:
    count = np.count_nonzero(among)
    return np.count_nonzero(hits & among) / count if count else 0.0


BOUNDS = frozenset(("stablehlo.maximum", "stablehlo.minimum", "stablehlo.clamp"))


def moved(
    op: Op, operands: Mapping[Value, Seen], result: Seen
) -> Mapping[Value, float]:
    """By how much a bound changes what it bounds."""
    if op.name not in BOUNDS or result.dtype.kind in "iub":
        return {}
    found = {}
    bounded = _wide(result.reference)
    for value, seen in operands.items():
        x = _wide(seen.reference)
        if x.shape == bounded.shape:
            found[value] = _ratio(bounded, x, np.isfinite(x) & np.isfinite(bounded))
    return found


def _adds(op: Op) -> bool:
    return [inner.name for inner in op.regions[0].ops] == ["stablehlo.add"]


def wrapped(op: Op, operands: Sequence[Seen], result: Seen) -> int:
    """Results of integer arithmetic that wrapped around.

    Unsigned words of 32 and 64 bits are not counted: hashes and generators of random
    numbers mean them to.
    """
    dtype = np.dtype(result.dtype)
    small = dtype.kind == "i" or (dtype.kind == "u" and dtype.itemsize < 4)
    if not small or len(operands) != 2:
        return 0
    left, right = (_wide(x.actual) for x in operands)
    if op.name in _WRAPPING:
        exact = _WRAPPING[op.name](left, right)
    elif op.name == "stablehlo.reduce" and _adds(op):
        exact = left.sum(tuple(op.attributes["dimensions"])) + right
    else:
        return 0
    info = np.iinfo(dtype)
    return int(np.count_nonzero((exact > info.max) | (exact < info.min)))
