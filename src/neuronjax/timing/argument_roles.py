"""Which arguments look like parameters, where no name says so.

Right sides of matmuls that are never left ones, and tables that are gathered from, each
followed back to the argument through movements, casts and scales: a policy that casts a
weight before the matmul leaves it what it is. What is written into is no parameter.
"""

from __future__ import annotations

from collections.abc import Sequence

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
from neuronjax.ir.traversal import BlockEntry, DataFlow, Functions, entries

_HANDED_ON = (BitcastCopy, NcTranspose, QuantizeMx, Sparsify, TensorCopy, TensorScalar)
_MOVED = frozenset(
    "broadcast concatenate dynamic_slice pad reshape reverse slice transpose".split()
)


def arguments_like_parameters(program: InstructionProgram) -> frozenset[int]:
    """Positions of main's arguments that look like parameters."""
    main = program.main
    finder = _ParameterFinder(program.functions)
    finder.block(main, [frozenset({n}) for n in range(len(main.arguments))])
    return finder.right - finder.left


class _ParameterFinder(DataFlow[frozenset[int]]):
    """The arguments of main that a buffer is a form of, by position.

    Attributes:
        left, right: those that matmuls read, by their side; tables are on the right.
    """

    nothing = frozenset()

    def __init__(self, functions: Functions) -> None:
        super().__init__(functions)
        self.left: frozenset[int] = frozenset()
        self.right: frozenset[int] = frozenset()
        self._called: dict[tuple, list[frozenset[int]]] = {}

    def join(self, one: frozenset[int], other: frozenset[int]) -> frozenset[int]:
        return one | other

    def transfer(self, i: Instruction) -> Sequence[frozenset[int]] | None:
        left, right = _sides(i)
        self.left = self.left.union(*map(self.of, left))
        self.right = self.right.union(*map(self.of, right))
        if isinstance(i, Call) or i.blocks:
            return None
        roots = self.nothing.union(*map(self.of, _handed_on(i)))
        return [roots] * len(i.results)

    def nested(self, i: Instruction) -> Sequence[frozenset[int]]:
        """A loop hands on what every turn leaves as it is; a branch nothing."""
        found = [self.enter(entry) for entry in entries(i, self.functions)]
        if isinstance(i, Loop):
            kept = zip(map(self.of, i.operands), _passed_on(i.body), strict=True)
            return [roots if keeps else self.nothing for roots, keeps in kept]
        if isinstance(i, Call | Spmd):
            return found[0]
        return [self.nothing] * len(i.results)

    def enter(self, entry: BlockEntry) -> list[frozenset[int]]:
        given = self.given(entry)
        known = (id(entry.block), given)
        if known not in self._called:
            self._called[known] = self.block(entry.block, given)
        return self._called[known]


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
