"""VectorE: elementwise arithmetic, comparison, selection, casts and reductions.

Floats are computed in FP32 and rounded once on write; integers are exact.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from neuronjax.engines.dispatch import Arrays, Registers, bits_of, execute, wide, write
from neuronjax.engines.fold import fold_axes
from neuronjax.ir.instruction_set import (
    Compare,
    ReducePrecision,
    ScaleFromAmax,
    Select,
    TensorCopy,
    TensorReduce,
    TensorScalar,
    TensorTensor,
)
from neuronjax.numerics import elementary
from neuronjax.numerics.elementary_core import flush
from neuronjax.numerics.exact import opaque, seal
from neuronjax.numerics.float_format import get_format
from neuronjax.numerics.rounding import round_to_int

Function = Callable[..., jax.Array]

# Ops that mean the same on floats, integers and booleans.
COMMON: dict[str, Function] = {
    "add": lax.add,
    "subtract": lax.sub,
    "multiply": lax.mul,
    "maximum": lax.max,
    "minimum": lax.min,
    "abs": lax.abs,
    "negate": lax.neg,
    "sign": lax.sign,
}
INTEGERS: dict[str, Function] = {
    **COMMON,
    "divide": lax.div,
    "remainder": lax.rem,
    "power": lax.pow,
    "and": lax.bitwise_and,
    "or": lax.bitwise_or,
    "xor": lax.bitwise_xor,
    "not": lax.bitwise_not,
    "popcnt": lax.population_count,
    "count_leading_zeros": lax.clz,
    "shift_left": lax.shift_left,
    "shift_right_logical": lax.shift_right_logical,
    "shift_right_arithmetic": lax.shift_right_arithmetic,
}
BOOLEANS: dict[str, Function] = {
    **INTEGERS,
    "add": lax.bitwise_or,
    "multiply": lax.bitwise_and,
    "maximum": lax.bitwise_or,
    "minimum": lax.bitwise_and,
}


def _round_half_away(x: jax.Array) -> jax.Array:
    return lax.round(x, lax.RoundingMethod.AWAY_FROM_ZERO)


def _round_half_even(x: jax.Array) -> jax.Array:
    return lax.round(x, lax.RoundingMethod.TO_NEAREST_EVEN)


# Float ops whose result is exact, so that no rewrite of XLA can change it. Subnormal
# operands are flushed, but by abs and negate, which only touch the sign.
EXACT: dict[str, Function] = {
    "maximum": lambda a, b: lax.max(flush(a), flush(b)),
    "minimum": lambda a, b: lax.min(flush(a), flush(b)),
    "abs": lax.abs,
    "negate": lax.neg,
    "sign": lambda a: lax.sign(flush(a)),
    "floor": lambda a: lax.floor(flush(a)),
    "ceil": lambda a: lax.ceil(flush(a)),
    "round_nearest_even": _round_half_even,
    "round_nearest_afz": _round_half_away,
}
# On the operand's own dtype.
BITWISE: dict[str, Function] = {
    "is_finite": lax.is_finite,
    "next_after": lax.nextafter,
}
ROUNDED: dict[str, Function] = {
    "add": lambda a, b, zero: lax.add(a, b),
    "subtract": lambda a, b, zero: lax.sub(a, b),
    "multiply": lambda a, b, zero: lax.mul(a, b),
    "remainder": lambda a, b, zero: lax.rem(a, b),
    **elementary.BINARY,
}


# Sums need no seal: a product is contracted into a sum, never a sum into a product, and
# constants are sealed, so nothing can be reassociated through them.
SUMS = frozenset({"add", "subtract"})


@execute.register
def tensor_tensor(i: TensorTensor, x: Sequence[jax.Array], r: Registers) -> Arrays:
    x = _scalars_broadcast(x)
    dtype = x[0].dtype
    if dtype == jnp.bool_:
        return (BOOLEANS[i.op](*x),)
    if dtype.kind in "iu" and i.integer_path == "fp32":
        wide_result = COMMON[i.op](*[a.astype(jnp.float32) for a in x])
        return (round_to_int(seal(wide_result, r.zero), dtype, mode="rne"),)
    if dtype.kind in "iu":
        return (INTEGERS[i.op](*x),)
    if i.op in BITWISE:
        return (BITWISE[i.op](*x),)
    operands = [wide(a) for a in x]
    if i.op in EXACT:
        result = EXACT[i.op](*operands)
        rounds = i.write_format is not None or dtype != jnp.float32
        return (write(result, i, r) if rounds else result,)
    result = ROUNDED[i.op](*operands, r.zero)
    if i.op in SUMS and i.write_format is None and dtype == jnp.float32:
        return (result,)
    return (write(result, i, r),)


def _scalars_broadcast(x: Sequence[jax.Array]) -> Sequence[jax.Array]:
    """clamp's bounds may be scalars beside a tensor."""
    shape = max((a.shape for a in x), key=len)
    return [a if a.shape == shape else jnp.broadcast_to(a, shape) for a in x]


