"""The search itself: which group gets which candidate.

An assignment is lowered and priced before it is run: what changes nothing, what the
target lacks and what saves no predicted time is rejected without a run. The search
begins at the baseline, goes to the fastest uniform candidate within the tolerance, and
then lowers groups, candidate by candidate:

    greedy      every group alone; then one after another, the least sensitive first,
                each kept if all of them together are within the tolerance
    bisection   the groups in the order of their sensitivity, which is measured once;
                then the longest beginning of that order that is within the tolerance

Every state that is kept has been run as a whole, so that no sum of errors measured
apart is trusted; and at the end, from the last state backwards, on batches that the
search has not seen. Nothing here knows programs; `PolicyTrials` do.
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
EXCESS_HELD_OUT = "too much on held-out data"
Outcome = Literal["kept", "measured", "rejected"]


@dataclass(frozen=True, kw_only=True)
class Decision:
    """One step of a search.

    Attributes:
        stage: "baseline", "uniform", "alone" (one group, to measure its sensitivity),
            "together" (with all that was kept before) or "best" (a state met on the way
            that is better than where the steps led).
        groups: indices of the groups that were changed.
        candidate: its index.
        assignment: the whole.
        error: measured; None where nothing was run.
        seconds: predicted; None where it could not be lowered.
        kept_seconds: predicted, of what is kept now.
        outcome: "kept", "rejected", or "measured" where it is only known now.
        why: in a few words.
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
    """What is searched for.

    Attributes:
        tolerance: the largest error.
        margin: what an error is multiplied by before it is compared, on the batches of
            the search.
        objective: "time", the least predicted; or "preference", the earliest
            candidates, whether they save time or not.
        candidates: how many; the last one is the baseline.
    """

    tolerance: float
    strategy: str
    objective: str
    candidates: int
    groups: int
    margin: float = 1.0

    def allows(self, error: float) -> bool:
        """Whether an error is within the tolerance, with the margin."""
        return error * self.margin <= self.tolerance

    @property
    def baseline(self) -> int:
        """The candidate that the search begins with: the last one."""
        return self.candidates - 1

    def uniform(self, candidate: int) -> Assignment:
        """The assignment of one candidate to all groups."""
        return (candidate,) * self.groups


