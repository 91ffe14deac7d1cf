"""TensorE: contractions tiled along K, folded down the array, added up in PSUM.

A K tile is one pass of the array (`array_fold`); PSUM adds the results of the tiles in
FP32, in the order of K. FP32 operands take four passes of high and low halves, each
with a fold of its own, added in the order hi.hi, hi.lo, lo.hi, lo.lo (the split is not
documented). In model "fp32_4pass_rows32" a pass folds every 32 rows and adds these sums
in order; in "fp32_4pass" it folds all rows.

`contract` computes the bits of XLA's loop (`array_fold.folded`) by a kernel compiled
for the host's processor. The kernel is one operation of the program and reads BF16 and
FP8 as they are stored, in any memory order. XLA's loop is used on an accelerator,
without llvmlite, in `exportable` and with NEURONJAX_HOST_KERNELS=0 in the environment.

PSUM of NeuronCore-v4 can also add in BF16: the sum so far is read as FP32, the result
of the tile is added in FP32, and the new sum is rounded to BF16, to nearest or
stochastically. The first result is also rounded when it is written.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from math import prod
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from neuronjax.execution.engines.array_fold import FoldOrder, Matrix, folded
from neuronjax.execution.engines.dispatch import (
    Arrays,
    Registers,
    bits_of,
    execute,
    wide,
    wide_or_nan,
)
from neuronjax.ir.instruction import Instruction
from neuronjax.ir.instruction_set import (
    DotDimensions,
    NcMatmul,
    NcMatmulMx,
    NcTranspose,
    QuantizeMx,
)
from neuronjax.numerics import microscaling
from neuronjax.numerics.exact import own_kernel
from neuronjax.numerics.float_format import FLOAT8_E8M0FNU, FloatFormat, get_format
from neuronjax.numerics.host_kernels import choice
from neuronjax.numerics.mx_scales import BOUNDED
from neuronjax.numerics.random_bits import fold, random_bits
from neuronjax.numerics.rounding import cast, round_to_format, round_to_int
from neuronjax.numerics.widening import from_codes, widen_finite

# Results with fewer columns are computed transposed, which is faster for them.
FEW_COLUMNS = 32
#: The largest number of rows that a pass of a kernel has, as their panels need memory.
MOST_ROWS = 1 << 14


class Psum(NamedTuple):
    """How PSUM adds up the results of one instruction.

    Attributes:
        zero: the opaque -0.0.
        key: the key of stochastic rounding.
        rounding: how sums are rounded to a format narrower than FP32.
        format: the format of the sums, None for FP32.
        overflow: how sums overflow in a narrower format.
    """

    zero: jax.Array
    key: jax.Array
    rounding: str
    format: FloatFormat | None
    overflow: str = "ieee"

    @classmethod
    def of(cls, i: Instruction, r: Registers) -> Psum:
        """Return the settings for the result dtype of an instruction."""
        dtype = i.results[0].type.dtype
        narrow = dtype.kind not in "iu" and dtype != np.float32
        fmt = get_format(dtype) if narrow else None
        return cls(r.zero, r.key, i.rounding, fmt, i.overflow)

    def add(
        self, passes: list[jax.Array], total: jax.Array | None = None, tile: Any = 0
    ) -> jax.Array:
        """Return the sum so far plus the results of a tile, pass by pass, all float32
        [batch, M, N]. The number of the tile enters the rounding keys."""
        add = _adder(self.format, self.rounding, self.overflow)
        add = add if len(passes) == 1 and total is None else own_kernel(add)
        return add(passes, total, jnp.uint32(tile), self.zero, self.key)


@functools.cache
def _adder(
    format: FloatFormat | None, rounding: str, overflow: str
) -> Callable[..., jax.Array]:
    """Return the function that adds passes with these settings, always the same object,
    so JAX traces it once per shape."""
    options: dict[str, Any] = dict(rounding=rounding, overflow=overflow)
    return functools.partial(_add_passes, format=format, options=options)


def _add_passes(
    passes: list[jax.Array],
    total: jax.Array | None,
    tile: jax.Array,
    zero: jax.Array,
    key: jax.Array,
    *,
    format: FloatFormat | None,
    options: Mapping[str, Any],
) -> jax.Array:
    """Return the sum of the passes, one by one, each new sum rounded to `format`."""
    for n, stored in enumerate(passes):
        total = stored if total is None else total + stored
        if format is not None:
            own = fold(key, tile * jnp.uint32(len(passes)) + jnp.uint32(n))
            is_random = options["rounding"] == "stochastic"
            drawn = random_bits(total.shape, own) if is_random else None
            total = round_to_format(total, format, **options, random_bits=drawn)
    assert total is not None
    return canonical_sum(total, zero)


def canonical_sum(total: jax.Array, zero: jax.Array) -> jax.Array:
    """Return a sum as it leaves TensorE: zeros are +0, NaNs have one bit pattern. Hosts
    differ in whether a sum of -0 starts from +0, and in which NaN they keep."""
    total = total + lax.neg(zero)  # a +0 that the compiler does not know
    return jnp.where(total != total, jnp.float32(np.nan), total)


def as_psum(total: jax.Array, i: Instruction) -> jax.Array:
    """Return a sum in the dtype of the result, which represents it exactly."""
    dtype = i.results[0].type.dtype
    if dtype == np.float32:
        return total
    overflow: Any = i.overflow
    return cast(total, get_format(dtype), overflow=overflow)


@execute.register
def nc_matmul(i: NcMatmul, x: Sequence[jax.Array], r: Registers) -> Arrays:
    result = i.results[0].type
    if i.accumulation == "integer":
        # Wrapping the operands first does not change a sum that wraps.
        lhs, rhs = (a.astype(result.dtype) for a in x)
        return (_plain(lhs, rhs, i.dimensions, result.dtype),)
    if i.accumulation == "host":
        lhs, rhs = map(wide, x)
        return (as_psum(_plain(lhs, rhs, i.dimensions), i),)
    integers = result.dtype.kind in "iu"
    psum = Psum.of(i, r)
    lhs, rhs = x
    if integers:
        lhs, rhs = (a.astype(jnp.float32) for a in x)
    elif not by_kernel(psum):
        # A sum that leaves PSUM has one NaN pattern, whatever the operands' NaNs.
        lhs, rhs = map(wide_or_nan, x)
    operands = matrices(lhs, rhs, i.dimensions)
    total = lax.reshape(accumulate(*operands, FoldOrder.of(i), psum), result.shape)
    return (round_to_int(total, result.dtype) if integers else as_psum(total, i),)


@execute.register
def nc_transpose(i: NcTranspose, x: Sequence[jax.Array], r: Registers) -> Arrays:
    [source] = x
    if not i.exact:
        # A product: each element times one plus other elements times zero.
        flat, result = source.reshape(-1, *source.shape[-2:]), i.results[0].type
        out = through_identity(Matrix(wide(flat), True), r.zero).reshape(result.shape)
        is_wide = result.dtype == jnp.float32
        return (out if is_wide else cast(out, get_format(result.dtype)),)
    if source.dtype.itemsize == 1:
        source = bits_of(source).astype(jnp.uint16)
    return (jnp.swapaxes(source, -1, -2),)


def through_identity(x: Matrix, zero: jax.Array) -> jax.Array:
    """Return the transposes of K-first matrices, [batch, free, K], as a product."""
    identity = jnp.broadcast_to(jnp.eye(x.k, dtype=jnp.float32), (x.batch, x.k, x.k))
    return canonical_sum(
        one_pass(x, Matrix(identity, True), FoldOrder(x.k), zero), zero
    )


def _plain(
    lhs: jax.Array, rhs: jax.Array, d: DotDimensions, dtype: Any = jnp.float32
) -> jax.Array:
    """Return the sums in the order that XLA chooses."""
    numbers = ((d.lhs_contract, d.rhs_contract), (d.lhs_batch, d.rhs_batch))
    return lax.dot_general(lhs, rhs, numbers, preferred_element_type=dtype)


def matrices(lhs: jax.Array, rhs: jax.Array, d: DotDimensions) -> tuple[Matrix, Matrix]:
    """Return the operands of any contraction as matrices, with the fewest moves."""
    return (
        _matrix(lhs, d.lhs_batch, d.lhs_contract),
        _matrix(rhs, d.rhs_batch, d.rhs_contract),
    )


def _matrix(x: jax.Array, batch: tuple[int, ...], contract: tuple[int, ...]) -> Matrix:
    free = tuple(d for d in range(x.ndim) if d not in batch + contract)
    sizes = [prod(x.shape[d] for d in dims) for dims in (batch, contract, free)]
    # The last axis stays last.
    k_first = not (contract and contract[-1] == x.ndim - 1)
    order = (*batch, *contract, *free) if k_first else (*batch, *free, *contract)
    shape = tuple(sizes) if k_first else (sizes[0], sizes[2], sizes[1])
    return Matrix(lax.reshape(lax.transpose(x, order), shape), k_first)


def has_host_kernels(rows: int = 0) -> bool:
    """Return whether programs traced now may use host kernels to sum `rows` rows."""
    on_cpu = jax.default_backend() == "cpu"
    return rows <= MOST_ROWS and on_cpu and choice.usable()


def contract(
    lhs: Matrix,
    rhs: Matrix,
    order: FoldOrder,
    *,
    canonical: bool = False,
    start: jax.Array | None = None,
) -> jax.Array:
    """Return the sums of the tiles, added in order, float32 [batch, M, N]. Operands
    have any float format, with or without scales, of at most 12 significant bits unless
    there are four passes. If `canonical`, zeros become +0 and NaNs one bit pattern, as
    when they leave PSUM. `start` is the earlier contents of PSUM, float32 [batch, M,
    N], or None."""
    from neuronjax.execution.host_kernels.fold import fold  # needs llvmlite

    if 0 in (lhs.batch, lhs.free, rhs.free, lhs.k):
        nothing = jnp.zeros((lhs.batch, lhs.free, rhs.free), jnp.float32)
        return nothing if start is None else start
    if lhs.free > rhs.free and rhs.free < FEW_COLUMNS and order.passes == 1:
        swapped = None if start is None else jnp.swapaxes(start, 1, 2)
        return jnp.swapaxes(fold(rhs, lhs, order, canonical, swapped), 1, 2)
    return fold(lhs, rhs, order, canonical, start)


def by_kernel(psum: Psum) -> bool:
    """Return whether a host kernel adds up all tiles, from operands as stored."""
    return psum.format is None and has_host_kernels()


def accumulate(
    lhs: Matrix, rhs: Matrix, order: FoldOrder, psum: Psum, start: Any = None
) -> jax.Array:
    """Return [batch, M, N]: `start`, the earlier contents of PSUM if any, plus the
    results of tiles and passes, added as PSUM adds them."""
    if by_kernel(psum):
        return contract(lhs, rhs, order, canonical=True, start=start)
    shape = (lhs.batch, lhs.free, rhs.free)
    if 0 in (*shape, lhs.k):
        return jnp.zeros(shape, jnp.float32) if start is None else start
    per_cell = order.rows_per_cell
    filled = order.k_tile if order.apart else -(-lhs.k // per_cell) * per_cell
    k_tile = min(order.k_tile, filled)
    count = -(-lhs.k // k_tile)
    a, b = (_tiled(x, k_tile) for x in (lhs, rhs))

    def add(total: jax.Array | None, tile: tuple) -> tuple[jax.Array, None]:
        left, right = Matrix(tile[0], lhs.k_first), Matrix(tile[1], rhs.k_first)
        results = array_passes(left, right, order, psum.zero)
        return psum.add(results, total, tile[2]), None

    if count == 1:
        return add(start, (a[0], b[0], 0))[0]
    # Adding the first result to +0 changes at most the sign of a zero.
    tiles = (a, b, jnp.arange(count))
    start = jnp.zeros(shape, jnp.float32) if start is None else start
    return lax.scan(add, start, tiles)[0]


def _tiled(x: Matrix, k_tile: int) -> jax.Array:
    """Return the arrays of the tiles, stacked along a new first axis. Zeros fill the
    last tile: their products are +0, which adds nothing to a sum that starts from
    +0."""
    axis = 1 if x.k_first else 2
    return jnp.moveaxis(microscaling.blocked(x.array, axis - 3, k_tile), axis, 0)


def array_passes(
    a: Matrix, b: Matrix, order: FoldOrder, zero: jax.Array
) -> list[jax.Array]:
    """Return the results of the array's passes over a K tile, [batch, M, N] each. Four
    passes are one fold of the operands' stacked high and low halves; groups of rows are
    added in the order in which PSUM adds tiles."""
    if order.passes == 1:
        return [one_pass(a, b, order, zero)]
    m, n = a.free, b.free
    operands = _stacked_halves(a), _stacked_halves(b)
    groups = FoldOrder(order.group_rows or a.k)
    stacked = accumulate(*operands, groups, Psum(zero, zero, "rne", None))
    high, low = stacked[:, :m], stacked[:, m:]
    return [high[:, :, :n], high[:, :, n:], low[:, :, :n], low[:, :, n:]]


def _stacked_halves(x: Matrix) -> Matrix:
    axis = 2 if x.k_first else 1
    return Matrix(jnp.concatenate(halves(x.array), axis=axis), x.k_first)


def halves(x: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Return the upper 12 significant bits and the exact rest; the rest of Inf and NaN
    is 0.

    >>> high, low = halves(jnp.float32(1 + 2**-20))
    >>> float(high), float(low) == 2**-20
    (1.0, True)
    """
    bits = bits_of(x)
    high = lax.bitcast_convert_type(bits & jnp.uint32(0xFFFFF000), jnp.float32)
    finite = (bits & jnp.uint32(0x7F800000)) != jnp.uint32(0x7F800000)
    # A NaN's payload may be in the low bits alone, so `high` keeps the whole NaN.
    high = jnp.where(finite, high, x)
    return high, jnp.where(finite, x - high, jnp.float32(0))


