"""What a walk runs side by side: lowerings of one program, split by op, and their runs.

A `Side` is one lowering with who executes it; a `Lane` is one run of a side, with the
arrays it holds. Which buffers are freed after which op is decided here.
"""

from __future__ import annotations

import functools
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from neuronjax.diagnostics.executors import Emulator
from neuronjax.diagnostics.reference64 import Reference64
from neuronjax.execution.uniformity import Uniformity
from neuronjax.ir.instruction import Block, Buffer, Instruction, InstructionProgram
from neuronjax.ir.program import Location, Op, Value
from neuronjax.lowering.context import LoweredRegion

Executor = Emulator | Reference64


class OpPath(NamedTuple):
    """An op as the calls reach it.

    Attributes:
        calls: the call ops that lead to it, the outermost first.
    """

    calls: tuple[Op, ...]
    op: Op

    @property
    def location(self) -> Location:
        """Of the op, with what its calls add."""
        return functools.reduce(
            lambda inner, call: inner.inside(call.location),
            reversed(self.calls),
            self.op.location,
        )

    @property
    def scope(self) -> str:
        """The name stack, those of the calls in front."""
        return self.location.scope

    @property
    def source(self) -> str:
        """`file:line`; where the op has none, of the innermost call that has one."""
        return self.location.source


@dataclass(frozen=True, eq=False)
class Side:
    """One lowering of the program, and who executes it."""

    program: InstructionProgram
    regions: Mapping[Block, LoweredRegion]
    executor: Executor

    @functools.cached_property
    def _uniformity(self) -> Uniformity:
        return Uniformity(self.program.functions)

    def joins(self, i: Instruction) -> bool:
        """Return whether an instruction is a collective or runs one."""
        return self._uniformity.joins(i)

    def reads(self, i: Instruction) -> frozenset[int]:
        """Return the buffers that an instruction and all that it runs read."""
        return self._uniformity.reads(i)

    @functools.cached_property
    def _split(self) -> dict[Block, Split]:
        return {block: _split(block, r) for block, r in self.regions.items()}

    def spans(self, block: Block) -> Sequence[Span]:
        """The instructions of a block by op."""
        return self._split[block].spans

    def results(self, block: Block) -> Sequence[int]:
        """What a block leaves behind: its results, unless they are captured."""
        return self._split[block].results


class Span(NamedTuple):
    """What a lowering made of one op; `frees` are the buffers not read later."""

    instructions: tuple[Instruction, ...]
    frees: tuple[int, ...]


class Split(NamedTuple):
    """A block by op; `results` are the buffers that are left at its end."""

    spans: Sequence[Span]
    results: Sequence[int]


def _split(block: Block, lowered: LoweredRegion) -> Split:
    starts = (0, *lowered.ends)
    parts = [
        block.instructions[a:b] for a, b in zip(starts, lowered.ends, strict=False)
    ]
    last: dict[int, int] = {b.number: 0 for b in block.arguments}
    for n, part in enumerate(parts):
        for i in part:
            last.update((b.number, n) for b in i.results)
    own = set(last)
    for n, part in enumerate(parts):
        read = (*_read(part), *_named(lowered.region.ops[n], lowered.views))
        last.update((number, n) for number in read if number in own)
    kept = {view.buffer.number for view in block.results}
    frees: list[list[int]] = [[] for _ in parts]
    for number in own - kept:
        if frees:
            frees[last[number]].append(number)
    return Split([*map(Span, parts, map(tuple, frees))], [*own & kept])


def _named(op: Op, views: Mapping[Value, Any]) -> Iterable[int]:
    """What an op reads by its name, though its instructions may read a cast copy."""
    for inner in op.walk():
        for value in inner.operands:
            if value in views:
                yield views[value].buffer.number


def _read(instructions: Iterable[Instruction]) -> Iterable[int]:
    for i in instructions:
        yield from (view.buffer.number for view in i.operands)
        for block in i.blocks:
            yield from _read(block.instructions)
            yield from (view.buffer.number for view in block.results)


@dataclass(eq=False)
class Lane:
    """One run of one side on one device.

    Attributes:
        name: what the run is for.
        arrays: by number of the buffer.
        device: its number in the mesh; 0 outside of one.
    """

    name: str
    side: Side
    arrays: dict[int, Any] = field(default_factory=dict)
    device: int = 0

    def take(self, arguments: Sequence[Any], buffers: Sequence[Buffer]) -> None:
        """Puts arguments of a block where it expects them."""
        for buffer, array in zip(buffers, arguments, strict=True):
            self.arrays[buffer.number] = array

    def read(self, views: Sequence[Any]) -> list[Any]:
        """The arrays of some views."""
        return [self.arrays[view.buffer.number] for view in views]

    def leave(self, block: Block) -> list[Any]:
        """The results of a block, which frees them."""
        results = self.read(block.results)
        for number in self.side.results(block):
            self.arrays.pop(number, None)
        return results
