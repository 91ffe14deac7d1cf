"""A tolerance for every element of a result, and the check of a result against it."""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from neuronjax.diagnostics.differences import alike, ratio
from neuronjax.errors import InvalidProgramError

_BLOCK_ELEMENTS = 1 << 14


@dataclasses.dataclass(frozen=True)
class Judged:
    """The comparison of a result with its tolerance; true if the result is right.

    Attributes:
        refused: number of elements beyond their bound, or not finite where the
            reference is.
        non_finite: number of refused elements with Inf or NaN in result or reference.
        undecided: number of elements with an infinite bound: they may overflow, or
            depend on numbers that differ by less than their error bounds.
        worst: index of the element whose error is the largest multiple of its bound;
            None for an empty result.
        times_bound: the error at `worst` divided by its bound.
        furthest: index of the element with the largest error, whatever its bound.
        relative_l2: L2 error of the elements with a bound, divided by the norm of these
            elements in the reference.
        relative_l2_bound: bound of `relative_l2`.
        distance: relative L2 error of all elements against the reference in FP32.
        is_within: whether the norm of the errors is within its bound.
    """

    elements: int
    refused: int
    non_finite: int
    undecided: int
    worst: tuple[int, ...] | None
    times_bound: float
    furthest: tuple[int, ...] | None
    relative_l2: float
    relative_l2_bound: float
    distance: float
    is_within: bool

    def __bool__(self) -> bool:
        return self.refused == 0 and self.is_within


@dataclasses.dataclass(frozen=True, eq=False)
class Tolerance:
    """The range of results that count as right.

    Attributes:
        value: the reference, float64 (FP32 if it is large).
        bound: absolute bound per element; None if only the norm has a bound.
        l2_bound: bound of the L2 norm of all errors.
        runs: number of runs with random errors that narrowed the bounds.
    """

    value: np.ndarray
    bound: np.ndarray | None
    l2_bound: float
    runs: int = 0

    @classmethod
    def of_norm(cls, value: np.ndarray, relative: float) -> Tolerance:
        """Return a tolerance of the L2 norm of all errors: `relative` times the norm of
        `value`, or `relative` if the norm is 0."""
        norm = cls(value, None, 0.0)._norm
        return cls(value, None, relative * norm if norm else relative)

    @property
    def relative_l2_bound(self) -> float:
        """Return `l2_bound` divided by the norm of the elements with a bound."""
        return ratio(self.l2_bound, self._norm)

    @property
    def largest_passing(self) -> float:
        """Return the largest relative L2 error that passes. Elements without a bound
        count with errors as large as their values. Inf if no element has a bound."""
        if self.bound is None:
            return self.relative_l2_bound
        if self.bound.size and np.isposinf(self.bound).all():
            return math.inf
        bounded, unbounded = self._squares
        return ratio(
            math.hypot(self.l2_bound, math.sqrt(unbounded)),
            math.sqrt(bounded + unbounded),
        )

    def catches(self, wrong: np.ndarray) -> bool:
        """Return whether `wrong` is refused; this is faster than `check`."""
        flat = wrong.reshape(-1)
        blocks = () if self.bound is None else flat_blocks(flat.size)
        found = any((self._beside(flat, block).times > 1).any() for block in blocks)
        return found or not self.check(wrong)

    def check(self, actual: object) -> Judged:
        """Compare `actual`, a result of any dtype, with the tolerance.

        Raises:
            InvalidProgramError: `actual` has another shape.
        """
        given = np.asarray(actual)
        if given.shape != self.value.shape:
            raise InvalidProgramError(
                f"the result has shape {given.shape}, the reference {self.value.shape}",
                remedy="reshape the result to the reference's shape",
            )
        found, total = given.reshape(-1), _Tally()
        for block in flat_blocks(found.size):
            total.add(block.start, self._beside(found, block))
        error, norm = math.sqrt(total.squares), math.sqrt(sum(self._squares))
        return Judged(
            elements=found.size,
            refused=total.refused,
            non_finite=total.non_finite,
            undecided=total.undecided,
            worst=self._index(total.worst),
            times_bound=total.times_bound,
            furthest=self._index(total.furthest),
            relative_l2=ratio(error, self._norm),
            relative_l2_bound=self.relative_l2_bound,
            distance=ratio(math.sqrt(total.all_squares), norm),
            is_within=error <= self.l2_bound,
        )

    @property
    def _norm(self) -> float:
        return math.sqrt(self._squares[0])

    @functools.cached_property
    def _squares(self) -> tuple[float, float]:
        """Return (sum of squares of finite elements with a bound, of those without)."""
        value, sums = self.value.reshape(-1), [0.0, 0.0]
        for block in flat_blocks(value.size):
            bound = None if self.bound is None else self.bound.reshape(-1)[block]
            every = bound is None or bool(bound.max() < math.inf)
            squares = sum_of_squares(value[block]) if every else math.nan
            if math.isfinite(squares):
                sums[0] += squares
                continue
            wide = value[block].astype(np.float64, copy=False)
            finite = np.where(np.isfinite(wide), wide, 0.0)
            has = True if bound is None else np.isfinite(bound)
            for n, kind in enumerate((has, np.logical_not(has))):
                sums[n] += sum_of_squares(np.where(kind, finite, 0.0))
        return sums[0], sums[1]

    def _beside(self, found: np.ndarray, block: slice) -> _BlockErrors:
        value = self.value.reshape(-1)[block]
        off = error = apart(found[block], value)
        if self.bound is None:
            return _BlockErrors(off, off, np.zeros(off.shape), 0)
        if value.dtype == np.float64:
            with np.errstate(over="ignore"):  # values may overflow in FP32
                off = apart(found[block], value.astype(np.float32))
        bound = self.bound.reshape(-1)[block]
        undecided = 0
        if not bound.max() < math.inf:
            has_none = np.isposinf(bound)
            undecided = int(np.count_nonzero(has_none))
            error = np.where(has_none, 0.0, error)
        with np.errstate(all="ignore"):
            times = error / bound
        if not times.max() < math.inf:
            times[error == 0.0] = 0.0
        return _BlockErrors(off, error, times, undecided)

    def _index(self, number: int | None) -> tuple[int, ...] | None:
        if number is None:
            return None
        return tuple(int(i) for i in np.unravel_index(number, self.value.shape))


