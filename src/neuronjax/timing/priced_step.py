"""The instruction that a fused step costs as much as; nothing here has a unit."""

from __future__ import annotations

import dataclasses
from math import prod

from neuronjax.ir.instruction import Buffer, Instruction, View
from neuronjax.ir.program import TensorType
from neuronjax.timing.access import ValueAccess
from neuronjax.timing.fused import Fused, FusedStep


def priced(fused: Fused, step: FusedStep) -> tuple[Instruction, frozenset[int]]:
    """The instruction that a step costs as much as, and its scalar operands.

    Its operands have the shape that the instruction sees and the dtype that the bytes
    in memory have.
    """
    i, types, access = step.instruction, fused.types, fused.access
    if step.form in ("control", "collective", "other", "matmul", "reduce"):
        # These read what they are given; only the dtypes of reads and writes differ.
        operands = [
            _seen(types, access, v, view.type.shape)
            for v, view in zip(step.operands, i.operands, strict=False)
        ]
        shapes = [b.type.shape for b in i.results]
        results = [
            Buffer(v, TensorType(s, types[v].dtype))
            for v, s in zip(step.results, shapes, strict=False)
        ]
        return _with(i, operands, results), frozenset()
    shape = types[step.seen].shape
    operands, scalars = [], set()
    for position, value in enumerate(step.operands):
        seen = access[value]
        last_is_one = prod(types[value].shape[-1:]) == 1 < prod(shape[-1:])
        if not seen.roots or seen.is_scalar or last_is_one:
            scalars.add(position)
        operands.append(_seen(types, access, value, shape))
    dtype = types[step.results[0]].dtype if step.results else types[step.seen].dtype
    results = [Buffer(step.seen, TensorType(shape, dtype))]
    return _with(i, operands, results), frozenset(scalars)


def _seen(
    types: list[TensorType],
    access: list[ValueAccess],
    value: int,
    shape: tuple[int, ...],
) -> View:
    roots = access[value].roots
    dtype = types[roots[0]].dtype if roots else types[value].dtype
    return View(Buffer(value, TensorType(shape, dtype)))


def _with(i: Instruction, operands: list[View], results: list[Buffer]) -> Instruction:
    return dataclasses.replace(i, operands=tuple(operands), results=tuple(results))
