"""Verdicts of a study: whether a machine trains as well as the baseline.

Runs are paired by seed. A run's *final value* is the mean of its metric over the last
steps. The difference of two final values has Student's t interval over the seeds. Two
runs are also compared by the numbers of steps in which they reach the worse of their
two final values; the logarithm of the ratio of these numbers has a t interval too.
The *margin* is the largest acceptable difference: a share of the baseline's improvement
in training, but never less than the scatter of its final values over the seeds.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import astuple, dataclass, replace
from functools import cached_property
from typing import Literal

import numpy as np
from scipy.special import stdtrit

from neuronjax.report.study_curves import Curve, Curves

Kind = Literal["baseline", "like", "slower", "worse", "diverges", "undecided"]

#: The largest number of seeds that a verdict proposes.
_MOST_SEEDS = 100
#: A machine that needs this many times the baseline's steps is "worse", not "slower".
_MANY_TIMES = 4.0
#: The largest scatter of the baseline's final values, as a share of its improvement.
_SHARE_OF_SCATTER = 0.25


@dataclass(frozen=True)
class Interval:
    """An estimate with its confidence interval, whose bounds are NaN for one seed."""

    estimate: float
    low: float
    high: float

    def __str__(self) -> str:
        return self.shown()

    def scaled(self, factor: float) -> Interval:
        """Return the interval of the estimate multiplied by a number."""
        ends = sorted((factor * self.low, factor * self.high))
        return Interval(factor * self.estimate, *ends)

    def shown(self, sign: str = "", most: int = 7) -> str:
        """Return "estimate ± half width" as text, with one or two significant digits of
        the half width, and at most `most` digits after the decimal point. If `sign` is
        "+", a positive estimate has a sign."""
        half = (self.high - self.low) / 2
        known = math.isfinite(half) and half > 0
        smallest = half if known else abs(self.estimate)
        # A half width of 0.0196 is shown as 0.020, and one of 0.0212 as 0.02.
        leading = math.floor(math.log10(smallest / 2)) if 0 < smallest < math.inf else 0
        digits = min(max((0 if known else 3) - leading, 2), most)
        text = f"{self.estimate:{sign}.{digits}f}"
        return text if math.isnan(half) else f"{text} ± {half:.{digits}f}"

    def times(self, other: Interval) -> Interval:
        """Return the interval of a product of independent positive estimates.

        The logarithms of the relative bounds are added in quadrature."""
        value = self.estimate * other.estimate
        low, high = (
            math.hypot(*(math.log(getattr(i, end) / i.estimate) for i in (self, other)))
            for end in ("low", "high")
        )
        return Interval(value, value * math.exp(-low), value * math.exp(high))


def mean_interval(values: np.ndarray, confidence: float) -> Interval:
    """Return the mean of values [n] with Student's t interval."""
    mean, count = float(values.mean()), len(values)
    if count < 2:
        return Interval(mean, math.nan, math.nan)
    half = float(half_width(values, confidence))
    return Interval(mean, mean - half, mean + half)


def half_width(values: np.ndarray, confidence: float) -> np.ndarray:
    """Return half the width of `mean_interval` over n runs, for values [n, ...]."""
    deviation, count = values.std(axis=0, ddof=1), len(values)
    return _quantile(confidence, count) * deviation / math.sqrt(count)


def _quantile(confidence: float, count: int) -> float:
    return float(stdtrit(count - 1, (1 + confidence) / 2))


