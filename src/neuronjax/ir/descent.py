"""Find the values that are moved or cast arguments, and those made from gradients.

The analysis walks from the arguments of main through calls, each with its operands,
through loops until nothing new is known, and through branches.
"""

from __future__ import annotations

import functools
from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from neuronjax.ir.program import Op, Program, Region, Value, is_backward_scope

MOVES = frozenset(
    f"stablehlo.{name}"
    for name in (
        "all_gather all_to_all broadcast_in_dim collective_broadcast "
        "collective_permute convert dynamic_slice optimization_barrier pad reshape "
        "reverse slice transpose"
    ).split()
)
"""Ops that move or cast their operand; the result of a parameter counts as the same
parameter."""


class Descent(NamedTuple):
    """The origin of a value, or the joined origin of all values that an op reads."""

    #: The positions of the arguments of main that were moved or cast.
    arguments: frozenset[int] = frozenset()
    after_gradients: bool = False  # whether it is computed from a gradient

    def join(self, other: Descent) -> Descent:
        """Return the union of two origins."""
        if self == other or other == _NOTHING:
            return self
        return Descent(
            self.arguments | other.arguments,
            self.after_gradients or other.after_gradients,
        )


_NOTHING = Descent()


def descent_of_ops(program: Program) -> Mapping[Op, Descent]:
    """Return the `Descent` of the values that each op reads, joined over all calls."""
    walk = _Walk(program)
    arguments = program.entry.body.arguments
    given = [Descent(frozenset({n})) for n in range(len(arguments))]
    walk.region(program.entry.body, given)
    return walk.read


class _Walk:
    """Finds the `Descent` of the values that each op reads, and puts it in `read`."""

    def __init__(self, program: Program) -> None:
        self._functions = program.functions
        self._facts: dict[Value, Descent] = {}
        self._called: dict[tuple, list[Descent]] = {}
        self._open: set[str] = set()
        self.read: dict[Op, Descent] = defaultdict(lambda: _NOTHING)

    def region(self, region: Region, given: Sequence[Descent]) -> list[Descent]:
        self._facts.update(zip(region.arguments, given, strict=True))
        for op in region.ops:
            self._facts.update(zip(op.results, self._op(op), strict=True))
        return self._of(region.results)

    def _of(self, values: Sequence[Value]) -> list[Descent]:
        return [self._facts.get(v, _NOTHING) for v in values]

    def _op(self, op: Op) -> Sequence[Descent]:
        given = self._of(op.operands)
        read = _joined(given)
        self.read[op] = self.read[op].join(read)
        backward = is_backward_scope(op.location.scope)
        if callee := op.callee:
            results = self._call(callee, given)
            return [f.join(Descent(after_gradients=backward)) for f in results]
        if op.name == "stablehlo.while":
            return self._loop(op, given)
        if op.name == "sdy.manual_computation":
            return self.region(op.regions[0], given)
        if op.name in ("stablehlo.case", "stablehlo.if"):
            outs = [self.region(region, ()) for region in op.regions]
            return [_joined(column) for column in zip(*outs, strict=True)]
        late = backward or read.after_gradients
        if op.name == "stablehlo.optimization_barrier":
            return [fact.join(Descent(after_gradients=late)) for fact in given]
        kept = given[0].arguments if op.name in MOVES and given else frozenset()
        return [Descent(kept, late)] * len(op.results)

    def _call(self, callee: str, given: Sequence[Descent]) -> list[Descent]:
        key = (callee, *given)
        body = self._functions[callee].body
        if callee in self._open:  # recursion is refused later, at execution
            return [_NOTHING] * len(body.results)
        if key not in self._called:
            self._open.add(callee)
            self._called[key] = self.region(body, given)
            self._open.remove(callee)
        return self._called[key]

    def _loop(self, op: Op, given: Sequence[Descent]) -> list[Descent]:
        condition, body = op.regions
        while True:
            self.region(condition, given)
            out = self.region(body, given)
            after = [a.join(b) for a, b in zip(given, out, strict=True)]
            if after == list(given):
                return after
            given = after


def _joined(facts: Sequence[Descent]) -> Descent:
    return functools.reduce(Descent.join, facts, _NOTHING)
