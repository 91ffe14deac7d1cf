"""Rules of sorting and of selecting the largest elements.

A comparator that orders lexicographically by keys is recognized by its structure: each
of its comparisons is of f(left operands) with f(right operands), for some function f.
The keys are then computed once and sorted as integers. Any other comparator is executed
as it is.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from neuronjax.errors import InvalidProgramError
from neuronjax.ir.block_set import MapBlock, SortBlock
from neuronjax.ir.instruction import Buffer, View, contents
from neuronjax.ir.instruction_set import DmaCopy, Sort, TopK
from neuronjax.ir.program import Op, Region, Value
from neuronjax.lowering.bodies import inlined, lowered_bodies
from neuronjax.lowering.context import Context, Instructions
from neuronjax.lowering.registry import lowers


@lowers("stablehlo.sort")
def sort(op: Op, context: Context) -> Instructions:
    rank = len(op.operands[0].type.shape)
    yield from sorted_by(
        op.regions[0],
        context,
        context.operands(op),
        context.results(op),
        dimension=op.attributes.get("dimension", -1) % rank,
    )


def sorted_by(
    comparator: Region,
    context: Context,
    operands: tuple[View, ...],
    results: tuple[Buffer, ...],
    *,
    dimension: int,
) -> Instructions:
    """Sort all operands along a dimension."""
    comparator = inlined(comparator, context.shared.program.functions)
    keys = _Comparator(comparator).keys(comparator.results[0])
    if keys is None:
        (body,), captured = lowered_bodies([comparator], context)
        yield context.make(
            SortBlock,
            (*operands, *captured),
            results,
            engine="gpsimd",
            dimension=dimension,
            body=body,
            captures=len(captured),
        )
        return
    views = _key_views(comparator, keys, context, operands)
    yield context.make(
        Sort,
        (*views, *operands),
        results,
        engine="gpsimd",
        dimension=dimension,
        descending=tuple(key.descending for key in keys),
        total=tuple(key.total for key in keys),
    )


def _key_views(
    comparator: Region,
    keys: list[SortKey],
    context: Context,
    operands: tuple[View, ...],
) -> list[View]:
    """Return the keys as tensors, which are operands or functions of operands."""
    left = comparator.arguments[::2]
    known = dict(zip(left, operands, strict=True))
    computed = tuple(dict.fromkeys(k.value for k in keys if k.value not in known))
    if not computed:
        return [known[key.value] for key in keys]
    needed, ops = set(computed), []
    for op in reversed(comparator.ops):
        if needed & set(op.results):
            ops.append(op)
            needed.update(op.operands)
    function = Region(left, tuple(reversed(ops)), computed)
    (body,), captured = lowered_bodies([function], context)
    shape = operands[0].type.shape
    buffers = tuple(context.temporary(shape, v.type.dtype) for v in computed)
    known.update(zip(computed, map(View, buffers), strict=True))
    compute = context.make(
        MapBlock,
        (*operands, *captured),
        buffers,
        engine="gpsimd",
        body=body,
        captures=len(captured),
    )
    context.emit(compute)
    return [known[key.value] for key in keys]


# -- comparators -----------------------------------------------------------------------


class SortKey(NamedTuple):
    """One key of a lexicographic order."""

    value: Value  # the key of the left element
    descending: bool  # whether the largest comes first
    total: bool  # whether floats are compared in IEEE totalOrder


class _Comparator:
    def __init__(self, region: Region) -> None:
        self._arguments = {v: i for i, v in enumerate(region.arguments)}
        self._producers = {v: op for op in region.ops for v in op.results}
        self._numbers: dict[tuple[Value, bool], int] = {}
        self._computations: dict[tuple, int] = {}

    def keys(self, value: Value) -> list[SortKey] | None:
        """Return the keys that a boolean of the region compares, the most significant
        first, or None if unknown. The recognized forms are `a < b`, and `a < b or (a ==
        b and rest)`, also as a select. A comparator that is true for equal elements
        (`<=`) has the keys of the strict one."""
        op = self._producers.get(value)
        if op is None:
            return None
        if op.name == "stablehlo.compare":
            key = self._key(op, ("LT", "LE", "GT", "GE"))
            return [key] if key else None
        for first, equal, rest in self._parts(op):
            key = self._key(first, ("LT", "GT"))
            tie = self._key(equal, ("EQ",))
            if key and tie and self._same(key, tie):
                others = self.keys(rest)
                return others and [key, *others]
        return None

    def _parts(self, op: Op) -> Iterator[tuple[Op, Op, Value]]:
        """Yield candidates for (a < b, a == b, the order of equal elements)."""
        produced = self._producers.get
        if op.name == "stablehlo.or":
            for first, other in (op.operands, op.operands[::-1]):
                both = produced(other)
                if both is not None and both.name == "stablehlo.and":
                    for equal, rest in (both.operands, both.operands[::-1]):
                        yield from self._ops(first, equal, rest)
        elif op.name == "stablehlo.select":
            condition, on_true, on_false = op.operands
            yield from self._ops(on_false, condition, on_true)
            compared = produced(condition)
            if compared is not None and _direction(compared) == "NE":
                attributes = {**compared.attributes, "comparison_direction": "EQ"}
                equal = dataclasses.replace(compared, attributes=attributes)
                first = produced(on_true)
                if first is not None:
                    yield first, equal, on_false

    def _ops(self, first: Value, equal: Value, rest: Value) -> Iterator[tuple]:
        ops = self._producers.get(first), self._producers.get(equal)
        if None not in ops:
            yield (*ops, rest)

    def _key(self, op: Op, directions: tuple[str, ...]) -> SortKey | None:
        """Return the key that a comparison applies to both elements, else None."""
        direction = _direction(op)
        if direction not in directions:
            return None
        descending = direction in ("GT", "GE")
        total = op.attributes.get("compare_type") == "TOTALORDER"
        left, right = op.operands
        if self._number(left, False) != self._number(right, True):
            return None
        if self._sides(left) == {0}:
            return SortKey(left, descending, total)
        if self._sides(left) == {1}:
            return SortKey(right, not descending, total)
        return None

    def _same(self, key: SortKey, tie: SortKey) -> bool:
        same = self._number(key.value, False) == self._number(tie.value, False)
        return same and key.total == tie.total

    def _number(self, value: Value, swapped: bool) -> int:
        """Return equal numbers for equal computations; `swapped` exchanges elements."""
        if (value, swapped) not in self._numbers:
            how = self._computation(value, swapped)
            number = self._computations.setdefault(how, len(self._computations))
            self._numbers[value, swapped] = number
        return self._numbers[value, swapped]

    def _computation(self, value: Value, swapped: bool) -> tuple:
        if value in self._arguments:
            return ("argument", self._arguments[value] ^ swapped)
        op = self._producers.get(value)
        if op is None or op.regions:
            return ("other", value)
        attributes = tuple(
            (k, contents(v) if isinstance(v, np.ndarray) else repr(v))
            for k, v in sorted(op.attributes.items())
        )
        operands = [self._number(v, swapped) for v in op.operands]
        return (op.name, op.results.index(value), attributes, *operands)

    def _sides(self, value: Value) -> set[int]:
        """Return which of the two elements, 0 and 1, a value depends on."""
        sides, seen, todo = set(), set(), [value]
        while todo:
            value = todo.pop()
            if value in seen:
                continue
            seen.add(value)
            if value in self._arguments:
                sides.add(self._arguments[value] % 2)
            elif value in self._producers:
                todo.extend(self._producers[value].operands)
        return sides


def _direction(op: Op) -> str:
    is_compare = op.name == "stablehlo.compare"
    return op.attributes["comparison_direction"] if is_compare else ""


# -- the largest -----------------------------------------------------------------------


@lowers("chlo.top_k")
def top_k(op: Op, context: Context) -> Instructions:
    yield context.whole(op, TopK, "vector", k=op.attributes["k"])


def approx_top_k(op: Op, context: Context) -> Instructions:
    """Lower the custom call ApproxTopK exactly, which is a legal result. The call's
    operands are n tensors, and n padding values that an exact result does not need."""
    config = op.attributes["mhlo.backend_config"]
    (name,) = op.attributes["called_computations"]
    comparator = context.shared.program.functions[name].body
    count, axis = len(op.results), int(config["reduction_dim"])
    views = context.operands(op)[:count]
    shape, wanted = views[0].type.shape, op.results[0].type.shape
    if wanted[axis] > shape[axis]:
        what = f"ApproxTopK asks for {wanted[axis]} of {shape[axis]} elements"
        raise op.error(InvalidProgramError, what, f"use at most {shape[axis]}")
    ordered = tuple(context.temporary(v.type.shape, v.type.dtype) for v in views)
    yield from sorted_by(comparator, context, views, ordered, dimension=axis)
    zeros, ones = (0,) * len(shape), (1,) * len(shape)
    for source, result in zip(ordered, context.results(op), strict=True):
        yield context.make(
            DmaCopy,
            (View(source),),
            (result,),
            engine="dma",
            kind="slice",
            parameters=(zeros, wanted, ones),
        )
