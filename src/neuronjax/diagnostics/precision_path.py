"""How the decisions of a precision search lead to what it returned.

Not everything that was kept is in the result: what a search keeps on its way is given
up where a state that it had met before is better in the end, and undone where it
exceeds the tolerance on what was held out.
"""

from __future__ import annotations

from collections.abc import Sequence

from neuronjax.diagnostics.precision_policies import Assignment
from neuronjax.diagnostics.precision_strategies import Decision


def path_to(result: Assignment, decisions: Sequence[Decision]) -> tuple[int, ...]:
    """The numbers of the decisions that make the result of the baseline, in order."""
    path: list[int] = []
    free: frozenset[int] = frozenset()  # groups that a later decision sets
    for number, d in reversed(tuple(enumerate(decisions))):
        if d.outcome == "kept" and _agree(d.assignment, result, free):
            path.append(number)
            result, free = d.assignment, frozenset(d.groups)
            if d.stage == "uniform":  # begins anew, whatever was kept before
                result, free = decisions[0].assignment, frozenset()
    return tuple(reversed(path))


def became_of(result: Assignment, decisions: Sequence[Decision]) -> tuple[str, ...]:
    """What became of every decision: "kept" of those on the path, "undone" of what
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


def _agree(one: Assignment, other: Assignment, free: frozenset[int]) -> bool:
    pairs = enumerate(zip(one, other, strict=True))
    return all(a == b for group, (a, b) in pairs if group not in free)
