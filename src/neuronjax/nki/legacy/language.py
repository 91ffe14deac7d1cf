"""`neuronxcc.nki.language`: `nki.language` in the calling style of release 2.26.

The functions are the newer ones on tiles that support index arrays, block dimensions,
masks and operators. Comparisons return uint8 by default. Loop bounds are numbers, so
`nl.affine_range` unrolls here too.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Sequence
from types import ModuleType
from typing import Any

import numpy as np

from neuronjax.errors import user_line
from neuronjax.ir import nki_dtypes as dtypes
from neuronjax.ir.alu_operators import ATTRIBUTE, COMPARISONS, op_name
from neuronjax.nki import language as nl, trace as tracing
from neuronjax.nki.language import (
    arithmetic,
    ds as ds,
    functions,
    num_programs as num_programs,
    program_id as program_id,
    program_ndim as program_ndim,
    tile_size as tile_size,
)
from neuronjax.nki.language.grids import arange as arange, mgrid as mgrid
from neuronjax.nki.language.names import *  # noqa: F403
from neuronjax.nki.legacy import isa
from neuronjax.nki.legacy.deferred import LoopReduction
from neuronjax.nki.legacy.hints import check_hints
from neuronjax.nki.legacy.masks import Box, box_of
from neuronjax.nki.legacy.memory import (
    atomic_rmw as atomic_rmw,
    empty_like as empty_like,
    full as full,
    load as load,
    load_transpose2d as load_transpose2d,
    ndarray as ndarray,
    ones as ones,
    par_dim as par_dim,
    static_cast as static_cast,
    store as store,
    zeros as zeros,
    zeros_like as zeros_like,
)
from neuronjax.nki.legacy.results import computed, dtype_name
from neuronjax.nki.legacy.tiles import Tile, combined, elementwise, part, quotient_dtype
from neuronjax.nki.refusing import unsupported
from neuronjax.nki.tensor import NkiTensor


class nc(int):
    """A dimension of the launch grid that is distributed over physical cores."""


def spmd_dim(*sizes: int) -> int:
    """Return several dimensions of the launch grid as one."""
    return int(np.prod([int(s) for s in sizes]))


class fp32:
    """Limits of float32."""

    min = float(np.finfo(np.float32).min)
    max = float(np.finfo(np.float32).max)


def finfo(dtype: Any) -> Any:
    """Return the limits of a float type."""
    import ml_dtypes

    return ml_dtypes.finfo(dtypes.info(dtypes.as_dtype(dtype)).numeric)


def affine_range(*bounds: int, **hints: Any) -> Any:
    """Return a `range`; `nki.check` reports iterations that depend on one another."""
    return nl.affine_range(*bounds)


def sequential_range(*bounds: int, **hints: Any) -> range:
    """Return a `range`."""
    return range(*bounds)


static_range = sequential_range


def _unary(name: str) -> Callable[..., Tile]:
    newer = getattr(nl, name)

    @functools.wraps(newer)
    def function(x: Tile, dtype: Any = None, mask: Any = None, **hints: Any) -> Tile:
        def write(dst: NkiTensor, box: Box | None) -> None:
            result = newer(part(x, box), dst.dtype)
            with tracing.assigning():
                dst[...] = result

        return computed(x, dtype and dtype_name(dtype), mask, write)

    return function


def _binary(name: str, default: str | None = None) -> Callable[..., Tile]:
    newer = getattr(nl, name)
    two = newer if name == "fmod" else functools.partial(combined, name)

    @functools.wraps(newer)
    def function(
        x: Any, y: Any, dtype: Any = None, mask: Any = None, **hints: Any
    ) -> Tile:
        chosen = dtype_name(dtype or default) if dtype or default else None
        chosen = chosen or quotient_dtype(name, x, y)
        like = x if isinstance(x, Tile) else y
        box = box_of(mask, like.sizes)
        return elementwise(lambda a, b: two(a, b, chosen), x, y, mask=box)

    return function


def _reduction(name: str, op: str) -> Callable[..., Tile]:
    def function(
        x: Tile,
        axis: Any,
        *,
        dtype: Any = None,
        mask: Any = None,
        keepdims: bool = False,
        **hints: Any,
    ) -> Tile:
        return isa.tensor_reduce(op, x, axis, mask=mask, dtype=dtype, keepdims=keepdims)

    function.__name__ = name
    function.__doc__ = getattr(nl, name).__doc__
    setattr(function, ATTRIBUTE, op)
    return function


#: Functions that release 2.26 lacks.
_NEWER = {"abs_max", "abs_min", "gelu_apprx_sigmoid_dx"}


def _functions(module: ModuleType, parameters: list[str]) -> list[str]:
    return [
        name
        for name, function in inspect.getmembers(module, inspect.isfunction)
        if hasattr(nl, name) and name not in _NEWER
        if list(inspect.signature(function).parameters) == parameters
    ]


_UNARY = _functions(functions, ["x", "dtype"])
_BINARY = _functions(arithmetic, ["x", "y", "dtype"])

globals().update({name: _unary(name) for name in _UNARY})
globals().update(
    {name: _binary(name, "uint8" if name in COMPARISONS else None) for name in _BINARY}
)

max = _reduction("max", "maximum")
min = _reduction("min", "minimum")
sum = _reduction("sum", "add")
prod = _reduction("prod", "multiply")


def logical_not(x: Tile, *, dtype: Any = None, mask: Any = None, **hints: Any) -> Tile:
    """Return 1 where x is 0, else 0."""
    return globals()["equal"](x, 0.0, dtype=dtype, mask=mask)


def all(x: Tile, axis: Any, *, dtype: Any = bool, **hints: Any) -> Tile:
    """Return 1 where all elements are nonzero, else 0."""
    return Tile(nl.all(x.of(), axis, dtype_name(dtype)))


def mean(
    x: Tile,
    axis: Any,
    *,
    dtype: Any = None,
    keepdims: bool = False,
    mask: Any = None,
    **hints: Any,
) -> Tile:
    """Return the mean."""
    return Tile(nl.mean(_unmasked(x, mask), axis, dtype, keepdims))


def var(
    x: Tile, axis: Any, *, dtype: Any = None, mask: Any = None, **hints: Any
) -> Tile:
    """Return the variance."""
    return Tile(nl.var(_unmasked(x, mask), axis, dtype))


def softmax(
    x: Tile,
    axis: Any,
    *,
    dtype: Any = None,
    compute_dtype: Any = None,
    mask: Any = None,
    **hints: Any,
) -> Tile:
    """Return exp(x - max) divided by its sum."""
    return Tile(nl.softmax(_unmasked(x, mask), axis, dtype))


def rms_norm(
    x: Tile,
    w: Tile,
    axis: Any,
    n: int,
    epsilon: float = 1e-6,
    *,
    dtype: Any = None,
    compute_dtype: Any = None,
    mask: Any = None,
    **hints: Any,
) -> Tile:
    """Return x / sqrt(sum(x^2) / n + epsilon) * w."""
    tensor = _unmasked(x, mask)
    weights = w.of()
    if weights.shape[0] == 1 < tensor.shape[0]:
        weights = nl.broadcast_to(weights, (tensor.shape[0], *weights.shape[1:]))
    return Tile(nl.rms_norm(tensor, weights, axis, n, epsilon, dtype, compute_dtype))


def where(
    condition: Tile,
    x: Any,
    y: Any,
    *,
    dtype: Any = None,
    mask: Any = None,
    **hints: Any,
) -> Tile:
    """Return x where the condition is not 0, else y."""
    tiles = [t for t in (x, y) if isinstance(t, Tile)]
    kind = dtype_name(dtype or (tiles or [condition])[0].dtype)

    def choose(flags: NkiTensor, a: Any, b: Any) -> NkiTensor:
        shapes = [t.shape for t in (flags, a, b) if isinstance(t, NkiTensor)]
        shape = np.broadcast_shapes(*shapes)
        flags, a, b = (
            nl.broadcast_to(t, shape) if isinstance(t, NkiTensor) else t
            for t in (flags, a, b)
        )
        return nl.where(flags, a, b, kind)

    return elementwise(choose, condition, x, y, mask=box_of(mask, condition.sizes))


def dropout(
    x: Tile, rate: Any, *, dtype: Any = None, mask: Any = None, **hints: Any
) -> Tile:
    """Return a tile with some elements replaced by zeros."""
    return Tile(nl.dropout(_unmasked(x, mask), part(rate), dtype))


def matmul(
    x: Tile, y: Tile, *, transpose_x: bool = False, mask: Any = None, **hints: Any
) -> Tile:
    """Return x @ y in PSUM; `psum += ...` adds it there."""
    if not transpose_x:
        x = isa.tensor_copy(isa.nc_transpose(x))
    return isa.nc_matmul(x, y, mask=mask)


def transpose(x: Tile, *, dtype: Any = None, mask: Any = None, **hints: Any) -> Tile:
    """Return the transpose."""
    return isa.nc_transpose(x, mask=mask, dtype=dtype)


def loop_reduce(
    x: Tile,
    op: Any,
    loop_indices: Any,
    *,
    dtype: Any = None,
    mask: Any = None,
    **hints: Any,
) -> LoopReduction:
    """Return a value that `t[...] = nl.loop_reduce(x, op, [i])` reduces with `t`.

    A mask may exclude a whole iteration; a mask of elements is refused."""
    chosen = np.asarray(True if mask is None else mask, bool)
    turn = tuple(int(np.max(i)) for i in loop_indices)
    begun = tracing.current().notes.setdefault("turns of nl.loop_reduce", {})
    first, before = begun.get(user_line(), (turn, None))
    if chosen.any() and not chosen.all():
        unsupported("nl.loop_reduce", "mask=", "slice x")
    reduction = LoopReduction(
        x.of(),
        op_name(op),
        skipped=not chosen.any(),
        before=None if turn == first else before,
    )
    begun[user_line()] = (first, reduction)
    return reduction


def all_reduce(*args: Any, **options: Any) -> Tile:
    """Refuse the reduction, because the programs of a grid run one after the other."""
    unsupported(
        "nl.all_reduce",
        "a reduction over the programs of a grid",
        "return partial results and add them outside, or use nki.collectives",
    )


def gather_flattened(
    data: Tile, indices: Tile, *, mask: Any = None, dtype: Any = None, **hints: Any
) -> Tile:
    """Return elements of every partition by their index."""
    index = indices if indices.dtype == "uint32" else indices.astype("uint32")
    return Tile(nl.gather_flattened(data.of(), index.of(), 0, dtype))


def broadcast_to(src: Tile, *, shape: Sequence[int], **hints: Any) -> Tile:
    """Return a tile of a larger shape."""
    return src.broadcast_to(shape)


def expand_dims(data: Tile, axis: int) -> Tile:
    """Return a view with one more dimension."""
    return data.expand_dims(axis)


def device_print(prefix: str, x: Tile, *, mask: Any = None, **hints: Any) -> None:
    """Print a tile when the kernel's run reaches this line."""
    nl.device_print(prefix, x.of(box_of(mask, x.sizes)))


