"""From which arguments of a program its buffers descend, through moves and casts.

Read off the instructions, so that it holds for what lowering has inserted too: the
operand of a matmul is the parameter that it was before it was scaled, cast and laid
out. A callee sees the arguments of all its calls, a loop those of its start.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from neuronjax.ir.collective_set import Spmd
from neuronjax.ir.instruction import (
    Block,
    Buffer,
    Instruction,
    InstructionProgram,
    View,
)
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


@dataclass(frozen=True)
class Provenance:
    """The arguments of main that buffers descend from, by moves and casts.

    Attributes:
        names: of every buffer that does, by number.
        whole: those that are all of an argument: no slice, nothing repeated.
    """

    names: dict[int, frozenset[str]] = field(default_factory=dict)
    whole: set[int] = field(default_factory=set)

    def of(self, view: View) -> frozenset[str]:
        """The arguments that a view descends from."""
        return self.names.get(view.buffer.number, frozenset())

    def is_whole(self, view: View) -> bool:
        """Whether it is all of them."""
        return view.buffer.number in self.whole

    def put(self, buffer: Buffer, names: frozenset[str], whole: bool) -> None:
        """Adds what a buffer may descend from."""
        number = buffer.number
        if names:
            self.names[number] = self.names.get(number, frozenset()) | names
        if names and whole:
            self.whole.add(number)


def find_provenance(program: InstructionProgram, names: Sequence[str]) -> Provenance:
    """The provenance of all buffers of a program.

    Args:
        program: the instructions.
        names: of main's arguments; without, or if they are not one each, their numbers.
    """
    if len(names) != len(program.main.arguments):
        names = [""] * len(program.main.arguments)
    finder = _Finder(program, Provenance(), set())
    for n, buffer in enumerate(program.main.arguments):
        finder.provenance.put(buffer, frozenset({names[n] or f"argument {n}"}), True)
    finder.block(program.main)
    return finder.provenance


@dataclass(frozen=True)
class _Finder:
    program: InstructionProgram
    provenance: Provenance
    called: set[tuple]

    def block(self, block: Block) -> None:
        for i in block.instructions:
            for inner, views in self._blocks(i):
                for buffer, view in zip(inner.arguments, views, strict=True):
                    self.provenance.put(buffer, *self._known(view))
                self.block(inner)
            if isinstance(i, _MOVES) and i.operands:
                names, whole = self._known(i.operands[0])
                whole = whole and _size(i.results[0]) == _size(i.operands[0].buffer)
                for result in i.results:
                    self.provenance.put(result, names, whole)

    def _known(self, view: View) -> tuple[frozenset[str], bool]:
        return self.provenance.of(view), self.provenance.is_whole(view)

    def _blocks(self, i: Instruction) -> Iterator[tuple[Block, Sequence[View]]]:
        """What an instruction runs and on what; a callee only if that is news."""
        if isinstance(i, Call):
            key = (i.callee, *map(self._known, i.operands))
            if key not in self.called:
                self.called.add(key)
                yield self.program.functions[i.callee], i.operands
        elif isinstance(i, (Loop, Spmd)):
            yield from ((block, i.operands) for block in i.blocks)
        elif isinstance(i, Branch):
            yield from ((block, ()) for block in i.blocks)


def _size(buffer: Buffer) -> int:
    return math.prod(buffer.type.shape)
