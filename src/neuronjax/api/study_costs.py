"""Dollars to the same loss: a study's ratios of steps on priced instances.

A study trains a small model; the step of the real size is priced by shapes alone, as
`estimate` does. A policy that needs 1.06 times the steps to the baseline's loss is
charged 1.06 times the steps of the baseline.
"""

from __future__ import annotations

import textwrap
from collections.abc import Iterator, Mapping, Sequence
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
from neuronjax.report.quantities import decimal, seconds
from neuronjax.report.study_verdicts import Interval, TrainingVerdict
from neuronjax.report.tables import NAME, NUMBER, Displayed, Records, new_table
from neuronjax.timing.money import TrainingCost

_ONE = Interval(1.0, 1.0, 1.0)


@dataclass(frozen=True, kw_only=True)
class CostToLoss:
    """What it costs to train to the baseline's loss; None where that is not known.

    Attributes:
        machine: the instance, or the caller's machine.
        policy: the study's label; "" of the caller's machine.
        verdict: its kind; "given" of the caller's machine.
        steps: of the optimizer, to the same loss.
        step_seconds: of one step, with the 80 % interval of measured times like it.
        hours: rented.
        dollars: for all of it. The interval has those of the steps' ratio and of the
            seconds, added in quadrature.
    """

    machine: str
    policy: str
    verdict: str
    steps: float | None
    step_seconds: Interval
    hours: float | None
    dollars: Interval | None

    @property
    def record(self) -> dict[str, Any]:
        """Return the fields in a flat dict, for a data frame or JSON."""
        flat = {}
        for name, value in asdict(self).items():
            if isinstance(value, dict):
                ends = {f"{name}_{end}": value[end] for end in ("low", "high")}
                flat |= {name: value["estimate"]} | ends
            else:
                flat[name] = value
        return flat


@dataclass(frozen=True, kw_only=True, repr=False, eq=False)
class StudyCosts(Displayed):
    """Dollars to the same loss, a row for every instance and policy.

    Attributes:
        rows: in the order of the estimate.
        estimate: what a step of the real size takes.
        notes: which policy of fewer bits is slower than another, and by which op.
        confidence: of the intervals of the ratios of steps.
    """

    rows: tuple[CostToLoss, ...]
    estimate: Estimate
    notes: tuple[str, ...]
    confidence: float

    @property
    def records(self) -> Records:
        """Return a flat dict for every row: `pandas.DataFrame(costs.records)`."""
        return Records(row.record for row in self.rows)

    def __rich__(self) -> Group:
        columns = {
            "machine": NAME,
            "policy": {"style": "bold", "overflow": "fold"},
            **dict.fromkeys(("steps", "step", "time", "cost", "from", "to"), NUMBER),
        }
        table = new_table(
            f"{self.estimate.name}: dollars to the same loss",
            columns,
            map(_cells, self.rows),
            caption="Steps: those asked for, times the study's ratio. Step: modelled. "
            "From, to: the intervals of the ratio "
            f"({100 * self.confidence:.4g} %) and of measured times like it (80 %), in "
            "quadrature.",
        )
        notes = (f"note: {note}" for note in self.notes)
        return Group(table, *map(Text, (*notes, *self.estimate.remarks())))


def _cells(row: CostToLoss) -> tuple[str, ...]:
    cost = row.dollars
    return (
        textwrap.fill(row.machine, 17, break_long_words=False),
        row.policy,
        "-" if row.steps is None else decimal(row.steps),
        seconds(row.step_seconds.estimate),
        duration(row.hours),
        *(dollars(cost and getattr(cost, end)) for end in ("estimate", "low", "high")),
    )


def study_costs(
    estimated: Estimate,
    verdicts: Mapping[str, TrainingVerdict],
    confidence: float,
) -> StudyCosts:
    """Charge every row of an estimate for the steps that its policy needs.

    The estimate's policies have the labels of the study as their names."""
    profiles = iter(estimated.profiles)
    rows = []
    for cost in estimated.costs:
        if cost.policy:
            seconds_ = _seconds(cost, next(profiles))
            rows.append(_row(cost, verdicts[cost.policy], seconds_))
        else:
            known = Interval(*3 * (cost.step_seconds,))
            rows.append(_row(cost, None, known))
    notes = tuple(_slower(estimated.profiles))
    return StudyCosts(
        rows=tuple(rows), estimate=estimated, notes=notes, confidence=confidence
    )


