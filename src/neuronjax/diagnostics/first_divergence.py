"""Which ops explain that a run has diverged at some op: its ancestors that err.

The candidates are the ancestors of the op, itself included, that err in isolation. A
set explains the divergence if it is gone once the reference executes those ops, whose
results are not rounded on write where the reference is wider (see
`reference_substitution`). The smallest one is searched greedily: of the worst
candidates as few as suffice, of which each is left out that is not needed. Every trial
is a run up to the op, so their number is limited; a smaller set may exist.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Hashable, Sequence

from neuronjax.ir.program import Op, Program
from neuronjax.ir.value_sources import ValueSources

# Trials that one explanation may take.
MOST_TRIALS = 8
# Sets up to this size are tried without each of their members.
FEW = 4


def ancestors(program: Program, op: Op) -> set[Op]:
    """Every op on which the results of an op may depend, and the op itself.

    Calls are not told apart: what one call of a function depends on, all do.
    """
    graph = ValueSources(program)
    values = graph.behind([*op.operands, *op.results])
    return {op} | {graph.makers[v] for v in values if v in graph.makers}


def smallest_set(
    candidates: Sequence[Hashable], explains: Callable[[Sequence[Hashable]], bool]
) -> tuple[Hashable, ...]:
    """A small set of candidates that explains.

    Candidates come the most suspicious first; more of them are taken to explain no
    less. The set is empty if not even all of them together explain."""
    left = itertools.count(MOST_TRIALS, -1)  # from when on all fail

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
    """How many of the first candidates explain: 1, 2, 4, ..., then by bisection."""
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
