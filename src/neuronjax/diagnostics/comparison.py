"""The result of `compare`: the errors of every op, and where they begin.

A record has the errors of one op, reached by one path of calls, over all its
executions. "isolation" is the error that the op makes on the reference's values,
"accumulation" its error in the run, in which errors propagate. Ops that only move
numbers make no errors, and appear in a table only if they differ in isolation.
"""

from __future__ import annotations

import math
import statistics
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from neuronjax.diagnostics.comparison_tables import (
    group_table,
    op_table,
    short,
    three_way_table,
)
from neuronjax.diagnostics.differences import alike
from neuronjax.diagnostics.faults.page import (
    SHOWN_FAULTS,
    Faults,
    lines_to_change,
    page,
)
from neuronjax.diagnostics.faults.shares import Seen
from neuronjax.diagnostics.faults.verdict import FaultVerdict
from neuronjax.diagnostics.op_errors import Errors
from neuronjax.diagnostics.op_records import FirstDivergence, OpRecord, figures
from neuronjax.errors import InvalidProgramError
from neuronjax.policy.values import check_word
from neuronjax.report.places import place
from neuronjax.report.quantities import finite
from neuronjax.report.summaries import Scalar
from neuronjax.report.tables import Displayed, Records

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_PLAIN = ("name", "target", "policy", "reference", "baseline", "tolerance")
_ISOLATED, _RUN = "on the reference's operands", "in the run"
SORTS = {"isolation": _ISOLATED, "accumulation": _RUN, "order": _RUN}
_NAMES = ("number", "op", "module", "phase", "label", "source")
_SHOWN_ROWS, _SHOWN_RECORDS = 12, 40
_SHOWN_CAUSES = 6
_SHOWN_OUTLIERS = 2
#: A report shows an outlier if its error exceeds this share of the tolerance.
_WORTH_A_LINE = 0.1


