"""Find the values of a program that may differ among the devices that run it.

This follows from what differs at the start, without running anything: an instruction
that reads a differing value writes one. So does an instruction that rounds
stochastically, because every device draws its own bits. A value that all devices
receive from a collective is the same on all of them again.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from neuronjax.execution.exchange import is_same_for_all
from neuronjax.ir.collective_set import Collective
from neuronjax.ir.instruction import Instruction
from neuronjax.ir.kernel_call import NkiKernel
from neuronjax.ir.traversal import DataFlow, Functions, entries, walk


class _InstructionFacts(NamedTuple):
    """The facts about an instruction that do not depend on the values it reads.

    Attributes:
        instruction: kept alive, so that its id is not reused.
        joins: whether it is a collective or runs one.
        draws: whether it, or what it runs, draws random bits.
        reads: the buffers that it and everything it runs read.
    """

    instruction: Instruction
    joins: bool
    draws: bool
    reads: frozenset[int]


class Uniformity:
    """Finds which results of a program's instructions may differ among devices."""

    def __init__(self, functions: Functions) -> None:
        self.functions = functions
        self._facts: dict[int, _InstructionFacts] = {}

    def joins(self, i: Instruction) -> bool:
        """Return whether an instruction is a collective or contains one."""
        return self._of(i).joins

    def reads(self, i: Instruction) -> frozenset[int]:
        """Return the buffers that an instruction and everything it runs read."""
        return self._of(i).reads

    def results(self, i: Instruction, varying: set[int], devices: int) -> list[bool]:
        """Return for each result of an instruction whether it may differ. `varying`
        holds the numbers of the buffers written so far that may differ."""
        facts = self.alone(i, varying.__contains__, devices)
        if facts is None:
            facts = list(_Varying(self, varying, devices).nested(i))
        return facts

    def alone(
        self, i: Instruction, differs: Callable[[int], bool], devices: int
    ) -> list[bool] | None:
        """Return for each result whether it may differ, or None for an instruction that
        runs collectives. `differs` says whether a buffer may differ."""
        if isinstance(i, Collective):
            return [not is_same_for_all(i, devices)] * len(i.results)
        if _is_joint(i):
            return [True] * len(i.results)
        facts = self._of(i)
        if facts.joins:
            return None
        return [facts.draws or any(map(differs, facts.reads))] * len(i.results)

    def _of(self, i: Instruction) -> _InstructionFacts:
        if id(i) not in self._facts:
            inner = list(walk(i, self.functions))
            reads = {view.buffer.number for each in inner for view in each.operands}
            for each in inner:
                for entry in entries(each, self.functions):
                    reads.update(view.buffer.number for view in entry.block.results)
            joins = any(isinstance(x, Collective) or _is_joint(x) for x in inner)
            draws = any(x.rounding == "stochastic" for x in inner)
            self._facts[id(i)] = _InstructionFacts(i, joins, draws, frozenset(reads))
        return self._facts[id(i)]


class _Varying(DataFlow[bool]):
    """Finds which buffers may differ, inside an instruction that runs collectives."""

    nothing = False

    def __init__(self, uniformity: Uniformity, varying: set[int], devices: int) -> None:
        super().__init__(uniformity.functions)
        self.facts.update(dict.fromkeys(varying, True))
        self._uniformity = uniformity
        self._devices = devices

    def transfer(self, i: Instruction) -> list[bool] | None:
        differs = lambda number: self.facts.get(number, False)  # noqa: E731
        return self._uniformity.alone(i, differs, self._devices)

    def join(self, one: bool, other: bool) -> bool:
        return one or other


def _is_joint(i: Instruction) -> bool:
    return isinstance(i, NkiKernel) and i.joins_devices
