"""A tolerance for every element of a result, and what it says of a candidate's."""

from __future__ import annotations

import dataclasses
import math

import numpy as np

from neuronjax.errors import InvalidProgramError


@dataclasses.dataclass(frozen=True)
class Judged:
    """A result beside its tolerance; true if it is right.

    Attributes:
        elements: how many there are.
        refused: how many are beyond their bound, or are no numbers where the
            reference has numbers.
        non_finite: how many of them are infinite or NaN on one side alone.
        undecided: how many have an infinite bound: they depend on numbers that are
            closer than their bounds, or may overflow.
        worst: index of the worst element; None for an empty result.
        times_bound: its error, in bounds.
        relative_l2: norm of the errors over the norm of the reference.
        relative_l2_bound: what that may be.
    """

    elements: int
    refused: int
    non_finite: int
    undecided: int
    worst: tuple[int, ...] | None
    times_bound: float
    relative_l2: float
    relative_l2_bound: float

    @property
    def is_right(self) -> bool:
        """Whether every element and the whole are within their bounds."""
        return self.refused == 0 and self.relative_l2 <= self.relative_l2_bound

    def __bool__(self) -> bool:
        return self.is_right

    def as_text(self) -> str:
        """A few lines for a log."""
        word = "right" if self.is_right else "wrong"
        lines = [
            f"{word}: {self.refused} of {self.elements} elements beyond their bounds",
            f"  worst: {self.times_bound:.3g} of its bound, at {self.worst}",
            f"  relative L2: {self.relative_l2:.3g} of {self.relative_l2_bound:.3g}",
        ]
        if self.non_finite:
            lines.append(f"  infinite or NaN on one side: {self.non_finite}")
        if self.undecided:
            lines.append(f"  not decided, bound infinite: {self.undecided}")
        return "\n".join(lines)


@dataclasses.dataclass(frozen=True, eq=False)
class Tolerance:
    """What a right result may be.

    Attributes:
        value: the reference, float64 (FP32 where it is large).
        bound: absolute, of every element. FP32.
        l2_bound: of the norm of all errors.
    """

    value: np.ndarray
    bound: np.ndarray
    l2_bound: float

    @property
    def relative_l2_bound(self) -> float:
        """The bound of the norm, over the norm of the reference."""
        return _ratio(self.l2_bound, _norm(np.where(self._counts(), self.value, 0.0)))

    def check(self, actual: object) -> Judged:
        """Compares a candidate's result.

        Args:
            actual: array of the reference's shape, of any dtype.

        Raises:
            InvalidProgramError: another shape.
        """
        found = np.asarray(actual)
        if found.shape != self.value.shape:
            raise InvalidProgramError(
                f"the result has shape {found.shape}, the reference {self.value.shape}",
                remedy="bring the result into the reference's shape",
            )
        return self._verdict(found.astype(np.float64))

    def _counts(self) -> np.ndarray:
        """The elements that have a finite value and a bound."""
        return np.isfinite(self.value) & np.isfinite(self.bound)

    def _verdict(self, found: np.ndarray) -> Judged:
        counts = self._counts()
        same = (found == self.value) | (np.isnan(found) & np.isnan(self.value))
        undecided = np.isposinf(self.bound)
        with np.errstate(all="ignore"):
            error = np.where(same, 0.0, np.abs(found - self.value))
            broken = (
                ~same & ~undecided & ~(np.isfinite(found) & np.isfinite(self.value))
            )
            error = np.where(broken, math.inf, np.where(counts, error, 0.0))
            times = np.where(error == 0.0, 0.0, error / self.bound)
        worst = (
            np.unravel_index(int(times.argmax()), times.shape) if times.size else None
        )
        norm = _norm(np.where(counts, self.value, 0.0))
        return Judged(
            elements=times.size,
            refused=int(np.count_nonzero(times > 1.0)),
            non_finite=int(np.count_nonzero(broken)),
            undecided=int(np.count_nonzero(undecided)),
            worst=None if worst is None else tuple(int(i) for i in worst),
            times_bound=float(times.max(initial=0.0)),
            relative_l2=_ratio(_norm(error), norm),
            relative_l2_bound=_ratio(self.l2_bound, norm),
        )


def _norm(x: np.ndarray) -> float:
    return float(np.linalg.norm(np.ravel(x)))


def _ratio(error: float, norm: float) -> float:
    if norm == 0.0:
        return 0.0 if error == 0.0 else math.inf
    return error / norm
