"""From which values each value of a program is computed, and by which op."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Container, Iterator, Sequence

from neuronjax.ir.program import CALLEES, Op, Program, Value


class ValueSources:
    """The edges of a program's values, through calls, loops and branches.

    Calls are not told apart: what one call of a function depends on, all do.

    Attributes:
        sources: of each value, those it is computed from.
        makers: the op whose result a value is.
    """

    def __init__(self, program: Program) -> None:
        self.sources: dict[Value, list[Value]] = defaultdict(list)
        self.makers: dict[Value, Op] = {}
        self._program = program
        for op in program.walk():
            self._add(op)

    def is_constant(self, value: Value, through: Container[str]) -> bool:
        """Whether a value is made of constants, by ops of these names and calls."""
        seen, left = {value}, [value]
        while left:
            value = left.pop()
            maker, sources = self.makers.get(value), self.sources.get(value, ())
            if maker is None:
                passes = bool(sources)
            elif maker.operands:
                passes = maker.name in through or maker.name in CALLEES
            else:
                passes = maker.name in through or maker.name == "stablehlo.constant"
            if not passes:
                return False
            left += [v for v in sources if v not in seen]
            seen.update(sources)
        return True

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
        if callee := op.callee:
            body = self._program.functions[callee].body
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


def _pairs(left: Sequence[Value], right: Sequence[Value]) -> list[tuple[Value, Value]]:
    return list(zip(left, right, strict=True))
