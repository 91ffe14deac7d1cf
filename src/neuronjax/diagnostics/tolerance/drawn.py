"""Bounds from runs whose roundings are drawn, for programs that are deep.

Slopes add up what every operand may be: after a few layers or turns, in which errors
cancel as often as they agree, their bound is far from any run. A sampled run makes
every error that a rule knows, of a rounding, an order or a table, by chance and of its
size, and computes on with that (Monte Carlo arithmetic): correlations and cancellations
are the program's own. The distance of a legal run from the reference is then, in units
of what some runs have, distributed as Student's t, which says how far beyond the
largest that was seen a bound has to be. Errors are drawn `AMPLITUDE` times too large
and distances divided by it, so that a kink (`relu`) nearby is seen.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import NamedTuple, TypeVar

import numpy as np

from neuronjax.diagnostics.tolerance.judged import Tolerance
from neuronjax.diagnostics.tolerance.tracked import Shared, Tracked

SAMPLES = 32
AMPLITUDE = 4.0
#: No element of an array is taken to be surer than by this share of what is typical.
_FLOOR = 0.125
#: Of an output, as a share of its typical number.
_LITTLE = 2.0**-7

#: Bytes that the errors of one run may hold for the others.
_MOST_HELD = 1 << 28

Key = TypeVar("Key")


class _StepErrors(NamedTuple):
    """The scales of a value's errors, as `Tracked` has them."""

    own: np.ndarray | None
    joint: np.ndarray | None
    shared: Mapping[int, Shared]


class Steps:
    """The errors that every step of a reference makes, as its first run has them.

    A reference takes the same steps in every run, for a branch that depends on an
    inexact number is refused. Between runs its values differ by roundings, and the
    scales of roundings by less, so that the later runs compute values alone.
    """

    def __init__(self) -> None:
        self._found: list[_StepErrors | None] = []
        self._room = _MOST_HELD

    def are_known(self, number: int) -> bool:
        """Return whether a run before had the errors of a step, and they were kept."""
        return number < len(self._found) and self._found[number] is not None

    def errors(self, number: int, x: Tracked) -> _StepErrors:
        """Return the errors of a step, whose result in this run is x."""
        if number < len(self._found) and (known := self._found[number]) is not None:
            return known
        found = _StepErrors(x.own, x.joint, x.shared)
        if number == len(self._found):
            self._room -= sum(e.nbytes for e in found[:2] if e is not None)
            self._found.append(found if self._room >= 0 else None)
        return found


class Draw:
    """The errors of one run, always the same for the same number.

    Attributes:
        steps: what the runs of one reference share; None for nothing.
    """

    def __init__(self, samples: int, number: int) -> None:
        self._generator = np.random.Generator(np.random.SFC64((samples, number)))
        self._alike: dict[str, float] = {}
        self._step = 0
        self.steps: Steps | None = None

    @property
    def knows_next(self) -> bool:
        """Whether the errors of the next step are known, and need not be computed."""
        return self.steps is not None and self.steps.are_known(self._step)

    def made(self, x: Tracked) -> Tracked:
        """Return a value with one of the errors it may have, which is not carried."""
        own, joint, shared = _StepErrors(x.own, x.joint, x.shared)
        if self.steps is not None:
            own, joint, shared = self.steps.errors(self._step, x)
            self._step += 1
        if x.dtype.kind in "iub" or (own is None and joint is None and not shared):
            return x
        error: np.ndarray | float = 0.0
        if own is not None:
            error = own * self._numbers(x.shape)
        if joint is not None:  # which elements have it alike is not known
            common, single = self._numbers(()), self._numbers(x.shape)
            error = error + joint * (np.float32(0.5**0.5) * (common + single))
        for term in shared.values():
            size = term.scale * x.value if term.is_relative else term.scale
            error = error + size * self._of(term.cause)
        value = x.value + error
        if not np.isfinite(value).all():
            # What may be anything, as what may overflow, is no number from here on.
            value = np.where(np.isfinite(error), value, np.nan)
            value = np.where(np.isfinite(x.value), value, x.value)
        return Tracked(value.astype(x.value.dtype, copy=False), x.model, x.dtype)

    def _numbers(self, shape: tuple[int, ...]) -> np.ndarray:
        """Return uniform numbers of mean 0 and of `AMPLITUDE`: roundings are such."""
        found = np.asarray(self._generator.random(shape, np.float32))
        found -= np.float32(0.5)
        found *= np.float32(12**0.5 * AMPLITUDE)
        return found

    def _of(self, cause: str) -> float:
        """Return what a table, or a constant, is off by wherever a run meets it."""
        if not cause:
            return float(self._numbers(()))
        if cause not in self._alike:
            self._alike[cause] = float(self._numbers(()))
        return self._alike[cause]


