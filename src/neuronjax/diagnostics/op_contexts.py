"""Every op of a program in its context: what is known of its operands, and where it is.

A call is followed with what is known of its arguments, so that a function called twice
is seen twice; a callee called twice with the same facts is walked once and its findings
are counted again. Library functions share one copy among their callers, with the lines
of the first: an op that has the line of a call of its own function takes the line of
the call that led to it.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from neuronjax.diagnostics.facts import Fact, evaluate, unknown
from neuronjax.diagnostics.findings import Finding
from neuronjax.diagnostics.loops import carried, invariant, trip_count
from neuronjax.hardware import Target
from neuronjax.ir.program import (
    CHOICES,
    CONTROL_FLOW,
    Function,
    Op,
    Program,
    Region,
    Value,
)
from neuronjax.policy import Policy

# Functions of jax.random, whose integer arithmetic is the generator's and not the
# user's. They are private and keep their names; a suffix tells equal names apart.
_GENERATORS = re.compile(
    r"_?(threefry|philox)\w*|_(uniform|randint|normal|bernoulli|gumbel|exponential"
    r"|gamma|beta|cauchy|laplace|poisson|shuffle|truncated|rademacher|categorical"
    r"|orthogonal|ball|binomial|geometric|dirichlet)\w*"
)


@dataclass(frozen=True, kw_only=True)
class Settings:
    """For what a program is checked.

    Attributes:
        sdk: the Neuron SDK, (2, 32).
    """

    program: Program
    target: Target
    policy: Policy
    sdk: tuple[int, ...]


@dataclass(frozen=True, kw_only=True)
class OpContext:
    """One op in its context.

    Attributes:
        facts: what is known of every value in sight.
        producers: the op that made a value.
        users: the ops that read a value.
        function: the function that holds the op.
        scope: the name stack, enclosing calls included.
        location: the user's line, "" where the caller's is to be taken.
        trips: how often the enclosing loops run it, 1 where one is not counted.
        in_generator: inside a function of jax.random.
        loop: the trip count, of a `while` that has one.
    """

    op: Op
    settings: Settings
    facts: Mapping[Value, Fact]
    producers: Mapping[Value, Op]
    users: Mapping[Value, Sequence[Op]]
    function: str
    scope: str
    location: str
    trips: int
    in_generator: bool
    loop: int | None = None

    def fact(self, value: Value) -> Fact:
        """What is known of a value."""
        return self.facts.get(value) or unknown(value.type)

    def fact_of_result(self) -> Fact:
        """What is known of the op's one result."""
        return evaluate(self.op, [self.fact(v) for v in self.op.operands])[0]

    def producer(self, value: Value, *through: str) -> Op | None:
        """The op that made a value, looking through ops of these names."""
        op = self.producers.get(value)
        while op is not None and op.name in through:
            op = self.producers.get(op.operands[0])
        return op


#: What is found in one context; a place of "" is that of the caller.
Rules = Callable[[OpContext], Iterator[Finding]]


@dataclass(frozen=True)
class _Called:
    results: tuple[Fact, ...]
    notes: tuple[Finding, ...]


def visit(settings: Settings, rules: Rules) -> tuple[Finding, ...]:
    """Applies rules to every op of a program that `main` reaches."""
    walker = _Walker(settings, rules)
    main = settings.program.entry
    facts = [unknown(value.type) for value in main.body.arguments]
    return walker.function(main.name, facts, "", 1, False).notes


class _Walker:
    """Walks functions, and remembers what came out."""

    def __init__(self, settings: Settings, rules: Rules) -> None:
        self.settings = settings
        self.rules = rules
        self.producers: dict[Value, Op] = {}
        self.users: dict[Value, list[Op]] = {}
        for op in settings.program.walk():
            self.producers.update((result, op) for result in op.results)
            for value in op.operands:
                self.users.setdefault(value, []).append(op)
        self._called: dict[tuple, _Called] = {}
        self._call_lines = _call_lines(settings.program)

    def function(
        self,
        name: str,
        facts: Sequence[Fact],
        scope: str,
        trips: int,
        in_generator: bool,
    ) -> _Called:
        key = (name, trips, in_generator, *[fact.key for fact in facts])
        if key not in self._called:
            body = self.settings.program.functions[name].body
            walk = _FunctionWalk(self, name, scope, trips, in_generator)
            arguments = dict(zip(body.arguments, facts, strict=True))
            self._called[key] = walk.region(body, arguments)
        return self._called[key]

    def location(self, function: str, op: Op) -> str:
        """The user's line; "" for code that belongs to whoever calls it."""
        source = op.location.source
        return "" if source in self._call_lines.get(function, ()) else source


