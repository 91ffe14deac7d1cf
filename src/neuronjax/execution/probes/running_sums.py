"""The sums that a loop carries to its next turn: losses, moments, gradients.

Such a sum has an operand that the loop has carried, as it was or cast, and its result
is carried on in the same place.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from neuronjax.ir.instruction import Instruction, InstructionProgram, View
from neuronjax.ir.instruction_set import DmaCopy, Loop, TensorCopy, TensorTensor
from neuronjax.ir.traversal import DataFlow, Functions, entries


class _Carried(NamedTuple):
    """Places in the carry of a loop that a value is from.

    Attributes:
        places: the loop by its identity, and the number.
        sums: a place, and the addition to it on the way, by its identity.
    """

    places: frozenset[tuple[int, int]] = frozenset()
    sums: frozenset[tuple[tuple[int, int], int]] = frozenset()


def running_sums(program: InstructionProgram) -> dict[int, tuple[int, ...]]:
    """Of every running sum, by its identity, the operands that were carried."""
    finder = _CarryFinder(program.functions)
    finder.block(program.main, [_Carried()] * len(program.main.arguments))
    return {id(i): finder.carried[id(i)] for i in finder.running}


class _CarryFinder(DataFlow[_Carried]):
    nothing = _Carried()

    def __init__(self, functions: Functions) -> None:
        super().__init__(functions)
        self.carried: dict[int, tuple[int, ...]] = {}
        self.running: list[Instruction] = []
        self._sums: dict[int, Instruction] = {}

    def join(self, one: _Carried, other: _Carried) -> _Carried:
        return _Carried(one.places | other.places, one.sums | other.sums)

    def transfer(self, i: Instruction) -> Sequence[_Carried] | None:
        if i.blocks or entries(i, self.functions):
            return None
        if isinstance(i, TensorTensor) and i.op in ("add", "subtract"):
            return [self._sum(i)]
        moves = isinstance(i, TensorCopy | DmaCopy) and len(i.operands) == 1
        moved = self.of(i.operands[0]) if moves else self.nothing
        return [moved] * len(i.results)

    def _sum(self, i: TensorTensor) -> _Carried:
        operands = i.operands if i.op == "add" else i.operands[:1]
        added = tuple(n for n, view in enumerate(operands) if self._is_carried(view))
        if not added:
            return self.nothing
        self.carried[id(i)], self._sums[id(i)] = added, i
        sums = frozenset((p, id(i)) for n in added for p in self.of(operands[n]).places)
        before = frozenset(s for n in added for s in self.of(operands[n]).sums)
        places = frozenset(place for place, _ in sums)
        return _Carried(places, before | sums)

    def _is_carried(self, view: View) -> bool:
        return bool(self.of(view).places)

    def nested(self, i: Instruction) -> Sequence[_Carried]:
        """A loop's turn is looked at once: what a sum is added to is in its carry."""
        if not isinstance(i, Loop):
            outs = [self.enter(entry) for entry in entries(i, self.functions)]
            return list(outs[0]) if len(outs) == 1 and outs[0] else self._unknown(i)
        places = [(id(i), n) for n in range(len(i.operands))]
        carry = [_Carried(frozenset((place,))) for place in places]
        for place, out in zip(places, self.block(i.body, carry), strict=True):
            self.running += [self._sums[s] for p, s in out.sums if p == place]
        return self._unknown(i)

    def _unknown(self, i: Instruction) -> Sequence[_Carried]:
        return [self.nothing] * len(i.results)
