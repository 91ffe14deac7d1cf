"""Matmuls with their sides exchanged, where that spares a transposition.

Which operand of a matmul is stationary is free, and with it whether its result has the
rows of the one or of the other: `v^T p^T` and a transposition are `p v`. Contractions
that JAX writes the one way round (einsums of attention) become the other before
anything is fused.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from neuronjax.ir.instruction import Buffer, Instruction, View
from neuronjax.ir.instruction_set import DmaCopy, DotDimensions, NcMatmul, TensorCopy
from neuronjax.ir.program import TensorType
from neuronjax.timing.flattening import FlatNode


def swap(
    nodes: Sequence[FlatNode], types: list[TensorType], results: Sequence[int]
) -> None:
    """Exchanges the sides of matmuls whose result is only read transposed, in place."""
    for chain in _chains(nodes, results):
        node = chain[0]
        exchanged = _swapped([n.instruction for n in chain])
        if exchanged is None:
            continue
        node.operands = node.operands[::-1]
        for link, instruction in zip(chain, exchanged, strict=True):
            link.instruction = instruction
        for link in chain[:-1]:
            types[link.results[0]] = link.instruction.results[0].type


def _chains(nodes: Sequence[FlatNode], results: Sequence[int]) -> list[list[FlatNode]]:
    """Matmuls with the casts and the transposition that alone read their results."""
    made: dict[int, FlatNode] = {}  # by matmuls and casts
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
    readers = {node.results[0]: 0 for chain in found for node in chain[:-1]}
    for value in readers.keys() & set(results):
        readers[value] += 1
    unread = readers.keys().isdisjoint
    for node in nodes if found else ():
        if not unread(node.operands):
            for value in set(node.operands):
                if value in readers:
                    readers[value] += 1
    return [
        chain for chain in found if all(readers[n.results[0]] == 1 for n in chain[:-1])
    ]


def _swapped(chain: Sequence[Instruction]) -> list[Instruction] | None:
    """A matmul, casts of its result and a transposition, the other way round.

    None where the transposition would not keep whole rows either."""
    if len(chain) < 2:
        return None
    matmul, *casts, last = chain
    if not isinstance(matmul, NcMatmul) or len(matmul.operands) != 2:
        return None
    if not isinstance(last, DmaCopy) or last.kind != "transpose":
        return None
    lhs, rhs = matmul.operands
    d = matmul.dimensions
    shape = matmul.results[0].type.shape
    first = len(d.lhs_batch)
    middle = first + len(lhs.type.shape) - first - len(d.lhs_contract)
    order = (*range(first), *range(middle, len(shape)), *range(first, middle))
    place = {old: new for new, old in enumerate(order)}
    permutation = tuple(place[p] for p in last.parameters[0])
    if _keeps_rows(last.parameters[0], shape):
        return None
    turned = tuple(shape[n] for n in order)
    if not _keeps_rows(permutation, turned):
        return None
    exchanged = _changed(
        matmul,
        operands=(rhs, lhs),
        results=(_typed(matmul.results[0], turned),),
        dimensions=DotDimensions(
            d.rhs_batch, d.lhs_batch, d.rhs_contract, d.lhs_contract
        ),
    )
    found: list[Instruction] = [exchanged]
    for cast in casts:
        operand, result = cast.operands[0].buffer, cast.results[0]
        found.append(
            _changed(
                cast,
                operands=(View(_typed(operand, turned)),),
                results=(_typed(result, turned),),
            )
        )
    source = View(_typed(last.operands[0].buffer, turned))
    parameters = (permutation, *last.parameters[1:])
    found.append(_changed(last, operands=(source,), parameters=parameters))
    return found


def _changed(i: Instruction, **fields: Any) -> Instruction:
    """What `dataclasses.replace` makes, in a tenth of the time."""
    new = object.__new__(type(i))
    vars(new).update(vars(i), **fields)
    return new


def _keeps_rows(permutation: Sequence[int], shape: Sequence[int]) -> bool:
    """Whether the last axis stays the last."""
    moved = [p for p in permutation if shape[p] != 1]
    return not moved or moved[-1] == max(moved)


def _typed(buffer: Buffer, shape: tuple[int, ...]) -> Buffer:
    return Buffer(buffer.number, TensorType(shape, buffer.type.dtype))
