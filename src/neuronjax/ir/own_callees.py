"""Give each call of a function its own copy of the function, so that an analysis of
values does not confuse the calls. JAX calls one function for all uses of `jnp.clip`,
`jnp.where` and others with the same shapes."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

from neuronjax.ir.program import CALLEES, Function, Op, Program, Region, Value


def with_own_callees(program: Program) -> Program:
    """Return the program with a copy of a function for each of its calls; `program`
    itself if it calls no function twice. Locations and the order of ops stay."""
    calls = Counter(op.callee for op in program.walk() if op.callee)
    if max(calls.values(), default=0) < 2:
        return program
    functions = {n: f for n, f in program.functions.items() if n not in calls}
    copies = _Copies(program, functions)
    del functions[program.main]
    copies.function(program.main)
    return replace(program, functions=functions)


class _Copies:
    """The copied functions, by name, in `functions`."""

    def __init__(self, program: Program, functions: dict[str, Function]) -> None:
        self._program, self._functions = program, functions
        self._values: dict[Value, Value] = {}

    def function(self, name: str) -> str:
        """Copy a function and all functions that it calls; return the copy's name."""
        body, copied, number = self._program.functions[name].body, name, 1
        while copied in self._functions:
            number += 1
            copied = f"{name}.{number}"
        self._functions[copied] = Function(copied, body)  # reserves the name
        self._functions[copied] = Function(copied, self._region(body))
        return copied

    def _region(self, region: Region) -> Region:
        arguments = self._define(region.arguments)
        ops = tuple(map(self._op, region.ops))
        return Region(arguments, ops, self._of(region.results))

    def _op(self, op: Op) -> Op:
        attributes = op.attributes
        if op.callee:
            callee = self.function(op.callee)
            attributes = {**attributes, CALLEES[op.name]: callee}
        operands, regions = self._of(op.operands), tuple(map(self._region, op.regions))
        results = self._define(op.results)
        return Op(op.name, operands, results, attributes, regions, op.location)

    def _define(self, values: tuple[Value, ...]) -> tuple[Value, ...]:
        for value in values:
            self._values[value] = Value(value.number, value.type)
        return self._of(values)

    def _of(self, values: tuple[Value, ...]) -> tuple[Value, ...]:
        return tuple([self._values[v] for v in values])
