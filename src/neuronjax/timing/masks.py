"""Blocks of attention scores that a mask hides, found by interval arithmetic.

A mask that is computed from indices alone (causal, a sliding window, or a combination)
is known when a program is compiled. In a block of rows and columns every index has a
range, and so has every value that is computed from indices. If the ranges prove that
the mask hides a whole block of scores, kernels do not compute the block.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from math import ceil, prod
from typing import Any, NamedTuple

import numpy as np

from neuronjax.ir.instruction_set import (
    BitcastCopy,
    Compare,
    DmaCopy,
    Iota,
    Memset,
    Select,
    TensorCopy,
    TensorTensor,
)
from neuronjax.ir.program import TensorType
from neuronjax.timing.assumptions import MASK_COLUMNS, MASK_ROWS
from neuronjax.timing.flattening import FlatNode


class MaskedScores(NamedTuple):
    """Attention scores, some of which are hidden by a mask.

    Attributes:
        shape: the shape of all scores.
        computed: the share of the scores in blocks of `MASK_ROWS` x `MASK_COLUMNS` that
            are not completely hidden; only these blocks are computed.
        contracted: the share of the scores in blocks of `MASK_ROWS` x `MASK_ROWS` that
            are not completely hidden; a matmul of the scores contracts only these.
    """

    shape: tuple[int, ...]
    computed: float
    contracted: float

    def has_shape(self, shape: tuple[int, ...]) -> bool:
        """Return whether a tensor of `shape` may be the scores or their transposition:
        it has as many elements, and its last axis is as long as one of the last two
        axes of the scores."""
        lengths = [size for size in shape if size != 1]
        return prod(shape) == prod(self.shape) and lengths[-1] in self.shape[-2:]


class _Range(NamedTuple):
    """The lowest and the highest element that a tensor can have in each block. For
    booleans, `low` says whether all are certainly true, `high` whether any may be."""

    low: Any
    high: Any


#: For every axis of a tensor, the range of the indices in each block.
_Frame = tuple[_Range, ...]


class Masks:
    """The instructions, in one `Block` of a program, that compute constants such as
    masks."""

    def __init__(self, types: list[TensorType]) -> None:
        self.types = types
        self._made: dict[int, FlatNode] = {}

    def add(self, node: FlatNode) -> None:
        for value in node.results:
            self._made[value] = node

    def hidden_by(
        self, operands: tuple[int, ...], shape: tuple[int, ...]
    ) -> MaskedScores | None:
        """Return the attention scores that a select masks; None if it masks no scores.

        `operands` are the select's (mask, value if true, value if false); `shape` is
        that of its result. It masks scores if the mask and exactly one of the values
        are constants, some block of scores is completely masked, and neither all rows
        nor all columns of blocks are masked alike."""
        predicate, on_true, on_false = operands
        is_kept = on_false in self._made
        if len(shape) < 2 or is_kept == (on_true in self._made):
            return None
        if self.types[predicate].shape != shape or predicate not in self._made:
            return None
        fine = self._visible(predicate, shape, MASK_ROWS.value, is_kept)
        if np.all(fine == fine[:, :1]) or np.all(fine == fine[:1]):
            return None
        coarse = self._visible(predicate, shape, MASK_COLUMNS.value, is_kept)
        computed = _share(coarse, shape, MASK_COLUMNS.value)
        return MaskedScores(shape, computed, _share(fine, shape, MASK_ROWS.value))

    def _visible(
        self, predicate: int, shape: tuple[int, ...], columns: float, is_kept: bool
    ) -> np.ndarray:
        rows = _blocks(shape[-2], MASK_ROWS.value)
        across = _blocks(shape[-1], columns)
        frame = (
            *(_Range(0, size - 1) for size in shape[:-2]),
            _Range(*(edge[:, None] for edge in rows)),
            _Range(*(edge[None] for edge in across)),
        )
        found = self._range(predicate, frame)
        visible = found.high if is_kept else np.logical_not(found.low)
        size = (len(rows.low), len(across.low))
        return np.broadcast_to(np.asarray(visible, bool), size)

    def _range(self, value: int, frame: _Frame) -> _Range:
        node = self._made.get(value)
        if node is None:
            return self._unknown(value)
        i = node.instruction
        if isinstance(i, Iota):
            return frame[i.dimension]
        if isinstance(i, Memset):
            return _stored(i.value, frame) or self._unknown(value)
        if isinstance(i, DmaCopy):
            if (inner := self._inner(i, frame)) is not None:
                return self._range(node.operands[0], inner)
            return self._unknown(value)
        rule = _RULES.get((type(i), getattr(i, "op", getattr(i, "direction", ""))))
        if rule is None:
            return self._unknown(value)
        return rule(*(self._range(v, frame) for v in node.operands))

    def _unknown(self, value: int) -> _Range:
        is_boolean = self.types[value].dtype.kind == "b"
        return _Range(False, True) if is_boolean else _Range(-np.inf, np.inf)

    def _inner(self, i: DmaCopy, frame: _Frame) -> _Frame | None:
        """Return the index ranges of a movement's operand, given those of its result
        (`frame`); None if they are not known."""
        before, after = i.operands[0].type.shape, i.results[0].type.shape
        one = _Range(0, 0)
        if i.kind == "broadcast":
            found = zip(before, i.parameters[0], strict=True)
            return tuple(one if size == 1 else frame[d] for size, d in found)
        if i.kind == "transpose":
            places = {p: n for n, p in enumerate(i.parameters[0])}
            return tuple(frame[places[n]] for n in range(len(before)))
        if i.kind == "slice":
            starts, _, strides = i.parameters
            moved = zip(frame, starts, strides, strict=True)
            return tuple(_Range(r.low * t + s, r.high * t + s) for r, s, t in moved)
        if i.kind == "reshape":
            kept = [r for r, size in zip(frame, after, strict=True) if size != 1]
            if [s for s in before if s != 1] == [s for s in after if s != 1]:
                return tuple(one if size == 1 else kept.pop(0) for size in before)
        return None


def is_ramp(value: np.ndarray) -> bool:
    """Return whether GpSimdE's iota can compute the constant `value`: integers that
    change in equal steps along one axis, and do not change along any other axis."""
    return value.dtype.kind in "iu" and _ramp(value) is not None


def _ramp(value: np.ndarray) -> tuple[int, int, int] | None:
    axes = [n for n, size in enumerate(value.shape) if size > 1]
    lines = [
        n
        for n in axes
        if not np.array_equal(value, value.take([0] * value.shape[n], n))
    ]
    if len(lines) != 1:
        return None
    line = np.moveaxis(value, lines[0], 0).reshape(value.shape[lines[0]], -1)[:, 0]
    steps = np.diff(line.astype(np.int64))
    if not np.all(steps == steps[0]):
        return None
    return lines[0], int(line[0]), int(steps[0])


def _stored(value: np.ndarray, frame: _Frame) -> _Range | None:
    if value.dtype.kind in "biuf" and value.size and np.all(value == value.flat[0]):
        return _Range(value.flat[0], value.flat[0])
    found = _ramp(value) if value.dtype.kind in "iu" else None
    if found is None:
        return None
    axis, start, step = found
    ends = (frame[axis].low * step + start, frame[axis].high * step + start)
    return _Range(np.minimum(*ends), np.maximum(*ends))


def _blocks(size: int, step: float) -> _Range:
    first = np.arange(ceil(size / step)) * int(step)
    return _Range(first, np.minimum(first + int(step), size) - 1)


def _share(visible: np.ndarray, shape: tuple[int, ...], columns: float) -> float:
    steps = (MASK_ROWS.value, columns)
    blocks = (_blocks(size, n) for size, n in zip(shape[-2:], steps, strict=True))
    rows, across = (edge.high - edge.low + 1 for edge in blocks)
    return float(rows @ visible @ across) / prod(shape[-2:])


# -- interval arithmetic -------------------------------------------------------------


def _less(a: _Range, b: _Range) -> _Range:
    return _Range(a.high < b.low, a.low < b.high)


def _no_more(a: _Range, b: _Range) -> _Range:
    return _Range(a.high <= b.low, a.low <= b.high)


def _equal(a: _Range, b: _Range) -> _Range:
    same = (a.low == b.high) & (a.high == b.low)
    return _Range(same, (a.low <= b.high) & (b.low <= a.high))


def _not(a: _Range) -> _Range:
    return _Range(np.logical_not(a.high), np.logical_not(a.low))


def _magnitude(a: _Range) -> _Range:
    crosses = (a.low < 0) & (a.high > 0)
    ends = (np.abs(a.low), np.abs(a.high))
    return _Range(np.where(crosses, 0, np.minimum(*ends)), np.maximum(*ends))


def _either(p: _Range, a: _Range, b: _Range) -> _Range:
    low = np.where(p.low, a.low, np.where(p.high, np.minimum(a.low, b.low), b.low))
    high = np.where(p.low, a.high, np.where(p.high, np.maximum(a.high, b.high), b.high))
    return _Range(low, high)


_RULES: Mapping[tuple[type, str], Callable[..., _Range]] = {
    (BitcastCopy, ""): lambda a: a,
    (TensorCopy, ""): lambda a: a,
    (Select, ""): _either,
    (Compare, "LT"): _less,
    (Compare, "LE"): _no_more,
    (Compare, "GT"): lambda a, b: _less(b, a),
    (Compare, "GE"): lambda a, b: _no_more(b, a),
    (Compare, "EQ"): _equal,
    (Compare, "NE"): lambda a, b: _not(_equal(a, b)),
    (TensorTensor, "and"): lambda a, b: _Range(a.low & b.low, a.high & b.high),
    (TensorTensor, "or"): lambda a, b: _Range(a.low | b.low, a.high | b.high),
    (TensorTensor, "not"): _not,
    (TensorTensor, "add"): lambda a, b: _Range(a.low + b.low, a.high + b.high),
    (TensorTensor, "subtract"): lambda a, b: _Range(a.low - b.high, a.high - b.low),
    (TensorTensor, "negate"): lambda a: _Range(-a.high, -a.low),
    (TensorTensor, "abs"): _magnitude,
    (TensorTensor, "maximum"): lambda a, b: _Range(
        np.maximum(a.low, b.low), np.maximum(a.high, b.high)
    ),
    (TensorTensor, "minimum"): lambda a, b: _Range(
        np.minimum(a.low, b.low), np.minimum(a.high, b.high)
    ),
}
