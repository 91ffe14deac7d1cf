"""Steps of states: changes of arguments (parameters) whose next values are results.

A step may be wrong although the next state is close to its reference. If elements do
not change, or are rounded by more than a step, the state's format is at fault. If the
step was wrong before its addition, perturbed data show how much of the error comes from
the condition of the problem. (Adam's first step is a sign, which roundings may flip.)
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from neuronjax.diagnostics.distances import blocks_of
from neuronjax.diagnostics.faults.judgement import OF_DATA
from neuronjax.diagnostics.faults.perturbation import perturbed, unit_of
from neuronjax.diagnostics.faults.shares import (
    NOISE,
    Seen,
    Share,
    norm,
    root_mean_square,
    wide,
)
from neuronjax.ir.program import Value

#: A step (change) of a state is lost if its error is above this share of the step.
LOST_UPDATE = 0.5
#: A result updates an argument if their relative distance is below this.
NEAR = 0.3


@dataclass(frozen=True)
class StateStep:
    """A step of a state compared with the reference's step.

    Attributes:
        size: norm of the step relative to the norm of the next state.
        error: L2 error relative to the step, without the element that is farthest off.
        data_error: relative L2 error of steps on perturbed data, as a root mean square.
        format_error: relative L2 error of the step if the next state is only rounded to
            the state's format and is otherwise that of the reference.
        unmoved: share of elements that should change but do not.
    """

    size: float
    error: float
    data_error: float
    format_error: float
    unmoved: float

    @property
    def allowed(self) -> float:
        """Return the error that the condition of the problem explains."""
        return max(OF_DATA * self.data_error, LOST_UPDATE)

    @property
    def has_room(self) -> bool:
        """Return whether the state's format resolves the step."""
        return self.format_error <= LOST_UPDATE

    @property
    def may_be_noise(self) -> bool:
        """Return whether the state's format cannot explain the step's error, so that
        noise of the data may be the cause."""
        return self.has_room or self.error > OF_DATA * self.format_error

    @property
    def is_lost(self) -> bool:
        """Return whether the error exceeds `allowed`; or, if `data_error` is small,
        whether the format does not resolve the step or most elements do not change."""
        is_still = self.unmoved > LOST_UPDATE < self.error
        stays = self.data_error < OF_DATA and (is_still or not self.has_room)
        return self.error > self.allowed or stays


class StateSteps:
    """The arguments of main that may be states.

    A result is the next value of an argument under two conditions. Only sums, and
    scalings by about one, lead from the argument to the result. And the two are close,
    or the result is the argument plus or minus a term and has the argument's path in
    its pytree, such as "mlp/w" (a parameter that begins at zero is not close).
    """

    def __init__(
        self,
        values: Sequence[Value],
        arguments: Sequence[np.ndarray],
        increments: Callable[[Value, Value], bool],
        hands_on: Callable[[Value, Value], bool],
    ) -> None:
        self._values = values
        self._arguments = [np.asarray(x) for x in arguments]
        self._increments, self._hands_on = increments, hands_on
        self._norms: dict[int, float] = {}

    def is_incremented(self, value: Value) -> bool:
        """Return whether `value` is the argument of the same path plus a term."""
        return any(self._increments(value, entry) for entry in self._values)

    def lost_step(
        self, value: Value, share: Share, seen: Seen, results: Sequence[Seen]
    ) -> StateStep | None:
        """Return a lost step of a state that `value` updates; None if none is lost."""
        if seen.dtype.kind in "iub" or not share.elements:
            return None
        error = share.error * share.norm * math.sqrt(share.elements)
        for n, size, step in self._steps(value, np.asarray(seen.reference)):
            is_off = NOISE * size < step and error > LOST_UPDATE * step
            if is_off and not _is_copy(seen, results):
                size = norm(np.asarray(seen.reference))
                found = _step(self._arguments[n], seen, size, step)
                if found.is_lost and self._hands_on(value, self._values[n]):
                    return found
        return None

    def _steps(
        self, value: Value, reference: np.ndarray
    ) -> Iterator[tuple[int, float, float]]:
        """Yield (index of a state, norm of the state, norm of the step) for the states
        that `value` may update."""
        after = norm(reference)
        for n, entry in enumerate(self._values):
            if entry.type.shape != value.type.shape:
                continue
            if entry.type != value.type and not self._increments(value, entry):
                continue
            if n not in self._norms:
                self._norms[n] = norm(self._arguments[n])
            size = self._norms[n]
            step = math.inf
            if abs(after - size) < NEAR * size:  # else the distance is larger too
                step = _distance(self._arguments[n], reference, NEAR * size)
            if step < NEAR * size:
                yield n, size, step
            elif self._increments(value, entry):
                yield n, size, norm(reference - self._arguments[n])


def _step(before: np.ndarray, seen: Seen, size: float, step: float) -> StateStep:
    unit = unit_of(seen.dtype)
    given = (before, seen.reference, seen.actual, *seen.perturbed)

    total = np.zeros(len(given))
    for state, after, actual, *others in blocks_of(*map(np.ravel, given)):
        start, end, found = map(wide, (state, after, actual))
        move = end - start
        stays = (found == wide(start.astype(seen.dtype))) & (move != 0)
        errors = [found - end, wide(end.astype(seen.dtype)) - end]
        errors += [
            wide(x) - perturbed(start, unit, draw) - move
            for draw, x in enumerate(others)
        ]
        # A change by no more than a rounding of float64 is no step.
        moves = np.abs(move) > NOISE * np.abs(start)
        total += [np.count_nonzero(stays), *(_square(x[moves]) for x in errors)]
    unmoved, *squares = total
    if seen.actual.size > 1:  # a single element may be far off by chance
        apart = np.abs(wide(seen.actual) - wide(seen.reference))
        farthest = np.max(apart, where=np.isfinite(apart), initial=0.0)
        squares[0] = max(0.0, squares[0] - farthest**2)
    own, format, *data = (math.sqrt(x) / step for x in squares)
    return StateStep(
        size=step / size,
        error=own,
        data_error=root_mean_square(data),
        format_error=format,
        unmoved=float(unmoved) / max(1, seen.actual.size),
    )


def _square(x: np.ndarray) -> float:
    total = float(x @ x)
    if math.isfinite(total):
        return total
    x = np.where(np.isfinite(x), x, 0.0)
    return float(x @ x)


def _distance(before: np.ndarray, after: np.ndarray, enough: float) -> float:
    """Return the L2 distance of finite elements; if above `enough`, any such number."""
    total = 0.0
    for x, y in blocks_of(before.reshape(-1), after.reshape(-1)):
        total += _square(y - wide(x))
        if total > enough * enough:
            break
    return math.sqrt(total)


def _is_copy(seen: Seen, results: Sequence[Seen]) -> bool:
    """Return whether one of `results` is the state `seen` in a finer format."""
    reference = np.asarray(seen.reference)
    unit = unit_of(seen.dtype)
    return any(
        np.shape(other.reference) == reference.shape
        and 0 < unit_of(other.dtype) < unit
        and norm(np.asarray(other.reference) - reference) <= unit * norm(reference)
        for other in results
    )
