"""A visit of every op of a program with its context: facts of operands, and location.

A function is walked once for each set of facts of its arguments. A call with facts that
were seen before repeats the findings without another walk. All callers of a library
function share one copy of it, whose ops have source lines of the first caller; findings
on these ops get the line of the call that is being visited.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from neuronjax.diagnostics.facts import Fact, evaluate, unknown
from neuronjax.diagnostics.faults.units import Cast, contraction_casts
from neuronjax.diagnostics.findings import Finding
from neuronjax.diagnostics.loops import carried, invariant, trip_count
from neuronjax.errors import NeuronJaxError
from neuronjax.hardware import Target
from neuronjax.ir.program import CHOICES, CONTROL_FLOW, Op, Program, Region, Value
from neuronjax.ir.value_sources import ValueSources
from neuronjax.lowering import lower_by_op
from neuronjax.policy import Policy

# Functions of jax.random: users did not write their integer arithmetic. They are
# private in a program and keep their names, with a suffix if two have one name.
_GENERATORS = re.compile(
    r"_?(threefry|philox)\w*|_(uniform|randint|normal|bernoulli|gumbel|exponential"
    r"|gamma|beta|cauchy|laplace|poisson|shuffle|truncated|rademacher|categorical"
    r"|orthogonal|ball|binomial|geometric|dirichlet)\w*"
)


@dataclass(frozen=True, kw_only=True)
class Settings:
    """The program that is checked, and the machine, policy and SDK to check it for."""

    program: Program
    target: Target
    policy: Policy
    sdk: tuple[int, ...]

    @functools.cached_property
    def casts(self) -> Mapping[Op, Cast]:
        """Return the policy's casts of contractions; {} if lowering fails."""
        try:
            _, regions = lower_by_op(
                self.program, target=self.target, policy=self.policy
            )
        except NeuronJaxError:
            return {}  # the report has a finding for the error
        return contraction_casts(regions)


@dataclass(frozen=True, kw_only=True)
class OpContext:
    """One op in its context.

    Attributes:
        facts: facts of the values that the op may read.
        graph: for each value, the op and the values from which it is computed.
        users: the ops that read each value.
        scope: the name stack, enclosing calls included.
        location: the user's line; "" if the line of the caller applies.
        trips: how often enclosing loops run the op; loops of unknown length count as 1.
        in_generator: whether the op is inside a function of jax.random.
        loop: the op's trip count if it is a `while` with a static count; else None.
    """

    op: Op
    settings: Settings
    facts: Mapping[Value, Fact]
    graph: ValueSources
    users: Mapping[Value, Sequence[Op]]
    scope: str
    location: str
    trips: int
    in_generator: bool
    loop: int | None = None

    def fact(self, value: Value) -> Fact:
        return _known(self.facts, value)

    def producer(self, value: Value, *through: str) -> Op | None:
        """Return the op that computes `value`; None for an argument. An op named in
        `through` is replaced by the op that computes its first operand."""
        op = self.graph.makers.get(value)
        while op is not None and op.name in through:
            op = self.graph.makers.get(op.operands[0])
        return op


#: A function that yields findings on one op. A finding without a line gets the line of
#: the call that led to the op.
Rules = Callable[[OpContext], Iterator[Finding]]


def _known(facts: Mapping[Value, Fact], value: Value) -> Fact:
    return facts.get(value) or unknown(value.type)


@dataclass(frozen=True)
class _Called:
    results: Sequence[Fact]
    notes: tuple[Finding, ...]


def visit(settings: Settings, rules: Rules) -> tuple[Finding, ...]:
    """Return the rules' findings on every op that the program's `main` reaches."""
    walker = _Walker(settings, rules)
    main = settings.program.entry
    facts = [unknown(value.type) for value in main.body.arguments]
    return walker.function(main.name, facts, "", 1, False).notes


class _Walker:
    """A walk through functions that caches the facts and findings of each function."""

    def __init__(self, settings: Settings, rules: Rules) -> None:
        self.settings, self.rules = settings, rules
        self.functions = settings.program.functions
        self.graph = ValueSources(settings.program)
        self.users: dict[Value, list[Op]] = {}
        for op in settings.program.walk():
            for value in op.operands:
                self.users.setdefault(value, []).append(op)
        self._called: dict[tuple, _Called] = {}

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
            body = self.functions[name].body
            walk = _FunctionWalk(self, scope, trips, in_generator)
            results = walk.region(body, dict(zip(body.arguments, facts, strict=True)))
            self._called[key] = _Called(results, tuple(walk.notes))
        return self._called[key]


@dataclass(frozen=True)
class _FunctionWalk:
    """A walk through one function; `notes` are its findings."""

    walker: _Walker
    scope: str
    trips: int
    in_generator: bool
    notes: list[Finding] = field(default_factory=list)

    def region(self, region: Region, facts: dict[Value, Fact]) -> Sequence[Fact]:
        """Return the facts of a region's results; store all its facts in `facts`."""
        for op in region.ops:
            results = self._op(op, [_known(facts, v) for v in op.operands], facts)
            facts.update(zip(op.results, results, strict=True))
        return [_known(facts, v) for v in region.results]

    def _op(
        self, op: Op, operands: Sequence[Fact], facts: dict[Value, Fact]
    ) -> Sequence[Fact]:
        walker = self.walker
        is_loop = op.name == "stablehlo.while"
        loop = trip_count(op, operands, walker.functions) if is_loop else None
        is_own = not (op.location.is_lent or self.in_generator)
        location = op.location.source if is_own else ""
        scope = "/".join(filter(None, (self.scope, op.location.scope)))
        context = OpContext(
            op=op,
            settings=walker.settings,
            facts=facts,
            graph=walker.graph,
            users=walker.users,
            scope=scope,
            location=location,
            trips=self.trips,
            in_generator=self.in_generator,
            loop=loop,
        )
        self.notes.extend(walker.rules(context))
        if callee := op.callee:
            inside = self.in_generator or bool(_GENERATORS.fullmatch(callee))
            called = walker.function(callee, operands, scope, self.trips, inside)
            for note in called.notes:
                self.notes.append(replace(note, location=note.location or location))
            return called.results
        if is_loop:
            return self._while(op, operands, facts, loop)
        if op.name not in CONTROL_FLOW:
            return evaluate(op, operands)
        chosen = branch_taken(op, operands[0]) if op.name in CHOICES else None
        if chosen is not None:
            return self.region(op.regions[chosen], dict(facts))
        for region in op.regions:
            self.region(region, dict(facts))
        return [unknown(result.type) for result in op.results]

    def _while(
        self,
        op: Op,
        operands: Sequence[Fact],
        facts: dict[Value, Fact],
        trips: int | None,
    ) -> Sequence[Fact]:
        inside = replace(self, trips=self.trips * (1 if trips is None else trips))
        carries = [
            carried(op, i, operands, self.walker.functions, trips)
            for i in range(len(operands))
        ]
        for region in op.regions:
            scope = {**facts, **dict(zip(region.arguments, carries, strict=True))}
            inside.region(region, scope)
        return [
            operands[i] if invariant(op, i) else unknown(result.type)
            for i, result in enumerate(op.results)
        ]


def branch_taken(op: Op, index: Fact) -> int | None:
    """Return the number of the region that `op` runs; None if it depends on data."""
    if index.scalar is None:
        return None
    if op.name == "stablehlo.if":
        return 0 if index.scalar else 1
    chosen, last = int(index.scalar), len(op.regions) - 1
    return chosen if 0 <= chosen <= last else last
