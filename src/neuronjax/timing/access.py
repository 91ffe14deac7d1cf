"""Access patterns: how a value is read out of existing tensors, without a copy.

Reshapes, broadcasts, slices and widening casts move no data: an engine reads a tensor
with up to four strides, and converts any dtype to FP32. `viewed` decides which
instructions are access patterns. The first n dimensions of a tensor, for any n, divide
it into as many rows as their product: [2, 3, 4] is 1, 2, 6 or 24 rows. Instructions
whose tensors can be divided into the same number of rows can be executed together, a
few rows at a time, if each computes row n of its result only from row n of its
operands.
"""

from __future__ import annotations

from functools import lru_cache
from itertools import accumulate
from math import prod
from operator import mul
from typing import NamedTuple

from neuronjax.ir.instruction import Instruction
from neuronjax.ir.instruction_set import BitcastCopy, DmaCopy, Loop, TensorCopy
from neuronjax.ir.program import TensorType

#: Instructions that may be access patterns.
MOVEMENTS = frozenset({TensorCopy, BitcastCopy, DmaCopy})


class ValueAccess(NamedTuple):
    """The access pattern by which a value is read from tensors in memory.

    Attributes:
        roots: the tensors in memory from which the value is read; empty for a constant.
        is_scalar: whether the elements of a row (along the last axis) are all equal,
            for every row of the value.
        transposes: whether reading the value swaps rows and columns.
        part: the fraction of the elements of `roots` that is read.
        rows: the possible numbers of rows of the value, if it is read from `roots` some
            rows at a time; None if all numbers that `rows_of` returns are possible.
    """

    roots: tuple[int, ...]
    is_scalar: bool = False
    transposes: bool = False
    part: float = 1.0
    rows: frozenset[int] | None = None


@lru_cache(maxsize=1 << 14)
def rows_of(shape: tuple[int, ...], dimensions: int | None = None) -> frozenset[int]:
    """Return the numbers of rows into which a tensor of `shape` can be divided: 1, and
    the product of the first n dimensions for each n up to `dimensions` (None: all)."""
    return frozenset(accumulate(shape[:dimensions], mul, initial=1))


def viewed(
    i: Instruction,
    operands: tuple[int, ...],
    access: list[ValueAccess],
    types: list[TensorType],
    arguments: tuple[int, ...],
) -> ValueAccess | None:
    """Return how the result of `i` can be read without executing `i`; None if `i` has
    to be executed.

    `operands` has the value numbers of `i`'s operands, `arguments` those of the block's
    arguments, which are in HBM. `access` and `types` are indexed by value number."""
    if isinstance(i, TensorCopy | BitcastCopy):
        source, target = i.operands[0].type.dtype, i.results[0].type.dtype
        # Engines compute in FP32, so reading the narrow dtype gives the same values.
        widens = source.itemsize <= target.itemsize
        widens = widens and (target.kind not in "biu" or source.kind in "biu")
        keeps = widens or isinstance(i, BitcastCopy)
        return access[operands[0]] if keeps else None
    if not isinstance(i, DmaCopy):
        return None
    before = access[operands[0]]
    shape, result = i.operands[0].type.shape, i.results[0].type.shape
    if i.kind == "broadcast":
        rows, scalar = _broadcast(shape, result, i.parameters[0])
        return _view(before, rows, before.is_scalar if scalar is None else scalar)
    if i.kind == "reshape":
        rows, kept = _reshaped(shape, result)
        return _view(before, rows, is_scalar=before.is_scalar and kept)
    if i.kind in ("slice", "dynamic_slice"):
        cut = [n for n, (a, b) in enumerate(zip(shape, result)) if a != b]
        kept = cut[0] if cut else None
        if cut and len(before.roots) == 1 and before.roots[0] in arguments:
            kept = len(result) - 1  # only needed rows are loaded from HBM
        rows = rows_of(result, kept)
        part = prod(result) / max(1, prod(shape))
        return _view(before, rows, before.is_scalar, part=part)
    if i.kind == "transpose":
        return _transpose(before, shape, i.parameters[0], arguments)
    if i.kind == "concatenate":
        return _concatenate(operands, access, result, i.parameters[0][0])
    return None