COMPARISONS: dict[str, Function] = {
    "EQ": lax.eq,
    "NE": lax.ne,
    "LT": lax.lt,
    "LE": lax.le,
    "GT": lax.gt,
    "GE": lax.ge,
}


def total_order(x: jax.Array) -> jax.Array:
    """Signed integers ordered as IEEE totalOrder orders the floats `x`."""
    bits = lax.bitcast_convert_type(x, jnp.dtype(f"int{x.dtype.itemsize * 8}"))
    largest = jnp.asarray(jnp.iinfo(bits.dtype).max, bits.dtype)
    return jnp.where(bits < 0, bits ^ largest, bits)


@execute.register
def compare(i: Compare, x: Sequence[jax.Array], r: Registers) -> Arrays:
    if i.total and x[0].dtype.kind not in "iub":
        x = [total_order(a) for a in x]
    elif x[0].dtype.kind not in "iub":
        x = [wide(a) for a in x]
    return (COMPARISONS[i.direction](*x),)


@execute.register
def select(i: Select, x: Sequence[jax.Array], r: Registers) -> Arrays:
    predicate, on_true, on_false = x
    if predicate.shape != on_true.shape:
        predicate = jnp.broadcast_to(predicate, on_true.shape)
    return (lax.select(predicate, on_true, on_false),)


@execute.register
def tensor_scalar(i: TensorScalar, x: Sequence[jax.Array], r: Registers) -> Arrays:
    scalar = jnp.broadcast_to(wide(x[1]), x[0].shape)
    result = ROUNDED[i.op](wide(x[0]), scalar, r.zero)
    return (write(result, i, r),)


@execute.register
def tensor_copy(i: TensorCopy, x: Sequence[jax.Array], r: Registers) -> Arrays:
    return (convert(x[0], i, r),)


def convert(x: jax.Array, i: TensorCopy, r: Registers) -> jax.Array:
    """A cast between any two dtypes."""
    source, target = x.dtype, i.results[0].type.dtype
    from_float, to_float = source.kind not in "iub", target.kind not in "iub"
    if to_float:
        if from_float and target == np.float32 and i.write_format is None:
            return wide(x)
        if from_float:
            return write(wide(x), i, r)
        # An integer may be a constant: opaque before anything is added to it.
        return write(opaque(x.astype(jnp.float32), r.zero), i, r)
    if not from_float:
        return (
            lax.ne(x, jnp.zeros((), source)) if target == np.bool_ else x.astype(target)
        )
    if target == np.bool_:
        return lax.ne(wide(x), jnp.float32(0))
    return round_to_int(wide(x), target, mode=i.float_to_int)  # type: ignore[arg-type]


@execute.register
def reduce_precision(
    i: ReducePrecision, x: Sequence[jax.Array], r: Registers
) -> Arrays:
    return (lax.reduce_precision(x[0], i.exponent_bits, i.mantissa_bits),)