@dataclass(frozen=True, kw_only=True)
class TrainingVerdict:
    """The comparison of a machine's training with the baseline's.

    Attributes:
        kind: "like" the baseline, "slower" (to the same value), "worse", "diverges",
            "undecided", or the "baseline" itself.
        seeds: the number of compared pairs of runs: those that diverge in neither run.
        difference: the machine's final values minus the baseline's.
        steps_ratio: steps to the same value, divided by those of the baseline; None if
            `kind` is "worse", since the metric no longer falls, or falls too slowly.
        margin: the largest difference that passes as "like".
        diverged: by seed, the first step at which the metric is not finite, or after
            which it stays above its start.
        more_seeds: how many more seeds would decide, if the scatter stays the same;
            None if more than 100 seeds are needed, or if seeds cannot decide.
        reason: why more seeds cannot decide; "" if they can.
    """

    machine: str
    kind: Kind
    seeds: int = 0
    difference: Interval | None = None
    steps_ratio: Interval | None = None
    margin: float = math.nan
    diverged: Mapping[int, int]
    more_seeds: int | None = None
    reason: str = ""

    def words(self, baseline: str) -> str:
        """Return the verdict as a sentence without its subject, the machine."""
        found, ratio = self.difference, self.steps_ratio
        if self.kind == "slower" and ratio is not None:
            return f"needs {ratio.shown(most=3)} times the steps"
        if self.kind == "worse" and found is not None:
            return f"worse by {found.scaled(-1) if found.estimate < 0 else found}"
        if self.kind == "diverges":
            steps = sorted(set(self.diverged.values()))
            at = f"s {steps[0]} to {steps[-1]}" if len(steps) > 1 else f" {steps[0]}"
            total = self.seeds + len(self.diverged)
            return f"diverges at step{at}, in {len(self.diverged)} of {total} seeds"
        if self.kind == "undecided":
            more, plural = self.more_seeds, "s" * (self.more_seeds != 1)
            seeds = f"{more} more seed{plural} would decide"
            many = f"more than {_MOST_SEEDS} seeds would be needed"
            return f"undecided: {self.reason or (seeds if more else many)}"
        return "the baseline" if self.kind == "baseline" else f"trains like {baseline}"