def rand(shape: Sequence[int], dtype: Any = np.float32, **hints: Any) -> Tile:
    """Return uniform numbers from 0 to 1."""
    return Tile(nl.rand(shape, dtype_name(dtype)))


def random_seed(seed: Any, *, mask: Any = None, **hints: Any) -> None:
    """Seed the generator of `rand`."""
    if not isinstance(seed, Tile):
        seed = full((1, 1), seed, "int32")
    nl.random_seed(seed.of())


def shared_constant(constant: Any, dtype: Any = None, **hints: Any) -> Tile:
    """Return a tensor in HBM with data known when the kernel is traced."""
    data = np.asarray(constant)
    if dtype is not None:
        data = data.astype(dtypes.info(dtypes.as_dtype(dtype)).numeric)
    return Tile(nl.shared_constant(data))


def shared_identity_matrix(n: int, dtype: Any = "uint8", **hints: Any) -> Tile:
    """Return the identity matrix in SBUF."""
    return Tile(nl.shared_identity_matrix(n, dtype_name(dtype)))


def _unmasked(x: Tile, mask: Any) -> NkiTensor:
    if mask is not None:
        unsupported(
            None,
            "mask= of a normalisation",
            "slice the operand, or normalise with nl.sum and nl.multiply",
        )
    return x.of()


check_hints(globals(), [*_UNARY, *_BINARY, "max", "min", "sum", "prod"])
