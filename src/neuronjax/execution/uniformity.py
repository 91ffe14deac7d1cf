"""Which values of a program may differ among the devices that run it.

Found without running anything, from what differs at the start: an instruction that
reads what differs writes what differs, and so does one that rounds stochastically, for
every device draws bits of its own. What all devices receive from a collective is the
same again.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from neuronjax.execution.exchange import is_same_for_all
from neuronjax.ir.collective_set import Collective
from neuronjax.ir.instruction import Block, Instruction, View
from neuronjax.ir.instruction_set import Branch, Call, Loop
from neuronjax.ir.kernel_call import NkiKernel


class Variance:
    """Questions about the instructions of one program.

    Args of its methods:
        i: an instruction.
        varying: numbers of the buffers that may differ, as far as they are written.
        devices: how many there are.
    """

    def __init__(self, functions: Mapping[str, Block]) -> None:
        self._functions = functions
        self._facts: dict[int, tuple[Instruction, bool, bool, frozenset[int]]] = {}

    def blocks(self, i: Instruction) -> tuple[Block, ...]:
        """The blocks that an instruction runs, a call's included."""
        return (self._functions[i.callee],) if isinstance(i, Call) else i.blocks

    def joins(self, i: Instruction) -> bool:
        """Whether an instruction is a collective or runs one."""
        return self._fact(i)[1]

    def reads(self, i: Instruction) -> frozenset[int]:
        """The buffers that an instruction and all that it runs read."""
        return self._fact(i)[3]

    def _fact(self, i: Instruction) -> tuple[Instruction, bool, bool, frozenset[int]]:
        """(the instruction, kept so that its id stays its own; whether it joins
        devices; whether it draws random bits; what it reads)."""
        if id(i) not in self._facts:
            inner = list(self._walk(i))
            reads = {view.buffer.number for each in inner for view in each.operands}
            for each in inner:
                for block in self.blocks(each):
                    reads.update(view.buffer.number for view in block.results)
            joins = any(
                isinstance(each, Collective) or _is_joint(each) for each in inner
            )
            draws = any(each.rounding == "stochastic" for each in inner)
            self._facts[id(i)] = (i, joins, draws, frozenset(reads))
        return self._facts[id(i)]

    def _walk(self, i: Instruction) -> Iterator[Instruction]:
        yield i
        for block in self.blocks(i):
            for inner in block.instructions:
                yield from self._walk(inner)

    def results(self, i: Instruction, varying: set[int], devices: int) -> list[bool]:
        """For each result of an instruction whether it may differ."""
        if isinstance(i, Collective):
            return [not is_same_for_all(i, devices)] * len(i.results)
        if _is_joint(i):
            return [True] * len(i.results)
        _, joins, draws, reads = self._fact(i)
        if not joins:
            return [draws or not reads.isdisjoint(varying)] * len(i.results)
        if isinstance(i, Loop):
            return self._loop(i, varying, devices)
        # The first operand of a branch is its index, and blocks take none.
        arguments = () if isinstance(i, Branch) else i.operands
        parts = [
            self._of_block(b, _differ(arguments, varying), varying, devices)
            for b in self.blocks(i)
        ]
        return [any(column) for column in zip(*parts, strict=True)]

    def _of_block(
        self, block: Block, arguments: Sequence[bool], varying: set[int], devices: int
    ) -> list[bool]:
        inner = set(varying)
        for buffer, differs in zip(block.arguments, arguments, strict=True):
            (inner.add if differs else inner.discard)(buffer.number)
        for i in block.instructions:
            flags = zip(i.results, self.results(i, inner, devices), strict=True)
            inner.update(buffer.number for buffer, differs in flags if differs)
        return _differ(block.results, inner)

    def _loop(self, i: Loop, varying: set[int], devices: int) -> list[bool]:
        """What the body makes differ, differs from the start."""
        carry = _differ(i.operands, varying)
        while True:
            out = self._of_block(i.body, carry, varying, devices)
            after = [a or b for a, b in zip(carry, out, strict=True)]
            if after == carry:
                return carry
            carry = after


def _is_joint(i: Instruction) -> bool:
    """Whether it is a kernel with collectives."""
    return isinstance(i, NkiKernel) and i.joins_devices


def _differ(views: Sequence[View], varying: set[int]) -> list[bool]:
    return [view.buffer.number in varying for view in views]
