"""Which arguments look like parameters, where no name says so.

Right sides of matmuls that are never left ones, and tables that are gathered from, each
followed back to the argument through movements, casts and scales: a policy that casts a
weight before the matmul leaves it what it is. What is written into is no parameter.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from neuronjax.ir.collective_set import Spmd
from neuronjax.ir.instruction import Block, Instruction, InstructionProgram, View
from neuronjax.ir.instruction_set import (
    BitcastCopy,
    Call,
    DmaCopy,
    LocalGather,
    Loop,
    NcMatmul,
    NcMatmulMx,
    NcMatmulSparse,
    NcTranspose,
    QuantizeMx,
    Sparsify,
    TensorCopy,
    TensorScalar,
)

_HANDED_ON = (BitcastCopy, NcTranspose, QuantizeMx, Sparsify, TensorCopy, TensorScalar)
_MOVED = (
    "broadcast",
    "concatenate",
    "dynamic_slice",
    "pad",
    "reshape",
    "reverse",
    "slice",
    "transpose",
)
_NONE: frozenset[int] = frozenset()


def arguments_like_parameters(program: InstructionProgram) -> frozenset[int]:
    """Positions of main's arguments that look like parameters."""
    main = program.main
    sides = _ParameterFinder(program).block(main)
    found = sides.right - sides.left
    return frozenset(n for n, b in enumerate(main.arguments) if b.number in found)


class _Sides(NamedTuple):
    """The buffers that matmuls read, by their side; tables are on the right.

    Attributes:
        left, right: numbers of buffers.
        results: for each result of the block the buffers that it is a form of.
    """

    left: frozenset[int]
    right: frozenset[int]
    results: tuple[frozenset[int], ...]


@dataclass
class _ParameterFinder:
    program: InstructionProgram
    #: For every buffer seen the arguments, of main or of a block, that it is a form of.
    roots: dict[int, frozenset[int]] = field(default_factory=dict)
    called: dict[str, _Sides] = field(default_factory=dict)

    def block(self, block: Block) -> _Sides:
        self.roots.update((b.number, frozenset({b.number})) for b in block.arguments)
        left: set[int] = set()
        right: set[int] = set()
        for i in block.instructions:
            for into, views in zip((left, right), _sides(i), strict=True):
                for view in views:
                    into |= self._of(view)
            for inner, operands, results in self._inner(i):
                places = {
                    b.number: self._of(v)
                    for b, v in zip(inner.arguments, operands, strict=False)
                }
                sides = self._callee(i, inner)
                left |= _outside(sides.left, places)
                right |= _outside(sides.right, places)
                for number, roots in zip(results, sides.results, strict=False):
                    self.roots[number] = _outside(roots, places)
            roots = _NONE.union(*map(self._of, _handed_on(i)))
            self.roots.update((b.number, roots) for b in i.results if roots)
        results = tuple(map(self._of, block.results))
        return _Sides(frozenset(left), frozenset(right), results)

    def _of(self, view: View) -> frozenset[int]:
        return self.roots.get(view.buffer.number, _NONE)

    def _callee(self, i: Instruction, block: Block) -> _Sides:
        if not isinstance(i, Call):
            return self.block(block)
        if i.callee not in self.called:
            self.called[i.callee] = self.block(block)
        return self.called[i.callee]

    def _inner(
        self, i: Instruction
    ) -> Iterator[tuple[Block, Sequence[View], Sequence[int]]]:
        """The blocks of an instruction, what they are given, and what it is given."""
        results = [buffer.number for buffer in i.results]
        if isinstance(i, Call):
            yield self.program.functions[i.callee], i.operands, results
        elif isinstance(i, Loop):
            yield i.condition, i.operands, ()
            kept = _passed_on(i.body)
            yield i.body, i.operands, [n if k else -1 for n, k in zip(results, kept)]
        else:
            given = i.operands if isinstance(i, Spmd) else ()
            for block in i.blocks:
                yield block, given, results if isinstance(i, Spmd) else ()


def _outside(
    numbers: frozenset[int], places: dict[int, frozenset[int]]
) -> frozenset[int]:
    """What is inside a block, as its surroundings know it."""
    return _NONE.union(*(places.get(n, frozenset({n})) for n in numbers))


def _passed_on(body: Block) -> list[bool]:
    """Which of a loop's carry every turn leaves as it is."""
    pairs = zip(body.arguments, body.results, strict=True)
    return [argument.number == view.buffer.number for argument, view in pairs]


def _sides(i: Instruction) -> tuple[Sequence[View], Sequence[View]]:
    """What is on the left and on the right of a matmul."""
    if isinstance(i, NcMatmulSparse):
        stationary, moving = i.operands[:1], i.operands[2:]
        is_left = i.stationary == "lhs"
        return (stationary, moving) if is_left else (moving, stationary)
    if isinstance(i, NcMatmul | NcMatmulMx):
        return i.operands[:1], i.operands[1:2]
    if isinstance(i, LocalGather):
        return (), i.operands[:1]
    return (), ()


def _handed_on(i: Instruction) -> Sequence[View]:
    """Operands of which the results are another form."""
    if isinstance(i, _HANDED_ON):
        return i.operands[:1]
    if isinstance(i, DmaCopy) and i.kind in _MOVED:
        return i.operands if i.kind == "concatenate" else i.operands[:1]
    return ()
