"""What the values of a program are called by those who save tensors."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from neuronjax.diagnostics.op_records import MOVING
from neuronjax.diagnostics.parallel_runs import OpPath
from neuronjax.ir.name_stack import read_name_stack
from neuronjax.ir.program import TOP, Op, Program, Region, Value

#: A value as the calls reach it.
Key = tuple[tuple[Op, ...], Value]
_SEPARATORS = re.compile(r"[./:]+")
#: What frameworks append to the name of a module whose output they save.
_ENDINGS = ("output", "output_0", "out")


@dataclass(eq=False)
class NamedValue:
    """A value of the program that runs once.

    Attributes:
        key: which it is.
        path: of the op that makes it; None for an argument.
        names: what it is called, the plainest first.
        computes: whether its op computes, rather than moves what others have.
    """

    key: Key
    path: OpPath | None
    names: list[str] = field(default_factory=list)
    computes: bool = True

    @property
    def value(self) -> Value:
        """As the program has it."""
        return self.key[1]


def normal(name: str) -> tuple[str, ...]:
    """A name in parts: "layers.0::mlp/output" is ("layers", "0", "mlp")."""
    parts = [p for p in _SEPARATORS.split(name.strip().lower()) if p]
    while len(parts) > 1 and parts[-1] in _ENDINGS:
        parts.pop()
    return tuple(parts)


def named_values(program: Program, outputs: Sequence[str]) -> list[NamedValue]:
    """Every value that runs once, in the order of execution, with its names.

    Arguments are called as the program calls them, outputs by their paths. A value
    inside is called by its module and op, "mlp/dot_general", the second such
    "mlp/dot_general.1", or by its op where the program names no modules; and the last
    that a module computes by the module alone.
    """
    body = program.entry.body
    found = [
        NamedValue(((), value), None, [name or f"argument {n}"])
        for n, (value, name) in enumerate(
            zip(body.arguments, program.argument_names, strict=True)
        )
    ]
    made = list(_made(program, body, ()))
    known = {value.key: value for value in made}
    for value, name in zip(body.results, outputs, strict=True):
        if ((), value) in known:
            known[(), value].names.insert(0, name)
    _name_by_module(made)
    return found + made


def _made(
    program: Program, region: Region, calls: tuple[Op, ...]
) -> Iterator[NamedValue]:
    for op in region.ops:
        callee = op.callee
        if callee is not None:
            body = program.functions[callee].body
            yield from _made(program, body, (*calls, op))
        path = OpPath(calls, op)
        for value in op.results:
            computes = op.name not in MOVING and callee is None
            yield NamedValue((calls, value), path, [], computes)


def _name_by_module(values: Sequence[NamedValue]) -> None:
    counts: Counter[str] = Counter()
    last: dict[str, NamedValue] = {}
    for value in values:
        assert value.path is not None
        location, op = value.path.location, value.path.op.name.rpartition(".")[2]
        # A module's values are those of its forward pass; others say which pass.
        module = location.part if location.phase == "forward" else location.label
        plain = [] if read_name_stack(value.path.scope).names else [op]
        for name in dict.fromkeys([*plain, op if module == TOP else f"{module}/{op}"]):
            number = counts[name]
            counts[name] += 1
            value.names.append(f"{name}.{number}" if number else name)
        if value.computes and module != TOP:
            last[module] = value
    for module, value in last.items():
        value.names.append(module)
