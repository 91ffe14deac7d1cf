"""Rules of matmul, dot, tensordot and einsum.

A sum of n products has n roundings, each relative to the partial sum that it makes. The
kernel chooses the order of addition: TensorE adds 128 rows, PSUM adds tiles, VectorE
adds elements. The scale of the error in any of these orders is taken as at most

    scale^2 = n u^2 / 3 (G^2 + Q)

where u is the unit roundoff, G the largest of the partial sums after every `CHUNK`
terms, and Q the sum of the squares of the products. In an order that is independent of
the terms' signs, a partial sum is a share of the total plus a random walk of at most
sqrt(Q). Only an order chosen for the given numbers, such as positive terms first,
exceeds this. The bound of Higham and Mary, with the sum of magnitudes in place of G and
Q, holds for such orders too but is sqrt(n) times as wide and would hide a dropped term.
If all terms have one magnitude, roundings are not independent: errors reach n u G.

Values come from FP32 matmuls of `CHUNK` terms, in half the time of float64. The bound
includes the roundings of these matmuls, as chains of `CHUNK` additions.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

import numpy as np

from neuronjax.diagnostics.tolerance.model import ErrorModel, are_one_value
from neuronjax.diagnostics.tolerance.runs import unpacked
from neuronjax.diagnostics.tolerance.tracked import (
    FUNCTIONS,
    UFUNCS,
    Shared,
    Tracked,
    as_tracked,
    blocks,
    carrier_of,
    declared,
    in_threads,
    model_of,
    moved,
)
from neuronjax.errors import UnimplementedError, user_line

CHUNK = 512
_BLOCK_ELEMENTS = 1 << 20
_TILE = 1024
#: Bound of the error of a product of factors below 2, if subnormal numbers become zero.
_DROPPED = 2.0**-58


def matmul(a: Any, b: Any) -> Tracked:
    """Return `numpy.matmul(a, b)` with errors, also for vectors and stacks."""
    model = model_of((a, b))
    dtype = declared(a, b)
    a, b = as_tracked(a, model), as_tracked(b, model)
    if b.ndim == 1:
        return matmul(a, b[:, None])[..., 0]
    if a.ndim == 1:
        return matmul(a[None, :], b)[..., 0, :]
    stack = np.broadcast_shapes(a.shape[:-2], b.shape[:-2])
    return _stacked(_with_stack(a, stack), _with_stack(b, stack), model, dtype)


def _with_stack(x: Tracked, stack: tuple[int, ...]) -> Tracked:
    if x.shape[:-2] == stack:
        return x
    return moved(lambda v: np.broadcast_to(v, (*stack, *v.shape[-2:])), x)


def _stacked(a: Tracked, b: Tracked, model: ErrorModel, dtype: Any) -> Tracked:
    """Multiply `a` [..., M, K] by `b` [..., K, N], which have the same leading axes."""
    shape, n = (*a.shape[:-1], b.shape[-1]), a.shape[-1]
    if a.is_batch:
        model.draw.need_room(math.prod(shape))
        one = _stacked(a.of_run(0), b.of_run(0), model.alone, dtype)
        pair = (np.moveaxis(unpacked(x.value), -1, 0).copy() for x in (a, b))
        return one.in_runs(np.moveaxis(np.matmul(*pair), 0, -1), model)
    kept, loose = _parted(a.shared, -1)
    kept_right, loose_right = _parted(b.shared, -2)
    a, b = a.passed(), b.passed()
    value, own = np.empty(shape, carrier_of(shape)), np.empty(shape, np.float32)
    is_rounded = model.products.unit > model.stored.unit
    has_errors = loose or loose_right or any(x.has_own or x.has_joint for x in (a, b))
    joint = np.zeros(shape, np.float32) if is_rounded or has_errors else None
    stored = model.of_result(dtype)
    in_stack = max(1, _BLOCK_ELEMENTS // max(1, shape[-2] * shape[-1]))
    for stack in blocks(shape[:-2], in_stack):
        rows, alike_rows = _factor(a, stack, loose, -1)
        columns, alike_columns = _factor(b, stack, loose_right, -2)
        alike = alike_rows[..., :, None] & alike_columns[..., None, :]
        is_biased = n > 1 and bool(alike.any())
        if is_biased and joint is None:
            joint = np.zeros(shape, np.float32)

        def fill(tile: tuple[Any, slice, slice]) -> None:
            _, row, column = tile
            pair = rows.of((..., row, slice(None))), columns.of((..., column))
            v, fresh, handed = _product(*pair, model, stored)
            value[stack][tile], own[stack][tile] = v, fresh
            if joint is not None and handed is not None:
                joint[stack][tile] = handed
            if joint is not None and is_biased:
                joint[stack][tile] += alike[tile] * (model.of_alike(n) * np.abs(v))

        starts = (range(0, size, _TILE) for size in shape[-2:])
        parts = ([slice(k, k + _TILE) for k in each] for each in starts)
        in_threads(fill, [*itertools.product((...,), *parts)])
    terms = {s: _widened(t, -1, shape) for s, t in kept.items()}
    for source, term in kept_right.items():
        wide = _widened(term, -2, shape)
        if source in terms:
            wide = Shared(True, terms[source].scale + wide.scale)
        terms[source] = wide
    return Tracked(value, model, dtype, own, joint, terms)


def _parted(
    shared: Mapping[int, Shared], axis: int
) -> tuple[dict[int, Shared], dict[int, Shared]]:
    """Split `shared` into relative errors that are equal along `axis`, and others."""
    views = {s: t.scale for s, t in shared.items() if t.is_relative}
    same = {s for s, v in views.items() if v.strides[axis] == 0 or v.shape[axis] == 1}
    kept = {s: t for s, t in shared.items() if s in same}
    return kept, {s: t for s, t in shared.items() if s not in same}


def _widened(term: Shared, axis: int, shape: tuple[int, ...]) -> Shared:
    """Broadcast a factor's error `term`, which is equal along `axis`, to `shape`."""
    first = np.moveaxis(np.moveaxis(term.scale, axis, -1)[..., :1], -1, axis)
    return Shared(True, np.broadcast_to(first, shape))


