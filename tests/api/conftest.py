"""Studies whose runs are made up, so that it is known how their losses differ."""

from __future__ import annotations

import pytest

from neuronjax.api.study_runs import StudyRuns


@pytest.fixture
def made_up_runs(monkeypatch):
    """A function that makes every run yield `loss(policy, seed, step)`; it returns the
    list of (policy, seed) that ran."""

    def install(loss, steps):
        ran = []

        def run(runs, machine, jit, seed, bars):
            ran.append((machine.policy, seed))
            where = {"policy": machine.policy, "target": machine.target, "seed": seed}
            return tuple(
                {**where, "step": n, "loss": loss(machine.policy, seed, n)}
                for n in range(steps)
            )

        monkeypatch.setattr(StudyRuns, "run", run)
        return ran

    return install
