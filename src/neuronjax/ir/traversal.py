"""One walk over a program of instructions: what runs what, and what flows where.

`entries` says which blocks an instruction runs, on what, and what their results become.
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
    """A block that an instruction runs.

    Attributes:
        block: what is run.
        given: what its arguments are; the blocks of a branch have none, and what a
            combiner is given has no name.
        gives: what its results become, if anything.
    """

    block: Block
    given: Sequence[View]
    gives: Sequence[Buffer]


def entries(i: Instruction, functions: Functions) -> tuple[BlockEntry, ...]:
    """The blocks that an instruction runs, that of a call included."""
    if isinstance(i, Call):
        return (BlockEntry(functions[i.callee], i.operands, i.results),)
    if isinstance(i, Loop):
        condition = BlockEntry(i.condition, i.operands, ())
        return condition, BlockEntry(i.body, i.operands, i.results)
    given = i.operands if isinstance(i, Spmd) else ()
    return tuple(BlockEntry(block, given, i.results) for block in i.blocks)


def walk(i: Instruction, functions: Functions) -> Iterator[Instruction]:
    """An instruction and all that it runs, callees included."""
    yield i
    for entry in entries(i, functions):
        for inner in entry.block.instructions:
            yield from walk(inner, functions)


def read_outside(block: Block, known: Collection[int] = ()) -> dict[int, Buffer]:
    """Return the buffers that a block and those inside it read and do not write, by
    number, in the order in which they are read."""
    known = {*known, *(b.number for b in block.arguments)}
    found: dict[int, Buffer] = {}

    def read(views: Iterable[View]) -> None:
        buffers = (view.buffer for view in views)
        found.update((b.number, b) for b in buffers if b.number not in known)

    for i in block.instructions:
        read(i.operands)
        for inner in i.blocks:
            found |= read_outside(inner, known)
        known.update(b.number for b in i.results)
    read(block.results)
    return found


class DataFlow(abc.ABC, Generic[Fact]):
    """A forward analysis of the instructions of one program.

    A subclass says what it knows of a buffer that nothing told of (`nothing`), what an
    instruction makes of that (`transfer`), and how two facts become one (`join`).

    Attributes:
        functions: the callees.
        facts: by the number of the buffer.
    """

    nothing: Fact

    def __init__(self, functions: Functions) -> None:
        self.functions = functions
        self.facts: dict[int, Fact] = {}

    @abc.abstractmethod
    def transfer(self, i: Instruction) -> Sequence[Fact] | None:
        """What is known of an instruction's results; None where its blocks decide."""

    @abc.abstractmethod
    def join(self, one: Fact, other: Fact) -> Fact:
        """What holds of a buffer of which either may hold."""

    def of(self, view: View) -> Fact:
        """What is known of a view."""
        return self.facts.get(view.buffer.number, self.nothing)

    def bind(self, buffers: Sequence[Buffer], facts: Sequence[Fact]) -> None:
        """Takes note of what is known of buffers."""
        for buffer, fact in zip(buffers, facts, strict=True):
            self.facts[buffer.number] = fact

    def block(self, block: Block, arguments: Sequence[Fact]) -> list[Fact]:
        """What is known of a block's results, given that of its arguments."""
        self.bind(block.arguments, arguments)
        for i in block.instructions:
            self.bind(i.results, self.instruction(i))
        return [self.of(view) for view in block.results]

    def instruction(self, i: Instruction) -> Sequence[Fact]:
        """What is known of an instruction's results."""
        found = self.transfer(i)
        return self.nested(i) if found is None else found

    def nested(self, i: Instruction) -> Sequence[Fact]:
        """What the blocks of an instruction say of its results: one of them runs, that
        of a loop until nothing new is known."""
        if isinstance(i, Loop):
            return self._loop(i)
        outs = [self.enter(entry) for entry in entries(i, self.functions)]
        return [functools.reduce(self.join, column) for column in zip(*outs)]

    def enter(self, entry: BlockEntry) -> list[Fact]:
        """What is known of a block's results where an instruction runs it."""
        return self.block(entry.block, self.given(entry))

    def given(self, entry: BlockEntry) -> tuple[Fact, ...]:
        """What is known of a block's arguments where an instruction runs it."""
        unknown = (self.nothing,) * len(entry.block.arguments)
        return tuple(map(self.of, entry.given)) or unknown

    def _loop(self, i: Loop) -> Sequence[Fact]:
        """What a turn adds is known from the start."""
        carry = [self.of(view) for view in i.operands]
        while True:
            out = self.block(i.body, carry)
            after = list(map(self.join, carry, out))
            if after == carry:
                return carry
            carry = after
