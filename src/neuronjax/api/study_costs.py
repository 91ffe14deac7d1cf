"""The cost of training to the same loss: steps from a study, prices from an estimate.

A study trains a small model; `estimate` predicts the cost of a step of the full-size
model from shapes. A policy that needs 1.06 times the baseline's steps to reach the
baseline's loss in the study is charged for 1.06 times the steps of the baseline.
"""

from __future__ import annotations

import textwrap
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any

from rich.console import Group
from rich.text import Text

from neuronjax.api.estimate import Estimate
from neuronjax.api.instance_costs import Names, targets_of
from neuronjax.api.profile_result import Profile
from neuronjax.errors import InvalidProgramError
from neuronjax.hardware import resolve_target
from neuronjax.policy import Policy
from neuronjax.report.money_tables import dollars, duration
from neuronjax.report.quantities import seconds
from neuronjax.report.study_tables import flat_interval
from neuronjax.report.study_verdicts import Interval, TrainingVerdict
from neuronjax.report.tables import NAME, NUMBER, Displayed, Records, new_table
from neuronjax.timing.collectives import queued_launch_seconds
from neuronjax.timing.money import TrainingCost

_ONE = Interval(1.0, 1.0, 1.0)


@dataclass(frozen=True, kw_only=True)
class CostToLoss:
    """The cost of training to the baseline's loss; unknown figures are None.

    Attributes:
        machine: the instance, or the caller's machine.
        policy: the policy's label in the study; "" for the caller's machine.
        verdict: `TrainingVerdict.kind`; "given" for the caller's machine.
        words: the verdict in words.
        steps: optimizer steps to the baseline's loss.
        step_seconds: seconds of one step, with an 80 % interval from similar programs.
        hours: rented hours.
        dollars: total cost. Its interval combines, in quadrature, the intervals of the
            ratio of steps and of the seconds of a step.
    """

    machine: str
    policy: str
    verdict: str
    words: str
    steps: float | None
    step_seconds: Interval
    hours: float | None
    dollars: Interval | None

    @property
    def record(self) -> dict[str, Any]:
        """Return the fields in a flat dict, for a data frame or JSON."""
        step_seconds = flat_interval("step_seconds", self.step_seconds)
        return asdict(self) | step_seconds | flat_interval("dollars", self.dollars)


@dataclass(frozen=True, kw_only=True, repr=False, eq=False)
class StudyCosts(Displayed):
    """The cost of training to the baseline's loss, by instance and policy.

    Attributes:
        rows: the rows, in the order of the estimate.
        estimate: the estimate for a step of the full-size model.
        baseline: label of the policy whose number of steps is given.
        confidence: confidence level of the intervals of the ratios of steps.
    """

    rows: tuple[CostToLoss, ...]
    estimate: Estimate
    baseline: str
    confidence: float

    @property
    def notes(self) -> tuple[str, ...]:
        """The notes of the estimate, such as why fewer bits may take longer."""
        return self.estimate.notes

    @property
    def records(self) -> Records:
        """Return a flat dict for every row: `pandas.DataFrame(costs.records)`."""
        return Records(row.record for row in self.rows)

    def __rich__(self) -> Group:
        columns = {
            "machine, policy": NAME,
            "verdict": {"overflow": "fold", "min_width": len("undecided:")},
            **dict.fromkeys(("steps", "one step", "time", "cost", "× first"), NUMBER),
        }
        given = {cost.steps: "" for cost in self.estimate.costs if cost.steps}
        table = new_table(
            f"full-size model ({self.estimate.name}): cost and interval, if "
            f"{self.baseline} needs {' or '.join(f'{n:,}' for n in given)} steps",
            columns,
            (_cells(row, self.rows[0]) for row in self.rows),
            caption="steps: those given, times the measured ratio of steps. one step: "
            "the predicted time. Below each cost is its interval. It combines the "
            f"intervals of the ratio ({100 * self.confidence:.4g} %) and of the time "
            "(80 %) in quadrature.",
        )
        return Group(table, *map(Text, self.estimate.remarks()))


