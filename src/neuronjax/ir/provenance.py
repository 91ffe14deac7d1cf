"""The arguments and numbers from which a program's buffers descend, by moves and casts.

The analysis reads the instructions, so it includes what lowering has inserted: the
operand of a matmul descends from the parameter that it was before it was scaled, cast
and laid out. A callee has the arguments of all its calls.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from neuronjax.ir.collective_set import Spmd
from neuronjax.ir.instruction import Buffer, Instruction, InstructionProgram, View
from neuronjax.ir.instruction_set import (
    BitcastCopy,
    Branch,
    Call,
    DmaCopy,
    Loop,
    Memset,
    NcTranspose,
    QuantizeMx,
    Sparsify,
    TensorCopy,
    TensorScalar,
)
from neuronjax.ir.traversal import DataFlow, Functions, entries

# The result of these ops is a parameter if their operand is.
_MOVES = (
    BitcastCopy,
    DmaCopy,
    NcTranspose,
    QuantizeMx,
    Sparsify,
    TensorCopy,
    TensorScalar,
)


class _Origin(NamedTuple):
    """The origin of a buffer."""

    names: frozenset[str] = frozenset()  # the names of the arguments
    whole: bool = False  # whether it has all their elements: no slice, nothing repeated
    #: The constants that it repeats, several if calls pass different ones to a
    #: function; NaN for an array of different numbers.
    numbers: frozenset[float] = frozenset()


@dataclass(frozen=True)
class Provenance:
    """The arguments and numbers from which buffers descend, by moves and casts."""

    facts: Mapping[int, _Origin]  # the origins of known buffers, by number

    def of(self, view: View) -> frozenset[str]:
        """Return the arguments from which a view descends."""
        return self.facts.get(view.buffer.number, _Origin()).names

    def is_whole(self, view: View) -> bool:
        """Return whether a view has all elements of its argument."""
        return self.facts.get(view.buffer.number, _Origin()).whole

    def numbers(self, view: View) -> frozenset[float]:
        """Return the constants that a view repeats."""
        return self.facts.get(view.buffer.number, _Origin()).numbers


def find_provenance(program: InstructionProgram, names: Sequence[str]) -> Provenance:
    """Return the provenance of all buffers of a program. `names` are those of main's
    arguments; if there is not one for each, they are numbered."""
    if len(names) != len(program.main.arguments):
        names = [""] * len(program.main.arguments)
    finder = _Finder(program.functions)
    named = (n or f"argument {k}" for k, n in enumerate(names))
    finder.block(program.main, [_Origin(frozenset((name,)), True) for name in named])
    return Provenance(finder.facts)


# Combiners of reductions and sorts are not here: they take no parameters.
_CONTROL = (Branch, Call, Loop, Spmd)


class _Finder(DataFlow[_Origin]):
    nothing = _Origin()

    def __init__(self, functions: Functions) -> None:
        super().__init__(functions)
        self._called: set[tuple] = set()

    def bind(self, buffers: Sequence[Buffer], facts: Sequence[_Origin]) -> None:
        """Join facts: a buffer of a callee descends from the arguments of all calls."""
        known = (self.facts.get(buffer.number, self.nothing) for buffer in buffers)
        super().bind(buffers, list(map(self.join, known, facts)))

    def join(self, one: _Origin, other: _Origin) -> _Origin:
        return _Origin(*map(operator.or_, one, other))

    def transfer(self, i: Instruction) -> Sequence[_Origin] | None:
        if isinstance(i, Memset):
            return [_Origin(numbers=frozenset((_repeated(i.value),)))]
        if not (isinstance(i, _MOVES) and i.operands):
            return None
        (names, whole, numbers), *others = map(self.of, i.operands)
        whole = whole and _size(i.results[0]) == _size(i.operands[0].buffer)
        is_constant = numbers and all(other.numbers for other in others)
        if not is_constant or not isinstance(i, DmaCopy | TensorCopy):
            numbers = frozenset()
        return [_Origin(names, whole, numbers)] * len(i.results)

    def nested(self, i: Instruction) -> Sequence[_Origin]:
        """Analyse nested blocks, whose results have no known origin. A loop's carry has
        the origin of its initial values; only a call passes constants on."""
        for entry in entries(i, self.functions) if isinstance(i, _CONTROL) else ():
            given = self.given(entry)
            if not isinstance(i, Call):
                given = tuple(fact._replace(numbers=frozenset()) for fact in given)
            call = (id(entry.block), *given)
            if isinstance(i, Call) and call in self._called:
                continue
            self._called.add(call)
            self.block(entry.block, given)
        return [self.nothing] * len(i.results)


def _repeated(value: np.ndarray) -> float:
    """Return the number that all elements equal; NaN if there are several."""
    same = value.size and (value.size == 1 or not any(value.strides))
    return float(value.flat[0]) if same else np.nan


def _size(buffer: Buffer) -> int:
    return math.prod(buffer.type.shape)
