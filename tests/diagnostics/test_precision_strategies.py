"""The search itself, over times and errors of tables: no program."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from neuronjax.diagnostics.precision_strategies import (
    OBJECTIVES,
    STRATEGIES,
    BudgetSpentError,
    Goal,
    Search,
    became_of,
    path_to,
)

GROUPS, CANDIDATES, TOLERANCE = 4, 3, 0.5


class Table:
    """Trials whose times and errors are drawn, also those of combinations."""

    def __init__(self, seed, budget):
        random = np.random.default_rng(seed)
        every = list(itertools.product(range(CANDIDATES), repeat=GROUPS))
        self.times = dict(zip(every, random.integers(1, 12, len(every)), strict=True))
        self.errors = dict(zip(every, random.random(len(every)), strict=True))
        self.errors[(CANDIDATES - 1,) * GROUPS] = 0.0
        self.budget, self.run = budget, set()

    def seconds(self, assignment):
        return float(self.times[assignment])

    def error(self, assignment):
        if assignment not in self.run and len(self.run) >= self.budget:
            raise BudgetSpentError
        self.run.add(assignment)
        return self.errors[assignment]

    def known_error(self, assignment):
        return self.errors[assignment] if assignment in self.run else None

    def held_out_error(self, assignment):
        return 2 * self.errors[assignment]

    def program(self, assignment):
        return assignment

    known_seconds = seconds


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_nothing_slower_than_the_beginning_is_found(strategy):
    """Nor is it kept on the way, whatever combinations take and wherever it ends."""
    for seed, budget in itertools.product(range(100), (3, 8, 1000)):
        goal = Goal(
            tolerance=TOLERANCE,
            strategy=strategy,
            objective="time",
            candidates=CANDIDATES,
            groups=GROUPS,
        )
        search = Search(Table(seed, budget), goal)
        found = search.run()
        baseline = search.trials.seconds(goal.uniform(goal.baseline))
        predicted = search.trials.seconds(found)
        error = search.trials.held_out_error(found)
        assert predicted is not None
        assert baseline is not None
        assert error is not None
        assert predicted <= baseline
        assert error <= TOLERANCE
        on_the_way = itertools.takewhile(
            lambda d: d.stage != "held out", search.decisions
        )
        kept = [d.seconds for d in on_the_way if d.outcome == "kept"]
        assert kept == sorted(kept, reverse=True)
        assert all(d.seconds is not None for d in search.decisions)


@pytest.mark.parametrize("objective", OBJECTIVES)
@pytest.mark.parametrize("strategy", STRATEGIES)
def test_the_path_leads_to_what_is_found(strategy, objective):
    """Step by step from the baseline, each step by its own groups alone."""
    seen = set()
    for seed, budget in itertools.product(range(100), (3, 8, 1000)):
        goal = Goal(
            tolerance=TOLERANCE,
            strategy=strategy,
            objective=objective,
            candidates=CANDIDATES,
            groups=GROUPS,
        )
        search = Search(Table(seed, budget), goal)
        found, decisions = search.run(), search.decisions
        became = became_of(found, decisions)
        seen |= set(became)
        state = goal.uniform(goal.baseline)
        for number in path_to(found, decisions):
            step = decisions[number]
            assert became[number] == "kept"
            state = tuple(
                step.candidate if group in step.groups else before
                for group, before in enumerate(state)
            )
            assert state == step.assignment
        assert state == found
    assert seen == {"kept", "undone", "given up", "rejected", "tolerated"}
