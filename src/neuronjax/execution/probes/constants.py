"""Which numbers of the program a buffer repeats, through moves, casts and calls."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from neuronjax.ir.instruction import Buffer, Instruction, InstructionProgram
from neuronjax.ir.instruction_set import Call, DmaCopy, Memset, TensorCopy
from neuronjax.ir.traversal import DataFlow, Functions, entries

#: One for each call that hands another number to a function; NaN stands for an array
#: of several.
Numbers = frozenset[float]


def constants(program: InstructionProgram) -> Mapping[int, Numbers]:
    """Return what constant buffers repeat, by their number; of others nothing."""
    finder = _ConstantFinder(program.functions)
    finder.block(program.main, [frozenset()] * len(program.main.arguments))
    return finder.facts


class _ConstantFinder(DataFlow[Numbers]):
    nothing = frozenset()

    def __init__(self, functions: Functions) -> None:
        super().__init__(functions)
        self._seen: set[tuple] = set()

    def bind(self, buffers: Sequence[Buffer], facts: Sequence[Numbers]) -> None:
        known = (self.facts.get(buffer.number, self.nothing) for buffer in buffers)
        super().bind(buffers, list(map(self.join, known, facts)))

    def join(self, one: Numbers, other: Numbers) -> Numbers:
        return one | other

    def transfer(self, i: Instruction) -> Sequence[Numbers] | None:
        if entries(i, self.functions):
            return None
        found = self.nothing
        if isinstance(i, Memset):
            found = frozenset((_repeated(i.value),))
        elif isinstance(i, DmaCopy | TensorCopy):
            read = list(map(self.of, i.operands))
            found = self.nothing.union(*read) if all(read) else found
        return [found] * len(i.results)

    def nested(self, i: Instruction) -> Sequence[Numbers]:
        """Look into what runs, to which a call alone hands constants on."""
        for entry in entries(i, self.functions):
            given = [self.nothing] * len(entry.block.arguments)
            if isinstance(i, Call):
                given = list(self.given(entry))
            call = (id(entry.block), *given)
            if call not in self._seen:
                self._seen.add(call)
                self.block(entry.block, given)
        return [self.nothing] * len(i.results)


def _repeated(value: np.ndarray) -> float:
    same = value.size and (value.size == 1 or not any(value.strides))
    return float(value.flat[0]) if same else np.nan