def apart(actual: np.ndarray, value: np.ndarray) -> np.ndarray:
    """Return absolute errors; Inf where the arrays differ by an Inf or NaN."""
    a, b = (x.astype(np.float64, copy=False) for x in (actual, value))
    with np.errstate(all="ignore"):
        off = np.asarray(np.abs(a - b))
    if not off.max(initial=0.0) < math.inf:
        off[alike(a, b)] = 0.0
        off[np.isnan(off)] = math.inf
    return off


class _BlockErrors(NamedTuple):
    """Errors of a block. `off`: distances from the reference, rounded to FP32 if there
    are bounds. `error`: distances from the reference itself, 0 where the bound is
    infinite. `times`: `error` / bound. `undecided`: the number of infinite bounds."""

    off: np.ndarray
    error: np.ndarray
    times: np.ndarray
    undecided: int


@dataclasses.dataclass
class _Tally:
    refused: int = 0
    non_finite: int = 0
    undecided: int = 0
    worst: int | None = None
    times_bound: float = 0.0
    furthest: int | None = None
    largest: float = 0.0
    squares: float = 0.0
    all_squares: float = 0.0

    def add(self, start: int, e: _BlockErrors) -> None:
        number, place = int(e.times.argmax()), int(e.off.argmax())
        squares = sum_of_squares(e.error)
        self.squares += squares
        self.all_squares += squares if e.off is e.error else sum_of_squares(e.off)
        self.undecided += e.undecided
        self.refused += int(np.count_nonzero(e.times > 1.0))
        if not math.isfinite(squares):
            self.non_finite += int(np.count_nonzero(np.isinf(e.error)))
        if self.worst is None or e.times[number] > self.times_bound:
            self.worst, self.times_bound = start + number, float(e.times[number])
        if self.furthest is None or e.off[place] > self.largest:
            self.furthest, self.largest = start + place, float(e.off[place])


def flat_blocks(elements: int) -> Iterator[slice]:
    """Yield slices that cut `elements` elements into blocks that fit the cache."""
    for start in range(0, elements, _BLOCK_ELEMENTS):
        yield slice(start, start + _BLOCK_ELEMENTS)


def sum_of_squares(x: np.ndarray) -> float:
    """Return the sum of squares of `x`, without BLAS, whose threads start slowly."""
    wide = x.astype(np.float64, copy=False)
    return float(np.einsum("i,i->", wide, wide))
