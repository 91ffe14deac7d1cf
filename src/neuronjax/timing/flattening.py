"""Blocks flattened to instructions over numbered values, with small callees inlined.

Functions that JAX outlines (`jax.nn.silu`, `jnp.where`) are compiled with their
surroundings; a large callee, such as a whole layer, stays a call.

`swap` exchanges the operands of a matmul to spare a transposition: `v^T p^T` followed
by a transposition is `p v`. Either operand may be stationary, so the array can also
compute `p v` directly. `swap` runs before fusion, for the transpositions that JAX
writes in einsums of attention.
"""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from neuronjax.ir.collective_set import Spmd
from neuronjax.ir.instruction import Block, Buffer, Instruction, View
from neuronjax.ir.instruction_set import (
    Branch,
    Call,
    DmaCopy,
    DotDimensions,
    Loop,
    NcMatmul,
    TensorCopy,
)
from neuronjax.ir.program import Location, TensorType
from neuronjax.ir.traversal import read_outside
from neuronjax.timing.assumptions import INLINE_LIMIT
from neuronjax.timing.instruction_kinds import is_kind

CONTROL = (Loop, Branch, Call, Spmd)


@dataclass(slots=True, eq=False)
class FlatNode:
    """An instruction, with the numbers of the values that it reads and writes."""

    instruction: Instruction
    operands: tuple[int, ...]
    results: tuple[int, ...]


class Flattening:
    """The instructions of a block as `FlatNode`s, with small callees inlined."""

    def __init__(self, functions: Mapping[str, Block]) -> None:
        self.functions = functions
        self.nodes: list[FlatNode] = []
        self.types: list[TensorType] = []
        self._outside: dict[int, int] = {}
        self._small: dict[str, bool] = {}

    def new(self, type_: TensorType) -> int:
        self.types.append(type_)
        return len(self.types) - 1

    def add(
        self, block: Block, arguments: Sequence[int], call: Location | None = None
    ) -> tuple[int, ...]:
        """Add a block's instructions, and return the value numbers of its results.

        `arguments` has the value numbers of the block's arguments. If the block is a
        callee, `call` is the location of the call; the locations of its instructions
        then name this call too."""
        given = zip(block.arguments, arguments, strict=True)
        names = {buffer.number: value for buffer, value in given}
        types, nodes = self.types, self.nodes
        for written in block.instructions:
            i = written
            try:
                operands = tuple([names[v.buffer.number] for v in i.operands])
            except KeyError:  # a value of a surrounding block
                operands = tuple([self._value(v.buffer, names) for v in i.operands])
            if call is not None:
                i = dataclasses.replace(i, location=i.location.inside(call))
            if is_kind(type(i), CONTROL):
                if isinstance(i, Call) and self._is_small(i.callee):
                    body = self.functions[i.callee]
                    results = self.add(body, operands, i.location)
                    for buffer, value in zip(i.results, results, strict=True):
                        names[buffer.number] = value
                    continue
                operands += self._captured(i, names)
            first = len(types)
            for n, buffer in enumerate(i.results, first):
                names[buffer.number] = n
                types.append(buffer.type)
            nodes.append(FlatNode(i, operands, tuple(range(first, len(types)))))
        return tuple([self._value(v.buffer, names) for v in block.results])

    def _captured(self, i: Instruction, names: dict[int, int]) -> tuple[int, ...]:
        free: dict[int, Buffer] = {}
        for block in i.blocks:
            free |= read_outside(block)
        return tuple([self._value(buffer, names) for buffer in free.values()])

    def _value(self, buffer: Buffer, names: dict[int, int]) -> int:
        value = names.get(buffer.number)
        if value is None:  # a value of a surrounding block
            value = self._outside.get(buffer.number)
            if value is None:
                value = self._outside[buffer.number] = self.new(buffer.type)
        return value

    def _is_small(self, callee: str) -> bool:
        if callee not in self._small:
            self._small[callee] = self._count(callee) <= INLINE_LIMIT.value
        return self._small[callee]

    def _count(self, callee: str) -> int:
        total = 0
        for i in self.functions[callee].walk():
            total += self._count(i.callee) if type(i) is Call else 1
            if total > INLINE_LIMIT.value:
                break
        return total


# -- matmuls with exchanged operands ---------------------------------------------------


def swap(
    nodes: Sequence[FlatNode], types: list[TensorType], results: Sequence[int]
) -> None:
    """Exchange, in `nodes` and `types`, the operands of matmuls whose result is only
    read transposed.

    A matmul is changed only if the transposition of its result moves the last axis and,
    after the exchange, no longer moves it."""
    for chain in _chains(nodes, results):
        first, last = chain[0], chain[-1]
        matmul, transpose = first.instruction, last.instruction
        assert isinstance(matmul, NcMatmul)
        assert isinstance(transpose, DmaCopy)
        if len(matmul.operands) != 2:
            continue
        lhs, rhs = matmul.operands
        d, shape = matmul.dimensions, matmul.results[0].type.shape
        batch, middle = len(d.lhs_batch), len(lhs.type.shape) - len(d.lhs_contract)
        order = (*range(batch), *range(middle, len(shape)), *range(batch, middle))
        before = transpose.parameters[0]
        after = tuple(order.index(p) for p in before)
        turned = tuple(shape[n] for n in order)
        if _keeps_rows(before, shape) or not _keeps_rows(after, turned):
            continue
        first.operands = first.operands[::-1]
        first.instruction = dataclasses.replace(
            matmul,
            operands=(rhs, lhs),
            results=(_typed(matmul.results[0], turned),),
            dimensions=DotDimensions(
                d.rhs_batch, d.lhs_batch, d.rhs_contract, d.lhs_contract
            ),
        )
        source = View(_typed(transpose.operands[0].buffer, turned))
        last.instruction = dataclasses.replace(
            transpose, operands=(source,), parameters=(after, *transpose.parameters[1:])
        )
        for link in chain[:-1]:
            types[link.results[0]] = TensorType(turned, types[link.results[0]].dtype)


def _chains(nodes: Sequence[FlatNode], results: Sequence[int]) -> list[list[FlatNode]]:
    """Return each chain of a matmul, any casts of its result, and a transposition, if
    every result before the transposition has only one reader."""
    made: dict[int, FlatNode] = {}  # results of matmuls and casts
    found: list[list[FlatNode]] = []
    for node in nodes:
        i = node.instruction
        kind = type(i)
        if kind is NcMatmul or kind is TensorCopy:
            made[node.results[0]] = node
        elif isinstance(i, DmaCopy) and i.kind == "transpose":
            chain = [node]
            while chain[0].operands[0] in made:
                chain.insert(0, made[chain[0].operands[0]])
                if type(chain[0].instruction) is NcMatmul:
                    found.append(chain)
                    break
    if not found:
        return []
    readers = Counter(v for node in nodes for v in {*node.operands})
    readers.update({*results})
    return [
        chain for chain in found if all(readers[n.results[0]] == 1 for n in chain[:-1])
    ]


def _keeps_rows(permutation: Sequence[int], shape: Sequence[int]) -> bool:
    moved = [p for p in permutation if shape[p] != 1]
    return not moved or moved[-1] == max(moved)


def _typed(buffer: Buffer, shape: tuple[int, ...]) -> Buffer:
    return Buffer(buffer.number, TensorType(shape, buffer.type.dtype))