def _call_lines(program: Program) -> dict[str, set[str]]:
    """The lines that call each function."""
    lines: dict[str, set[str]] = {}
    for op in program.walk():
        callee = op.callee
        if callee is not None:
            lines.setdefault(callee, set()).add(op.location.source)
    return lines


@dataclass(frozen=True)
class _FunctionWalk:
    """One function, walked with facts about its arguments."""

    walker: _Walker
    function: str
    scope: str
    trips: int
    in_generator: bool

    @property
    def functions(self) -> Mapping[str, Function]:
        return self.walker.settings.program.functions

    def region(self, region: Region, facts: dict[Value, Fact]) -> _Called:
        """Walks a region; `facts` grows by what its ops make."""
        notes: list[Finding] = []
        for op in region.ops:
            operands = [facts.get(v) or unknown(v.type) for v in op.operands]
            results, inner = self._op(op, operands, facts)
            notes.extend(inner)
            facts.update(zip(op.results, results, strict=True))
        results = tuple([facts.get(v) or unknown(v.type) for v in region.results])
        return _Called(results, tuple(notes))

    def _op(
        self, op: Op, operands: Sequence[Fact], facts: dict[Value, Fact]
    ) -> tuple[Sequence[Fact], list[Finding]]:
        loop = None
        if op.name == "stablehlo.while":
            loop = trip_count(op, operands, self.functions)
        context = OpContext(
            op=op,
            settings=self.walker.settings,
            facts=facts,
            producers=self.walker.producers,
            users=self.walker.users,
            function=self.function,
            scope=_joined(self.scope, op.location.scope),
            # JAX keeps what it traced: a line inside its functions is some caller's.
            location=""
            if self.in_generator
            else self.walker.location(self.function, op),
            trips=self.trips,
            in_generator=self.in_generator,
            loop=loop,
        )
        notes = list(self.walker.rules(context))
        callee = op.callee
        if callee is not None:
            called = self._call(callee, operands, context)
            notes += [
                replace(n, location=n.location or context.location)
                for n in called.notes
            ]
            return called.results, notes
        if op.name == "stablehlo.while":
            results, inner = self._while(op, operands, facts, loop)
            return results, notes + inner
        if op.name not in CONTROL_FLOW:
            return evaluate(op, operands), notes
        return self._branches(op, operands, facts, notes)

    def _call(
        self, callee: str, operands: Sequence[Fact], context: OpContext
    ) -> _Called:
        in_generator = self.in_generator or bool(_GENERATORS.fullmatch(callee))
        return self.walker.function(
            callee, operands, context.scope, self.trips, in_generator
        )

    def _branches(
        self,
        op: Op,
        operands: Sequence[Fact],
        facts: dict[Value, Fact],
        notes: list[Finding],
    ) -> tuple[Sequence[Fact], list[Finding]]:
        """All regions, or the one that a constant index selects."""
        chosen = branch_taken(op, operands[0]) if op.name in CHOICES else None
        if chosen is not None:
            called = self.region(op.regions[chosen], dict(facts))
            return called.results, [*notes, *called.notes]
        for region in op.regions:
            notes += self.region(region, dict(facts)).notes
        return [unknown(result.type) for result in op.results], notes

    def _while(
        self,
        op: Op,
        operands: Sequence[Fact],
        facts: dict[Value, Fact],
        trips: int | None,
    ) -> tuple[Sequence[Fact], list[Finding]]:
        inside = replace(self, trips=self.trips * (1 if trips is None else trips))
        carries = [
            carried(op, i, operands, self.functions, trips)
            for i in range(len(operands))
        ]
        notes: list[Finding] = []
        for region in op.regions:
            scope = {**facts, **dict(zip(region.arguments, carries, strict=True))}
            notes += inside.region(region, scope).notes
        results = [
            operands[i] if invariant(op, i) else unknown(result.type)
            for i, result in enumerate(op.results)
        ]
        return results, notes


def branch_taken(op: Op, index: Fact) -> int | None:
    """Which region of a `case` or `if` a constant index selects, or None."""
    if index.scalar is None:
        return None
    if op.name == "stablehlo.if":
        return 0 if index.scalar else 1
    chosen, last = int(index.scalar), len(op.regions) - 1
    return chosen if 0 <= chosen <= last else last


def _joined(outer: str, inner: str) -> str:
    return f"{outer}/{inner}" if outer and inner else outer or inner