class Spread:
    """How far sampled runs are from a reference, element by element.

    Args:
        expected: the reference.

    Attributes:
        count: of the runs so far.
    """

    def __init__(self, expected: np.ndarray) -> None:
        self._expected = expected.astype(np.float64)
        self._squares = np.zeros(expected.shape)
        self._largest = np.zeros(expected.shape)
        self._norm = 0.0
        self.count = 0

    def add(self, values: np.ndarray) -> None:
        """One run more."""
        with np.errstate(all="ignore"):
            apart = (values.astype(np.float64) - self._expected) / AMPLITUDE
            squares = np.where(np.isfinite(self._expected), np.square(apart), 0.0)
        squares = np.where(np.isnan(squares), np.inf, squares)
        self._squares += squares
        self._largest = np.maximum(self._largest, AMPLITUDE * np.sqrt(squares))
        self._norm += float(squares[np.isfinite(squares)].sum())
        self.count += 1

    def narrowed(self, found: Tolerance, failure: float, ways: float) -> Tolerance:
        """Return a tolerance whose bounds are the smaller of slopes' and samples'.

        Args:
            found: the tolerance by slopes.
            failure: probability that one right element is refused.
            ways: by how much the errors of another way to compute the same may be
                larger than those of this one.
        """
        if not self.count or found.bound is None or found.value.dtype.kind in "iub":
            return found
        # It takes as long to import as a small reference takes to run.
        from scipy.special import stdtrit

        quantile = -ways * float(stdtrit(self.count, failure / 2))
        scale = np.sqrt(self._squares / self.count)
        known = scale[np.isfinite(scale)]
        floor = _FLOOR * float(np.median(known)) if known.size else 0.0
        # Where a number may jump, a legal run may be as far off as a sampled one is.
        elements = np.maximum(quantile * np.maximum(scale, floor), self._largest)
        norm = quantile * float(np.sqrt(self._norm / self.count))
        narrow = np.where(
            np.isfinite(found.value), np.minimum(found.bound, elements), found.bound
        )
        is_whole = np.isfinite(found.bound).all()  # else the norm is of the others
        return Tolerance(
            found.value,
            narrow.astype(found.bound.dtype),
            min(found.l2_bound, norm) if is_whole else norm,
            runs=self.count,
        )


def is_wide(found: Tolerance) -> bool:
    """Whether slopes alone say little of an output."""
    value = found.value[np.isfinite(found.value)]
    if found.bound is None or value.dtype.kind in "iub" or not value.size:
        return False
    typical = float(np.sqrt(np.mean(np.square(value, dtype=np.float64))))
    return float(np.median(found.bound)) > _LITTLE * typical


def sharpened(
    found: Mapping[Key, Tolerance],
    run: Callable[[Draw], Iterable[tuple[Key, np.ndarray]]],
    samples: int | None,
    failure: float,
    *,
    usual: int = SAMPLES,
    ways: float = 1.0,
) -> dict[Key, Tolerance]:
    """Return tolerances with what sampled runs say of them.

    Args:
        found: the tolerances by slopes.
        run: makes one run, and returns the values of it that have tolerances.
        samples: how many runs; None for the usual where a tolerance is wide, and else
            for none.
        failure: as `Spread.narrowed`.
        usual: how many that is.
        ways: as `Spread.narrowed`.
    """
    if samples is None:
        samples = usual if any(map(is_wide, found.values())) else 0
    spreads = {key: Spread(t.value) for key, t in found.items()} if samples else {}
    for number in range(samples):
        for key, values in run(Draw(samples, number)):
            spreads[key].add(values)
    return {
        key: spreads[key].narrowed(t, failure, ways) if key in spreads else t
        for key, t in found.items()
    }
