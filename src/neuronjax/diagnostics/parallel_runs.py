"""The parts of a walk: lowerings of one program, split by op, and their runs.

A `Side` is one lowering with its executor; a `Lane` is one run of a side, with its
arrays. This module decides after which op each buffer is freed.
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
    """An op, and the call ops that lead to it, the outermost first."""

    calls: tuple[Op, ...]
    op: Op

    @property
    def location(self) -> Location:
        """Return the op's location, including the locations of its calls."""
        return functools.reduce(
            lambda inner, call: inner.inside(call.location),
            reversed(self.calls),
            self.op.location,
        )

    @property
    def scope(self) -> str:
        """Return the name stack, which begins with the name stacks of the calls."""
        return self.location.scope

    @property
    def source(self) -> str:
        """Return `file:line` of the op, or of the innermost call if the op has none."""
        return self.location.source


@dataclass(frozen=True, eq=False)
class Side:
    """A lowered program and its executor."""

    program: InstructionProgram
    regions: Mapping[Block, LoweredRegion]
    executor: Executor

    @functools.cached_property
    def _uniformity(self) -> Uniformity:
        return Uniformity(self.program.functions)

    def joins(self, i: Instruction) -> bool:
        """Return whether `i` is a collective or contains one."""
        return self._uniformity.joins(i)

    def reads(self, i: Instruction) -> frozenset[int]:
        """Return the numbers of the buffers that `i` and its blocks read."""
        return self._uniformity.reads(i)

    @functools.cached_property
    def _split(self) -> dict[Block, Split]:
        return {block: _split(block, r) for block, r in self.regions.items()}

    def spans(self, block: Block) -> Sequence[Span]:
        """Return the instructions of `block`, split by op."""
        return self._split[block].spans

    def results(self, block: Block) -> Sequence[int]:
        """Return the numbers of result buffers of `block` that no outer block made."""
        return self._split[block].results


class Span(NamedTuple):
    """The instructions of one op, and the numbers of buffers that no later op reads."""

    instructions: tuple[Instruction, ...]
    frees: tuple[int, ...]


class Split(NamedTuple):
    """A block split by op, and the numbers of the buffers that are freed at its end."""

    spans: Sequence[Span]
    results: Sequence[int]


def _split(block: Block, lowered: LoweredRegion) -> Split:
    ends = zip((0, *lowered.ends), lowered.ends, strict=False)
    parts = [block.instructions[a:b] for a, b in ends]
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
    """Yield the buffer numbers of the operands of `op`, even if only casts are read."""
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
class Fed:
    """An array of a reference with wider floats, rounded to its declared `dtype` when
    an op reads it: `given` to a run of the program, `entered` to the reference."""

    executor: Executor
    array: Any
    dtype: Any

    @functools.cached_property
    def given(self) -> Any:
        return self.executor.leave(self.array, self.dtype)

    @functools.cached_property
    def entered(self) -> Any:
        return self.executor.enter(self.given)


@dataclass(eq=False)
class Lane:
    """A run of a lowered program, `side`, on one device.

    Attributes:
        name: the purpose of the run.
        arrays: arrays, or `Fed`, by number of the buffer.
        device: number of the device in the mesh; 0 outside of a mesh.
    """

    name: str
    side: Side
    arrays: dict[int, Any] = field(default_factory=dict)
    device: int = 0

    def take(self, arguments: Sequence[Any], buffers: Sequence[Buffer]) -> None:
        for buffer, array in zip(buffers, arguments, strict=True):
            self.arrays[buffer.number] = array

    def array(self, number: int) -> Any:
        """Return the array of a buffer."""
        held = self.arrays[number]
        if not isinstance(held, Fed):
            return held
        return held.entered if self.side.executor.is_wide else held.given

    def read(self, views: Sequence[Any]) -> list[Any]:
        return [self.array(view.buffer.number) for view in views]

    def held(self, views: Sequence[Any]) -> list[Any]:
        """Return the entries of `arrays` for `views`, without rounding any `Fed`."""
        return [self.arrays[view.buffer.number] for view in views]

    def leave(self, block: Block) -> list[Any]:
        """Return the arrays of a block's results, as `held` does, and free them."""
        results = self.held(block.results)
        for number in self.side.results(block):
            self.arrays.pop(number, None)
        return results