@dataclass
class Search:
    """A search on its way.

    Attributes:
        goal: what for.
        state: what all groups have now; within the tolerance.
        spent: whether the budget ended the search.
    """

    trials: PolicyTrials
    goal: Goal
    state: Assignment = ()
    decisions: list[Decision] = field(default_factory=list)
    spent: bool = False

    def __post_init__(self) -> None:
        self._sensitivity: dict[int, float] = {}
        self._kept: list[tuple[tuple[int, ...], Assignment]] = []

    def run(self) -> Assignment:
        """The cheapest assignment found; refuses a baseline that exceeds the
        tolerance."""
        goal = self.goal
        self.state = goal.uniform(goal.baseline)
        try:
            error = self.trials.error(self.state)
            if error > self.goal.tolerance:
                raise InvalidProgramError(
                    f"the baseline itself has an error of {error:.3g}, more than the "
                    f"tolerance {self.goal.tolerance:.3g}",
                    remedy="raise the tolerance, or end the candidates with a more "
                    "precise one",
                )
            why = "where it begins"
            self._decide("baseline", self._everything, self.state, "kept", why)
            self._uniform()
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

    def _uniform(self) -> None:
        """The first candidate for all groups that is within the tolerance."""
        for assignment in self._useful_uniform():
            if self._keeps("uniform", self._everything, assignment):
                return

    def _useful_uniform(self) -> list[Assignment]:
        """One candidate for all groups, where that is worth a run."""
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
        # Groups that no run has shown to be beyond the tolerance.
        hopeful = [g for g, e in known.items() if e is None or self.goal.allows(e)]
        order = sorted(hopeful, key=lambda g: (self._sensitivity[g], g))
        kept, bound = 0, len(order) + 1
        size = len(order)  # all of them first
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
        """Groups for which the candidate is worth a run."""
        earlier = self.goal.objective == "preference"
        groups = [
            group
            for group, now in enumerate(self.state)
            if (candidate < now if earlier else candidate != now)
        ]
        lowered = {group: self._with([group], candidate) for group in groups}
        return [g for g, a in lowered.items() if self._is_worth("alone", (g,), a)]

    def _alone(self, candidate: int, groups: Sequence[int]) -> dict[int, float]:
        """The error with each group lowered alone, of those within the tolerance."""
        found = {}
        for group in groups:
            assignment = self._with([group], candidate)
            error = self.trials.error(assignment)
            self._sensitivity.setdefault(group, error)
            if self.goal.allows(error):
                found[group] = error
                self._decide("alone", (group,), assignment, "measured", "sensitivity")
            else:
                self._decide("alone", (group,), assignment, "rejected", EXCESS)
        return found

    # -- steps -------------------------------------------------------------------------

    def _with(self, groups: Sequence[int], candidate: int) -> Assignment:
        """Return what all groups have now, with these groups changed."""
        return tuple(candidate if g in groups else c for g, c in enumerate(self.state))

    def _is_worth(
        self, stage: str, groups: tuple[int, ...], assignment: Assignment
    ) -> bool:
        """Whether an assignment differs, exists on the target and saves time."""
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
        """Keeps an assignment that is within the tolerance, and rejects any other."""
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
        """Goes back to a group alone, if that is better than all that was kept."""
        alone = [d for d in self.decisions if d.outcome == "measured"]
        best = min(alone, key=lambda d: self._cost(d.assignment), default=None)
        if best is not None and self._cost(best.assignment) < self._cost(self.state):
            self.state = best.assignment
            why = "better than what was kept" + " in the budget" * self.spent
            self._decide("best", best.groups, best.assignment, "kept", why)

    def _confirm(self) -> None:
        """Goes back to the last state that is within on what was held out too.

        Between the first that was found, one candidate for all, and the baseline are
        those for all that the search did not come to.
        """
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
        """Whether an assignment, which becomes the state, is within on what was held
        out."""
        self.state = assignment
        error = self.trials.held_out_error(assignment)
        if error is None or error <= self.goal.tolerance:
            return True
        self._decide("held out", groups, assignment, "rejected", EXCESS_HELD_OUT)
        return False

    def _cost(self, assignment: Assignment) -> tuple[float, float]:
        seconds, late = self.trials.seconds(assignment), float(sum(assignment))
        return (seconds, late) if self.goal.objective == "time" else (late, seconds)


# -- the way to what was found ---------------------------------------------------------
#
# Not everything that was kept is in the result: what a search keeps on its way is given
# up where a state that it had met before is better in the end, and undone where it
# exceeds the tolerance on what was held out.


def path_to(result: Assignment, decisions: Sequence[Decision]) -> tuple[int, ...]:
    """Return the numbers of the decisions that make the result of the baseline."""
    path: list[int] = []
    free: frozenset[int] = frozenset()  # groups that a later decision sets
    for number, d in reversed(tuple(enumerate(decisions))):
        pairs = enumerate(zip(d.assignment, result, strict=True))
        agree = all(a == b for group, (a, b) in pairs if group not in free)
        if d.outcome == "kept" and agree:
            path.append(number)
            result, free = d.assignment, frozenset(d.groups)
            if d.stage == "uniform":  # begins anew, whatever was kept before
                result, free = decisions[0].assignment, frozenset()
    return tuple(reversed(path))


def became_of(result: Assignment, decisions: Sequence[Decision]) -> tuple[str, ...]:
    """Return what became of decisions: "kept" of those on the path, "undone" of what
    exceeded the tolerance on what was held out, "given up" of what was kept else; and
    "rejected" or "measured"."""
    path = path_to(result, decisions)
    undone = {d.assignment for d in decisions if d.stage == "held out"}

    def became(number: int, d: Decision) -> str:
        if number in path:
            return "kept"
        if d.stage == "held out" or (d.outcome == "kept" and d.assignment in undone):
            return "undone"
        return "given up" if d.outcome == "kept" else d.outcome

    return tuple(became(n, d) for n, d in enumerate(decisions))
