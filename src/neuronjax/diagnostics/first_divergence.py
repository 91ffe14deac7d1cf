"""Which ops explain that a run has diverged at some op: its ancestors that err.

The candidates are the ancestors of the op, itself included, that err in isolation. A
set explains the divergence if it is gone once the reference executes those ops, whose
results are not rounded on write where the reference is wider (see
`reference_substitution`). The smallest one is searched greedily: of the worst
candidates as few as suffice, of which each is left out that is not needed. Every trial
is a run up to the op, so their number is limited; a smaller set may exist.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Hashable, Iterator, Sequence

from neuronjax.ir.program import Op, Program, Value

# Trials that one explanation may take.
MOST_TRIALS = 8
# Sets up to this size are tried without each of their members.
FEW = 4


def ancestors(program: Program, op: Op) -> set[Op]:
    """Every op on which the results of an op may depend, and the op itself.

    Calls are not told apart: what one call of a function depends on, all do.
    """
    readers = _ValueReaders(program)
    found, values = {op}, [*op.operands]
    for region in op.regions:
        values.extend(region.results)
    seen: set[Value] = set()
    while values:
        value = values.pop()
        if value in seen:
            continue
        seen.add(value)
        values.extend(readers.sources[value])
        if value in readers.makers:
            found.add(readers.makers[value])
    return found


class _ValueReaders:
    """From which values each value is computed, and by which op."""

    def __init__(self, program: Program) -> None:
        self.sources: dict[Value, list[Value]] = defaultdict(list)
        self.makers: dict[Value, Op] = {}
        self._program = program
        for op in program.walk():
            self._add(op)

    def _add(self, op: Op) -> None:
        for result in op.results:
            self.makers[result] = op
        for ins, outs in self._inside(op):
            for outer, inner in ins:
                self.sources[inner].append(outer)
            for inner, outer in outs:
                self.sources[outer].append(inner)

    def _inside(
        self, op: Op
    ) -> Iterator[tuple[Sequence[tuple[Value, Value]], Sequence[tuple[Value, Value]]]]:
        """(what enters a region, what leaves it), region by region."""
        if op.name in _CALLS:
            name = op.attributes.get("callee") or op.attributes["decomposition"]
            body = self._program.functions[name].body
            yield _pairs(op.operands, body.arguments), _pairs(body.results, op.results)
            return
        if op.name == "stablehlo.while":
            yield from self._loop(op)
            return
        everything = [(v, r) for v in op.operands for r in op.results]
        yield [], everything
        for region in op.regions:
            # A branch; or the body of a reduction, which takes parts of all operands.
            entering = [(v, a) for v in op.operands for a in region.arguments]
            leaving = [(v, r) for v in region.results for r in op.results]
            yield entering, leaving

    def _loop(
        self, op: Op
    ) -> Iterator[tuple[Sequence[tuple[Value, Value]], Sequence[tuple[Value, Value]]]]:
        condition, body = op.regions
        for region in (condition, body):
            yield _pairs(op.operands, region.arguments), []
            yield _pairs(body.results, region.arguments), []
        yield [], _pairs(body.results, op.results)
        yield [], _pairs(op.operands, op.results)
        yield [], [(c, r) for c in condition.results for r in op.results]


_CALLS = ("func.call", "stablehlo.composite")


def _pairs(left: Sequence[Value], right: Sequence[Value]) -> list[tuple[Value, Value]]:
    return list(zip(left, right, strict=True))


def smallest_set(
    candidates: Sequence[Hashable], explains: Callable[[Sequence[Hashable]], bool]
) -> tuple[Hashable, ...]:
    """A small set of candidates that explains.

    Candidates come the most suspicious first; more of them are taken to explain no
    less. The set is empty if not even all of them together explain."""
    trial = _RememberedTrials(explains)
    size = _fewest(candidates, trial)
    if size is None:
        return ()
    found = list(candidates[:size])
    for candidate in found[::-1] if len(found) <= FEW else ():
        rest = [c for c in found if c is not candidate]
        if rest and trial(rest):
            found = rest
    return tuple(found)


class _RememberedTrials:
    """Trials until there are too many, from when on all fail."""

    def __init__(self, explains: Callable[[Sequence[Hashable]], bool]) -> None:
        self._explains = explains
        self._left = MOST_TRIALS

    def __call__(self, chosen: Sequence[Hashable]) -> bool:
        self._left -= 1
        return self._left >= 0 and self._explains(chosen)


def _fewest(candidates: Sequence[Hashable], trial: _RememberedTrials) -> int | None:
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
