"""Which measured results another one is computed from, through what is not measured."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from neuronjax.ir.instruction import Instruction, InstructionProgram
from neuronjax.ir.instruction_set import Call
from neuronjax.ir.traversal import DataFlow, Functions, entries

Slots = Mapping[int, int]
_Sources = frozenset[int]


def upstream(
    program: InstructionProgram, own: Slots, called: Callable[[Call], Slots]
) -> set[tuple[int, int]]:
    """Pairs of slots: a measured result, and one that is computed from it.

    Args:
        program: the instructions.
        own: the slots of instructions, by their identity.
        called: where a call counts what its function counts.
    """
    finder = _UpstreamFinder(program.functions, own, called)
    finder.block(program.main, [finder.nothing] * len(program.main.arguments))
    return finder.pairs


class _UpstreamFinder(DataFlow[_Sources]):
    """The nearest measured results behind a buffer."""

    nothing = frozenset()

    def __init__(
        self, functions: Functions, own: Slots, called: Callable[[Call], Slots]
    ) -> None:
        super().__init__(functions)
        self.pairs: set[tuple[int, int]] = set()
        self._own = own
        self._called = called
        self._calls: list[Slots] = []

    def join(self, one: _Sources, other: _Sources) -> _Sources:
        return one | other

    def transfer(self, i: Instruction) -> Sequence[_Sources] | None:
        if entries(i, self.functions):
            return None
        behind = self.nothing.union(*map(self.of, i.operands))
        slot = self._slot(i)
        if slot is not None:
            self.pairs.update((source, slot) for source in behind)
            behind = frozenset((slot,))
        return [behind] * len(i.results)

    def nested(self, i: Instruction) -> Sequence[_Sources]:
        found = super().nested(i)
        return found or [self.nothing] * len(i.results)

    def instruction(self, i: Instruction) -> Sequence[_Sources]:
        if not isinstance(i, Call):
            return super().instruction(i)
        self._calls.append(self._called(i))
        found = super().instruction(i)
        self._calls.pop()
        return found

    def _slot(self, i: Instruction) -> int | None:
        """Where it is counted, the calls around it being what they are."""
        slot = self._own.get(id(i))
        for called in reversed(self._calls):
            slot = None if slot is None else called.get(slot)
        return slot