def one_pass(a: Matrix, b: Matrix, order: FoldOrder, zero: jax.Array) -> jax.Array:
    """Return the array's sums over all of K, by a kernel if the host has one."""
    if has_host_kernels(a.k):
        one = order._replace(k_tile=a.k, passes=1, group_rows=None)
        return contract(a, b, one)
    return folded(a, b, order, zero)


# -- microscaled operands --------------------------------------------------------------

# A cell dequantizes its four elements of each operand to FP32 (this is exact in FP32's
# range; smaller values become zero, larger ones Inf; a scale of 0xFF gives NaN). It
# rounds each product to FP32, adds the four from left to right in FP32, and passes the
# sum down the column. This is a model: what the cells do with the scales is not
# documented.


@execute.register
def quantize(i: QuantizeMx, x: Sequence[jax.Array], r: Registers) -> Arrays:
    bounded = i.scale_rule in BOUNDED and i.rounding == "rne"
    if bounded and has_host_kernels():
        return _quantized_on_host(i, x[0])
    out = microscaling.quantize_mx(
        wide(x[0]),
        i.format,
        axis=i.axis,
        scale_rule=i.scale_rule,  # type: ignore[arg-type]
        rounding=i.rounding,
        seed=r.key if i.rounding == "stochastic" else None,
    )
    return out.elements, out.scales


