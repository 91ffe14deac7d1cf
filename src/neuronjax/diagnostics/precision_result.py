"""The result of `search_precision`: the policy, and how it was found."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from neuronjax.diagnostics.precision_groups import OpGroup, explained
from neuronjax.diagnostics.precision_policies import Assignment, policy_code
from neuronjax.diagnostics.precision_strategies import (
    EXCESS,
    EXCESS_HELD_OUT,
    SAVES_NO_TIME,
    Decision,
    became_of,
    path_to,
)
from neuronjax.diagnostics.precision_trials import Tried as Tried
from neuronjax.policy import Policy
from neuronjax.report.casts import AS_FAST_AS_TF32, NO_FASTER_THAN_TF32
from neuronjax.report.quantities import seconds as in_words
from neuronjax.report.tables import (
    NAME,
    NUMBER,
    PLAIN,
    RIGHT,
    TEXT,
    WORD,
    Displayed,
    Records,
    new_table,
)

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_SHOWN_GROUPS = 24
_SHOWN_DECISIONS = 16
#: Predicted times with a smaller ratio count as equal.
_AS_FAST = 1.01
_STYLES = {"kept": "green", "tolerated": ""}
_REFUSED_LATER = {"undone": EXCESS_HELD_OUT, "given up": "better without it"}


@dataclass(frozen=True, kw_only=True, repr=False)
class PrecisionSearch(Displayed):
    """The cheapest policy within a tolerance, and every decision of the search.

    Times are predictions of the model of `neuronjax.profile`, errors are measured.

    Attributes:
        policy: the resulting policy, for `neuronjax.jit`.
        setting: the first line of every report: target, logical core, numerics and SDK.
        strategy: "greedy" or "bisection".
        tolerance: the largest allowed error.
        candidates: names of the candidates, the baseline last.
        assignment: index of the candidate of every group.
        error, baseline_error: errors of the policy and of the baseline.
        seconds, baseline_seconds: predicted times of the policy and of the baseline.
        tried: all policies that were run.
        evaluations: number of programs that were run, including the reference's.
        budget_spent: whether `max_evaluations` ended the search.
        margin: factor by which errors were multiplied before `tolerance` was checked.
        batches: number of batches that the search saw.
        held_out: number of batches that the search did not see; variations of the first
            batch if `held_out_varied`.
        held_out_error: the policy's worst error on held-out batches; None without them.
        elements: number of measured numbers per batch.
        worst_where: path of an output -> number of programs whose error exceeded the
            tolerance and was largest in this output, in falling order; the path is ""
            if the metric is a function.
        compilations, compile_seconds: number and time of XLA's compilations.
    """

    policy: Policy
    name: str
    target: str
    setting: str
    strategy: str
    metric: str
    tolerance: float
    reference: str
    groups: tuple[OpGroup, ...]
    candidates: tuple[str, ...]
    assignment: Assignment
    error: float
    baseline_error: float
    seconds: float
    baseline_seconds: float
    decisions: tuple[Decision, ...]
    tried: tuple[Tried, ...]
    evaluations: int
    budget_spent: bool
    margin: float = 1.0
    batches: int = 1
    held_out: int = 0
    held_out_varied: bool = False
    held_out_error: float | None = None
    elements: int = 0
    worst_where: Mapping[str, int] = field(default_factory=dict)
    compilations: int = 0
    compile_seconds: float = 0.0

    @property
    def speedup(self) -> float:
        """Return the predicted time of the baseline over that of the policy."""
        return self.baseline_seconds / self.seconds if self.seconds else 1.0

    @cached_property
    def _path(self) -> tuple[int, ...]:
        return path_to(self.assignment, self.decisions)

    @cached_property
    def _became(self) -> tuple[str, ...]:
        return became_of(self.assignment, self.decisions)

    @property
    def precisions(self) -> dict[str, str]:
        """Return the name of each group's candidate, by the name of the group."""
        pairs = zip(self.groups, self.assignment, strict=True)
        return {group.name: self.candidates[chosen] for group, chosen in pairs}

    @property
    def records(self) -> Records:
        """Return one flat dict per decision, for a data frame."""
        return Records(
            {
                "number": number,
                "stage": d.stage,
                "groups": self._names(d.groups),
                "candidate": self.candidates[d.candidate],
                "error": d.error,
                "seconds": d.seconds,
                "speedup": self.baseline_seconds / d.seconds if d.seconds else None,
                "outcome": d.outcome,
                "why": d.why,
            }
            for number, d in enumerate(self.decisions)
        )

    def as_code(self) -> str:
        """Return Python code that creates the policy."""
        return policy_code(self.policy)

    def as_dict(self) -> dict[str, Any]:
        plain = ("name", "target", "strategy", "metric", "tolerance", "reference")
        figures = ("error", "baseline_error", "seconds", "baseline_seconds", "speedup")
        counts = ("evaluations", "budget_spent", "batches", "held_out", "margin")
        counts += ("held_out_varied", "held_out_error", "worst_where", "compilations")
        return {
            **{name: getattr(self, name) for name in (*plain, *figures, *counts)},
            "policy": self.as_code(),
            "precisions": self.precisions,
            "decisions": self.records,
        }

    def plot(self) -> Figure:
        """Return a Matplotlib figure of time and error of all policies that were tried.

        The line goes from the baseline to the result. Policies with an error of zero
        are on a separate line, named "exact"."""
        from neuronjax.report.plots_search import Trial, draw_search

        path = [self.decisions[n] for n in self._path]
        changed = {d.assignment: self._change(d) for d in (*self.decisions, *path)}
        return draw_search(
            f"{self.name} on {self.target}: {self.speedup:.2f}x predicted",
            f"{self.metric} against {self.reference}",
            self.tolerance,
            self.margin,
            self.baseline_seconds,
            tried=[
                Trial(t.seconds, t.error, changed.get(t.assignment, ""))
                for t in self.tried
            ],
            path=[
                Trial(d.seconds or 0.0, d.error or 0.0, self._change(d)) for d in path
            ],
            found=Trial(self.seconds, self.error),
        )

    def __repr__(self) -> str:
        return (
            f"<neuronjax.PrecisionSearch of {self.name} on {self.target}: "
            f"{self.speedup:.2f}x, error {self.error:.3g}>"
        )

    def __rich__(self) -> RenderableType:
        tables = self._groups_table(), self.steps_table(), self.decisions_table()
        return Group(self._headline(), *tables)

    def _headline(self) -> Text:
        lines = [
            f"{self.name} on {self.setting}:",
            f"predicted "
            f"{in_words(self.baseline_seconds)} -> {in_words(self.seconds)}, "
            f"{self.speedup:.2f}x",
            f"{self.metric} {self.error:.3g} against {self.reference}, tolerance "
            f"{self.tolerance:.3g}",
            *self._judged(),
            f"{self.strategy}, {self.evaluations} programs run"
            + ", the whole budget" * self.budget_spent
            + f"; XLA compiled {self.compilations} ops or programs in "
            f"{in_words(self.compile_seconds)}",
        ]
        if self.speedup < 1:
            slower = "predicted slower than the baseline"
            lines.append(f'{slower}; objective="time" avoids this')
        lines += self._better_uniform()
        return Text("\n".join([*lines, ""]))

    def _better_uniform(self) -> Iterator[str]:
        """Yield notes on candidates that beat the result if all groups get them."""
        refused = {d.assignment for d in self.decisions if d.stage == "held out"}
        baseline = len(self.candidates) - 1
        for tried in self.tried:
            (candidate, *others) = {*tried.assignment}
            if others or candidate == baseline or tried.assignment in refused:
                continue
            if tried.error * self.margin > self.tolerance:
                continue
            faster = tried.seconds < self.seconds
            exact = tried.error < self.error
            if faster or (exact and tried.seconds <= _AS_FAST * self.seconds):
                words = ["faster"] * faster + ["more exact"] * exact
                which = f"{self.candidates[candidate]} for all groups is"
                figures = f"{in_words(tried.seconds)}, error {tried.error:.2g}"
                yield f"{which} {' and '.join(words)}: {figures}"

    def _judged(self) -> Iterator[str]:
        seen = "1 batch" if self.batches == 1 else f"{self.batches} batches"
        kept = "variations of it" if self.held_out_varied else "held-out batches"
        beside = ""
        if self.held_out_error is not None:
            beside = f"; error on {self.held_out} {kept}: {self.held_out_error:.3g}"
        yield f"judged on {seen} with a margin of {self.margin:g}{beside}"
        if self.batches == 1 and (self.held_out_varied or not self.held_out):
            seen = "errors on other data may be larger; pass other data"
            yield f"{seen} as batches= or holdout= of nj.search_precision"
        for path, times in [*self.worst_where.items()][:1]:
            if path:  # "" if the metric is a function
                total = sum(self.worst_where.values())
                yield f"of {total} programs with too large an error, {times} have the"
                yield f"  largest error in {path}; outputs= selects outputs"
        if self.elements == 1:
            yield "errors may cancel in the only number that was measured: measure more"

    def steps_table(self) -> Table:
        """Return a table of the steps to the policy, and of steps undone later."""
        path, every = self._path, enumerate(self.decisions)
        told = [n for n, d in every if n in path or d.stage == "held out"]
        columns = {"#": RIGHT, "step": PLAIN, "group": TEXT, "to": WORD}
        return new_table(
            "Step by step, from the baseline",
            columns | dict.fromkeys(("predicted", "speed", "error"), NUMBER),
            (
                (*self._cells(n, "" if n in path else "undone"), time, speed, error)
                for n in told[-_SHOWN_DECISIONS:]
                for time, speed, error in [self._figures(n)]
            ),
            "\n".join(self._explained()) or None,
        )

    def _cells(self, number: int, stage: str = "") -> tuple[str, ...]:
        d = self.decisions[number]
        to = self.candidates[d.candidate]
        return str(number), stage or d.stage, self._names(d.groups), to

    def _figures(self, number: int) -> tuple[str, str, str]:
        d = self.decisions[number]
        return (
            "" if d.seconds is None else in_words(d.seconds),
            f"{self.baseline_seconds / d.seconds:.2f}x" if d.seconds else "",
            "" if d.error is None else f"{d.error:.2g}",
        )

    def _explained(self) -> Iterator[str]:
        steps = [self.decisions[n] for n in self._path]
        for before, after in itertools.pairwise(steps):
            if after.candidate > before.assignment[after.groups[0]]:
                to = self.candidates[after.candidate]
                yield f"back to {to}: {to} is faster here, since casts take time too"
                break
        lost = self._became.count("given up")
        if steps[-1].stage == "best" and lost:
            given_up = f"the {lost} step{'s' * (lost > 1)} given up"
            yield f"best: changing only this group is better than {given_up}"

    def _groups_table(self) -> Table:
        shown = self.groups[:_SHOWN_GROUPS]
        hidden = len(self.groups) - len(shown)
        told = [f"and {hidden} more, see result.precisions"] if hidden else []
        told += explained(shown, self.groups)
        chosen = [self.candidates[a] for a in self.assignment]
        return new_table(
            "The precision of every group of ops",
            {
                "group": TEXT,
                "ops": RIGHT,
                "precision": NAME,
                "not": WORD,
                "because": WORD,
            },
            (
                (group.name, str(group.ops), chosen[n], *self._refused(n))
                for n, group in enumerate(shown)
            ),
            "\n".join((*told, *self._casts())) or None,
        )

    def _casts(self) -> Iterator[str]:
        """Yield a note if a narrower type was rejected because TF32 is as fast."""
        for d, outcome in zip(self.decisions, self._became, strict=True):
            to = self.candidates[d.candidate]
            instead = {self.candidates[self.assignment[group]] for group in d.groups}
            lost = outcome == "rejected" and d.why == SAVES_NO_TIME
            if lost and to in AS_FAST_AS_TF32 and instead == {"tf32"}:
                yield f"{to} saves no time: {NO_FASTER_THAN_TF32}"
                return

    def _refused(self, group: int) -> tuple[str, str]:
        """Return (last cheaper candidate that a group did not get, why); else ("",
        "")."""
        for d, outcome in reversed([*zip(self.decisions, self._became, strict=True)]):
            is_refused = outcome == "rejected" or outcome in _REFUSED_LATER
            is_cheaper = group in d.groups and d.candidate < self.assignment[group]
            if is_refused and is_cheaper:
                return self.candidates[d.candidate], self._because(d, outcome)
        return "", ""

    def _because(self, d: Decision, outcome: str) -> str:
        if outcome in _REFUSED_LATER:
            return _REFUSED_LATER[outcome]
        if d.why == SAVES_NO_TIME and d.seconds and d.kept_seconds:
            return f"time {in_words(d.seconds)} >= {in_words(d.kept_seconds)}"
        if d.why != EXCESS or d.error is None:
            return d.why if len(d.why) <= 24 else f"{d.why[:23]}…"
        return f"error {d.error:.3g}{self._margin} > {self.tolerance:g}"

    @property
    def _margin(self) -> str:
        return f" x {self.margin:g}" if self.margin != 1 else ""

    def decisions_table(self, rows: int | None = _SHOWN_DECISIONS) -> Table:
        """Return a table of the decisions for which a program was run: the last `rows`,
        or all if `rows` is None."""
        run = [n for n, d in enumerate(self.decisions) if d.error is not None]
        shown = run if rows is None else run[-rows:]
        title = f"{len(shown)} of {len(run)} decisions whose error was computed"
        columns = {"#": RIGHT, "stage": PLAIN, "group": TEXT, "to": WORD}
        cells = (
            (*self._cells(n), error, time, Text(word, _STYLES.get(word, "red")))
            for n in shown
            for word, (time, _, error) in [(self._became[n], self._figures(n))]
        )
        return new_table(
            title,
            columns | {"error": NUMBER, "predicted": NUMBER, "": WORD},
            cells,
            caption="Error and time are those of the whole program.\n"
            f"Tolerated: error{self._margin} <= {self.tolerance:g}",
        )

    def _change(self, d: Decision) -> str:
        name, to = self._names(d.groups), self.candidates[d.candidate]
        return f"all {to}" if name == "all" else f"{name} to {to}"

    def _names(self, groups: Sequence[int]) -> str:
        if len(groups) == len(self.groups):
            return "all"
        return ", ".join(self.groups[g].name for g in groups)
