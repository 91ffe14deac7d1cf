"""The search for the cheapest assignment of candidates to groups.

An assignment is lowered and priced before it is run, and rejected without a run if it
changes nothing, if the target does not support it, or if it saves no predicted time.
The search begins at the baseline and goes to the fastest candidate with which all
groups together are within the tolerance. Then it gives each candidate to groups:

    greedy      to every group alone, to measure its sensitivity; then to one group
                more at a time, the least sensitive first, if the tolerance allows it
    bisection   to the groups in the order of their sensitivity, which is measured once:
                to as many of the least sensitive as are within the tolerance together

Every assignment that is kept has been run as a whole, since errors measured separately
need not add up. At the end these assignments are run on held-out batches, from the last
one backwards, until one is within the tolerance. Only `PolicyTrials` handles programs.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal

from neuronjax.diagnostics.precision_policies import Assignment
from neuronjax.diagnostics.precision_trials import BudgetSpentError, PolicyTrials
from neuronjax.errors import InvalidProgramError, UnsupportedError

STRATEGIES = ("greedy", "bisection")
OBJECTIVES = ("time", "preference")
EXCESS = "exceeds the tolerance"
SAVES_NO_TIME = "saves no time"
EXCESS_HELD_OUT = "held-out error too large"
Outcome = Literal["kept", "tolerated", "rejected"]


@dataclass(frozen=True, kw_only=True)
class Decision:
    """One step of a search.

    Attributes:
        stage: "baseline", "uniform" (all groups), "alone" (one group, to measure its
            sensitivity), "together" (with all that was kept before), "best" (a change
            of one group that is better than the kept steps) or "held out".
        groups: indices of the groups that were changed.
        candidate: index of the candidate that these groups get.
        error: measured error; None if nothing was run.
        seconds: predicted time; None if the program could not be lowered.
        kept_seconds: predicted time of the assignment kept after this decision.
        outcome: "kept", "rejected", or "tolerated" if only the error is used.
    """

    stage: str
    groups: tuple[int, ...]
    candidate: int
    assignment: Assignment
    error: float | None = None
    seconds: float | None = None
    kept_seconds: float | None = None
    outcome: Outcome
    why: str


@dataclass(frozen=True, kw_only=True)
class Goal:
    """The goal of a search.

    Attributes:
        tolerance: the largest allowed error.
        margin: factor by which errors on the search's batches are multiplied before
            they are compared with the tolerance.
        objective: "time" prefers the least predicted time; "preference" the earliest
            candidates, whether they save time or not.
        candidates: number of candidates; the last one is the baseline.
    """

    tolerance: float
    strategy: str
    objective: str
    candidates: int
    groups: int
    margin: float = 1.0

    def allows(self, error: float) -> bool:
        """Return whether an error times the margin is within the tolerance."""
        return error * self.margin <= self.tolerance

    @property
    def baseline(self) -> int:
        """Return the number of the baseline: the last candidate."""
        return self.candidates - 1

    def uniform(self, candidate: int) -> Assignment:
        """Return the assignment of one candidate to all groups."""
        return (candidate,) * self.groups


@dataclass
class Search:
    """A search in progress.

    `state` is the current assignment, which is within the tolerance; `spent` says
    whether the budget ended the search."""

    trials: PolicyTrials
    goal: Goal
    state: Assignment = ()
    decisions: list[Decision] = field(default_factory=list)
    spent: bool = False

    def __post_init__(self) -> None:
        self._sensitivity: dict[int, float] = {}
        self._kept: list[tuple[tuple[int, ...], Assignment]] = []

    def run(self) -> Assignment:
        """Return the cheapest assignment; refuse a baseline beyond the tolerance."""
        goal = self.goal
        self.state = goal.uniform(goal.baseline)
        try:
            error = self.trials.error(self.state)
            if error > self.goal.tolerance:
                raise InvalidProgramError(
                    f"the baseline itself has an error of {error:.3g}, more than the "
                    f"tolerance {self.goal.tolerance:.3g}",
                    remedy="raise the tolerance, or end the candidates with a more "
                    "precise candidate",
                )
            why = "where it begins"
            self._decide("baseline", self._everything, self.state, "kept", why)
            for assignment in self._useful_uniform():
                if self._keeps("uniform", self._everything, assignment):
                    break
            for candidate in range(goal.candidates):
                if goal.strategy == "greedy":
                    self._greedy(candidate)
                else:
                    self._bisect(candidate)
        except BudgetSpentError:
            self.spent = True
        self._settle()
        self._confirm()
        return self.state

    # -- the beginning -----------------------------------------------------------------

    def _useful_uniform(self) -> list[Assignment]:
        uniform = [self.goal.uniform(c) for c in range(self.goal.baseline)]
        useful = [a for a in uniform if self._is_worth("uniform", self._everything, a)]
        if self.goal.objective == "time":
            useful.sort(key=self.trials.seconds)
        return useful

    @property
    def _everything(self) -> tuple[int, ...]:
        return tuple(range(self.goal.groups))

    # -- strategies --------------------------------------------------------------------

    def _greedy(self, candidate: int) -> None:
        found = self._alone(candidate, self._moves(candidate))
        for group in sorted(found, key=lambda group: (found[group], group)):
            assignment = self._with([group], candidate)
            if self._is_worth("together", (group,), assignment):
                self._keeps("together", (group,), assignment)

    def _bisect(self, candidate: int) -> None:
        moves = self._moves(candidate)
        self._alone(candidate, [g for g in moves if g not in self._sensitivity])
        known = {g: self.trials.known_error(self._with([g], candidate)) for g in moves}
        # Omit a group if the candidate for this group alone exceeds the tolerance.
        hopeful = [g for g, e in known.items() if e is None or self.goal.allows(e)]
        order = sorted(hopeful, key=lambda g: (self._sensitivity[g], g))
        kept, bound = 0, len(order) + 1
        size = len(order)  # begin with all groups
        while kept < size < bound:
            chosen = tuple(order[:size])
            assignment = self._with(chosen, candidate)
            useful = self._is_worth("together", chosen, assignment)
            if useful and self._keeps("together", chosen, assignment):
                kept = size
            else:
                bound = size
            size = (kept + bound) // 2

    def _moves(self, candidate: int) -> list[int]:
        """Return the groups for which a change to the candidate is worth a run."""
        earlier = self.goal.objective == "preference"
        groups = [
            group
            for group, now in enumerate(self.state)
            if (candidate < now if earlier else candidate != now)
        ]
        lowered = {group: self._with([group], candidate) for group in groups}
        return [g for g, a in lowered.items() if self._is_worth("alone", (g,), a)]

    def _alone(self, candidate: int, groups: Sequence[int]) -> dict[int, float]:
        """Try the candidate on each group alone; return errors that the goal allows."""
        found = {}
        for group in groups:
            assignment = self._with([group], candidate)
            error = self.trials.error(assignment)
            self._sensitivity.setdefault(group, error)
            if self.goal.allows(error):
                found[group] = error
                self._decide("alone", (group,), assignment, "tolerated", "sensitivity")
            else:
                self._decide("alone", (group,), assignment, "rejected", EXCESS)
        return found

    # -- steps -------------------------------------------------------------------------

    def _with(self, groups: Sequence[int], candidate: int) -> Assignment:
        return tuple(candidate if g in groups else c for g, c in enumerate(self.state))

    def _is_worth(
        self, stage: str, groups: tuple[int, ...], assignment: Assignment
    ) -> bool:
        """Return whether an assignment is worth a run; if not, record the reason."""
        why = self._objection(assignment)
        if why:
            self._decide(stage, groups, assignment, "rejected", why)
        return not why

    def _objection(self, assignment: Assignment) -> str:
        trials = self.trials
        try:
            seconds = trials.seconds(assignment)
        except UnsupportedError as error:
            return error.what
        if trials.program(assignment) == trials.program(self.state):
            return "changes nothing"
        slower = seconds >= trials.seconds(self.state)
        return SAVES_NO_TIME * (slower and self.goal.objective == "time")

    def _keeps(
        self, stage: str, groups: tuple[int, ...], assignment: Assignment
    ) -> bool:
        is_within = self.goal.allows(self.trials.error(assignment))
        if is_within:
            self.state = assignment
            self._decide(stage, groups, assignment, "kept", "within the tolerance")
        else:
            self._decide(stage, groups, assignment, "rejected", EXCESS)
        return is_within

    def _decide(
        self,
        stage: str,
        groups: tuple[int, ...],
        assignment: Assignment,
        outcome: Outcome,
        why: str,
    ) -> None:
        if outcome == "kept":
            self._kept.append((groups, assignment))
        self.decisions.append(
            Decision(
                stage=stage,
                groups=groups,
                candidate=assignment[groups[0]],
                assignment=assignment,
                error=self.trials.known_error(assignment),
                seconds=self.trials.known_seconds(assignment),
                kept_seconds=self.trials.known_seconds(self.state),
                outcome=outcome,
                why=why,
            )
        )

    # -- the end -----------------------------------------------------------------------

    def _settle(self) -> None:
        """Set `state` to the best assignment measured "alone", if that is better."""
        alone = [d for d in self.decisions if d.outcome == "tolerated"]
        best = min(alone, key=lambda d: self._cost(d.assignment), default=None)
        if best is not None and self._cost(best.assignment) < self._cost(self.state):
            self.state = best.assignment
            why = "better than the kept steps" + " within budget" * self.spent
            self._decide("best", best.groups, best.assignment, "kept", why)

    def _confirm(self) -> None:
        """Go back to the last kept assignment within the tolerance on held-out batches.
        If that is the baseline, try further candidates for all groups."""
        baseline, *found = self._kept
        if any(self._holds(*state) for state in reversed(found)):
            return
        self.state = baseline[1]
        try:
            for assignment in self._useful_uniform() if found else ():
                state = self._everything, assignment
                is_new = state not in found
                if is_new and self._keeps("uniform", *state) and self._holds(*state):
                    return
        except BudgetSpentError:
            self.spent = True
        self.state = baseline[1]

    def _holds(self, groups: tuple[int, ...], assignment: Assignment) -> bool:
        """Set `state` to `assignment`; return whether held-out batches allow it."""
        self.state = assignment
        error = self.trials.held_out_error(assignment)
        if error is None or error <= self.goal.tolerance:
            return True
        self._decide("held out", groups, assignment, "rejected", EXCESS_HELD_OUT)
        return False

    def _cost(self, assignment: Assignment) -> tuple[float, float]:
        seconds, late = self.trials.seconds(assignment), float(sum(assignment))
        return (seconds, late) if self.goal.objective == "time" else (late, seconds)


# -- the path to the result ------------------------------------------------------------
#
# Not every kept assignment is on the path: a search gives up steps if an earlier
# assignment is better, and undoes steps beyond the tolerance on held-out batches.


def path_to(result: Assignment, decisions: Sequence[Decision]) -> tuple[int, ...]:
    """Return the numbers of the decisions that lead from the baseline to `result`."""
    path: list[int] = []
    free: frozenset[int] = frozenset()  # groups changed by the next step of the path
    for number, d in reversed(tuple(enumerate(decisions))):
        pairs = enumerate(zip(d.assignment, result, strict=True))
        agree = all(a == b for group, (a, b) in pairs if group not in free)
        if d.outcome == "kept" and agree:
            path.append(number)
            result, free = d.assignment, frozenset(d.groups)
            if d.stage == "uniform":  # a step that starts from the baseline
                result, free = decisions[0].assignment, frozenset()
    return tuple(reversed(path))


def became_of(result: Assignment, decisions: Sequence[Decision]) -> tuple[str, ...]:
    """Return the final outcome of each decision.

    The outcome is "kept" on the path to the result, "undone" if the assignment exceeded
    the tolerance on held-out batches, "given up" if it was kept but an earlier
    assignment was better; else "rejected" or "tolerated"."""
    path = path_to(result, decisions)
    undone = {d.assignment for d in decisions if d.stage == "held out"}

    def became(number: int, d: Decision) -> str:
        if number in path:
            return "kept"
        if d.stage == "held out" or (d.outcome == "kept" and d.assignment in undone):
            return "undone"
        return "given up" if d.outcome == "kept" else d.outcome

    return tuple(became(n, d) for n, d in enumerate(decisions))