def _quantized_on_host(i: QuantizeMx, x: jax.Array) -> Arrays:
    from neuronjax.execution.host_kernels.quantize import quantize  # needs llvmlite

    if x.dtype not in (jnp.float32, jnp.bfloat16):
        x = widen_finite(x)
    element = microscaling.get_mx_format(i.format).element
    codes, scales = quantize(x, i.axis, element.name, i.scale_rule)
    return from_codes(codes, element), from_codes(scales, FLOAT8_E8M0FNU)


@execute.register
def nc_matmul_mx(i: NcMatmulMx, x: Sequence[jax.Array], r: Registers) -> Arrays:
    d, psum = i.dimensions, Psum.of(i, r)
    lhs_k, rhs_k = d.lhs_contract[0], d.rhs_contract[0]
    if i.accumulation != "host" and by_kernel(psum):
        left, right = Matrix(x[0], lhs_k == 1, x[2]), Matrix(x[1], rhs_k == 1, x[3])
    else:
        lhs, rhs = dequantized(x[0], x[2], lhs_k), dequantized(x[1], x[3], rhs_k)
        if i.accumulation == "host":
            return (as_psum(_plain(lhs, rhs, d), i),)
        left, right = Matrix(lhs, lhs_k == 1), Matrix(rhs, rhs_k == 1)
    total = accumulate(left, right, FoldOrder(i.k_tile, rows_per_cell=4), psum)
    return (as_psum(lax.reshape(total, i.results[0].type.shape), i),)


def dequantized(elements: jax.Array, scales: jax.Array, axis: int) -> jax.Array:
    """Return the float32 numbers that the cells multiply."""
    array = microscaling.MXArray(
        elements=elements,
        scales=scales,
        axis=axis - elements.ndim,
        format=_FORMATS[elements.dtype.name],
    )
    return array.dequantize()


_FORMATS = {fmt.element.name: fmt for fmt in microscaling.MX_FORMATS.values()}