@execute.register
def scale_from_amax(i: ScaleFromAmax, x: Sequence[jax.Array], r: Registers) -> Arrays:
    """Exponents are integers throughout: XLA flushes the float 2^-127 to zero."""
    fmt = get_format(i.format)
    largest = np.float32(fmt.max_finite).view(np.uint32)
    bits = bits_of(x[0])
    biased = (bits >> 23) & jnp.uint32(0xFF)
    # One power less where amax's significand exceeds that of the largest value.
    exceeds = (bits & jnp.uint32(0x7FFFFF)) > jnp.uint32(largest & 0x7FFFFF)
    top = fmt.max_exponent - i.margin - exceeds.astype(jnp.int32)
    exponent = top - (biased.astype(jnp.int32) - 127)
    usable = (biased > 0) & (biased < 255)
    exponent = jnp.where(usable, jnp.clip(exponent, -126, 126), 0)
    return (_power_of_two(exponent), _power_of_two(-exponent))


def _power_of_two(exponent: jax.Array) -> jax.Array:
    bits = (exponent + 127).astype(jnp.uint32) << 23
    return lax.bitcast_convert_type(bits, jnp.float32)


REDUCTIONS: dict[str, Function] = {
    "maximum": lax.reduce_max,
    "minimum": lax.reduce_min,
    "and": lax.reduce_and,
    "or": lax.reduce_or,
    "xor": lax.reduce_xor,
    "add": lax.reduce_sum,
    "multiply": lax.reduce_prod,
}
ON_BOOLEANS = {"add": "or", "maximum": "or", "multiply": "and", "minimum": "and"}


@execute.register
def tensor_reduce(i: TensorReduce, x: Sequence[jax.Array], r: Registers) -> Arrays:
    operand, init = x
    dtype = operand.dtype
    if i.integer_path == "fp32":
        floats = (a.astype(jnp.float32) for a in (operand, init))
        operand, init = floats
        total = fold_axes(operand, i.axes, init, i.op, r.zero)
        total = lax.reshape(total, i.results[0].type.shape)
        return (round_to_int(total, dtype, mode="rne"),)
    if dtype.kind in "iub":
        return (_integer_reduce(i.op, operand, init, i.axes),)
    operand, init = wide(operand), wide(init)
    if i.op in ("maximum", "minimum"):
        result = _extreme(i.op, operand, init, i.axes)
        return (result if dtype == jnp.float32 else write(result, i, r),)
    shape = i.results[0].type.shape
    total = fold_axes(operand, i.axes, init, i.op, r.zero)
    return (write(lax.reshape(total, shape), i, r),)


def _integer_reduce(
    op: str, operand: jax.Array, init: jax.Array, axes: Sequence[int]
) -> jax.Array:
    boolean = operand.dtype == jnp.bool_
    name = ON_BOOLEANS.get(op, op) if boolean else op
    reduced = REDUCTIONS[name](operand, axes=tuple(axes))
    table = BOOLEANS if boolean else INTEGERS
    return table[op](reduced, jnp.broadcast_to(init, reduced.shape))


def _extreme(
    op: str, operand: jax.Array, init: jax.Array, axes: Sequence[int]
) -> jax.Array:
    """Largest or smallest: NaN wins, -0 is below +0.

    Reduced as integers in the order of the floats, since XLA's float reduction loses
    NaNs on some shapes (it hands the work to another library).
    """
    key = _extreme_key(op, operand)
    reduced = REDUCTIONS[op](key, axes=tuple(axes))
    start = jnp.broadcast_to(_extreme_key(op, init), reduced.shape)
    bits = COMMON[op](reduced, start)
    bits = jnp.where(bits < 0, bits ^ jnp.int32(0x7FFFFFFF), bits)
    return lax.bitcast_convert_type(bits, jnp.float32)


def _extreme_key(op: str, x: jax.Array) -> jax.Array:
    """Signed integers in the order of the floats, NaN at the end that wins."""
    nan = np.float32(np.nan) if op == "maximum" else -np.float32(np.nan)
    return total_order(jnp.where(x != x, nan, flush(x)))
