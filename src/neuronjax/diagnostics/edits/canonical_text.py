"""The canonical text of programs and ops, which defines "the same program".

The text lists op by op the names, types, attributes and operands. It omits source
lines, names of symbols and arguments, positions of constants and what depends on the
version of MLIR. The text is made from the decoded program, so two versions of jaxlib
give the same text for one program.
"""

from __future__ import annotations

import dataclasses
import difflib
import hashlib
from collections.abc import Callable, Container, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from neuronjax.diagnostics.edits.changed_attributes import CONSTANT, NAMES, value_text
from neuronjax.ir.program import (
    CALLEES,
    CONTROL_FLOW,
    Function,
    Op,
    Program,
    Region,
    Value,
)

#: Ops that run other ops.
CONTROL = (*CALLEES, *CONTROL_FLOW)
# Attribute values that mean the same as no attribute.
_DEFAULTS = {"precision_config": ("DEFAULT", "DEFAULT"), "is_stable": True}
_SHOWN_LINES, _WIDEST = 3, 160


def fingerprint(program: Program) -> str:
    """Return the SHA-256 of a program's canonical text, in hexadecimal."""
    return sha256("\n".join(_lines(program)))


def op_text(op: Op) -> str:
    """Return the canonical text of an op by itself, with the types of its operands.

    The scalar body of an op such as a reduction is included; ops that a call, loop or
    branch runs, and names of functions, are not included."""
    writer = _Writer({}, _digest)
    lines = [writer.op(op, NAMES)]
    if op.name not in CONTROL:
        for region in op.regions:
            lines += (text for text, _ in writer.region(region, 1))
    return "\n".join(lines)


def first_difference(old: Program, new: Program) -> str:
    """Return the first lines that differ in two programs; "" if they are the same."""
    sides = [*_lines(old)], [*_lines(new)]
    matcher = difflib.SequenceMatcher(None, *sides, autojunk=False)
    for tag, i, j, k, m in matcher.get_opcodes():
        if tag != "equal":
            parts = [f"- {line}" for line in _shown(old)[i:j][:_SHOWN_LINES]]
            parts += [f"+ {line}" for line in _shown(new)[k:m][:_SHOWN_LINES]]
            return "\n".join(parts)
    return ""


def sha256(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


def _lines(program: Program) -> Iterator[str]:
    return (text for text, _ in _Writer(program.functions, _digest).program(program))


def _shown(program: Program) -> list[str]:
    """Return the lines of a program, with only the first elements of arrays."""
    lines = []
    for line, source in _Writer(program.functions, value_text).program(program):
        text = line.strip()
        text = text if len(text) <= _WIDEST else f"{text[: _WIDEST - 3]}..."
        lines.append(f"{text}  ({source})" if source else text)
    return lines


def _digest(array: np.ndarray) -> str:
    digest = hashlib.sha256(np.ascontiguousarray(array).tobytes()).hexdigest()
    return f"array({array.dtype.name},{array.shape},{digest[:32]})"


class _Writer:
    """A writer of programs as text. Functions are numbered in the order of their first
    calls, and the values of each function in the order of the ops.

    A value without a number is written as its type. `functions` are those that calls
    refer to, by name; `array` returns the text of an array."""

    def __init__(
        self, functions: Mapping[str, Function], array: Callable[[np.ndarray], str]
    ) -> None:
        self._functions, self._array = functions, array
        self._numbers: dict[str, int] = {}
        self._values: dict[Value, str] = {}
        self._count = 0

    def program(self, program: Program) -> Iterator[tuple[str, str]]:
        """Yield the lines of all functions that run, each with its op's "file:line"."""
        for name in sorted(program.meshes):
            yield f"mesh {program.meshes[name]!r}", ""
        self._numbers = {program.main: 0}
        written = 0
        while written < len(self._numbers):  # the loop adds functions
            name = list(self._numbers)[written]
            yield f"function {written}", ""
            self._values, self._count = {}, 0
            yield from self.region(self._functions[name].body, 1)
            written += 1

    def region(self, region: Region, depth: int) -> Iterator[tuple[str, str]]:
        indent = "  " * depth
        arguments = " ".join(self._new(v) for v in region.arguments)
        yield f"{indent}arguments {arguments}", ""
        for op in region.ops:
            if op.name == CONSTANT:
                # Ops that read a constant are written with its content, so its position
                # does not matter.
                self._values[op.results[0]] = self._canonical(op.attributes["value"])
                continue
            yield indent + self.op(op), op.location.source
            for inner in op.regions:
                yield from self.region(inner, depth + 1)
        yield f"{indent}results {self._read(region.results)}", ""

    def op(self, op: Op, skipped: Container[str] = ()) -> str:
        attributes = " ".join(
            f"{name}={self._canonical(value)}"
            for name, value in sorted(op.attributes.items())
            if name not in skipped
            and (name not in _DEFAULTS or value != _DEFAULTS[name])
        )
        read = self._read(op.operands)
        results = " ".join(self._new(v) for v in op.results)
        return f"{results} = {op.name} {read} {{{attributes}}}"

    def _read(self, values: Sequence[Value]) -> str:
        return " ".join(self._values.get(v) or str(v.type) for v in values)

    def _new(self, value: Value) -> str:
        self._count += 1
        name = self._values[value] = f"%{self._count}"
        return f"{name}:{value.type}"

    def _canonical(self, value: Any) -> str:
        if isinstance(value, str) and value in self._functions:
            return f"@{self._numbers.setdefault(value, len(self._numbers))}"
        if isinstance(value, np.ndarray):
            return self._array(value)
        if isinstance(value, Mapping):
            parts = (f"{k}:{self._canonical(value[k])}" for k in sorted(value))
            return f"{{{','.join(parts)}}}"
        if isinstance(value, list | tuple):
            return f"({','.join(map(self._canonical, value))})"
        if dataclasses.is_dataclass(value) and not isinstance(value, type):
            fields = {f.name: getattr(value, f.name) for f in dataclasses.fields(value)}
            return f"{type(value).__name__}{self._canonical(fields)}"
        return str(value)