def last_steps(found: Curves, given: int | None) -> int:
    """Return how many last steps are averaged: `given`, or a tenth of all steps."""
    return given or max(1, min(len(curve.steps) for curve in found.values()) // 10)


def training_verdicts(
    found: Curves, baseline: str, *, margin: float, last: int, confidence: float
) -> dict[str, TrainingVerdict]:
    """Return the verdict on every machine, by label, from its curve and the baseline's.

    If the baseline's metric falls, less is better, otherwise more. `margin` is a share
    of the baseline's improvement from first step to final value; `last` is the number
    of steps whose mean is a final value; `confidence` is 0.95 for 95 %."""
    sign = 1.0 if _fall(found[baseline], last) >= 0 else -1.0
    runs = {x: replace(curve, values=sign * curve.values) for x, curve in found.items()}
    judge = _Judge(runs[baseline], baseline, margin, last, confidence, sign)
    return {label: judge.verdict(label, curve) for label, curve in runs.items()}


def ends_of(curve: Curve, last: int) -> np.ndarray:
    """Return the final value of every run: its mean over the last steps, [seeds]."""
    return curve.values[:, -last:].mean(axis=1)


def _fall(curve: Curve, last: int) -> float:
    """Return the mean fall of finite runs from the first step to the final value."""
    falls = curve.values[:, 0] - ends_of(curve, last)
    return float(np.mean(falls[np.isfinite(falls)])) if np.isfinite(falls).any() else 0


@dataclass(frozen=True)
class _Judge:
    """The baseline's runs and the criteria. All values are multiplied by `sign`, so
    that less is better."""

    reference: Curve
    baseline: str
    share: float
    last: int
    confidence: float
    sign: float

    def verdict(self, label: str, own: Curve) -> TrainingVerdict:
        diverged = self._divergences(own)
        lost = {*diverged, *self._divergences(self.reference)}
        common = [seed for seed in own.seeds if seed in self.reference.seeds]
        seeds = tuple(seed for seed in common if seed not in lost)
        judged = TrainingVerdict(
            machine=label,
            kind="undecided",
            seeds=len(seeds),
            margin=self._margin,
            diverged=diverged,
            reason=self._obstacle(),
        )
        if label == self.baseline:
            return replace(judged, kind="baseline")
        if judged.reason:
            return judged
        if diverged:
            return replace(judged, kind="diverges")
        return self._compared(judged, own.rows(seeds), self.reference.rows(seeds))

    def _compared(
        self, judged: TrainingVerdict, own: Curve, reference: Curve
    ) -> TrainingVerdict:
        """Return `judged` with the verdict from pairs of runs that do not diverge."""
        differences = ends_of(own, self.last) - ends_of(reference, self.last)
        worse = mean_interval(differences, self.confidence)
        logs = np.log(_steps_ratios(own, reference, self.last))
        ends = astuple(mean_interval(logs, self.confidence))
        ratio = Interval(*(math.exp(x) if x < 99 or x != x else math.inf for x in ends))
        kind = self._kind(worse, ratio, own)
        return replace(
            judged,
            kind=kind,
            difference=worse.scaled(self.sign),
            steps_ratio=None if kind == "worse" else ratio,
            more_seeds=self._more_seeds(differences) if kind == "undecided" else None,
        )

    def _kind(self, worse: Interval, ratio: Interval, own: Curve) -> Kind:
        if worse.high <= self._margin:
            return "like"
        if not worse.low > self._margin:
            return "undecided"
        half = replace(own, values=own.values[:, len(own.steps) // 2 :])
        rises = ends_of(half, self.last) > half.values.mean(axis=1)
        stopped = {*half.unmoved, *np.array(own.seeds)[rises].tolist()}
        falls = 2 * len(stopped) < len(own.seeds)
        later = 1 < ratio.estimate and ratio.high < _MANY_TIMES
        return "slower" if falls and later else "worse"

    def _more_seeds(self, differences: np.ndarray) -> int | None:
        """Return how many more seeds would separate the interval from the margin."""
        have = len(differences)
        if have < 2:
            return 2 - have
        gap = abs(self._margin - differences.mean())
        deviation = differences.std(ddof=1)
        for count in range(have + 1, _MOST_SEEDS + 1):
            half = _quantile(self.confidence, count) * deviation / math.sqrt(count)
            if half < gap:
                return count - have
        return None

    @cached_property
    def _margin(self) -> float:
        return max(self.share * _fall(self.reference, self.last), self._scatter)

    @cached_property
    def _scatter(self) -> float:
        ends = ends_of(self.reference, self.last)
        ends = ends[np.isfinite(ends)]
        return float(ends.std(ddof=1)) if len(ends) > 1 else 0.0

    def _obstacle(self) -> str:
        """Return why no machine can be compared with the baseline, or ""."""
        if len(self._divergences(self.reference)) == len(self.reference.seeds):
            return f"{self.baseline} diverges itself"
        if set(self.reference.unmoved) == set(self.reference.seeds):
            return f"{self.baseline} does not train"
        if self._scatter > _SHARE_OF_SCATTER * _fall(self.reference, self.last):
            return (
                f"the last values of {self.baseline} scatter over the seeds by more "
                "than a quarter of their improvement; train for more steps"
            )
        return ""

    def _divergences(self, curve: Curve) -> dict[int, int]:
        """Return, by seed of each run that diverges, the step at which it diverges.

        This is the first step that is not finite. A finite run diverges if its moving
        mean stays above its start by more than the margin, from the returned step."""
        found = {}
        for seed, row in zip(curve.seeds, curve.values, strict=True):
            finite = np.isfinite(row)
            if not finite.all():
                found[seed] = int(curve.steps[np.argmin(finite)])
                continue
            mean = _moving_mean(row, self.last)
            if mean[-1] > row[0] + self._margin:
                below = np.flatnonzero(mean <= row[0] + self._margin)
                found[seed] = int(curve.steps[below[-1] + 1 if below.size else 0])
        return found


def _steps_ratios(own: Curve, reference: Curve, last: int) -> np.ndarray:
    """Return, by seed, the number of steps in which `own` reaches the worse of the two
    final values, divided by the number in which `reference` reaches it."""
    ratios = []
    for row, other in zip(own.values, reference.values, strict=True):
        means = [_moving_mean(values, last) for values in (row, other)]
        value = max(mean[-1] for mean in means)
        reached = [_first_at(mean, value, last) for mean in means]
        ratios.append(reached[0] / reached[1])
    return np.array(ratios)


def _moving_mean(row: np.ndarray, window: int) -> np.ndarray:
    """Return, for each step, the mean of the last `window` steps up to this step."""
    sums = np.concatenate(([0.0], np.cumsum(row)))
    ends = np.arange(1, len(row) + 1)
    starts = np.maximum(ends - window, 0)
    return (sums[ends] - sums[starts]) / (ends - starts)


def _first_at(mean: np.ndarray, value: float, window: int) -> float:
    """Return the number of steps after which a moving mean falls to `value`. A mean
    counts at the middle of its window; between two means, steps are interpolated."""
    ends = np.arange(1, len(mean) + 1)
    middles = ends - (np.minimum(ends, window) - 1) / 2
    index = int(np.argmax(mean <= value))
    if index == 0:
        return float(middles[0])
    above, below = mean[index - 1], mean[index]
    part = float((above - value) / (above - below))
    return float(middles[index - 1] + part * (middles[index] - middles[index - 1]))
