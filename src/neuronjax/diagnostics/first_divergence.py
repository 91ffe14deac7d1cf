"""A search for the ops that explain a divergence.

The candidates are the diverged op and its ancestors, if they have an error on the
reference's operands. A set of ops explains the divergence if the divergence disappears
when the reference executes these ops (see `reference_substitution`). The search takes
as few of the worst candidates as suffice, then drops those that are not needed. A
smaller set may exist: every trial is a run, so the number of trials is limited.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Hashable, Sequence

from neuronjax.ir.program import Op, Program
from neuronjax.ir.value_sources import ValueSources

MOST_TRIALS = 8
# A set of at most this size is also tried without each of its members.
FEW = 4


def ancestors(program: Program, op: Op) -> set[Op]:
    """Return the op and every op on which its results may depend."""
    graph = ValueSources(program)
    values = graph.behind([*op.operands, *op.results])
    return {op} | {graph.makers[v] for v in values if v in graph.makers}


def smallest_set(
    candidates: Sequence[Hashable], explains: Callable[[Sequence[Hashable]], bool]
) -> tuple[Hashable, ...]:
    """Return a small set of candidates for which `explains` is true.

    `candidates` begin with the most suspicious. If a set passes `explains`, all sets
    that contain it are assumed to pass. Return () if the set of all candidates fails.
    """
    left = itertools.count(MOST_TRIALS, -1)  # later trials fail

    def trial(chosen: Sequence[Hashable]) -> bool:
        return next(left) > 0 and explains(chosen)

    size = _fewest(candidates, trial)
    if size is None:
        return ()
    found = list(candidates[:size])
    for candidate in found[::-1] if len(found) <= FEW else ():
        rest = [c for c in found if c is not candidate]
        if rest and trial(rest):
            found = rest
    return tuple(found)


def _fewest(
    candidates: Sequence[Hashable], trial: Callable[[Sequence[Hashable]], bool]
) -> int | None:
    """Return the length of the shortest prefix of the candidates that passes `trial`.
    Try 1, 4, 16, ... candidates, then bisect. Return None if all together fail."""
    low, high = 0, 1
    while not trial(candidates[:high]):
        if high >= len(candidates):
            return None
        low, high = high, min(4 * high, len(candidates))
    while high - low > 1:
        middle = (low + high) // 2
        if trial(candidates[:middle]):
            high = middle
        else:
            low = middle
    return high
