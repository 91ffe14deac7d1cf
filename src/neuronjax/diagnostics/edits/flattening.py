"""The ops of a program in a row, each with a fingerprint of what it computes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from neuronjax.diagnostics.edits.canonical_text import CONTROL, op_text, sha256
from neuronjax.diagnostics.parallel_runs import OpPath
from neuronjax.ir.name_stack import read_name_stack
from neuronjax.ir.program import Op, Program, Region, Value, is_cotangent_scope


@dataclass(frozen=True, eq=False)
class FlatOp:
    """One op, as the calls reach it.

    Attributes:
        number: in the row.
        path: which it is.
        fingerprint: equal for ops that compute the same function under the same names;
            what they read and where they stand in the source does not count.
    """

    number: int
    path: OpPath
    fingerprint: str

    @property
    def op(self) -> Op:
        """As the program has it."""
        return self.path.op

    @property
    def kind(self) -> tuple[str, ...]:
        """Its name and the types of its results."""
        return (self.op.name, *self.types)

    @property
    def types(self) -> tuple[str, ...]:
        """Of its results."""
        return tuple(str(v.type) for v in self.op.results)


@dataclass(frozen=True, eq=False)
class FlatProgram:
    """A program's ops in a row, bodies of calls, loops and branches behind their op.

    Attributes:
        ops: the row.
        makers: the op whose result a value is; of a body that is called twice the
            first.
        places: what is no op's result: the op whose body it is an argument of, None for
            main, and its number.
    """

    program: Program
    ops: tuple[FlatOp, ...]
    makers: Mapping[Value, FlatOp]
    places: Mapping[Value, tuple[FlatOp | None, str, int]]


def flat(program: Program) -> FlatProgram:
    """Return the row of a program."""
    ops: list[FlatOp] = []
    makers: dict[Value, FlatOp] = {}
    places: dict[Value, tuple[FlatOp | None, str, int]] = {}

    def add(
        region: Region, owner: FlatOp | None, what: str, calls: tuple[Op, ...]
    ) -> None:
        for number, value in enumerate(region.arguments):
            places.setdefault(value, (owner, what, number))
        for op in region.ops:
            path = OpPath(calls, op)
            entry = FlatOp(len(ops), path, fingerprint(path))
            ops.append(entry)
            for value in op.results:
                makers.setdefault(value, entry)
            if callee := op.callee:
                add(program.functions[callee].body, entry, "call", (*calls, op))
            elif op.name in CONTROL:
                for n, inner in enumerate(op.regions):
                    add(inner, entry, str(n), calls)

    add(program.entry.body, None, "main", ())
    return FlatProgram(program, tuple(ops), makers, places)


def fingerprint(path: OpPath) -> str:
    """A hash of what an op computes, and of its name stack.

    Not of its module, which what is around it may tell."""
    scope = path.scope
    names = "/".join(read_name_stack(scope).names)
    backward = str(is_cotangent_scope(scope))
    return sha256("\n".join((names, backward, op_text(path.op))))