def _seconds(cost: TrainingCost, found: Profile) -> Interval:
    """Return the seconds of a step; the program's interval holds for the whole step."""
    sure, whole = found.confidence, cost.step_seconds
    if sure is None:
        return Interval(whole, whole, whole)
    scale = whole / found.total_seconds
    low, high = sure.low_seconds * scale, sure.high_seconds * scale
    return Interval(whole, min(low, whole), max(high, whole))


def _row(
    cost: TrainingCost,
    verdict: TrainingVerdict | None,
    step_seconds: Interval,
) -> CostToLoss:
    ratio = _ratio(verdict)
    steps = hours = total = None
    if ratio is not None and cost.dollars is not None and cost.hours is not None:
        share = step_seconds.times(ratio).scaled(1 / step_seconds.estimate)
        total = share.scaled(cost.dollars)
        hours = cost.hours * ratio.estimate
    if ratio is not None and cost.steps is not None:
        steps = cost.steps * ratio.estimate
    return CostToLoss(
        machine=cost.machine,
        policy=cost.policy,
        verdict=verdict.kind if verdict else "given",
        steps=steps,
        step_seconds=step_seconds,
        hours=hours,
        dollars=total,
    )


def _ratio(verdict: TrainingVerdict | None) -> Interval | None:
    """Return the ratio of steps; None of a policy that diverges or was not compared."""
    if verdict is None or verdict.kind == "baseline":
        return _ONE
    return None if verdict.kind == "diverges" else verdict.steps_ratio


def labelled(
    numerics: Mapping[str, Policy | None],
    targets: Mapping[str, str],
    instance: Names,
) -> list[Policy]:
    """Return the policies that were studied on an instance's chip, named as labelled.

    Args:
        numerics: label -> policy; None of the host.
        targets: label -> target.
        instance: as `estimate`.

    Raises:
        InvalidProgramError: no policy was studied on these chips.
    """
    chips = {target.chip.name for target in targets_of(None, instance)}
    emulated = {label: policy for label, policy in numerics.items() if policy}
    studied = {label: resolve_target(targets[label]).chip.name for label in emulated}
    found = [replace(p, name=x) for x, p in emulated.items() if studied[x] in chips]
    if not found:
        on = ", ".join(dict.fromkeys(studied.values())) or "the host alone"
        raise InvalidProgramError(
            f"dollars on {', '.join(sorted(chips))}: the study was on {on}",
            remedy="study a policy on that chip, target='trn2', or give instance=",
        )
    return found


# -- where fewer bits take longer ------------------------------------------------------


def _slower(profiles: Sequence[Profile]) -> Iterator[str]:
    """Say which program takes longer in fewer bits than another, and by which op."""
    for narrow in profiles:
        for wide in profiles:
            same = narrow.target.name == wide.target.name
            if same and _matmul_bits(narrow) < _matmul_bits(wide):
                longer = narrow.total_seconds - wide.total_seconds
                if longer > 0:
                    yield _why_longer(narrow, wide)


def _matmul_bits(found: Profile) -> int:
    """Return the bits of the narrowest operand of a matmul."""
    widths = [
        operand.type.dtype.itemsize * 8
        for i in found.lowered.instructions
        if i.name in ("nc_matmul", "nc_matmul_mx")
        for operand in i.operands[:2]
    ]
    return min(widths, default=32)


def _why_longer(narrow: Profile, wide: Profile) -> str:
    busy, before = _busy(narrow), _busy(wide)
    op, queue = most = max(busy, key=lambda key: busy[key] - before.get(key, 0.0))
    times = [seconds(p.total_seconds) for p in (narrow, wide)]
    return (
        f"{narrow.policy.name} takes {times[0]} a step on {narrow.target.name} and "
        f"{wide.policy.name} {times[1]}: {op} keeps {queue} busy for "
        f"{seconds(busy[most])}, not {seconds(before.get(most, 0.0))}; "
        "nj.search_precision finds the parts that gain from fewer bits"
    )


def _busy(found: Profile) -> dict[tuple[str, str], float]:
    """Return the seconds of every op on every queue."""
    ops = found.by_op().items()
    return {(op, q): s for op, used in ops for q, s in used.seconds.items()}