class _Factor(NamedTuple):
    """One operand, as FP32 arrays that are divided by `unit`.

    Attributes:
        unit: a power of two; it keeps squares within the range of FP32.
        squares: squares of `scaled`, see `_normal`.
        own: squares of the independent errors, or None.
        joint: correlated errors, or None.
    """

    unit: float
    scaled: np.ndarray
    squares: np.ndarray
    own: np.ndarray | None
    joint: np.ndarray | None

    def of(self, part: Any) -> _Factor:
        cut: Any = (None if x is None else x[part] for x in self[2:])
        return _Factor(self.unit, self.scaled[part], *cut)


def _factor(
    x: Tracked, stack: Any, loose: Mapping[int, Shared], axis: int
) -> tuple[_Factor, np.ndarray]:
    """Return `x[stack]` as a `_Factor`, and a mask of the rows (`axis` -1) or columns
    (-2) whose numbers have one magnitude. Errors in `loose` count as correlated."""
    part = x.part(stack)
    value, own, joint = part.value, part.own, part.correlated(loose, stack)
    largest = float(max(value.max(initial=0.0), -value.min(initial=0.0)))
    known = 0.0 < largest < math.inf
    unit = 2.0 ** math.floor(math.log2(largest)) if known else 1.0
    scale = np.float32(1 / unit)
    scaled = np.multiply(value, scale, dtype=np.float32, casting="same_kind")
    own = None if own is None else _normal(np.square(own * scale))
    joint = None if joint is None else _normal(joint * scale)
    factor = _Factor(unit, scaled, _normal(np.square(scaled)), own, joint)
    return factor, are_one_value(value, axis)


def _product(a: _Factor, b: _Factor, model: ErrorModel, stored: Any) -> Any:
    """Return the product, the error of its roundings, and the error from the operands
    (None if they have no error)."""
    n = a.scaled.shape[-1]
    unit = a.unit * b.unit
    sums = np.float32(model.of_sums(n + min(CHUNK, n)))
    with np.errstate(all="ignore"):
        total, largest = _sums(a.scaled, b.scaled)
        squares, handed = _errors(a, b, model, sums)
        value = total * unit
        fresh = np.square(largest, out=largest)
        fresh *= sums
        fresh += squares
        np.sqrt(fresh, out=fresh)
        fresh += np.float32(stored.unit) * np.abs(total)
        fresh = fresh * unit + n * (stored.smallest + _DROPPED * unit)
        if not np.max(np.abs(value), initial=0.0) <= stored.largest:
            fresh = np.where(np.abs(value) > stored.largest, np.inf, fresh)
    return value, fresh, None if handed is None else unit * handed


def _errors(
    a: _Factor, b: _Factor, model: ErrorModel, sums: np.float32
) -> tuple[Any, Any]:
    """Return (rounding, error from the operands). The rounding is the term (n u^2 / 3)
    Q of the squared error (see the module). If the operands have no error, the second
    is None; else it includes the rounding, and the first is 0."""
    rounding = np.float32(0.0)
    if model.products.unit > model.stored.unit:
        rounding = np.float32(3 * model.products.unit**2)
    if a.own is None and b.own is None and a.joint is None and b.joint is None:
        squares = a.squares @ b.squares
        handed = np.sqrt(rounding * squares) if rounding else None
        squares *= sums
        return squares, handed
    squares = (sums + rounding) * a.squares
    squares = _normal(squares if a.own is None else squares + a.own)
    handed = squares @ b.squares
    if b.own is not None:
        handed += a.squares @ b.own
    np.sqrt(handed, out=handed)
    if a.joint is not None:
        handed += a.joint @ np.abs(b.scaled)
    if b.joint is not None:
        handed += np.abs(a.scaled) @ b.joint
    return np.float32(0.0), handed


