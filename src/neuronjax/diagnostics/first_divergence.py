"""Search the ops that explain a divergence: ancestors that err.

The candidates are the ancestors of the diverged op, itself included, that err in
isolation. A set of ops explains the divergence if it vanishes once the reference
executes them; their results are not rounded on write where the reference is wider (see
`reference_substitution`). The search is greedy: it takes as few of the worst candidates
as suffice, then drops each that is not needed. Every trial is a run up to the op, so
their number is limited and a smaller set may exist.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Hashable, Sequence

from neuronjax.ir.program import Op, Program
from neuronjax.ir.value_sources import ValueSources

# Most trials for one explanation.
MOST_TRIALS = 8
# Sets up to this size are tried without each of their members.
FEW = 4


def ancestors(program: Program, op: Op) -> set[Op]:
    """Return the op and every op on which its results may depend.

    All calls of a function are treated alike: each depends on what any depends on.
    """
    graph = ValueSources(program)
    values = graph.behind([*op.operands, *op.results])
    return {op} | {graph.makers[v] for v in values if v in graph.makers}


def smallest_set(
    candidates: Sequence[Hashable], explains: Callable[[Sequence[Hashable]], bool]
) -> tuple[Hashable, ...]:
    """Return a small set of candidates that explains.

    Candidates come the most suspicious first, and more of them are assumed to explain
    no less. The set is empty if all together do not explain.
    """
    left = itertools.count(MOST_TRIALS, -1)  # trials fail once it reaches 0

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
    """Return how many first candidates pass `trial`: try 1, 4, 16, ..., then bisect."""
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