def _cells(row: CostToLoss, first: CostToLoss) -> tuple[str, ...]:
    cost, of_first = row.dollars, first.dollars
    ends = [dollars(end) for end in (cost.low, cost.high)] if cost else []
    interval = "\n" + " to\n".join(ends) if len({*ends}) > 1 else ""
    machine = textwrap.fill(row.machine, 17, break_long_words=False)
    return (
        f"{machine}\n  {row.policy}".rstrip(),
        row.words,
        "-" if row.steps is None else f"{row.steps:,.0f}",
        seconds(row.step_seconds.estimate),
        duration(row.hours),
        dollars(cost and cost.estimate) + interval,
        f"{cost.estimate / of_first.estimate:.2f}" if cost and of_first else "-",
    )


def study_costs(
    estimated: Estimate,
    verdicts: Mapping[str, TrainingVerdict],
    baseline: str,
    confidence: float,
) -> StudyCosts:
    """Return, for each row of an estimate, the cost of the steps that the row's policy
    needs. `verdicts` has, by policy label, the comparison with the baseline."""
    profiles = iter(estimated.profiles)
    rows = []
    for cost in estimated.costs:
        verdict = verdicts[cost.policy] if cost.policy else None
        step_seconds = _seconds(cost, next(profiles) if cost.policy else None)
        ratio, total = _ratio(verdict), None
        if ratio is not None and cost.dollars is not None:
            share = step_seconds.times(ratio).scaled(1 / step_seconds.estimate)
            total = share.scaled(cost.dollars)
        row = CostToLoss(
            machine=cost.machine,
            policy=cost.policy,
            verdict=verdict.kind if verdict else "given",
            words=verdict.words(baseline) if verdict else "given time",
            steps=_times(ratio, cost.steps),
            step_seconds=step_seconds,
            hours=_times(ratio, cost.hours),
            dollars=total,
        )
        rows.append(row)
    return StudyCosts(
        rows=tuple(rows), estimate=estimated, baseline=baseline, confidence=confidence
    )


def _seconds(cost: TrainingCost, found: Profile | None) -> Interval:
    """Return the seconds of a step. Their interval is that of the profile `found`,
    scaled, without values below the time of a launch."""
    whole, time = cost.step_seconds, cost.time
    if found is None or found.confidence is None:
        return Interval(whole, whole, whole)
    ranks = cost.devices if time.all_reduce_seconds else cost.devices // cost.copies
    launch = queued_launch_seconds(resolve_target(cost.machine), int(ranks), 0.0)
    sure, scale = found.confidence, (whole - time.launch_seconds) / found.total_seconds
    low, high = sure.low_seconds * scale, sure.high_seconds * scale
    return Interval(whole, min(max(low, launch), whole), max(high, whole))


def _ratio(verdict: TrainingVerdict | None) -> Interval | None:
    if verdict is None or verdict.kind == "baseline":
        return _ONE
    return None if verdict.kind == "diverges" else verdict.steps_ratio


def _times(ratio: Interval | None, figure: float | None) -> float | None:
    return None if ratio is None or figure is None else ratio.estimate * figure


def labelled(
    numerics: Mapping[str, Policy | None], targets: Mapping[str, str], instance: Names
) -> dict[str, Policy]:
    """Return the policies that were studied on an instance's chip, by label.

    Each policy is renamed to its label. A prefix "TARGET/" that all these labels share
    is left out of the names. `numerics` has the policies by label (None for the host),
    and `targets` the targets. Refuse chips on which no policy was studied."""
    chips = {target.chip.name for target in targets_of(None, instance)}
    emulated = {label: policy for label, policy in numerics.items() if policy}
    studied = {label: resolve_target(targets[label]).chip.name for label in emulated}
    found = {x: p for x, p in emulated.items() if studied[x] in chips}
    if not found:
        on = ", ".join(dict.fromkeys(studied.values())) or "the host alone"
        raise InvalidProgramError(
            f"the cost on {', '.join(sorted(chips))} is unknown: {on} was emulated",
            remedy=f"study a policy with target='{min(chips)}', or give instance=",
        )
    common = {f"{targets[x]}/" for x in found}
    prefix = common.pop() if len(common) == 1 else ""
    return {x: replace(p, name=x.removeprefix(prefix)) for x, p in found.items()}
