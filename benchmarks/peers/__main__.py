"""`python -m benchmarks.peers [--quick]`: every task against every installed peer."""

from __future__ import annotations

import sys
import warnings
from collections.abc import Mapping
from typing import Any

from benchmarks import results_file
from benchmarks.peers import (
    abilities,
    blocks,
    casts,
    contest,
    matmuls,
    orders,
    pruning,
    steps,
    stochastic,
)

TASKS = (casts, stochastic, blocks, matmuls, pruning, steps)


def measure(quick: bool) -> dict[str, Any]:
    """Return all entries, and the abilities of peers, which are not measured."""
    effort = contest.QUICK if quick else contest.FULL
    with warnings.catch_warnings():
        # NumPy and peers warn of overflows and NaNs, which are intended here.
        warnings.simplefilter("ignore")
        entries = [
            entry for task in TASKS for entry in task.entries(effort, quick=quick)
        ]
        entries += orders.entries()
    return {
        "entries": entries,
        "peer_versions": contest.versions(),
        "questions": abilities.QUESTIONS,
        "abilities": abilities.ABILITIES,
        "not_run": abilities.NOT_RUN,
    }


def show(found: Mapping[str, Any]) -> str:
    """Return a line for each entry."""
    return "\n".join(map(_line, found["entries"]))


def _line(entry: Mapping[str, Any]) -> str:
    head = f"{entry['task']:36} {entry['peer']:26}"
    if entry["status"] == "skipped":
        return f"{head} skipped: {entry['why']}"
    if entry["status"] == "revealed":
        return f"{head} {entry['order']}"
    differ = entry["numerics"].get("differ")
    numbers = "" if differ is None else f"  {differ} differ"
    return f"{head} {entry['ratio']['median']:>9.3g} x ours{numbers}"


if __name__ == "__main__":
    sys.exit(results_file.command("peers", measure, show))
