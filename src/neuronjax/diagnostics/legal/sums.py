"""Rules that propagate values and errors through sums and products of many terms.

The terms may come from sliding windows or from a scatter. The bounds are valid for
every order of addition; see `diagnostics.tolerance.contraction`.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from neuronjax.diagnostics.legal.arithmetic import discrete, legal, no_rule
from neuronjax.diagnostics.legal.held import (
    UNIFORM,
    Executors,
    Held,
    exactly,
    half_steps,
    in_float64,
    is_doubtful,
    places_in_doubt,
    written,
)
from neuronjax.diagnostics.reference64 import is_float, matrix
from neuronjax.diagnostics.reference64_tables import REDUCTIONS
from neuronjax.diagnostics.tolerance.contraction import matmul
from neuronjax.diagnostics.tolerance.model import ErrorModel, roundoff
from neuronjax.diagnostics.tolerance.reductions import largest, running, smallest, total
from neuronjax.diagnostics.tolerance.tracked import Tracked, doubtful, exact, moved
from neuronjax.ir.instruction import Instruction
from neuronjax.ir.instruction_set import (
    LocalScatter,
    NcMatmul,
    NcMatmulMx,
    Pool,
    QuantizeMx,
    TensorReduce,
    TensorTensorScan,
)
from neuronjax.numerics.microscaling import BLOCK_SIZE, get_mx_format

# -- reductions ------------------------------------------------------------------------


@legal.register
def _(i: TensorReduce, x: Sequence[Held], at: Executors) -> list[Held]:
    if not is_float(i.results[0].type.dtype):
        return of_discrete(i, x, at)
    whole, start = x[0].tracked(at.model), x[1]
    if not whole.size and i.op in ("maximum", "minimum"):
        neutral = np.broadcast_to(start.values, i.results[0].type.shape)
        reduced = exact(neutral, at.model)
    else:
        reduced = folded(i.op, whole, tuple(i.axes))
    if i.op != "add" or np.any(start.values != 0) or not start.is_exact:
        reduced = REDUCTIONS[i.op](reduced, start.x)
    return [written(reduced, i)]  # type: ignore[arg-type]


def folded(op: str, x: Tracked, axes: tuple[int, ...]) -> Tracked:
    """Reduce `x` by `op` over `axes`, starting from the neutral element of `op`."""
    folds = {"add": total, "multiply": _product, "maximum": largest}
    return folds.get(op, smallest)(x, axes)


def of_discrete(i: Instruction, x: Sequence[Held], at: Executors) -> list[Held]:
    """Reduce integers; a result has no bound if one of its terms may be wrong."""
    [values] = in_float64(i, [h.values for h in x], at)
    if not any(map(is_doubtful, x)):
        return [Held(values, values.shape)]
    axes = tuple(getattr(i, "axes", range(len(x[0].shape))))
    places: Any = places_in_doubt(x[0]).any(axes)
    if places.shape != values.shape:
        places = places.any()
    return [Held(doubtful(values, places, at.model), values.shape)]


def _product(x: Tracked, axes: tuple[int, ...]) -> Tracked:
    """Return the product of `x` over `axes`; relative errors of factors add up."""
    n = math.prod(x.shape[k] for k in axes)
    value = np.prod(x.value, axis=axes)
    with np.errstate(all="ignore"):
        share = np.asarray(x.scale()) / np.abs(x.value)
        lost = np.sum(np.nan_to_num(share, nan=0.0), axis=axes)
        joint = np.abs(value) * (lost + n * x.model.sums.unit)
    joint = np.nan_to_num(joint, nan=np.inf).astype(np.float32)
    return Tracked(np.asarray(value), x.model, np.float32, None, joint)


@legal.register
def _(i: TensorTensorScan, x: Sequence[Held], at: Executors) -> list[Held]:
    if not is_float(i.results[0].type.dtype):
        return of_discrete(i, x, at) if any(map(is_doubtful, x)) else discrete(i, x, at)
    whole = x[0].tracked(at.model)
    turn = functools.partial(np.flip, axis=i.axis) if i.reverse else np.asarray
    turned = moved(turn, whole)
    if i.op == "add":
        result = running(turned, i.axis)
    elif i.op == "multiply":
        result = _running_product(turned, i.axis)
    else:
        fold = np.maximum if i.op == "maximum" else np.minimum
        scale = _whole(turned.scale(), turned)
        joint = np.maximum.accumulate(scale, axis=i.axis).astype(np.float32)
        value = fold.accumulate(turned.value, axis=i.axis)
        result = Tracked(value, at.model, np.float32, None, joint)
    return [written(moved(turn, result), i)]


def _running_product(x: Tracked, axis: int) -> Tracked:
    value = np.cumprod(x.value, axis=axis)
    with np.errstate(all="ignore"):
        share = np.asarray(x.scale()) / np.abs(x.value) + x.model.sums.unit
        lost = np.cumsum(np.broadcast_to(share, x.shape), axis=axis)
        joint = np.nan_to_num(np.abs(value) * lost, nan=np.inf)
    return Tracked(value, x.model, np.float32, None, joint.astype(np.float32))


# -- contractions ----------------------------------------------------------------------


@legal.register(NcMatmul)
@legal.register(NcMatmulMx)
def _(i: NcMatmul | NcMatmulMx, x: Sequence[Held], at: Executors) -> list[Held]:
    if not is_float(i.results[0].type.dtype):
        return of_discrete(i, x, at)
    d, (lhs, rhs) = i.dimensions, (h.tracked(at.model) for h in x[:2])
    a = matrix(lhs, d.lhs_batch, d.lhs_contract, k_last=True)
    b = matrix(rhs, d.rhs_batch, d.rhs_contract, k_last=False)
    product, shape = matmul(a, b), i.results[0].type.shape
    psum = roundoff(i.results[0].type.dtype)
    if psum.unit > a.model.sums.unit:  # PSUM rounds after every tile
        tiles = math.ceil(a.shape[-1] / i.k_tile)
        left, right = (np.square(x.value, dtype=np.float32) for x in (a, b))
        walk = np.sqrt(np.square(product.value) + left @ right)
        product = product.wider(psum.unit * math.sqrt(tiles / 3) * walk)
    return [written(moved(lambda v: v.reshape(shape), product), i)]


@legal.register
def _(i: QuantizeMx, x: Sequence[Held], at: Executors) -> list[Held]:
    """Return (elements times scales, scales); the rule of `NcMatmulMx` reads only the
    first."""
    elements, scales = exactly(i, [x[0].values], at)
    axis, shape = i.axis, x[0].shape
    exponents = np.repeat(np.asarray(scales, np.float64), BLOCK_SIZE, axis)
    exponents = exponents[tuple(map(slice, shape))]
    plain = Held(exact(np.asarray(scales), at.model), i.results[1].type.shape)
    if x[0].is_exact and i.rounding != "stochastic":
        value = exact(np.asarray(elements, np.float64) * exponents, at.model)
        return [Held(value, shape), plain]
    whole = x[0].tracked(at.model)
    format = roundoff(get_mx_format(i.format).element.name)
    size = np.abs(whole.value)
    # A block whose maximum is near a power of two may get twice the scale.
    half = half_steps(size, format) + 2 * format.smallest * exponents
    clipped = np.maximum(size - format.largest * exponents, 0.0)
    loss = half if i.rounding == "stochastic" else half * UNIFORM
    loss = loss + clipped
    return [Held(whole.wider(np.nan_to_num(loss, nan=np.inf)), shape), plain]


# -- windows and scatters --------------------------------------------------------------

_Fold = Callable[..., np.ndarray]


def _added_up(
    fold: _Fold, parts: Sequence[Tracked], counts: Any, model: ErrorModel
) -> Tracked:
    """Return the sums of elements of `parts`, with errors. `fold` computes the sums
    from one array per part; `counts` is the number of terms in each sum."""
    value = fold(*(p.value for p in parts))
    squares = fold(*(np.square(p.value) for p in parts))
    sizes = fold(*(np.abs(p.value) for p in parts))
    walk = np.square(np.minimum(sizes, np.abs(value) + 3 * np.sqrt(squares))) + squares
    last = model.sums.unit * np.abs(value) * (counts > 0)
    own = np.sqrt(model.of_sums(1) * counts * walk) + last
    own = own + np.sqrt(fold(*(np.square(_whole(p.own, p)) for p in parts)))
    correlated = [p.correlated() for p in parts]
    joint = None
    if any(c is not None for c in correlated):
        whole = (_whole(c, p) for c, p in zip(correlated, parts, strict=True))
        joint = fold(*whole).astype(np.float32)
    return Tracked(value, model, np.float32, own.astype(np.float32), joint)


@legal.register
def _(i: Pool, x: Sequence[Held], at: Executors) -> list[Held]:
    if not is_float(i.results[0].type.dtype):
        return of_discrete(i, x, at)
    whole, start = x[0].tracked(at.model), x[1].values

    def fold(v: np.ndarray, init: Any = 0.0) -> np.ndarray:
        return in_float64(i, [v, np.asarray(init, np.float64)], at)[0]

    if i.op == "add":
        found = _added_up(fold, [whole], math.prod(i.window.sizes), at.model)
        return [written(np.add(found, start), i)]
    if i.op == "multiply":
        raise no_rule(i, "a product over windows")
    value = fold(whole.value, start)
    joint = None
    if not whole.is_exact:
        sign = 1 if i.op == "maximum" else -1
        joint = np.abs(fold(sign * _whole(whole.scale(), whole), start))
        joint = joint.astype(np.float32)
        joint = np.where(np.isfinite(joint), joint, np.float32(0.0))
    return [written(Tracked(value, at.model, np.float32, None, joint), i)]


@legal.register
def _(i: LocalScatter, x: Sequence[Held], at: Executors) -> list[Held]:
    operand, indices, updates = x
    if not is_float(i.results[0].type.dtype):
        return of_discrete(i, x, at)
    if is_doubtful(indices):
        raise no_rule(i, "a scatter with indices that errors may change")
    if i.op not in ("add", "assign"):
        raise no_rule(i, f"a scatter by {i.op}")

    def execute(into: Any, added: Any) -> np.ndarray:
        given = np.asarray(into, float), indices.values, np.asarray(added, float)
        return in_float64(i, given, at)[0]

    parts = [operand.tracked(at.model), updates.tracked(at.model)]
    if i.op == "assign":
        value = execute(*(p.value for p in parts))
        scale = execute(*(_whole(p.scale(), p) for p in parts)).astype(np.float32)
        joint = scale if scale.any() else None
        return [Held(Tracked(value, at.model, np.float32, None, joint), operand.shape)]
    counts = execute(np.zeros(operand.shape), np.ones(updates.shape))
    return [written(_added_up(execute, parts, counts, at.model), i)]


def _whole(error: Any, x: Tracked) -> np.ndarray:
    return np.broadcast_to(np.asarray(0.0 if error is None else error, float), x.shape)
