"""Which ops are the forward pass, the backward pass or the optimizer.

JAX's name stack says "jvp(" of what is differentiated and "transpose(" of the backward
pass, a rematerialised forward pass included: it runs there. What is neither, and is
computed from a gradient, is the optimizer; so is what only that reads (a schedule, a
bias correction). The rest is the pass that reads it first, or the one it reads from (a
metric). In a function without a backward pass nothing tells: an inference step and an
update alone look alike.
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
    """The edges between the ops of a function, those of regions included.

    Attributes:
        ops: in program order; an op comes before those inside it.
        makers: the op whose result a value is.
        readers: the ops that read a value; an op reads what its regions hand out.
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
"""For narrow columns."""


def phases_of(graph: Readers, read: Mapping[Op, Descent]) -> dict[Op, str]:
    """The phase of each op of a function; "" where it cannot be told from inside."""
    scopes = [op.location.scope for op in graph.ops]
    has_backward = any(map(is_backward_scope, scopes))
    if not has_backward:
        return dict.fromkeys(graph.ops, UNKNOWN)
    found: dict[Op, str] = {
        op: _own_phase(op, read[op].after_gradients) for op in graph.ops
    }
    for op in reversed(graph.ops):
        later = [found[reader] for reader in graph.after(op) if found[reader]]
        if not found[op] and later:
            found[op] = min(later, key=PHASES.index)
    for op in graph.ops:
        earlier = [found[maker] for maker in graph.before(op) if found[maker]]
        if not found[op] and earlier:
            found[op] = max(earlier, key=PHASES.index)
    return found


def phases_of_callees(program: Program, found: Mapping[Op, str]) -> dict[str, str]:
    """What a function is that all its calls call in one phase, else "": a scan's body,
    a rematerialised layer, whose own name stacks begin anew.

    `found` has the phases of all ops of the program."""
    calls: dict[str, list[tuple[str, Op]]] = defaultdict(list)
    for caller, function in program.functions.items():
        for op in function.walk():
            if callee := op.callee:
                calls[callee].append((caller, op))
    known: dict[str, str] = {}

    def phase(name: str) -> str:
        if name not in known:
            known[name] = UNKNOWN  # to itself
            of_calls = {found[op] or phase(caller) for caller, op in calls[name]}
            known[name] = of_calls.pop() if len(of_calls) == 1 else UNKNOWN
        return known[name]

    return {name: phase(name) for name in program.functions}


def _own_phase(op: Op, after_gradients: bool) -> str:
    """What an op's name stack, and what it reads, say."""
    if is_backward_scope(op.location.scope):
        return "backward"
    if is_forward_scope(op.location.scope):
        return "forward"
    return "optimizer" if after_gradients else UNKNOWN
