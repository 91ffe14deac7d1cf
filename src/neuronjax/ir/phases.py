"""Find the ops of the forward pass, of the backward pass and of the optimizer.

JAX's name stack has "jvp(" for ops that are differentiated and "transpose(" for the
backward pass, including a rematerialized forward pass, which runs there. An op with
neither that is computed from a gradient belongs to the optimizer; so does one that only
the optimizer reads (a schedule, a bias correction). Any other op belongs to the pass
that reads it first, or to the pass from which it reads (a metric). Without a backward
pass the phase is unknown: an inference step and an update alone look alike.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence

from neuronjax.ir.descent import Descent
from neuronjax.ir.program import (
    Function,
    Op,
    Program,
    Value,
    is_backward_scope,
    is_forward_scope,
)


class Readers:
    """The edges between the ops of a function, including those of regions.

    Attributes:
        ops: the ops in program order; an op comes before those inside it.
        makers: the op whose result a value is.
        readers: the ops that read a value; an op reads the results of its regions.
    """

    def __init__(self, function: Function) -> None:
        self.ops: Sequence[Op] = tuple(function.walk())
        self.makers: dict[Value, Op] = {}
        self.readers: dict[Value, list[Op]] = defaultdict(list)
        for op in self.ops:
            self.makers.update((result, op) for result in op.results)
            handed_out = (v for region in op.regions for v in region.results)
            for value in (*op.operands, *handed_out):
                self.readers[value].append(op)

    def after(self, op: Op) -> Iterator[Op]:
        """Yield the ops that read a result of this op."""
        for result in op.results:
            yield from self.readers.get(result, ())

    def before(self, op: Op) -> Iterator[Op]:
        """Yield the ops whose results this op reads."""
        for value in op.operands:
            if value in self.makers:
                yield self.makers[value]

    def beside(self, op: Op) -> Iterator[Op]:
        """Yield the other ops that read an operand of this op."""
        for value in op.operands:
            yield from (other for other in self.readers[value] if other is not op)


UNKNOWN = ""
PHASES = (UNKNOWN, "forward", "backward", "optimizer")
SHORT_PHASES: Mapping[str, str] = {
    "": "",
    "forward": "fwd",
    "backward": "bwd",
    "optimizer": "opt",
}
"""Short names for narrow columns."""


def phases_of(graph: Readers, read: Mapping[Op, Descent]) -> dict[Op, str]:
    """Return the phase of each op of a function; "" if it is unknown."""
    scopes = [op.location.scope for op in graph.ops]
    has_backward = any(map(is_backward_scope, scopes))
    if not has_backward:
        return dict.fromkeys(graph.ops, UNKNOWN)
    phases: dict[Op, str] = {
        op: _own_phase(op, read[op].after_gradients) for op in graph.ops
    }
    for op in reversed(graph.ops):
        later = [phases[reader] for reader in graph.after(op) if phases[reader]]
        if not phases[op] and later:
            phases[op] = min(later, key=PHASES.index)
    for op in graph.ops:
        earlier = [phases[maker] for maker in graph.before(op) if phases[maker]]
        if not phases[op] and earlier:
            phases[op] = max(earlier, key=PHASES.index)
    return phases


def phases_of_callees(program: Program, found: Mapping[Op, str]) -> dict[str, str]:
    """Return the phase of each function, if all its calls have the same one, else "".
    Bodies of scans and rematerialized layers have name stacks that begin anew, so they
    need the phase of their calls. `found` has the phases of all ops of the program."""
    calls: dict[str, list[tuple[str, Op]]] = defaultdict(list)
    for caller, function in program.functions.items():
        for op in function.walk():
            if callee := op.callee:
                calls[callee].append((caller, op))
    known: dict[str, str] = {}

    def phase(name: str) -> str:
        if name not in known:
            known[name] = UNKNOWN  # for a recursive call
            of_calls = {found[op] or phase(caller) for caller, op in calls[name]}
            known[name] = of_calls.pop() if len(of_calls) == 1 else UNKNOWN
        return known[name]

    return {name: phase(name) for name in program.functions}


def _own_phase(op: Op, after_gradients: bool) -> str:
    if is_backward_scope(op.location.scope):
        return "backward"
    if is_forward_scope(op.location.scope):
        return "forward"
    return "optimizer" if after_gradients else UNKNOWN
