"""From which arguments of a program its buffers descend, through moves and casts.

Read off the instructions, so that it holds for what lowering has inserted too: the
operand of a matmul is the parameter that it was before it was scaled, cast and laid
out. A callee sees the arguments of all its calls, a loop those of its start.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from neuronjax.ir.collective_set import Spmd
from neuronjax.ir.instruction import Buffer, Instruction, InstructionProgram, View
from neuronjax.ir.instruction_set import (
    BitcastCopy,
    Branch,
    Call,
    DmaCopy,
    Loop,
    NcTranspose,
    QuantizeMx,
    Sparsify,
    TensorCopy,
    TensorScalar,
)
from neuronjax.ir.traversal import DataFlow, Functions, entries

# Hand on what they are given: a parameter stays one.
_MOVES = (
    BitcastCopy,
    DmaCopy,
    NcTranspose,
    QuantizeMx,
    Sparsify,
    TensorCopy,
    TensorScalar,
)


#: The arguments that a buffer descends from, and whether it is all of them: no slice,
#: nothing repeated.
_Descent = tuple[frozenset[str], bool]
_NOTHING: _Descent = (frozenset(), False)


@dataclass(frozen=True)
class Provenance:
    """The arguments of main that buffers descend from, by moves and casts.

    Attributes:
        facts: of every buffer that is known of, by number.
    """

    facts: Mapping[int, _Descent]

    def of(self, view: View) -> frozenset[str]:
        """The arguments that a view descends from."""
        return self.facts.get(view.buffer.number, _NOTHING)[0]

    def is_whole(self, view: View) -> bool:
        """Whether it is all of them."""
        return self.facts.get(view.buffer.number, _NOTHING)[1]


def find_provenance(program: InstructionProgram, names: Sequence[str]) -> Provenance:
    """The provenance of all buffers of a program.

    Args:
        program: the instructions.
        names: of main's arguments; without, or if they are not one each, their numbers.
    """
    if len(names) != len(program.main.arguments):
        names = [""] * len(program.main.arguments)
    finder = _Finder(program.functions)
    whole = [(frozenset({n or f"argument {k}"}), True) for k, n in enumerate(names)]
    finder.block(program.main, whole)
    return Provenance(finder.facts)


# A combiner, of a reduction or a sort, is given no parameters.
_CONTROL = (Branch, Call, Loop, Spmd)


class _Finder(DataFlow[_Descent]):
    """The provenance of all buffers."""

    nothing = _NOTHING

    def __init__(self, functions: Functions) -> None:
        super().__init__(functions)
        self._called: set[tuple] = set()

    def bind(self, buffers: Sequence[Buffer], facts: Sequence[_Descent]) -> None:
        """A buffer of a callee descends from the arguments of all its calls."""
        known = (self.facts.get(buffer.number, _NOTHING) for buffer in buffers)
        super().bind(buffers, list(map(self.join, known, facts)))

    def join(self, one: _Descent, other: _Descent) -> _Descent:
        return one[0] | other[0], one[1] or other[1]

    def transfer(self, i: Instruction) -> Sequence[_Descent] | None:
        if not (isinstance(i, _MOVES) and i.operands):
            return None
        names, whole = self.of(i.operands[0])
        whole = whole and _size(i.results[0]) == _size(i.operands[0].buffer)
        return [(names, whole)] * len(i.results)

    def nested(self, i: Instruction) -> Sequence[_Descent]:
        """What blocks return is a parameter no more; a loop has what it starts with."""
        for entry in entries(i, self.functions) if isinstance(i, _CONTROL) else ():
            call = (id(entry.block), *self.given(entry))
            if isinstance(i, Call) and call in self._called:
                continue
            self._called.add(call)
            self.enter(entry)
        return [self.nothing] * len(i.results)


def _size(buffer: Buffer) -> int:
    return math.prod(buffer.type.shape)
