"""VectorE: elementwise arithmetic, comparison, selection, casts and reductions.

Floats are computed in FP32 and rounded once when they are written; integers are exact
and wrap around. Where StableHLO leaves an integer result undefined, it is XLA's: x / 0
has all bits set, x rem 0 is x, the smallest number divided by -1 is itself, a shift by
the width or more shifts every bit out, and 0 to a negative power is 0.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from neuronjax.execution.engines import host_scale
from neuronjax.execution.engines.dispatch import (
    Arrays,
    Registers,
    bits_of,
    execute,
    wide,
    write,
)
from neuronjax.execution.engines.fold import fold_axes
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
from neuronjax.numerics import elementary, order_free
from neuronjax.numerics.elementary_core import flush
from neuronjax.numerics.exact import opaque, product, seal
from neuronjax.numerics.float_format import FLOAT32, get_format
from neuronjax.numerics.microscaling import to_codes
from neuronjax.numerics.rounding import round_to_int
from neuronjax.numerics.widening import from_codes

Function = Callable[..., jax.Array]


def integer_power(x: jax.Array, y: jax.Array) -> jax.Array:
    """Return x^y modulo the width; a negative power of anything but 1 and -1 is 0."""
    one, zero = jnp.ones_like(x), jnp.zeros_like(x)
    result, square, remaining = one, x, y
    for _ in range(jnp.iinfo(x.dtype).bits):
        result = jnp.where((remaining & one) != 0, result * square, result)
        square, remaining = square * square, lax.shift_right_logical(remaining, one)
    if jnp.iinfo(x.dtype).min == 0:
        return result
    sign = jnp.where((y & one) != 0, x, one)  # x^y for x = 1 or -1
    return jnp.where(y >= 0, result, jnp.where((x == 1) | (x == -1), sign, zero))


def high_product(x: jax.Array, y: jax.Array) -> jax.Array:
    """Return the upper half of the double-width product, by products of half words."""
    info = jnp.iinfo(x.dtype)
    word = jnp.dtype(f"uint{info.bits}")
    half = jnp.asarray(info.bits // 2, word)
    a, b = (lax.bitcast_convert_type(v, word) for v in (x, y))
    low = jnp.asarray((1 << (info.bits // 2)) - 1, word)
    a_low, a_high, b_low, b_high = a & low, a >> half, b & low, b >> half
    first = a_high * b_low + ((a_low * b_low) >> half)
    second = a_low * b_high + (first & low)
    high = a_high * b_high + (first >> half) + (second >> half)
    if info.min < 0:  # a negative x is its code minus 2^bits
        nothing = jnp.zeros((), word)
        high = high - jnp.where(x < 0, b, nothing) - jnp.where(y < 0, a, nothing)
    return lax.bitcast_convert_type(high, x.dtype)


# Operations that are the same function on floats, integers and booleans.
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
    "power": integer_power,
    "mulhi": high_product,
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
# XLA's constant folding of these ops gives other numbers than its code computes, such
# as -32 leading zeros of an int32 -1. All others may be folded, as indices need:
# `test_constant_operands` tests them.
FOLDED_WRONGLY = frozenset({"count_leading_zeros"})
BOOLEANS: dict[str, Function] = {
    **INTEGERS,
    "add": lax.bitwise_or,
    "multiply": lax.bitwise_and,
    "maximum": lax.bitwise_or,
    "minimum": lax.bitwise_and,
}


# Float operations whose result is exact, so no rewrite of XLA can change it. Subnormal
# operands are flushed, except by abs and negate, which only change the sign.
EXACT: dict[str, Function] = {
    "maximum": lambda a, b: lax.max(flush(a), flush(b)),
    "minimum": lambda a, b: lax.min(flush(a), flush(b)),
    "abs": lax.abs,
    "negate": lax.neg,
    "sign": lambda a: lax.sign(flush(a)),
    "floor": lambda a: lax.floor(flush(a)),
    "ceil": lambda a: lax.ceil(flush(a)),
    "round_nearest_even": lambda x: lax.round(x, lax.RoundingMethod.TO_NEAREST_EVEN),
    "round_nearest_afz": lambda x: lax.round(x, lax.RoundingMethod.AWAY_FROM_ZERO),
}
# Operations that read the operand in its own dtype.
BITWISE: dict[str, Function] = {"is_finite": lax.is_finite, "next_after": lax.nextafter}
ROUNDED: dict[str, Function] = {
    "add": lambda a, b, zero: lax.add(a, b),
    "subtract": lambda a, b, zero: lax.sub(a, b),
    "multiply": product,
    **elementary.BINARY,
    **elementary.SPECIAL,
}


# Sums need no seal: XLA contracts a product into a sum, but never a sum into a product.
# Constants are sealed, so nothing can be reassociated through them.
SUMS = frozenset({"add", "subtract"})


@execute.register
def tensor_tensor(i: TensorTensor, x: Sequence[jax.Array], r: Registers) -> Arrays:
    shape = max((a.shape for a in x), key=len)  # a clamp may have scalar bounds
    x = [a if a.shape == shape else jnp.broadcast_to(a, shape) for a in x]
    dtype = x[0].dtype
    if dtype == jnp.bool_:
        return (BOOLEANS[i.op](*x),)
    if dtype.kind in "iu" and i.integer_path == "fp32":
        wide_result = COMMON[i.op](*[a.astype(jnp.float32) for a in x])
        return (round_to_int(seal(wide_result, r.zero), dtype, mode="rne"),)
    if i.integer_path == "reciprocal":
        numbers, divisors = [a.astype(jnp.float32) for a in x]
        inverses = ROUNDED["divide"](jnp.ones_like(divisors), divisors, r.zero)
        quotients = product(numbers, inverses, r.zero)
        return (round_to_int(quotients, dtype, mode="truncate"),)
    if dtype.kind in "iu":
        if i.op in FOLDED_WRONGLY:
            x = [opaque(a, r.zero) for a in x]
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


COMPARISONS: dict[str, Function] = {
    name: getattr(lax, name.lower()) for name in "EQ NE LT LE GT GE".split()
}


@execute.register
def compare(i: Compare, x: Sequence[jax.Array], r: Registers) -> Arrays:
    if i.total and x[0].dtype.kind not in "iub":
        x = [order_free.total_order(a) for a in x]
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
    if host_scale.casts(i):
        return (host_scale.scaled(i, *x),)
    scalar = jnp.broadcast_to(wide(x[1]), x[0].shape)
    result = ROUNDED[i.op](wide(x[0]), scalar, r.zero)
    return (write(result, i, r),)


@execute.register
def tensor_copy(i: TensorCopy, x: Sequence[jax.Array], r: Registers) -> Arrays:
    return (convert(x[0], i, r),)


def convert(x: jax.Array, i: TensorCopy, r: Registers) -> jax.Array:
    """Return numbers of any dtype in the dtype of the result."""
    source, target = x.dtype, i.results[0].type.dtype
    from_float, to_float = source.kind not in "iub", target.kind not in "iub"
    if to_float:
        if from_float and target == np.float32 and i.write_format is None:
            return wide(x)
        if from_float:
            return write(wide(x), i, r)
        # An integer may be a constant: it is made opaque before anything is added.
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
    """Round to fewer bits, to nearest even, with integers of the operand's own width.
    Numbers below the smallest normal number of the narrower format become zeros,
    numbers above its largest become Inf (NaN in a format without Inf). FP32 and BF16
    subnormals become zeros. NaNs stay NaN; without mantissa bits they become Inf."""
    exponent_bits, mantissa_bits = i.exponent_bits, i.mantissa_bits
    fmt = get_format(x[0].dtype)
    code = (to_codes(x[0]) if fmt.width < 8 else bits_of(x[0])).astype(jnp.uint32)
    sign = code & jnp.uint32(1 << (fmt.width - 1))
    size = code ^ sign
    last = fmt.overflow_code if fmt.has_inf else fmt.max_code
    is_nan = size > jnp.uint32(last)
    if fmt.exponent_bits == FLOAT32.exponent_bits:
        size = jnp.where(size >> fmt.mantissa_bits == 0, jnp.uint32(0), size)
    overflowed = jnp.uint32(fmt.overflow_code)
    is_infinite = (size == last) if fmt.has_inf else jnp.zeros_like(is_nan)
    drop = fmt.mantissa_bits - mantissa_bits
    if drop > 0:
        half = (size >> drop) & 1
        size = size + half + jnp.uint32((1 << (drop - 1)) - 1)
        size = size & jnp.uint32(0xFFFFFFFF << drop & 0xFFFFFFFF)
    if exponent_bits < fmt.exponent_bits:
        reach = (1 << (exponent_bits - 1)) - 1
        exponent = (size >> fmt.mantissa_bits).astype(jnp.int32)
        size = jnp.where(exponent > fmt.bias + reach, overflowed, size)
        size = jnp.where(exponent <= fmt.bias - reach, jnp.uint32(0), size)
    size = jnp.where(is_infinite | (size > fmt.max_code), overflowed, size)
    nan = fmt.nan_code if mantissa_bits else fmt.overflow_code
    size = jnp.where(is_nan, jnp.uint32(nan), size)
    return (from_codes(size | sign, fmt),)


@execute.register
def scale_from_amax(i: ScaleFromAmax, x: Sequence[jax.Array], r: Registers) -> Arrays:
    """Return the power-of-two scale for a largest magnitude. Exponents are integers
    throughout, because XLA flushes the float 2^-127 to zero."""
    fmt = get_format(i.format)
    bits = bits_of(x[0])
    # Where the significand of amax exceeds that of the largest value, this addition
    # carries into the exponent, and the scale is one power smaller.
    largest = int(np.float32(fmt.max_finite).view(np.uint32)) & 0x7FFFFF
    carry, top = 0x7FFFFF - largest, fmt.max_exponent - i.margin + 2 * 127
    raised = (bits + np.uint32(carry)) >> np.uint32(23)
    exponent = np.int32(top) - raised.astype(jnp.int32)
    biased = lax.clamp(np.int32(1), exponent, np.int32(253))
    # Zeros, subnormals, Inf and NaN have no such scale.
    usable = bits - np.uint32(0x00800000) < np.uint32(0x7F000000)
    biased = jnp.where(usable, biased, np.int32(127))
    return tuple(
        lax.bitcast_convert_type(e << np.int32(23), jnp.float32)
        for e in (biased, np.int32(254) - biased)
    )


@execute.register
def tensor_reduce(i: TensorReduce, x: Sequence[jax.Array], r: Registers) -> Arrays:
    operand, init = x
    dtype, shape = operand.dtype, i.results[0].type.shape
    if i.integer_path == "fp32":
        operand, init = (a.astype(jnp.float32) for a in x)
        total = fold_axes(operand, i.axes, init, i.op, r.zero, i.tile)
        return (round_to_int(lax.reshape(total, shape), dtype, mode="rne"),)
    if dtype.kind in "iub":
        reduced = order_free.reduce_integers(i.op, operand, tuple(i.axes))
        table = BOOLEANS if dtype == jnp.bool_ else INTEGERS
        return (table[i.op](reduced, jnp.broadcast_to(init, reduced.shape)),)
    if i.op == host_scale.LARGEST_MAGNITUDE:
        return (host_scale.largest_magnitude(operand),)
    operand, init = wide(operand), wide(init)
    if i.op in ("maximum", "minimum"):
        key = order_free.REDUCTIONS[i.op](
            order_free.extreme_key(i.op, operand), axes=tuple(i.axes)
        )
        start = jnp.broadcast_to(order_free.extreme_key(i.op, init), key.shape)
        result = order_free.extreme_of_key(COMMON[i.op](key, start))
        return (result if dtype == jnp.float32 else write(result, i, r),)
    total = fold_axes(operand, i.axes, init, i.op, r.zero, i.tile)
    return (write(lax.reshape(total, shape), i, r),)
