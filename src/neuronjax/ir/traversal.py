"""The traversal of a program of instructions: which blocks run, and how facts flow.

`entries` returns the blocks that an instruction runs, with their arguments and results.
`walk` follows them. A `DataFlow` is a forward analysis: it carries a fact about every
buffer from the arguments of main through loops, branches and callees.
"""

from __future__ import annotations

import abc
import functools
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import Generic, NamedTuple, TypeVar

from neuronjax.ir.collective_set import Spmd
from neuronjax.ir.instruction import Block, Buffer, Instruction, View
from neuronjax.ir.instruction_set import Call, Loop

Functions = Mapping[str, Block]
Fact = TypeVar("Fact")


class BlockEntry(NamedTuple):
    """A block that an instruction runs."""

    block: Block
    #: The views of its arguments; empty for a branch, and for a combiner, whose
    #: arguments have no view.
    given: Sequence[View]


def entries(i: Instruction, functions: Functions) -> tuple[BlockEntry, ...]:
    """Return the blocks that an instruction runs, including that of a call."""
    if isinstance(i, Call):
        return (BlockEntry(functions[i.callee], i.operands),)
    given = i.operands if isinstance(i, Loop | Spmd) else ()
    return tuple(BlockEntry(block, given) for block in i.blocks)


def walk(i: Instruction, functions: Functions) -> Iterator[Instruction]:
    """Yield an instruction and everything that it runs, callees included."""
    yield i
    for entry in entries(i, functions):
        for inner in entry.block.instructions:
            yield from walk(inner, functions)


def read_outside(block: Block, known: Collection[int] = ()) -> dict[int, Buffer]:
    """Return the buffers that a block reads and does not write, including nested
    blocks: number -> buffer, in the order of reading."""
    known = {*known, *(b.number for b in block.arguments)}
    outside: dict[int, Buffer] = {}

    def read(views: Iterable[View]) -> None:
        buffers = (view.buffer for view in views)
        outside.update((b.number, b) for b in buffers if b.number not in known)

    for i in block.instructions:
        read(i.operands)
        for inner in i.blocks:
            outside |= read_outside(inner, known)
        known.update(b.number for b in i.results)
    read(block.results)
    return outside


class DataFlow(abc.ABC, Generic[Fact]):
    """A forward analysis of the instructions of one program.

    A subclass defines the fact about an unknown buffer (`nothing`), the facts about the
    results of an instruction (`transfer`), and how two facts become one (`join`).

    Attributes:
        functions: the callees.
        facts: the facts by the number of the buffer.
    """

    nothing: Fact

    def __init__(self, functions: Functions) -> None:
        self.functions = functions
        self.facts: dict[int, Fact] = {}

    @abc.abstractmethod
    def transfer(self, i: Instruction) -> Sequence[Fact] | None:
        """Return facts about an instruction's results; None if its blocks decide."""

    @abc.abstractmethod
    def join(self, one: Fact, other: Fact) -> Fact:
        """Return the fact about a buffer for which either fact may hold."""

    def of(self, view: View) -> Fact:
        """Return the fact about a view."""
        return self.facts.get(view.buffer.number, self.nothing)

    def bind(self, buffers: Sequence[Buffer], facts: Sequence[Fact]) -> None:
        """Store facts about buffers."""
        for buffer, fact in zip(buffers, facts, strict=True):
            self.facts[buffer.number] = fact

    def block(self, block: Block, arguments: Sequence[Fact]) -> list[Fact]:
        """Return the facts about a block's results, given those about its arguments."""
        self.bind(block.arguments, arguments)
        for i in block.instructions:
            self.bind(i.results, self.instruction(i))
        return [self.of(view) for view in block.results]

    def instruction(self, i: Instruction) -> Sequence[Fact]:
        """Return the facts about an instruction's results."""
        facts = self.transfer(i)
        return self.nested(i) if facts is None else facts

    def nested(self, i: Instruction) -> Sequence[Fact]:
        """Return the facts about an instruction's results that its blocks determine.
        The facts of all blocks are joined, since any of them may run; a loop's body is
        followed until no fact changes."""
        if isinstance(i, Loop):
            return self._loop(i)
        outs = [self.enter(entry) for entry in entries(i, self.functions)]
        facts = [functools.reduce(self.join, column) for column in zip(*outs)]
        return facts or [self.nothing] * len(i.results)

    def enter(self, entry: BlockEntry) -> list[Fact]:
        """Return the facts about a block's results when an instruction runs it."""
        return self.block(entry.block, self.given(entry))

    def given(self, entry: BlockEntry) -> tuple[Fact, ...]:
        """Return the facts about a block's arguments when an instruction runs it."""
        unknown = (self.nothing,) * len(entry.block.arguments)
        return tuple(map(self.of, entry.given)) or unknown

    def _loop(self, i: Loop) -> Sequence[Fact]:
        """Return the facts about a loop's carry, joined until nothing changes."""
        carry = [self.of(view) for view in i.operands]
        while True:
            out = self.block(i.body, carry)
            after = list(map(self.join, carry, out))
            if after == carry:
                return carry
            carry = after
