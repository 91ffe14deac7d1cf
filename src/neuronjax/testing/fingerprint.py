"""A program's canonical text and its hash: what "the same program" means.

Op by op, with names, types, attributes and the flow of values; without source lines,
symbol names, argument names, where constants stand, and whatever a version of MLIR
prints. It is read off the
decoded program, so that two versions of jaxlib give the same text for one program.
"""

from __future__ import annotations

import dataclasses
import difflib
import hashlib
from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple

import numpy as np

from neuronjax.diagnostics.edits.changed_attributes import value_text
from neuronjax.ir.program import Op, Program, Region, Value

# Attributes that mean what none does.
_DEFAULTS = {"precision_config": ("DEFAULT", "DEFAULT"), "is_stable": True}


class Line(NamedTuple):
    """One op.

    Attributes:
        text: canonical; of an array its hash.
        source: "file:line" of the user's program, or "".
        shown: the text for people; of an array its first elements.
    """

    text: str
    source: str
    shown: str


def fingerprint(program: Program) -> str:
    """SHA-256 of the canonical text, in hexadecimal."""
    text = "\n".join(text for text, _ in _Writer(program, _digest).program())
    return hashlib.sha256(text.encode()).hexdigest()


def lines(program: Program) -> list[Line]:
    """The canonical text: the entry, then functions in the order of their calls."""
    canonical = _Writer(program, _digest).program()
    shown = _Writer(program, value_text).program()
    return [
        Line(text, source, people)
        for (text, source), (people, _) in zip(canonical, shown, strict=True)
    ]


def first_difference(old: Program, new: Program) -> str:
    """Where two programs part, for people; "" where they are the same."""
    before, after = lines(old), lines(new)
    matcher = difflib.SequenceMatcher(
        None, [x.text for x in before], [x.text for x in after], autojunk=False
    )
    for tag, i, j, k, m in matcher.get_opcodes():
        if tag != "equal":
            parts = [f"- {_shown(x)}" for x in before[i:j][:3]]
            parts += [f"+ {_shown(x)}" for x in after[k:m][:3]]
            return "\n".join(parts)
    return ""


def _shown(line: Line) -> str:
    text = line.shown.strip()
    text = text if len(text) <= 160 else f"{text[:157]}..."
    return f"{text}  ({line.source})" if line.source else text


def _digest(array: np.ndarray) -> str:
    digest = hashlib.sha256(np.ascontiguousarray(array).tobytes()).hexdigest()
    return f"array({array.dtype.name},{array.shape},{digest[:32]})"


class _Writer:
    """Numbers functions as they are first called, and values within each.

    Yields an op's text and "file:line"; arrays are written by `array`.
    """

    def __init__(self, program: Program, array: Callable[[np.ndarray], str]) -> None:
        self._program = program
        self._array = array
        self._numbers = {program.main: 0}
        self._values: dict[Value, str] = {}
        self._count = 0

    def program(self) -> Iterator[tuple[str, str]]:
        meshes = self._program.meshes
        for name in sorted(meshes):
            yield f"mesh {meshes[name]!r}", ""
        written = 0
        while written < len(self._numbers):  # which grows meanwhile
            name = list(self._numbers)[written]
            yield f"function {written}", ""
            self._values, self._count = {}, 0
            yield from self._region(self._program.functions[name].body, 1)
            written += 1

    def _region(self, region: Region, depth: int) -> Iterator[tuple[str, str]]:
        indent = "  " * depth
        arguments = " ".join(self._new(v) for v in region.arguments)
        yield f"{indent}arguments {arguments}", ""
        for op in region.ops:
            if op.name == "stablehlo.constant":
                # Its content in place of a name: where it stands does not matter.
                value = op.attributes["value"]
                self._values[op.results[0]] = self._canonical(value)
                continue
            yield indent + self._op(op), op.location.source
            for inner in op.regions:
                yield from self._region(inner, depth + 1)
        results = " ".join(self._values[v] for v in region.results)
        yield f"{indent}results {results}", ""

    def _op(self, op: Op) -> str:
        operands = " ".join(self._values[v] for v in op.operands)
        attributes = " ".join(
            f"{name}={self._canonical(op.attributes[name])}"
            for name in sorted(op.attributes)
            if name not in _DEFAULTS or op.attributes[name] != _DEFAULTS[name]
        )
        results = " ".join(self._new(v) for v in op.results)
        return f"{results} = {op.name} {operands} {{{attributes}}}"

    def _new(self, value: Value) -> str:
        self._count += 1
        name = self._values[value] = f"%{self._count}"
        return f"{name}:{value.type}"

    def _canonical(self, value: Any) -> str:
        if isinstance(value, str) and value in self._program.functions:
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