def unchanged_carries(loop: Loop) -> frozenset[int]:
    """Return the positions of carries that no iteration of a loop changes, such as a
    scan's inputs. The tensors of these carries are not copied."""
    sources = {b.number: n for n, b in enumerate(loop.body.arguments)}
    for i in loop.body.instructions:
        if isinstance(i, Loop):
            for n in unchanged_carries(i):
                source = sources.get(i.operands[n].buffer.number)
                if source is not None:
                    sources[i.results[n].number] = source
    results = enumerate(loop.body.results)
    return frozenset(n for n, v in results if sources.get(v.buffer.number) == n)


def _view(
    before: ValueAccess,
    rows: frozenset[int],
    is_scalar: bool,
    *,
    transposes: bool = False,
    part: float = 1.0,
) -> ValueAccess:
    return ValueAccess(
        before.roots,
        is_scalar,
        transposes or before.transposes,
        before.part * part,
        rows if before.rows is None else rows & before.rows,
    )


@lru_cache(maxsize=1 << 12)
def _reshaped(
    shape: tuple[int, ...], result: tuple[int, ...]
) -> tuple[frozenset[int], bool]:
    """Return (the numbers of rows into which both shapes can be divided, whether a
    reshape from `shape` to `result` preserves `ValueAccess.is_scalar`, the property
    that all elements along the last axis are equal)."""
    kept = prod(shape[-1:]) == prod(result[-1:]) or prod(result[-1:]) == 1
    return rows_of(shape) & rows_of(result), kept


@lru_cache(maxsize=1 << 12)
def _broadcast(
    shape: tuple[int, ...], result: tuple[int, ...], dimensions: tuple[int, ...]
) -> tuple[frozenset[int], bool | None]:
    """Return (rows, is_scalar) for a broadcast of `shape` to `result`.

    `rows` are the numbers of rows into which the result can be divided so that its row
    n is read from row n of the operand. `is_scalar` says whether one element of the
    operand is read for all elements of a row: True if the last axis is new and has
    several elements, None if it is an axis of the operand, so that the operand decides.
    """
    sizes = dict(zip(dimensions, shape, strict=True))
    given = [sizes.get(d, 1) for d in range(len(result))]
    new = next((d for d, (a, b) in enumerate(zip(given, result)) if a != b), None)
    moves_last = prod(given[-1:]) != 1
    return rows_of(result, new), None if moves_last else prod(result[-1:]) != 1


def _transpose(
    before: ValueAccess,
    shape: tuple[int, ...],
    permutation: tuple[int, ...],
    arguments: tuple[int, ...],
) -> ValueAccess | None:
    order = [p for p in permutation if shape[p] != 1]
    if order == sorted(order):
        return _view(before, rows_of(shape), before.is_scalar)
    rows = rows_of(shape, next(n for n, p in enumerate(permutation) if p != n))
    if order[-1] == max(order):  # rows move as a whole
        return _view(before, rows | {prod(shape[: order[-1]])}, before.is_scalar)
    if len(before.roots) == 1 and before.roots[0] in arguments:
        # The DMA engines can transpose while they load from HBM.
        return _view(before, rows, before.is_scalar, transposes=True)
    return None


def _concatenate(
    operands: tuple[int, ...],
    access: list[ValueAccess],
    result: tuple[int, ...],
    axis: int,
) -> ValueAccess | None:
    if any(len(access[v].roots) != 1 or access[v].is_scalar for v in operands):
        return None
    rows = rows_of(result, axis)
    for v in operands:
        own = access[v].rows
        rows = rows if own is None else rows & own
    roots = tuple(dict.fromkeys(r for v in operands for r in access[v].roots))
    return ValueAccess(
        roots, rows=rows, transposes=any(access[v].transposes for v in operands)
    )