@dataclass(frozen=True, kw_only=True, repr=False)
class Comparison(Displayed):
    """The errors of every op of a program against a reference.

    Attributes:
        setting: the first line of every report: target, logical core, numerics and SDK.
        baseline: name of a third run, compared with the run and the reference, or "".
        tolerance: relative L2 error above which a run has diverged; 0 means that every
            bit must agree. None if faults are searched for instead.
        ops: records in program order.
        first_divergence: None if no op exceeds the tolerance.
        verdict: what is wrong, and its cause; None if the reference is a policy.
        results: path of every result and the errors of its elements: "rel_l2", "p99"
            and "max", as shares of the reference's root mean square.
        notes: remarks for the reader of a report.
    """

    name: str
    target: str
    setting: str
    policy: str
    reference: str
    baseline: str
    tolerance: float | None
    ops: tuple[OpRecord, ...]
    first_divergence: FirstDivergence | None
    verdict: FaultVerdict | None = None
    results: tuple[dict[str, Any], ...] = ()
    notes: tuple[str, ...] = ()
    seconds: float = field(default=0.0, compare=False)

    @property
    def faults(self) -> Faults:
        """Return the faults; the op of the first fault is the likeliest cause."""
        return Faults(() if self.verdict is None else self.verdict.faults)

    @property
    def records(self) -> Records:
        """Return one flat dict per op, for a data frame."""
        shown = self.ops[:_SHOWN_RECORDS]
        title = f"{len(shown)} of {len(self.ops)} ops"
        rows = (record.as_dict() for record in self.ops)
        return Records(rows, partial(op_table, title, shown))

    @property
    def differing(self) -> tuple[OpRecord, ...]:
        """Return the ops with an error on the reference's operands, the worst first."""
        return _worst_first((r for r in self.ops if r.errs), "isolation")

    def sorted(self, sort: str = "isolation") -> tuple[OpRecord, ...]:
        """Return the ops that a table shows, in the order of its rows.

        Args:
            sort: "isolation" returns ops with an error on the reference's operands,
                "accumulation" ops with an error in the run, both with the worst
                relative L2 first; "order" returns the ops with an error in the run, in
                program order.

        Raises:
            InvalidProgramError: `sort` is another word.
        """
        check_word("sort", sort, SORTS)
        if sort == "isolation":
            return self.differing
        found = [r for r in self.ops if r.is_arithmetic and r.accumulation.differing]
        if sort == "order":
            return tuple(found)
        return _worst_first(found, "accumulation")

    def outliers(self, factor: float = 4.0) -> tuple[OpRecord, ...]:
        """Return ops that are worse than most ops of the same name, the worst first.

        Their relative L2 error on the reference's operands exceeds `factor` times the
        median error of ops of the same name."""
        kinds: dict[str, list[float]] = {}
        for r in self.ops:
            kinds.setdefault(r.op, []).append(r.isolation.relative_l2)
        usual = {op: statistics.median_low(errors) for op, errors in kinds.items()}

        def excess(r: OpRecord) -> tuple[float, float]:
            error = r.isolation.relative_l2
            return (error / usual[r.op] if usual[r.op] else math.inf), error

        found = [r for r in self.differing if excess(r)[0] > factor]
        return tuple(sorted(found, key=excess, reverse=True))

    def table(self, sort: str = "isolation", rows: int = _SHOWN_ROWS) -> Table:
        """Return the first `rows` ops of `self.sorted(sort)` as a Rich table."""
        found = self.sorted(sort)
        shown = found[:rows]
        count = f"{len(shown)} of {len(found)} shown"
        return op_table(f"ops with an error {SORTS[sort]} ({count})", shown)

    def by_module(self) -> Records:
        """Return a dict per module and pass, largest `isolation_relative_l2` first."""
        rows = _grouped(self.ops, "label")
        pairs = ((self.ops[row["worst"]], row) for row in rows)
        found = ({"module": r.module, "phase": r.phase, **row} for r, row in pairs)
        return Records(found, partial(group_table, rows))

    def by_source(self) -> Records:
        """Return a dict per source line, largest `isolation_relative_l2` first."""
        rows = _grouped(self.ops, "source")
        shown = [row | {"source": place(row["source"])} for row in rows]
        return Records(rows, partial(group_table, shown, "source", "line"))

    def iterations(self, number: int) -> Records:
        """Return the errors of op `number`, a dict per loop iteration with an error."""
        return Records(
            {"iteration": i.index} | figures(i, "isolation", "accumulation")
            for i in self.ops[number].iterations
        )

    def three_way(self) -> Records:
        """Return the errors of the reference and of the run against the baseline.

        There is one dict per op that computes: `expected_relative_l2` (reference
        against baseline), `actual_relative_l2` (run against baseline), their `ratio`,
        and `actual_expected_relative_l2` (run against reference).

        Raises:
            InvalidProgramError: there was no baseline.
        """
        if not self.baseline:
            raise InvalidProgramError(
                "this comparison has no baseline",
                remedy='compare(..., reference="bf16", baseline="float32")',
            )
        return Records(
            {
                **{n: getattr(r, n) for n in _NAMES},
                "expected_relative_l2": r.expected.relative_l2,
                "actual_relative_l2": r.actual.relative_l2,
                "ratio": r.ratio,
                "actual_expected_relative_l2": r.accumulation.relative_l2,
            }
            for r in self.ops
            if r.expected is not None and r.actual is not None and r.is_arithmetic
        )

    def plot(self) -> Figure:
        """Return the errors along the program as a Matplotlib figure."""
        from neuronjax.report.plots_errors import draw_errors

        lines = () if self.verdict is None else self.verdict.lines
        marks = [
            (f.record.number, f"{n}. {f.kind}: op {f.record.number}")
            for n, f in enumerate(lines[:SHOWN_FAULTS], 1)
        ]
        if self.first_divergence is not None:
            record = self.first_divergence.record
            place = f"op {record.number}, {record.short_op}"
            marks.append((record.number, f"first divergence: {place}"))
        title = f"{self.name}: {self.policy} against {self.reference}"
        computing = {r.number for r in self.ops if r.is_arithmetic}
        return draw_errors(title, self.records, computing, marks)

    def as_dict(self) -> dict[str, Any]:
        """Return the comparison as a dict for JSON, with None for Inf."""
        first = self.first_divergence
        return finite(
            {
                **{name: getattr(self, name) for name in _PLAIN},
                "first_divergence": None
                if first is None
                else {
                    "number": first.record.number,
                    "iteration": list(first.iteration),
                    "causes": [r.number for r in first.causes],
                    "verified": first.verified,
                },
                "verdict": None if self.verdict is None else self.verdict.as_dict(),
                "results": [*self.results],
                "notes": list(self.notes),
                "ops": self.records,
            }
        )

    def summary(self) -> dict[str, Scalar]:
        """Return a flat dict: errors of the worst result ("max") and of each result
        ("results/loss/max"), and counts of faults ("faults", "faults/underflow")."""
        kinds = Counter(fault.kind for fault in self.faults)
        return {
            **super().summary(),
            **{n: max((r[n] for r in self.results), default=0.0) for n in FIGURES},
            "faults": len(self.faults),
            **{f"faults/{kind}": count for kind, count in kinds.items()},
        }

    def __repr__(self) -> str:
        return (
            f"<neuronjax.Comparison of {self.name}: {self.policy} on {self.target} "
            f"against {self.reference}, {len(self.ops)} ops>"
        )

    def __rich__(self) -> RenderableType:
        parts: list[RenderableType] = [self._headline()]
        if self.verdict is not None and (self.tolerance is None or self.faults):
            parts += page(self.verdict)
        if self.tolerance is not None:
            parts += [*self._divergence(), *self._outliers()]
        if self.differing:
            parts.append(self.table())
        if len(self.by_module()) > 1:
            parts.append(group_table(self.by_module()[:8]))
        if self.baseline:
            parts.append(three_way_table(self.three_way()))
        parts += [Text(f"note: {note}", style="dim") for note in self.notes]
        if self.verdict is not None:
            parts += lines_to_change(self.verdict)
        return Group(*parts)

    def _headline(self) -> Text:
        unrounded = ", unrounded" if self.reference == "float64" else ""
        worst = next(iter(self.sorted("accumulation")), None)
        rounding = sum(1 for r in self.ops if r.only_rounds)
        more = f", {rounding} more by rounding alone" if rounding else ""
        largest = f"no op differs in the run{', except by rounding' * bool(more)}"
        if worst is not None:
            error = worst.accumulation.relative_l2
            largest = f"the largest error in the run is {short(error)}"
            if worst in self._shown():
                largest += f", at op {worst.number}"
            is_fine = self.verdict is not None and not self.verdict.wrong
            if is_fine and error > 1:  # e.g. a rounding error where 0 is expected
                largest += ", but no result is wrong"
        errors = f"{len(self.differing)} with an error {_ISOLATED}{more}"
        return Text(
            f"{self.name} on {self.setting}\nagainst {self.reference}{unrounded}\n"
            f"{len(self.ops)} ops: {errors}; {largest}"
        )

    def _shown(self) -> Iterator[OpRecord]:
        yield from self.differing[:_SHOWN_ROWS]
        if self.verdict is not None:
            yield from (f.record for f in self.verdict.lines[:SHOWN_FAULTS])
        if self.first_divergence is not None:
            yield self.first_divergence.record

    def _divergence(self) -> list[Text]:
        limit = f"relative L2 above {self.tolerance:g}" if self.tolerance else "any bit"
        first = self.first_divergence
        if first is None:
            nothing = f"no op has a {limit}" if self.tolerance else "no bit differs"
            return [Text(f"no divergence: {nothing}", style="green")]
        lines = [
            f"  relative L2 {short(first.errors.relative_l2)}, "
            f"{first.errors.differing} of {first.errors.elements} elements"
        ]
        for n, cause in enumerate(first.causes[:_SHOWN_CAUSES]):
            how = "  explained by" if n == 0 else "           and"
            what = f"{cause.short_op}, {cause.label}, {cause.line}"
            lines.append(f"{how} op {cause.number}, {what}")
        if (hidden := len(first.causes) - _SHOWN_CAUSES) > 0:
            more = f"{hidden} more, see report.first_divergence.causes"
            lines.append(f"           and {more}")
        if not first.causes:
            lines.append("  no set of ops explains the divergence")
        head = Text(f"first divergence ({limit}): {first}", style="bold red")
        return [head, *map(Text, lines)]

    def _outliers(self) -> Iterator[Text]:
        first = self.first_divergence
        named = () if first is None else (first.record, *first.causes)
        worth = _WORTH_A_LINE * (self.tolerance or 0.0)
        worse = [r for r in self.outliers() if r.isolation.relative_l2 > worth]
        found = [r for r in worse if r not in named]
        for r in found[:_SHOWN_OUTLIERS]:
            what = f"op {r.number}, {r.short_op}, {r.label}, {r.line}"
            error = short(r.isolation.relative_l2)
            text = f"outlier of its kind: {what}: relative L2 {error}"
            yield Text(text, style="yellow")
        if (hidden := len(found) - _SHOWN_OUTLIERS) > 0:
            yield Text(f"  and {hidden} more, see report.outliers()")


