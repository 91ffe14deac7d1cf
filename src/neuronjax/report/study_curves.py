"""The records of a study as arrays: a metric by machine, seed and step."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from neuronjax.errors import InvalidProgramError


@dataclass(frozen=True, eq=False)
class Curve:
    """A metric of one machine.

    Attributes:
        seeds: the seed of each row.
        steps: the step of each column; only steps that every seed has.
        values: [seeds, steps].
    """

    seeds: tuple[int, ...]
    steps: np.ndarray
    values: np.ndarray

    @property
    def unmoved(self) -> tuple[int, ...]:
        """Return the seeds whose metric ends where it began.

        All their values are equal, or the means of first and last quarter differ by at
        most three standard errors, estimated from the differences between steps."""
        runs = zip(self.seeds, self.values, strict=True)
        return tuple(seed for seed, values in runs if _is_still(values))

    def minus(self, other: Curve) -> Curve:
        """Return the differences for equal seeds at equal steps."""
        seeds = tuple(s for s in self.seeds if s in other.seeds)
        steps = np.intersect1d(self.steps, other.steps)
        a, b = (_at(curve, seeds, steps) for curve in (self, other))
        return Curve(seeds, steps, a - b)

    def rows(self, seeds: Sequence[int]) -> Curve:
        """Return the runs of these seeds, in their order."""
        return Curve(tuple(seeds), self.steps, _at(self, seeds, self.steps))

    def smoothed(self, window: int) -> Curve:
        """Return the moving mean of every row over the last `window` steps."""
        window = min(window, len(self.steps))
        if window <= 1:
            return self
        kernel = np.full(window, 1 / window)
        rows = [np.convolve(row, kernel, mode="valid") for row in self.values]
        return Curve(self.seeds, self.steps[window - 1 :], np.array(rows))


Curves = Mapping[str, Curve]


def _is_still(row: np.ndarray) -> bool:
    quarter = len(row) // 4
    if len(row) < 2 or not np.isfinite(row).all():
        return False
    if quarter < 2:  # too short to estimate the noise
        return bool(np.ptp(row) == 0)
    # The median of squared differences of normal noise is 0.91 of its variance.
    variance = np.median(np.diff(row) ** 2) / 0.91
    noise = math.sqrt(2 * variance / quarter)
    return bool(abs(row[-quarter:].mean() - row[:quarter].mean()) <= 3 * noise)


def _at(curve: Curve, seeds: Sequence[int], steps: np.ndarray) -> np.ndarray:
    rows = [curve.seeds.index(seed) for seed in seeds]
    return curve.values[rows][:, np.searchsorted(curve.steps, steps)]


def curves(
    records: Sequence[Mapping[str, Any]],
    labels: Mapping[tuple[str, str], str],
    metric: str,
) -> Curves:
    """Return a metric's curves by label, in the order of `labels`."""
    found: dict[str, dict[int, dict[int, float]]] = {x: {} for x in labels.values()}
    for record in records:
        if metric in record:
            runs = found[labels[record["policy"], record["target"]]]
            runs.setdefault(record["seed"], {})[record["step"]] = record[metric]
    return {label: _curve(label, metric, runs) for label, runs in found.items()}


def _curve(label: str, metric: str, runs: Mapping[int, Mapping[int, float]]) -> Curve:
    steps = sorted(set.intersection(*map(set, runs.values()))) if runs else []
    if not steps:
        raise InvalidProgramError(
            f"the runs of {label} have no step with {metric!r} in common",
            remedy=f"yield {metric!r} at the same steps of every run",
        )
    values = [[run[step] for step in steps] for run in runs.values()]
    return Curve(tuple(runs), np.array(steps), np.array(values, np.float64))
