"""Reductions and normalisations of `nki.language`, over the last free axes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import prod as product
from typing import Any

from neuronjax.nki import isa
from neuronjax.nki.documentation import describer, named
from neuronjax.nki.language.arithmetic import apply
from neuronjax.nki.language.creation import ndarray
from neuronjax.nki.language.functions import copy
from neuronjax.nki.tensor import NkiTensor

Axis = int | Sequence[int]
Reduction = Callable[..., NkiTensor]

_described = describer(
    x="a tile",
    axis="the axes to reduce: the last free axes",
    dtype="of the result; by default that of x",
    keepdims="whether reduced axes stay, with size 1",
)


def _axes(x: NkiTensor, axis: Axis) -> list[int]:
    given = [axis] if isinstance(axis, int) else list(axis)
    return sorted(a + x.ndim if a < 0 else a for a in given)


def _reduced(
    op: str, x: NkiTensor, axis: Axis, dtype: Any, keepdims: bool
) -> NkiTensor:
    axes = _axes(x, axis)
    kept = [1 if d in axes else n for d, n in enumerate(x.shape)]
    shape = kept if keepdims else [n for d, n in enumerate(x.shape) if d not in axes]
    if len(shape) < 2:  # a tile has at least one free dimension
        shape = [x.shape[0], 1]
    out = ndarray(shape, dtype or x.dtype)
    isa.tensor_reduce(out, op, x, axes)
    return out


def _operator(name: str, op: str, meaning: str, *, operand: bool = True) -> Reduction:
    def function(
        x: NkiTensor, axis: Axis, dtype: Any = None, keepdims: bool = False
    ) -> NkiTensor:
        return _reduced(op, x, axis, dtype, keepdims)

    use = "; also for `op=` in reductions" if operand else ""
    return _described()(named(function, name, f"{meaning}{use}."))


sum = _operator("sum", "add", "The sum")
max = _operator("max", "maximum", "The maximum")
min = _operator("min", "minimum", "The minimum")
prod = _operator("prod", "multiply", "The product", operand=False)


@_described()
def mean(
    x: NkiTensor, axis: Axis, dtype: Any = None, keepdims: bool = False
) -> NkiTensor:
    """Return the mean, from an FP32 sum."""
    count = product(x.shape[a] for a in _axes(x, axis))
    total = _reduced("add", x, axis, "float32", keepdims)
    return apply("divide", total, float(count), dtype or x.dtype)


@_described(keepdims="without effect, as documented")
def var(
    x: NkiTensor, axis: Axis, dtype: Any = None, keepdims: bool = False
) -> NkiTensor:
    """Return the variance, with size 1 in the reduced axes."""
    centre = mean(x, axis, "float32", keepdims=True)
    off = apply("subtract", x, centre, "float32")
    return mean(apply("multiply", off, off), axis, dtype or x.dtype, keepdims=True)


@_described()
def all(x: NkiTensor, axis: Axis, dtype: Any = None) -> NkiTensor:
    """Return 1 where all elements are nonzero, else 0."""
    return _reduced("logical_and", apply("not_equal", x, 0.0), axis, dtype, False)


@_described()
def softmax(x: NkiTensor, axis: Axis = -1, dtype: Any = None) -> NkiTensor:
    """Return exp(x - max) divided by the sum of the exponentials."""
    axes = _axes(x, axis)
    if axes != list(range(1, x.ndim)):
        return _softmax_of_parts(x, axes, dtype)
    most = ndarray((x.shape[0], 1), "float32")
    isa.tensor_reduce(most, "maximum", x, axes, negate=True)
    grown = ndarray(x.shape, "float32")
    total = ndarray((x.shape[0], 1), "float32")
    isa.activation_reduce(grown, "exp", x, "add", total, bias=most)
    isa.reciprocal(total, total)
    out = ndarray(x.shape, dtype or x.dtype)
    isa.tensor_scalar(out, grown, "multiply", total)
    return out


def _softmax_of_parts(x: NkiTensor, axes: list[int], dtype: Any) -> NkiTensor:
    """Return several softmaxes per partition, with broadcast maxima and sums."""
    shifted = apply("subtract", x, max(x, axes, "float32", keepdims=True), "float32")
    grown = ndarray(x.shape, "float32")
    isa.activation(grown, "exp", shifted)
    total = sum(grown, axes, keepdims=True)
    isa.reciprocal(total, total)
    return apply("multiply", grown, total, dtype or x.dtype)


@_described(
    w="a tile of x's shape, or one that broadcasts",
    n="the divisor of the sum",
    epsilon="added to the mean",
    compute_dtype="of the normalised values; by default float32",
)
def rms_norm(
    x: NkiTensor,
    w: NkiTensor,
    axis: Axis,
    n: int,
    epsilon: float = 1e-6,
    dtype: Any = None,
    compute_dtype: Any = None,
) -> NkiTensor:
    """Return x / sqrt(sum(x^2) / n + epsilon) * w."""
    squares = ndarray(x.shape, "float32")
    isa.tensor_tensor(squares, x, x, "multiply")
    total = sum(squares, axis, keepdims=True)
    scale = ndarray(total.shape, "float32")
    isa.tensor_scalar(
        scale, total, "multiply", 1.0 / n, op1="add", operand1=float(epsilon)
    )
    isa.activation(scale, "rsqrt", scale)
    normal = apply("multiply", x, scale, compute_dtype or "float32")
    return apply("multiply", normal, w, dtype or x.dtype)


@_described(
    condition="a tile",
    x="a tile, or a number",
    y="a tile, or a number",
    dtype="of the result; by default that of the tile",
)
def where(condition: NkiTensor, x: Any, y: Any, dtype: Any = None) -> NkiTensor:
    """Return x where the condition is not 0, else y."""
    tile = next((t for t in (x, y) if isinstance(t, NkiTensor)), condition)
    out = ndarray(condition.shape, dtype or tile.dtype)
    if isinstance(y, NkiTensor):
        isa.tensor_copy(out, y)
    else:
        isa.memset(out, y)
    chosen = copy(apply("not_equal", condition, 0.0, "float32"), "uint8")
    if isinstance(x, NkiTensor) and x.dtype != out.dtype:
        x = copy(x, out.dtype)
    isa.tensor_copy_predicated(out, x, chosen)
    return out