def _sums(a: np.ndarray, b: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    n = a.shape[-1]
    total = a[..., :CHUNK] @ b[..., :CHUNK, :]
    largest = np.abs(total)
    for start in range(CHUNK, n, CHUNK):
        part = slice(start, start + CHUNK)
        total += a[..., part] @ b[..., part, :]
        np.maximum(largest, np.abs(total), out=largest)
    return total, largest


def _normal(x: np.ndarray) -> np.ndarray:
    """Return `x` with zeros for subnormal numbers: one subnormal in twenty numbers
    makes a matrix product ten times as slow. `_DROPPED` bounds the loss."""
    return np.where(x < np.finfo(np.float32).tiny, np.float32(0.0), x)


def einsum(subscripts: str, *operands: Any, optimize: Any = False) -> Any:
    """Return `numpy.einsum` with errors; refuse an operand that repeats a letter."""
    model = model_of(operands)
    text = subscripts.replace(" ", "")
    inputs, _, output = text.partition("->")
    names = inputs.split(",")
    repeats = any(len(set(n)) < len(n) for n in names)
    if repeats or "." in text or len(names) != len(operands):
        raise UnimplementedError(
            f"einsum of {subscripts!r} has no rule for bounds of errors",
            op="numpy.einsum",
            location=user_line(),
            remedy='avoid diagonals and "..." here, or give an explicit tolerance',
        )
    if "->" not in text:
        letters = "".join(names)
        output = "".join(sorted(c for c in set(letters) if letters.count(c) == 1))
    left, name = as_tracked(operands[0], model), names[0]
    for i in range(1, len(names)):
        needed = set(output).union(*names[i + 1 :])
        left, name = _pair(left, name, as_tracked(operands[i], model), names[i], needed)
    left, name = _only(left, name, set(output))
    return moved(lambda v: v.transpose([name.index(c) for c in output]), left)


def _pair(a: Any, p: str, b: Any, q: str, needed: set[str]) -> tuple[Any, str]:
    """Multiply `a` with letters `p` by `b` with letters `q`, and sum over letters that
    are not `needed`; return the product and its letters."""
    a, p = _only(a, p, needed | set(q))
    b, q = _only(b, q, needed | set(p))
    stack = [c for c in p if c in q and c in needed]
    summed = [c for c in p if c in q and c not in needed]
    rows = [c for c in p if c not in q]
    columns = [c for c in q if c not in p]
    sizes = dict(zip(p, a.shape, strict=True)) | dict(zip(q, b.shape, strict=True))
    left = grouped(a, [map(p.index, group) for group in (stack, rows, summed)])
    right = grouped(b, [map(q.index, group) for group in (stack, summed, columns)])
    product = matmul(left, right)
    order = stack + rows + columns
    shape = [sizes[c] for c in order]
    return moved(lambda v: v.reshape(shape), product), "".join(order)


def _only(x: Any, name: str, kept: set[str]) -> tuple[Any, str]:
    gone = tuple(i for i, c in enumerate(name) if c not in kept)
    if not gone:
        return x, name
    return np.sum(x, axis=gone), "".join(c for c in name if c in kept)


def grouped(x: Any, groups: Iterable[Iterable[int]]) -> Any:
    """Return `x` with its axes in the order of `groups`, every group as one axis."""
    axes = [[*group] for group in groups]
    order = [n for group in axes for n in group]
    shape = [math.prod(x.shape[n] for n in group) for group in axes]
    return moved(lambda v: v.transpose(order).reshape(shape), x)


def tensordot(a: Any, b: Any, axes: Any = 2) -> Any:
    model = model_of((a, b))
    a, b = as_tracked(a, model), as_tracked(b, model)
    if isinstance(axes, int):
        axes = range(a.ndim - axes, a.ndim), range(axes)
    first, second = ([x] if isinstance(x, int) else list(x) for x in axes)
    letters = "abcdefghijklmnopqrstuvwxyz"
    p, q = list(letters[: a.ndim]), list(letters[a.ndim : a.ndim + b.ndim])
    for i, j in zip(first, second, strict=True):
        q[j] = p[i]
    pairs = {p[i] for i in first}
    output = [c for c in p + q if c not in pairs]
    return einsum(f"{''.join(p)},{''.join(q)}->{''.join(output)}", a, b)


def dot(a: Any, b: Any) -> Any:
    """Return `numpy.dot`, over the last axis of `a` and the last but one of `b`."""
    if np.ndim(a) == 0 or np.ndim(b) == 0:
        return np.multiply(a, b)
    return tensordot(a, b, ([np.ndim(a) - 1], [max(0, np.ndim(b) - 2)]))


UFUNCS[np.matmul, "__call__"] = matmul
FUNCTIONS[np.dot] = dot
FUNCTIONS[np.vdot] = lambda a, b: dot(np.ravel(a), np.ravel(b))
FUNCTIONS[np.inner] = lambda a, b: tensordot(a, b, ([-1], [-1]))
FUNCTIONS[np.outer] = lambda a, b: np.ravel(a)[:, None] * np.ravel(b)[None, :]
FUNCTIONS[np.tensordot] = tensordot
FUNCTIONS[np.einsum] = einsum
