"""Find which op computes each value of a program, and from which values."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence

from neuronjax.ir.program import CALLEES, Op, Program, Value

#: (a value, a neighbouring value) -> whether a search continues to the neighbour.
Follows = Callable[[Value, Value], bool]
_Pairs = Sequence[tuple[Value, Value]]


class ValueSources:
    """The edges of a program's values, through calls, loops, branches and meshes.

    Calls of a function are not distinguished: each has the dependencies of all.

    Attributes:
        sources: for each value, the values from which it is computed.
        readers: for each value, the values that are computed from it.
        makers: the op whose result a value is.
    """

    def __init__(self, program: Program) -> None:
        self.sources: dict[Value, list[Value]] = defaultdict(list)
        self.readers: dict[Value, list[Value]] = defaultdict(list)
        self.makers: dict[Value, Op] = {}
        self._program = program
        for op in program.walk():
            for result in op.results:
                self.makers[result] = op
            for ins, outs in self._inside(op):
                for outer, inner in ins:
                    self.sources[inner].append(outer)
                for inner, outer in outs:
                    self.sources[outer].append(inner)
        for value, sources in self.sources.items():
            for source in sources:
                self.readers[source].append(value)

    def behind(
        self, values: Iterable[Value], follows: Follows = lambda value, source: True
    ) -> list[Value]:
        """Return values and all that they depend on, as far as `follows` allows."""
        return _reached(self.sources, values, follows)

    def ahead(
        self, values: Iterable[Value], follows: Follows = lambda value, reader: True
    ) -> list[Value]:
        """Return values and all that depend on them, as far as `follows` allows."""
        return _reached(self.readers, values, follows)

    def is_constant(self, value: Value, through: Container[str]) -> bool:
        """Return whether only calls and ops in `through` make a value of constants."""

        def passes(value: Value) -> bool:
            maker = self.makers.get(value)
            if maker is None:
                return bool(self.sources.get(value))
            also = CALLEES if maker.operands else ("stablehlo.constant",)
            return maker.name in through or maker.name in also

        return all(map(passes, self.behind([value], lambda v, _: passes(v))))

    def origin(
        self, value: Value, through: Container[str], stop: Value | None = None
    ) -> Value:
        """Return the value reached by following single sources back through calls and
        ops in `through`, at most to `stop`."""
        while value is not stop:
            maker, sources = self.makers.get(value), self.sources.get(value, ())
            passes = maker is None or maker.name in through or maker.name in CALLEES
            if not passes or len(sources) != 1:
                return value
            value = sources[0]
        return value

    def _inside(self, op: Op) -> Iterator[tuple[_Pairs, _Pairs]]:
        """Yield, for each region, the pairs of values at its entry and its exit."""
        if op.name == "stablehlo.while":
            condition, body = op.regions
            for region in (condition, body):
                yield _pairs(op.operands, region.arguments), []
                yield _pairs(body.results, region.arguments), []
            yield [], _pairs(body.results, op.results)
            yield [], _pairs(op.operands, op.results)
            yield [], [(c, r) for c in condition.results for r in op.results]
            return
        callee = op.callee
        if callee or op.name == "sdy.manual_computation":
            body = self._program.functions[callee].body if callee else op.regions[0]
            yield _pairs(op.operands, body.arguments), _pairs(body.results, op.results)
            return
        everything = [(v, r) for v in op.operands for r in op.results]
        yield [], everything
        for region in op.regions:
            # A branch, or the body of a reduction, which takes parts of all operands.
            entering = [(v, a) for v in op.operands for a in region.arguments]
            leaving = [(v, r) for v in region.results for r in op.results]
            yield entering, leaving


def _reached(
    edges: Mapping[Value, Sequence[Value]], values: Iterable[Value], follows: Follows
) -> list[Value]:
    pending = list(values)
    seen, reached = set(pending), []
    while pending:
        value = pending.pop()
        reached.append(value)
        for other in edges.get(value, ()):
            if other not in seen and follows(value, other):
                seen.add(other)
                pending.append(other)
    return reached


def _pairs(left: Sequence[Value], right: Sequence[Value]) -> _Pairs:
    return list(zip(left, right, strict=True))