_SAMPLED = 4096
#: The root mean square, the 99th percentile and the largest of a result's errors, each
#: divided by the reference's root mean square.
FIGURES = ("rel_l2", "p99", "max")


def result_errors(path: str, result: Seen) -> dict[str, Any]:
    """Return the entry of `Comparison.results` for the result at `path`."""
    pair = result.actual, result.reference
    found, wanted = (np.asarray(x, np.float64) for x in pair)
    if not found.size:
        return {"path": path, **dict.fromkeys(FIGURES, 0.0)}
    with np.errstate(invalid="ignore", over="ignore"):
        errors = np.asarray(np.abs(found - wanted))
        if not np.isfinite(np.max(errors)):
            errors[alike(found, wanted)] = 0.0  # of Inf and NaN
        root = math.sqrt(found.size)
        scale = np.linalg.norm(wanted) / root or 1.0
        figures = np.linalg.norm(errors) / root, _percentile99(errors), np.max(errors)
        pairs = zip(FIGURES, figures, strict=True)
        return {"path": path, **{name: float(x / scale) for name, x in pairs}}


def _percentile99(x: np.ndarray) -> float:
    """Return `np.percentile(x, 99)`. A sample gives a lower bound of the percentile;
    usually only the elements above this bound are searched."""
    x = x.ravel(order="K")
    top = x[x >= np.percentile(x[:: 1 + x.size // _SAMPLED], 98)]
    rank = 0.99 * (x.size - 1) - (x.size - top.size)
    if rank < 0 or np.isnan(np.max(x)):
        return float(np.percentile(x, 99))
    return float(np.quantile(top, rank / max(1, top.size - 1)))


def _grouped(ops: Sequence[OpRecord], name: str) -> list[dict[str, Any]]:
    groups: dict[str, list[OpRecord]] = {}
    for record in ops:
        groups.setdefault(getattr(record, name), []).append(record)
    rows = [{name: text, **_worst(group)} for text, group in groups.items()]
    return sorted(rows, key=lambda r: r["isolation_relative_l2"], reverse=True)


def _worst(group: Sequence[OpRecord]) -> dict[str, Any]:
    isolation = max(group, key=lambda r: _badness(r.isolation))
    accumulation = max(group, key=lambda r: _badness(r.accumulation))
    return {
        "ops": len(group),
        "differing": sum(1 for r in group if r.isolation.differing),
        "worst": isolation.number,
        "isolation_relative_l2": isolation.isolation.relative_l2,
        "isolation_max_ulp": max(r.isolation.max_ulp for r in group),
        "accumulation_relative_l2": accumulation.accumulation.relative_l2,
        "nonfinite_changed": sum(r.accumulation.nonfinite_changed for r in group),
    }


def _worst_first(ops: Iterable[OpRecord], kind: str) -> tuple[OpRecord, ...]:
    return tuple(sorted(ops, key=lambda r: _badness(getattr(r, kind)), reverse=True))


def _badness(errors: Errors) -> tuple[float, float]:
    return errors.relative_l2, errors.max_ulp
